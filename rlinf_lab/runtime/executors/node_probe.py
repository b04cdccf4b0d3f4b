"""What is true of a node of a cluster, asked there. It tells versions, if workers can be made, who reaches whom."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_lab.errors import said
from rlinf_lab.runtime.machine.ray_library import load_ray
from rlinf_lab.runtime.transport.pickling import Packed

PACKAGES = ("rlinf-lab", "torch", "numpy", "cloudpickle", "ray")
SECONDS = 5.0  # to open a connection


@dataclass(frozen=True)
class NodeFacts:
    """``versions``: of packages, None where one is missing. ``problems``: by worker, why it cannot be unpickled
    there.
    """

    versions: Mapping[str, str | None]
    problems: Mapping[str, str]


def facts_here(packed: Mapping[str, Packed] | None = None, path: Sequence[str] = ()) -> NodeFacts:
    """Of the machine and process that asks. ``packed``: declarations of workers to unpickle; ``path``: the driver's,
    which hosts get too.
    """
    sys.path += [entry for entry in path if entry not in sys.path]

    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        versions[name] = None
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    problems = {}
    for worker, declaration in (packed or {}).items():
        try:
            declaration.open()
        except Exception as error:  # whatever the module of the worker raises when it is imported
            problems[worker] = f"{type(error).__name__}: {said(error)}".splitlines()[0]
    return NodeFacts(versions, problems)


def facts_of(node: str, packed: Mapping[str, Packed], path: Sequence[str]) -> NodeFacts:
    """Of the Ray node with this id."""
    ray: Any = load_ray()
    found: NodeFacts = ray.get(_on(node, facts_here).remote(dict(packed), list(path)))
    return found


def reach(first: str, second: str) -> str:
    """Why node ``first`` cannot open a TCP connection to node ``second``; "" if it can."""
    ray: Any = load_ray()
    listener = ray.remote(_Listener).options(scheduling_strategy=_affinity(second), num_cpus=0).remote()
    problem: str = ray.get(_on(first, _connect).remote(*ray.get(listener.address.remote())))
    ray.kill(listener)
    return problem


class _Listener:
    """An open port on the node that this actor lives on."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("", 0))

    def address(self) -> tuple[str, int]:
        ray: Any = load_ray()
        return ray.util.get_node_ip_address(), self.socket.getsockname()[1]


def _connect(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), SECONDS).close()
    except OSError as error:
        return f"{host}:{port}: {error}"
    return ""


def _on(node: str, function: Any) -> Any:
    """The function as a task on that node."""
    ray: Any = load_ray()
    return ray.remote(function).options(scheduling_strategy=_affinity(node), num_cpus=0)


def _affinity(node: str) -> Any:
    ray: Any = load_ray()
    return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)

