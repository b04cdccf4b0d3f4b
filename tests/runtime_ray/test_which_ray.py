"""Which Ray is used and what is reserved there, with a mock of Ray: each case, without a process."""

from __future__ import annotations

import itertools
import math
import random
import socket
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace as Some
from typing import Any

import pytest

from rlinf_lab import ExecutionPlan, Worker, Workflow
from rlinf_lab.errors import Cancelled, ExecutorError, PlanError
from rlinf_lab.runtime.executors import placement_group, ray_nodes, ray_start
from rlinf_lab.runtime.executors.node_probe import NodeFacts
from rlinf_lab.runtime.executors.placement_group import NODE, SOMETHING, Reservation
from rlinf_lab.runtime.executors.ray_nodes import Node
from rlinf_lab.runtime.run import preflight

OURS = "here:1"
CASES = itertools.product(["", "private", "somebody's"], [None, "auto", OURS, "there:2"], [None, "set:3"], [False, True], [None, "1", "2"])


@pytest.mark.parametrize(("initialised", "address", "variable", "is_gone", "threads"), CASES)
def test_the_ray_of_this_process_or_the_named_one_or_a_private_one(
    initialised: str, address: str | None, variable: str | None, is_gone: bool, threads: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``is_gone``: of a private one, its raylet; where none is initialised, that somebody has shut a private one down."""
    done: list[str] = []
    dead = [("raylet", Some(pid=7))] if is_gone else [("dashboard", Some(pid=8))]
    node = Some(dead_processes=lambda: dead)
    ray = Some(
        is_initialized=lambda: bool(initialised), get_runtime_context=lambda: Some(gcs_address=OURS), init=lambda **options: done.append(options["address"]),
        _private=Some(worker=Some(_global_node=node)),
    )  # fmt: skip
    before = Some(is_current=lambda: initialised == "private", close=lambda: done.append("closed"), threads=threads)
    fresh = Some(wait=lambda: done.append("private"))
    private = before if initialised == "private" or (not initialised and is_gone) else None
    for name, value in (("load_ray", lambda: ray), ("PrivateRay", lambda: fresh), ("_PRIVATE", private)):
        monkeypatch.setattr(ray_start, name, value)
    monkeypatch.setenv("RAY_ADDRESS", variable) if variable else monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert ray_start.is_private() == (initialised == "private")
    assert ray_start.has_one_thread_each() == (initialised == "private" and threads != "2")
    refused = ""
    if initialised:
        others = address not in (None, OURS, *(["auto"] if initialised != "private" else []))
        refused = "already initialised here with 'here:1'" if others else "raylet .process 7. was killed" if initialised == "private" and is_gone else ""
    if refused:
        with pytest.raises(ExecutorError, match=refused) as caught:
            ray_start.ensure_ray(address)
        assert ("rlinf_lab.shutdown()" in str(caught.value)) == (initialised == "private")
    else:
        ray_start.ensure_ray(address)
    named = address or variable
    assert done == ([] if initialised else [named] if named else ["closed"] * is_gone + ["private"])
    assert ray_start._PRIVATE is (fresh if done[-1:] == ["private"] else private)
    ray_start._PRIVATE = private
    ray_start.shutdown()
    assert ray_start._PRIVATE is None and done[-1:] == (["closed"] if private else done[-1:])


@pytest.mark.parametrize("seed", range(60))
def test_what_is_reserved_of_each_node_and_which_of_them_lack_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, asked, removed = random.Random(seed), list[Any](), list[Any]()
    there = {n: Some(address=f"10.0.0.{n}", resources={"CPU": rng.choice([0.0, 2.0, 8.0])}) for n in range(3)}
    free = {f"id{n}": {"CPU": rng.choice([0.0, 1.0, 2.0]), "GPU": float(rng.randrange(3))} for n in range(2)}
    devices = [f"{f'node{n}/' if n else ''}{kind}:{i}" for n in range(seed % 3 + 1) for kind in ("cpu", "cuda") for i in range(4) if rng.random() < 0.3] or ["cpu:0"]
    emulate, polls = rng.random() < 0.3, rng.choice([0, 2, math.inf])
    many = Counter((int(d[4]) if d.startswith("node") else 0, "GPU" if "cuda" in d else "CPU") for d in devices)
    wanted = {n: {"CPU": 0.0 if emulate else min(many[n, "CPU"], there[n].resources["CPU"]), "GPU": many[n, "GPU"]} for n, _ in many}
    wanted = {n: {kind: v for kind, v in of.items() if v} or SOMETHING for n, of in wanted.items()}
    ready, waits, group = object(), itertools.count(), Some(ready=lambda: ready)
    strategies = Some(PlacementGroupSchedulingStrategy=lambda group, placement_group_bundle_index: placement_group_bundle_index)
    util = Some(placement_group=lambda *args, **more: (asked.append((*args, more)), group)[1], remove_placement_group=removed.append, scheduling_strategies=strategies)
    ray = Some(util=util, wait=lambda some, timeout: (some if next(waits) >= polls else [], []))
    for name, value in (("load_ray", lambda: ray), ("nodes", lambda: there), ("free_resources", lambda: free)):
        monkeypatch.setattr(placement_group, name, value)
    made = Reservation.of([*devices, devices[0]], {n: f"id{n}" for n in there}, emulate=emulate)
    order = sorted(wanted)
    assert made.wanted == wanted
    made.remove()
    if polls == math.inf:
        lacks = [n for n in order if any(free.get(f"id{n}", {}).get(kind, 0) < v for kind, v in wanted[n].items())] or order
        with pytest.raises(ExecutorError, match="within -1 s") as caught:
            made.wait(lambda: False, -1.0)
        assert [n for n in there if f"node {n} (10.0.0.{n}): " in str(caught.value)] == lacks
        with pytest.raises(Cancelled):
            made.wait(lambda: True, 60.0)
    else:
        made.wait(lambda: False, 60.0)
        assert next(waits) == polls + 1
    strategy = "STRICT_SPREAD" if len(order) > 1 else "STRICT_PACK"
    assert asked[0] == ([wanted[n] for n in order], strategy, {"bundle_label_selector": [{NODE: f"id{n}"} for n in order]})
    assert [made.on(n) for n in order] == list(range(len(order)))
    made.remove()
    made.remove()
    assert removed == [group]


@pytest.mark.parametrize("seed", range(30))
def test_nodes_keep_their_numbers_and_what_a_plan_needs_of_them_is_there_or_told(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes come and go at random; a number is never used again."""
    rng, seen, own = random.Random(seed), [b"\x07".hex()], b"\x07"
    context = Some(gcs_address="here:1", get_node_id=own.hex)
    resources = {bytes([i]): {"CPU": float(rng.randrange(3)), "GPU": float(rng.randrange(3))} for i in range(9)}
    now: dict[bytes, Any] = {}
    for name, value in (("load_ray", lambda: Some(get_runtime_context=lambda: context)), ("answer_of_ray", lambda _: now), ("_SEEN", {})):
        monkeypatch.setattr(ray_nodes, name, value)
    for _ in range(6):
        now = {key: Some(node_manager_address=f"10.0.0.{9 - key[0] // 2}", state=rng.choice([0, 0, 0, 1]), resources_total=of) for key, of in resources.items() if rng.random() < 0.6 or key == own}
        now[own].state = 0
        living = {key.hex(): Node(key.hex(), some.node_manager_address, some.resources_total) for key, some in now.items() if some.state == 0}
        seen += sorted((name for name in living if name not in seen), key=lambda n: (living[n].address, n))
        expected = {number: living[name] for number, name in enumerate(seen) if name in living}
        assert ray_nodes.nodes() == expected and ray_nodes._numbers_given() == len(seen)
        here = ["cpu:0", *(["cuda:0"] if rng.random() < 0.3 else [])]
        every = [*here, *(f"node{n}/{kind}:{i}" for n, node in expected.items() if n for kind, of in (("cuda", "GPU"), ("cpu", "CPU")) for i in range(int(node.resources[of])))]
        for kind in (None, "cpu", "cuda"):
            best = kind or ("cuda" if any("cuda" in d for d in every) else "cpu")
            assert ray_nodes._of_all_nodes(here, kind) == [d for d in every if f"{best}:" in d]
        number, emulate, is_stopped = rng.randrange(len(seen) + 1), rng.random() < 0.5, rng.random() < 0.3
        kind, count = rng.choice(["cpu", "cuda"]), rng.randrange(1, 3)
        devices = [f"node{number}/{kind}:{i}" if number else f"{kind}:{i}" for i in range(count)]
        error, says = None, ""
        if number not in expected:
            error, says = (Cancelled, "waited") if is_stopped else (PlanError, "has left the cluster or died" if number < len(seen) else rf"this Ray has {len(living)} nodes? after waiting -1 s")
        elif kind == "cuda" and count > expected[number].resources["GPU"]:
            error, says = PlanError, rf"The plan uses {count} GPUs .*has {expected[number].resources['GPU']:g} on that node"
        elif kind == "cpu" and number and not emulate and count > expected[number].resources["CPU"]:
            error, says = PlanError, rf"uses {devices[int(expected[number].resources['CPU'])]}.*, and Ray counts {expected[number].resources['CPU']:g} CPUs on that node"
        with pytest.raises(error, match=says) if error else nullcontext():
            assert ray_nodes.wait_for_nodes(devices, lambda: is_stopped, -1.0, emulate=emulate) == {n: seen[n] for n in {0, number}}  # noqa: B023


class Rpc(Exception):
    pass


@pytest.mark.parametrize("silent", range(5))
def test_ray_is_asked_three_times_unless_it_is_gone(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a node that has died, or is cut off, is told from one that lives."""
    server = socket.create_server(("127.0.0.1", 0))
    port, asked, over = server.getsockname()[1], list[float](), list[str]()
    ray = Some(
        _private=Some(worker=Some(global_worker=Some(gcs_client="client"))), exceptions=Some(RpcError=Rpc),
        get_runtime_context=lambda: Some(gcs_address=f"127.0.0.1:{port}"),
    )  # fmt: skip
    info = {b"\x01": Some(state=0, node_manager_address="127.0.0.1", node_manager_port=port), b"\x02": Some(state=1)}
    for name, value in (("load_ray", lambda: ray), ("ANSWER_SECONDS", (1.0, 2.0, 3.0)), ("DYING_SECONDS", (0.0, 0.0))):
        monkeypatch.setattr(ray_nodes, name, value)

    def question(client: str, seconds: float) -> Any:
        asked.append(seconds)
        if len(asked) <= silent:
            raise Rpc("busy")
        return client, info

    with pytest.raises(ExecutorError, match=r"did not answer 3 times within 1, 2, 3 s \(busy\)") if silent > 2 else nullcontext():
        over.append(ray_nodes.answer_of_ray(question)[0])
    assert asked == [1.0, 2.0, 3.0][: silent + 1] and over == ["client"] * (silent < 3)
    monkeypatch.setattr(ray_nodes, "answer_of_ray", lambda ask: ask(Some(get_all_node_info=lambda timeout: info), 1.0))
    assert ray_nodes.why_gone("01") == "" and ray_nodes.why_gone("02") == ray_nodes.why_gone("03") == "its node has died, or left the cluster"
    monkeypatch.undo()
    monkeypatch.setattr(ray_nodes, "load_ray", lambda: ray)
    server.close()
    with pytest.raises(ExecutorError, match="is gone: its control service"):
        ray_nodes.answer_of_ray(question)
    assert len(asked) == min(silent + 1, 3)


@pytest.mark.parametrize("seed", range(40))
def test_what_nodes_lack_is_said_of_each(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of other versions, workers that cannot be made there, ports that are closed; or nodes that are not there at all."""
    rng, asked = random.Random(seed), list[Any]()
    mine = {"python": "3.11", "torch": "2.1", "ray": None}
    ids = {n: f"id{n}" for n in range(seed % 3 + 1)}
    facts = {
        i: NodeFacts({p: rng.choice([v, v, v, v, "9", None]) for p, v in mine.items()}, {"w": "boom", "v": "other"} if rng.random() < 0.15 else {}) for i in ids.values()
    }  # fmt: skip
    closed = {pair for pair in itertools.permutations(ids.values(), 2) if rng.random() < 0.15}

    def wait(devices: Any, stopped: Any, seconds: float, emulate: bool) -> dict[int, str]:
        asked.append((*devices, stopped(), seconds, emulate))
        if seed == 7:
            raise PlanError("no node 5. Next: wait.")
        return ids

    for name, value in (
        ("ensure_ray", asked.append), ("refuse_missing", lambda plan, emulate: asked.append(emulate)), ("wait_for_nodes", wait), ("facts_here", lambda: NodeFacts(mine, {})),
        ("facts_of", lambda node, packed, path: asked.append(list(packed)) or facts[node]), ("reach", lambda a, b: "refused" if (a, b) in closed else ""),
    ):  # fmt: skip
        monkeypatch.setattr(preflight, name, value)
    flow = Workflow("checked")
    worker = flow.worker(Worker, name="w")
    flow.iteration(lambda: worker.compute(0.0))
    report = preflight.check(flow, ExecutionPlan.temporal(flow, ["cpu:0"]), "ray", address="auto", emulate=bool(seed % 2))
    assert asked == ["auto", bool(seed % 2), ("cpu:0", False, 0.0, bool(seed % 2)), *([] if seed == 7 else [["w"]] * len(ids))]
    if seed == 7:
        assert [(c.name, c.status) for c in report.checks[2:]] == [("devices", "broken"), ("pickling", "ok")]
        assert report["devices"].found.startswith("no node 5") and report["devices"].mend == "wait." and not report.ok
        return
    told = {c.name: (c.status, c.found) for c in report.checks[4:]}
    expected = {}
    for n, node in ids.items():
        other = [f"{p} {v or 'missing'} (here {mine[p]})" for p, v in facts[node].versions.items() if v != mine[p]]
        missing = "broken" if None in facts[node].versions.values() else "optional"
        state = ("broken", "worker 'w' cannot be made there: boom") if facts[node].problems else (missing, ", ".join(other)) if other else ("ok", "3 packages as here")
        expected[f"packages of node {n}"] = state
    shut = [f"node {a} cannot open a connection to node {b} (refused)" for n in ids if n for a, b in ((0, n), (n, 0)) if (ids[a], ids[b]) in closed]
    reached = f"node 0 and {len(ids) - 1} other node{'s' * (len(ids) > 2)} reach each other" if len(ids) > 1 else "unix sockets and memory files"
    expected["ports"] = ("broken", "; ".join(shut)) if shut else ("ok", reached)
    assert {name: state for name, state in told.items() if name != "items"} == expected
    assert report.ok == all(status != "broken" for status, _ in expected.values())
    assert (told["items"][0] if report.ok else "") == ("optional" if report.ok else "")
