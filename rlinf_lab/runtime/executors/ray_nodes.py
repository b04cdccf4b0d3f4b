"""The nodes of the Ray that this process uses, numbered. 0 is where the user's loop runs, the others count as they were
first seen.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from rlinf_lab.errors import Cancelled, ExecutorError, PlanError, UnknownNameError
from rlinf_lab.planning.plan.device import Device
from rlinf_lab.runtime.executors.ray_start import check_address, ensure_ray
from rlinf_lab.runtime.machine.devices import devices_here
from rlinf_lab.runtime.machine.ray_library import load_ray
from rlinf_lab.runtime.threads.main_thread_guard import Task

JOIN_SECONDS = 60
TOLD_AFTER_SECONDS = 2.0
ANSWER_SECONDS = (5.0, 20.0, 20.0)  # for a question that takes milliseconds: so often, and so long, it is asked
DYING_SECONDS = (0.0, 0.5, 1.0)  # between looks whether a node lives
ALIVE = 0  # GcsNodeInfo.state in Ray's protocol
T = TypeVar("T")
_LOCK = threading.Lock()
_SEEN: dict[str, list[str]] = {}  # cluster: ids of its nodes, in the order of their numbers


class Node(NamedTuple):
    """``id``: Ray's, as hexadecimal digits. ``resources``: what Ray counts there, by Ray's names."""

    id: str
    address: str
    resources: Mapping[str, float]


def nodes() -> dict[int, Node]:
    """The living nodes, by number. A number is never used again."""
    context = load_ray().get_runtime_context()
    said = answer_of_ray(lambda ray, seconds: ray.get_all_node_info(timeout=seconds))
    living = {
        key.hex(): Node(key.hex(), node.node_manager_address, dict(node.resources_total))
        for key, node in said.items()
        if node.state == ALIVE
    }
    with _LOCK:
        seen = _SEEN.setdefault(context.gcs_address, [context.get_node_id()])
        seen += sorted(set(living) - set(seen), key=lambda n: (living[n].address, n))
        return {number: living[name] for number, name in enumerate(seen) if name in living}


def why_gone(node: str) -> str:
    """How a node (Ray's id) was lost; "" where Ray runs there. Asks the node itself: Ray notices the death of one some
    ten seconds later than that of a process on it, and those of a node do not die at the same moment."""
    for wait in DYING_SECONDS:
        time.sleep(wait)
        found = {
            key.hex(): info
            for key, info in answer_of_ray(lambda ray, seconds: ray.get_all_node_info(timeout=seconds)).items()
        }.get(node)
        if found is None or found.state != ALIVE:
            return "its node has died, or left the cluster"
        try:
            socket.create_connection((found.node_manager_address, found.node_manager_port), timeout=2).close()
        except OSError as error:
            return f"its node {found.node_manager_address} has died, or is cut off: {error}"
    return ""


def _numbers_given() -> int:
    with _LOCK:
        return len(_SEEN.get(load_ray().get_runtime_context().gcs_address, ()))


def free_resources() -> dict[str, Mapping[str, float]]:
    """What nobody has reserved, by the id of the node."""
    said = answer_of_ray(lambda ray, seconds: ray.get_all_resource_usage(timeout=seconds))
    return {of_node.node_id.hex(): dict(of_node.resources_available) for of_node in said.resource_usage_data.batch}


def answer_of_ray(question: Callable[[Any, float], T]) -> T:
    """What Ray's control service says to a question. That gets its client and the seconds it may take; `ExecutorError`
    when it says nothing, or is gone.

    Ray's public functions wait for ever, inside C++ where no interrupt reaches them, and each has a connection of its
    own: a thread that is left in one ends the whole process a minute after that Ray has stopped. An answer can get lost
    on a busy machine (seen: one that came with the next sign of life on the connection, minutes later), so it is asked
    again.
    """
    ray = load_ray()
    client, address, said = ray._private.worker.global_worker.gcs_client, ray.get_runtime_context().gcs_address, ""
    for seconds in ANSWER_SECONDS:
        _refuse_when_gone(address)
        task = Task(partial(question, client, seconds))
        # aside: an interrupt is heard meanwhile
        threading.Thread(target=task.perform, name="question to ray", daemon=True).start()
        try:
            return task.result()
        except ray.exceptions.RpcError as error:
            said = str(error)
    times = ", ".join(f"{seconds:g}" for seconds in ANSWER_SECONDS)
    raise ExecutorError(
        f"The Ray at {address!r} did not answer {len(ANSWER_SECONDS)} times within {times} s ({said}): its control "
        "service "
        f"(gcs_server) is stopped, or its node is overloaded. Next: `ray status "
        f"--address={address}`; rlinf_lab.shutdown() ends a "
        f"private one, and the next run starts another."
    )


def _refuse_when_gone(address: str) -> None:
    """Where nobody listens any more, waiting is of no use. A minute after its service has gone Ray ends the processes
    that use it.
    """
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
    except ConnectionRefusedError as error:
        raise ExecutorError(
            f"The Ray at {address!r} is gone: its control service (gcs_server) does not run any more, and Ray ends "
            "this process within a minute. Next: "
            f"rlinf_lab.shutdown() (ray.shutdown() for a Ray of yours) at once; the next run starts another."
        ) from error
    except OSError:  # anything else the question itself will tell
        pass


def devices(kind: str | None = None, address: str | None = None) -> list[str]:
    """The devices of this machine that this process can use. These are its GPUs if there are any (``kind="cuda"``),
    else one for each core (``"cpu"``).

    ``address``: of a Ray cluster, as Ray writes it (``"auto"``: the one that runs here); then the devices of all its
    nodes, those of others as ``node1/cuda:0`` and so on.

    A GPU counts when torch can compute on it: not with a build of torch for CPUs, nor where CUDA_VISIBLE_DEVICES hides
    it. ``cuda:i`` is the i-th of those, as torch names them. Raises `PlanError` when ``kind="cuda"`` and there is none,
    with the reason.
    """
    if address is None:
        return devices_here(kind)
    if kind not in (None, "cpu", "cuda"):
        raise UnknownNameError.of("kind of device", kind, ["cpu", "cuda"])
    check_address(address)
    ensure_ray(address)
    return _of_all_nodes([*devices_here("cpu"), *(d for d in devices_here() if d.startswith("cuda"))], kind)


def _of_all_nodes(here: Sequence[str], kind: str | None) -> list[str]:
    """Those of this node (``here``), then what Ray counts on the others. Only GPUs are given if there are any."""
    found = [Device.parse(name) for name in here]
    for number, node in nodes().items():
        if number:
            found += [Device(number, "cuda", i) for i in range(int(node.resources.get("GPU", 0)))]
            found += [Device(number, "cpu", i) for i in range(int(node.resources.get("CPU", 0)))]
    best = kind or ("cuda" if any(d.kind == "cuda" for d in found) else "cpu")
    return [str(d) for d in found if d.kind == best]


def wait_for_nodes(
    devices: Sequence[str], stopped: Callable[[], bool], seconds: float = JOIN_SECONDS, *, emulate: bool = False
) -> dict[int, str]:
    """Node ids of the nodes that these devices are on. Waits for those that have not joined yet.

    Raises `PlanError` when they do not come in time (at once for one that was here and has gone: its number is never
    used again), or have fewer GPUs or cores than the devices say (``emulate``: cores may be fewer); `Cancelled` when
    ``stopped()``.
    """
    wanted = {0, *(Device.parse(name).node for name in devices)}
    began = time.monotonic()
    deadline, told = began + seconds, False
    while missing := sorted(wanted - set(found := nodes())):
        if stopped():
            raise Cancelled("The run was stopped while it waited for nodes.")
        lacking = [d for d in devices if Device.parse(d).node in missing]
        _refuse_gone(lacking, found)
        if time.monotonic() > deadline:
            raise PlanError(
                f"The plan uses {', '.join(lacking)}, and this Ray has {_counted(found)} after waiting {seconds:g} s. "
                f"Next: add nodes with `ray start --address=...`, or a plan on lab.devices(address='auto')."
            )
        if not told and time.monotonic() > began + TOLD_AFTER_SECONDS:
            told = True
            logging.getLogger("rlinf_lab").warning(
                "Waiting up to %g s for a node that is not there yet: the plan uses %s, and this Ray has %s.",
                seconds,
                ", ".join(lacking),
                _counted(found),
            )
        time.sleep(0.1)
    for number in sorted(wanted):
        _refuse_too_few_gpus(number, found[number], devices)
        if number and not emulate:
            _refuse_missing_cores(number, found[number], devices)
    return {number: found[number].id for number in wanted}


def _counted(living: Mapping[int, Node]) -> str:
    return f"{len(living)} node{'s' * (len(living) != 1)}"


def _refuse_gone(lacking: Sequence[str], living: Mapping[int, Node]) -> None:
    """What they are on has left the cluster, or died. It cannot come back, for who joins has a new number."""
    given = _numbers_given()
    if gone := [d for d in lacking if Device.parse(d).node < given]:
        there = ", ".join(f"node{number}" if number else "this one" for number in sorted(living))
        raise PlanError(
            f"The plan uses {', '.join(gone)}, and that node has left the cluster or died; a node that joins has a new "
            f"number. There are now: {there}. "
            f"Next: a plan on lab.devices(address='auto')."
        )


def _refuse_too_few_gpus(number: int, node: Node, devices: Sequence[str]) -> None:
    """Ray would let the actors wait for ever."""
    asked = [str(d) for d in map(Device.parse, devices) if (d.node, d.kind) == (number, "cuda")]
    there = node.resources.get("GPU", 0)
    if len(asked) > there:
        raise PlanError(
            f"The plan uses {len(asked)} GPUs ({', '.join(asked)}), and this Ray has {there:g} on that node. "
            f"Next: rlinf-lab doctor, or a plan on devices('cpu')."
        )


def _refuse_missing_cores(number: int, node: Node, devices: Sequence[str]) -> None:
    there = int(node.resources.get("CPU", 0))
    lacking = [str(d) for d in map(Device.parse, devices) if (d.node, d.kind) == (number, "cpu") and d.index >= there]
    if lacking:
        raise PlanError(
            f"The plan uses {', '.join(lacking)}, and Ray counts {there} CPUs on that node. "
            f"Next: a plan on lab.devices(address='auto'), or emulate=True: then several CPU slots share a core."
        )
