"""Which Ray is used and what is reserved there, with a mock of Ray: each case, without a process."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from types import SimpleNamespace as Some
from typing import Any

import pytest

from rlinf_lab.errors import Cancelled, ExecutorError
from rlinf_lab.runtime.executors import placement_group, ray_start
from rlinf_lab.runtime.executors.placement_group import NODE, SOMETHING, Reservation

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


@pytest.mark.parametrize("seed", range(20))
def test_what_is_reserved_of_each_node_and_which_of_them_lack_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, asked, removed = random.Random(seed), list[Any](), list[Any]()
    there = {n: Some(address=f"10.0.0.{n}", resources={"CPU": rng.choice([0.0, 2.0, 8.0])}) for n in range(3)}
    free = {f"id{n}": {"CPU": rng.choice([0.0, 1.0, 2.0]), "GPU": float(rng.randrange(3))} for n in range(2)}
    devices = [f"{f'node{n}/' if n else ''}{kind}:{i}" for n in range(3) for kind in ("cpu", "cuda") for i in range(4) if rng.random() < 0.3] or ["cpu:0"]
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
