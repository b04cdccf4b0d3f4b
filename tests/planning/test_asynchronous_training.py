"""Asynchronous training in virtual time: closed forms, laws that every policy keeps, what each policy is for."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_lab.errors import ConfigError
from rlinf_lab.planning.costs.response_lengths import ResponseLengths
from rlinf_lab.planning.simulator.rollouts import AsynchronousTraining
from rlinf_lab.planning.simulator.staleness import (
    POLICIES,
    WHILE_GENERATING,
    GroupQueue,
    MeanStaleness,
    StalenessPolicy,
)
from rlinf_lab.planning.simulator.tool_cell import ToolCell

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def log_normal(count, mean=1.0, sigma=0.8, seed=0):
    drawn = np.exp(sigma * np.random.default_rng(seed).standard_normal(count))
    return drawn * (mean / drawn.mean())


def simulated(policy, *, count=4000, rho=1.5, updates=40, **fields):
    """ρ of generation over training without a limit; 64 slots, batches of 32 in groups of 4."""
    seconds = log_normal(count)
    setting = AsynchronousTraining(64, 32, rho * 32 / 64, 4, policy, **fields)
    return setting.simulate(seconds, updates=updates)


@pytest.mark.parametrize(("rho", "queue"), [(0.4, 2), (0.7, 1), (1.6, 1), (1.6, 3), (2.3, 2)])
def test_the_mean_is_the_closed_form(rho, queue):
    seconds, updates = log_normal(48_000, mean=2.0 / rho, seed=3), 50
    setting = AsynchronousTraining(512, 256, 1.0, 2, StalenessPolicy("drop_oldest", queue=queue), steady=True)
    done = setting.simulate(seconds, updates=updates)
    tail = seconds[done.used(20)].reshape(-1, 2).max(axis=1).mean() / seconds.mean()
    ended, longest, waited = done.end_N[~np.isnan(done.end_N)], seconds.reshape(-1, 2).max(axis=1), (done.take_N - done.end_N)[done.used()]
    assert ended[::2] == pytest.approx(seconds.mean() * 2 / 512 * np.arange(1, len(ended) // 2 + 1)), "groups at an even pace"
    assert done.begin_N[: len(ended)] == pytest.approx(ended - np.repeat(longest, 2)[: len(ended)]) and (done.began_with_N[len(ended) :] == -1).all()
    assert waited.min() >= -1e-9 and (rho > 1 or waited.min() < 1e-9), "who learns takes what has just come where it waits"
    assert done.staleness_N(20).mean() == pytest.approx(MeanStaleness(512, 256, queue, rho, tail).total, abs=0.05)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(WHILE_GENERATING), st.integers(0, 2), st.sampled_from([1, 2.5, math.inf]), st.integers(1, 9),
    st.sampled_from([1, 2, 3]), st.integers(0, 99),
)  # fmt: skip
def test_laws_of_every_policy(name, while_generating, bound, queue, slots, size, seed):
    seconds = log_normal(60, seed=seed)
    policy = StalenessPolicy(name, bound, queue, while_generating)
    done = AsynchronousTraining(slots, 2 * size, 0.7, size, policy, load_s=0.05).simulate(seconds)
    begun = ~np.isnan(done.begin_N)
    busy = [(t, +1) for t in done.begin_N[begun]] + [(t, -1) for t in np.where(np.isnan(done.end_N), np.inf, done.end_N)[begun]]
    assert max(np.cumsum([step for _, step in sorted(busy)]), default=0) <= slots  # never more than there are slots
    used = done.used()
    assert (done.staleness_N() >= 0).all() and (done.end_N[used] <= done.take_N[used]).all()
    assert (np.unique(done.used_by_N[used], return_counts=True)[1] == 2 * size).all()  # every update has a whole batch
    assert 0 <= done.trainer_idle <= 1 and 0 <= done.generator_idle <= 1
    if name in ("drop_stale", "recycle", "bound"):
        assert done.staleness_N().max(initial=0) <= bound
    if name == "recycle":  # what is dropped is asked again
        assert (done.used_by_N >= 0).sum() > 60 - 2 * size, (done.used_by_N, done.fate_N)
    if name not in ("drop_oldest", "drop_stale", "recycle"):
        assert (done.fate_N != 2).all()
    assert ((done.token_staleness_N() <= done.staleness_N() + 1e-9) & (done.token_staleness_N() >= -1e-9)).all()


def test_what_each_policy_is_for():
    runs = {name: simulated(StalenessPolicy(name, bound=1)) for name in POLICIES}
    stale, fates = {name: run.staleness_N(5).mean() for name, run in runs.items()}, runs["drop_oldest"].responses.fate
    assert runs["drop_oldest"].trainer_idle < 0.1 and runs["drop_oldest"].length_bias == pytest.approx(1, abs=0.03)
    assert runs["drop_oldest"].generator_idle < 0.02 < runs["block"].generator_idle  # who never waits loses work
    assert sum(runs["drop_oldest"].histogram().values()) == (fates == "used").sum() == 41 * 32 and set(fates) == {"used", "dropped", "unused"}
    assert runs["bound"].staleness_N().max() <= 1 < runs["block"].staleness_N().max()
    assert stale["pace"] < stale["block"]
    # What is dropped for being stale is what took long.
    strict = simulated(StalenessPolicy("drop_stale", bound=1), rho=1.1)
    assert strict.length_bias < 0.97 and (strict.fate_N == 2).any()
    assert simulated(StalenessPolicy("recycle", bound=1), rho=1.1).fate_N.max() == 2


def test_new_weights_while_generating():
    in_place, again = (simulated(StalenessPolicy("drop_oldest", while_generating=w), rho=0.8, load_s=l) for w, l in (("in_place", 0.0), ("resume", 0.3)))
    retract = simulated(StalenessPolicy("drop_oldest", while_generating="retract"), rho=0.8)
    assert in_place.token_staleness_N(5).mean() < in_place.staleness_N(5).mean()
    assert again.elapsed_s > in_place.elapsed_s  # computing tokens again takes time
    assert retract.staleness_N(5).mean() < in_place.staleness_N(5).mean() and retract.elapsed_s > in_place.elapsed_s
    assert retract.length_bias <= 1 and retract.seconds_N[retract.used()].mean() < in_place.seconds_N[in_place.used()].mean()


def test_a_run_has_the_staleness_that_was_simulated_item_by_item(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import staleness_model

    assert staleness_model.different_items(16) == 0
    sys.modules.pop("staleness_model")


@pytest.mark.parametrize(("make", "says"), [
    (lambda: StalenessPolicy("drop"), "StalenessPolicy.name is 'drop'. Next: 'drop_oldest'"), (lambda: StalenessPolicy(bound=-1), "bound is -1"),
    (lambda: GroupQueue(StalenessPolicy(), 0), "batch=0"), (lambda: AsynchronousTraining(4, 5, 1.0, 2), "no multiple of group_size=2. Next: 4"),
    (lambda: AsynchronousTraining(4, 4, 0.0), "training_s is 0.0"), (lambda: AsynchronousTraining(4, 4, 1.0).simulate([]), "at least one group"),
    (lambda: AsynchronousTraining(4, 4, 1.0).simulate([1.0, float("nan")]), "finite durations"),
    *((lambda odd=odd: ToolCell(*odd), "step_s must be above 0") for odd in ((0.0, 1.0), (math.inf, 1.0), (1.0, -1.0), (1.0, math.inf), (1.0, 1.0, 1, -1.0))),
    *((lambda odd=odd: ToolCell(1.0, 1.0, odd), "ToolCell.tools is") for odd in (0, True, 1.0)), (lambda: ToolCell(1.0, 1.0).simulate([(2,), (3, 0)]), "turns of at least one token"),
    (lambda: ResponseLengths.of_completion([(1.0, 0.5)], 1.0), "ends at 1"), (lambda: ResponseLengths.of_completion([(1.0, 1.0)], 0.0), "rate above 0"),
    (lambda: ResponseLengths.of_completion([(2.0, 0.5), (1.0, 1.0)], 1.0), "in the order of time"),
])  # fmt: skip
def test_numbers_that_cannot_work_are_named(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


# --- the cell of generation and tools; lengths drawn from a completion curve ----------------------------------------
def by_hand(cell, turns):
    now, steps, waited, ends, free, out = 0.0, 0, 0.0, [0.0] * len(turns), [0.0] * cell.tools, []
    running, later = {i: t[0] for i, t in enumerate(turns)}, [list(t[1:]) for t in turns]
    while running or out:
        there, most = sorted(out), (not running if cell.by_count else len(out))
        first, last = (there[0][0], there[-1][0]) if there else (now, now)
        together = not cell.by_count and last - now <= cell.patience_s and (cell.patience_s or not running)
        until = last if together else now if running else first
        waited, now = waited + max(0.0, until - now), max(now, until)
        for when, who in [o for o in there if o[0] <= now + 1e-12][:most]:
            out.remove((when, who))
            running[who] = later[who].pop(0)
        steps, now = steps + 1, now + cell.step_s
        for who in [i for i, left in running.items() if left == 1]:
            if later[who]:
                tool = free.index(min(free))
                free[tool] = max(now, free[tool]) + cell.tool_s
                out.append((free[tool], who))
            else:
                ends[who] = now
        running = {i: left - 1 for i, left in running.items() if left > 1}
    return [steps, now, waited, *ends]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=6), st.integers(1, 3), st.sampled_from([0.0, 0.5, 2.0, math.inf]),
    st.booleans(), st.sampled_from([0.0, 0.7, 3.0]),
)  # fmt: skip
def test_a_cell_with_tools_goes_step_by_step(turns, tools, patience, by_count, tool_s):
    cell = ToolCell(1.0, tool_s, tools, patience, by_count)
    found, best = cell.simulate(turns), cell.best(turns)
    assert [found.steps, found.seconds, found.waited_s, *found.ends_s] == pytest.approx(by_hand(cell, turns))
    tries = [(by_hand(one, turns), one.patience_s) for one in (dataclasses.replace(cell, by_count=False, patience_s=p) for p in (0.0, tool_s, math.inf))]
    level = [(steps, patient) for (steps, now, *_), patient in tries if now <= min(done[1] for done, _ in tries) + 0.5]
    assert (by_hand(best, turns)[0], best.patience_s) == min(level) and not best.by_count


def test_lengths_have_the_curve_they_are_drawn_from():
    points = [(10.0, 0.2), (20.0, 0.5), (60.0, 0.9), (200.0, 1.0)]
    lengths = ResponseLengths.of_completion(points, 30.0)
    tokens = lengths.draw(np.random.default_rng(0), 50_000)
    for seconds, share in points:
        assert (tokens <= seconds * 30).mean() == pytest.approx(share, abs=0.01)
        assert float(lengths.fraction(seconds * 30)) == pytest.approx(share)
    assert tokens.mean() == pytest.approx(lengths.mean, rel=0.02) and "longest 6000" in repr(lengths)
