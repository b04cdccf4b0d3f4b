"""Items between a put and a get: whatever the sizes, each is given once and in order; what came packed goes on packed where it is whole."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_lab.runtime.transport.item_batches import Ordered, Parcel, Piece, split_off, take
from rlinf_lab.runtime.transport.pickling import Packed

sizes = st.lists(st.integers(1, 6), max_size=8)


def parcels_of(counts: list[int], packed: bool) -> deque[Parcel]:
    """Items are numbered from 0."""
    found, first = deque[Parcel](), 0
    for count in counts:
        items = list(range(first, first + count))
        found.append(Parcel(count, "there", Packed.of(items) if packed else items))
        first += count
    return found


def opened(pieces: list[Piece]) -> list[int]:
    return [item for piece in pieces for item in piece.parcel.open(piece.lo, piece.hi)]


@given(sizes, sizes, st.booleans(), st.booleans())
def test_gets_of_any_size_are_given_each_item_once_and_in_order(counts: list[int], gets: list[int], packed: bool, from_shares: bool) -> None:
    parcels, left = parcels_of(counts, packed), sum(counts)
    shares = deque(take(parcels, left)) if from_shares else deque[Piece]()
    given_, asked = list[int](), 0
    for n in gets:
        n = min(n, left - asked)
        pieces = split_off(shares, n) if from_shares else take(parcels, n)
        assert all(piece.hi > piece.lo for piece in pieces), "no piece is empty"
        asked += n
        given_ += opened(pieces)
    assert given_ == list(range(asked))
    assert opened(list(shares) if from_shares else take(parcels, left - asked)) == list(range(asked, left))
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
    assert opened(ordered.take(len(put))) == [number for _, number in order] and len(ordered) == 0
