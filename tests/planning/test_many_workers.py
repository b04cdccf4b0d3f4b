"""Profiles of many workers are planned in seconds and megabytes, and say where not every composition was looked at."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from rlinf_lab import Profile, plan
from rlinf_lab.planning.search.problem import FEW_LEAVES, MOST_CUTS, Cuts, Orders, Problem, members, subsets

Edges = frozenset[tuple[int, int]]


def problem_of(edges: Iterable[tuple[int, int]], count: int) -> Problem:
    names, nothing = tuple(f"w{i}" for i in range(count)), (0.0,) * count
    return Problem(names, dict.fromkeys(edges, 1), (1,), 2, lambda leaf, context: pytest.fail("no seconds are asked for"), nothing, nothing)


def profile_of(edges: Iterable[tuple[int, int]], count: int) -> Profile:
    workers = {f"w{i}": {"samples": [{"devices": 1, "items": 8, "seconds": 1.0 + i % 3}]} for i in range(count)}
    return Profile.from_dict({"items": 8, "workers": workers, "edges": [{"producer": f"w{p}", "consumer": f"w{c}"} for p, c in edges]})


@pytest.mark.parametrize("seed", range(20))
def test_cuts_are_all_subsets_that_nobody_else_feeds(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(2, 8)
    names = rng.sample(range(count), count)  # their numbers say nothing of their order
    edges = [(names[i], names[j]) for i in range(count) for j in range(i + 1, count) if rng.random() < 0.3]
    cuts = Cuts(problem_of(edges, count))
    for leaves in [2**count - 1, *(rng.randrange(1, 2**count) for _ in range(20))]:
        free = [s for s in subsets(leaves) if not any(s >> c & 1 and (leaves & ~s) >> p & 1 for p, c in edges)]
        assert [c.before for c in cuts.of(leaves)] == sorted(free, key=lambda s: (s.bit_count(), s))
        assert all(c.after == leaves & ~c.before for c in cuts.of(leaves))


def test_a_chain_has_one_order_however_long() -> None:
    chain = problem_of([(i, i + 1) for i in range(39)], 40)
    assert Orders.of(chain).all and len(Cuts(chain).of(chain.everyone)) == 39  # among 10^12 subsets


def test_few_workers_have_all_their_cuts_whatever_their_edges() -> None:
    def cuts(leaves: int) -> int:
        return 2 ** leaves.bit_count() - 2

    everyone = 2**FEW_LEAVES - 1
    assert sum(cuts(s) for s in [everyone, *subsets(everyone)] if len(members(s)) > 1) <= MOST_CUTS
    assert Orders.of(problem_of([], FEW_LEAVES)).all and not Orders.of(problem_of([], FEW_LEAVES + 1)).all


@pytest.mark.parametrize("edges", [[], [e for i in range(1, 11) for e in ((0, i), (i, 11))]], ids=["unlinked", "fan"])
def test_of_many_workers_one_order_is_searched_and_plans_say_so(edges: list[tuple[int, int]]) -> None:
    plans = plan(profile_of(edges, 12), 2, chunks=2)
    assert any("12 workers can be composed in more ways than can be searched" in note for note in plans.notes)
    assert plans.best.seconds >= plans.bound.seconds
    orders = Orders.of(problem_of(edges, 12))
    assert all(len(orders.upstream(2**n - 1)) == n - 1 for n in range(2, 13))


def test_an_exact_search_of_a_long_chain_says_nothing_of_orders() -> None:
    plans = plan(profile_of([(i, i + 1) for i in range(11)], 12), 2, chunks=2)
    assert not any("more ways" in note for note in plans.notes)
