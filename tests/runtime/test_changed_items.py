"""Items between a put and a get: whatever the sizes, each is given once and in order, and what came packed goes on packed where it is whole. An item that is
changed meanwhile would arrive changed under one plan and not under another: `check_items` tells it (the oracle is the copy: under a plan that keeps the ends
apart the same code gives what the check asks for)."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlinf_lab.errors import WorkerError
from rlinf_lab.planning.engine.queue_order import Groups
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.run.preflight import check
from rlinf_lab.runtime.run.run import session
from rlinf_lab.runtime.transport.item_batches import Ordered, Parcel, Piece, split_off, take
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.runtime.transport.unchanged import Unchanged
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow


@dataclass
class Sample:
    obs: np.ndarray
    note: Any = None


class Holder:
    """No container that is known: looked at by its pickle."""

    def __init__(self, value: float) -> None:
        self.value = value


class Maker(Worker):
    def make(self, count: int, is_new: bool, items: Outbox[Sample]) -> None:
        sample = Sample(np.zeros(100_000))
        for i in range(count):
            if is_new:
                sample = Sample(np.zeros(100_000))
            sample.obs[-1] = i
            items.put(sample)


class Taker(Worker):
    def take(self, items: Inbox[Sample]) -> list[float]:
        return [float(sample.obs[-1]) for sample in items.get_all()]


def made(apart: bool) -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("changes")
    items = flow.channel("items")
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker")

    @flow.iteration
    def iteration(count: int, is_new: bool) -> Any:
        maker.make(count, is_new, items)
        return taker.take(items)

    return flow, ExecutionPlan("two", ("cpu:0", "cpu:1"), {"maker": ((0,),), "taker": ((int(apart),),)})


@pytest.mark.parametrize(
    ("executor", "apart", "checks", "seen"),
    [("local", True, True, None), ("processes", False, True, None), ("processes", True, True, [0.0, 1.0, 2.0, 3.0]), ("local", True, False, [3.0] * 4)],
)
def test_an_item_that_is_changed_after_its_put_fails_a_reader_that_has_no_copy(executor: str, apart: bool, checks: bool, seen: list[float] | None) -> None:
    """It is off unless asked for."""
    flow, plan = made(apart)
    with session(flow, plan, executor, emulate=True, **({"check_items": True} if checks else {})) as s:
        if seen:
            assert s.step(4, False) == seen
            return
        assert s.step(4, True) == [0.0, 1.0, 2.0, 3.0]
        with pytest.raises(WorkerError, match=r"maker\[0\]: channel 'items': an item was changed .*: \['obs'\]") as told:
            s.step(4, False)
        assert told.value.worker == "taker"
        assert s.step(1, False) == [0.0], "the session goes on"


def test_check_runs_iterations_with_it() -> None:
    flow, plan = made(apart=True)
    assert check(flow, plan, emulate=True)["items"].status == "optional"
    assert not check(flow, plan, emulate=True, iterations=1, inputs=[1]).ok, "the iteration function takes two arguments"

    def one(is_new: bool) -> Any:
        flow, plan = made(apart=True)
        body = flow.body
        assert body is not None
        flow.iteration(lambda count: body(count, is_new))
        return check(flow, plan, emulate=True, iterations=1, inputs=[3])["items"]

    assert one(True).found == "none was changed after its put in 1 iteration"
    changed = one(False)
    assert changed.status == "broken" and "channel 'items'" in changed.found and "copy" in changed.mend


@pytest.mark.parametrize(
    ("item", "change", "field"),
    [
        (np.zeros(100_000), lambda x: x.__setitem__(77_777, 1), "the whole of it"),  # between all samples of 256
        ({"a": [0.0, 1.0]}, lambda x: x["a"].__setitem__(1, 2.0), "['a'][1]"),
        ({"a": bytearray(3)}, lambda x: x["a"].__setitem__(1, 2), "['a']"),
        (Sample(np.zeros(2), Holder(1.0)), lambda x: setattr(x.note, "value", 2.0), "['note']"),
        (Sample(np.array([Holder(1.0)])), lambda x: setattr(x.obs[0], "value", 2.0), "['obs']"),
        ([{1, 2}], lambda x: x[0].add(3), "[0]"),
        (  # torch does not count it
            {"half": torch.zeros(5000, dtype=torch.bfloat16), "part": torch.zeros(4, 6)[:, 1:3], "lock": threading.Lock()},
            lambda x: x["half"].data.__setitem__(1234, 1), "['half']",
        ),
    ],
)  # fmt: skip
def test_all_of_an_item_is_looked_at(item: Any, change: Any, field: str) -> None:
    was = Unchanged(item, whole=True)
    assert not was.changed()
    change(item)
    assert was.changed() == field


# --- batches ---
SIZES = st.lists(st.integers(1, 6), max_size=8)


def parcels_of(counts: list[int], packed: bool) -> deque[Parcel]:
    """Items are numbered from 0."""
    found, first = deque[Parcel](), 0
    for count in counts:
        items = list(range(first, first + count))
        found.append(Parcel(count, "there", Packed.of(items) if packed else items))
        first += count
    return found


def unpacked(pieces: list[Piece]) -> list[int]:
    return [item for piece in pieces for item in piece.parcel.open(piece.lo, piece.hi)]


@given(SIZES, SIZES, st.booleans(), st.booleans())
def test_gets_of_any_size_are_given_each_item_once_and_in_order(counts: list[int], gets: list[int], packed: bool, from_shares: bool) -> None:
    parcels, left = parcels_of(counts, packed), sum(counts)
    shares = deque(take(parcels, left)) if from_shares else deque[Piece]()
    given_, asked = list[int](), 0
    for n in gets:
        n = min(n, left - asked)
        pieces = split_off(shares, n) if from_shares else take(parcels, n)
        assert all(piece.hi > piece.lo for piece in pieces), "no piece is empty"
        asked += n
        given_ += unpacked(pieces)
    assert given_ == list(range(asked))
    assert unpacked(list(shares) if from_shares else take(parcels, left - asked)) == list(range(asked, left))
    assert not parcels


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_whole_goes_on_as_it_came_and_a_part_is_opened(packed: bool) -> None:
    (whole,), (cut,) = parcels_of([3], packed), parcels_of([3], packed)
    came = whole._packed
    count, content = Piece(whole, 0, 3).content()
    assert count == 3 and (content is came if packed else content == [0, 1, 2])
    assert Packed.of([1]).open() == pickle.loads(pickle.dumps(Packed.of([1]))).open() == [1]
    assert [Piece(cut, lo, hi).content() for lo, hi in ((0, 2), (2, 3))] == [(2, [0, 1]), (1, [2])]


def test_whoever_holds_the_rest_keeps_nothing_alive_that_was_given() -> None:
    class Item:
        pass

    items = [Item(), Item()]
    alive = [weakref.ref(item) for item in items]
    parcel = Parcel(2, "here", items)
    del items
    assert len(parcel.open(0, 1)) == 1
    gc.collect()
    assert [ref() is None for ref in alive] == [True, False]


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 3)), max_size=6), st.booleans(), st.booleans())
def test_the_smallest_rank_goes_first_and_of_equals_the_first_or_the_last_put(puts: list[tuple[int, int]], last_first: bool, ranked: bool) -> None:
    ordered, put = Ordered(last_first), list[tuple[int, int]]()
    for parcel, (rank, count) in zip(parcels_of([count for _, count in puts], False), puts, strict=True):
        ranks = [float(rank + i) for i in range(count)]
        put += [(int(r), len(put) + i) for i, r in enumerate(ranks)]
        ordered.store(parcel, ranks if ranked and not last_first else None)
    assert len(ordered) == len(put)
    order = sorted(put, key=lambda it: -it[1] if last_first else it if ranked else it[1])
    assert unpacked(ordered.take(len(put))) == [number for _, number in order] and len(ordered) == 0


@given(st.permutations([key for key in range(4) for _ in range(3)]), st.booleans())
def test_a_group_is_given_whole_as_one_item(keys: list[int], oldest_first: bool) -> None:
    ordered, whole = Ordered(groups=Groups(3, oldest_first)), [keys[: i + 1].count(key) == 3 for i, key in enumerate(keys)]
    assert [ordered.store(parcel, [key]) for parcel, key in zip(parcels_of([1] * 12, False), keys, strict=True)] == whole
    order = sorted(range(4), key=keys.index) if oldest_first else [key for key, last in zip(keys, whole, strict=True) if last]
    pieces = ordered.take(4)
    assert [(piece.lo, piece.hi) for piece in pieces] == [(0, 1)] * 4
    assert [[keys[n] for n in piece.content()[1][0]] for piece in pieces] == [[key] * 3 for key in order]
