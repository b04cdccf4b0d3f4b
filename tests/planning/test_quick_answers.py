"""What a slider is answered with for many workers: as good as before and sooner, and the same whatever was asked before."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from brute_force import random_problem
from six_workers import six_workers

from rlinf_lab.planning.adapt.whatif import Question
from rlinf_lab.planning.costs import fit_worker, fitted
from rlinf_lab.planning.costs.batch import EXPONENTS, Curve, _affine, _whole
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.planner.planner import Plans, plan
from rlinf_lab.planning.profile.profile import Memory, Sample
from rlinf_lab.planning.search import solver
from rlinf_lab.planning.search.solver import Only, guess

pytestmark = pytest.mark.xdist_group("six workers")  # planned once: it takes a quarter of a minute


@pytest.fixture(scope="module")
def plans() -> Plans:
    return plan(six_workers(), 64, simulate=False)


def answer(plans: Plans, **changes: Any) -> Plans:
    return dataclasses.replace(Question.of(plans), **changes).answer(plans.profile, like=plans)


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "most"), [({"items": 4096}, 482.9), ({"switching": 0.5}, 241.7), ({"memory_gib": 80.0}, 246.7)])
def test_the_numbers_of_a_good_plan_are_looked_for_before_other_plans(plans: Plans, changes: dict[str, Any], most: float) -> None:
    assert answer(plans, **changes).best.seconds < most  # 492.7, 246.5 and 256.6 before


@pytest.mark.slow
def test_an_answer_is_the_same_whatever_was_asked_before(plans: Plans) -> None:
    asked: list[dict[str, Any]] = [
        {"devices": {"": 24}}, {"memory_gib": 48.0}, {"switching": 2.0}, {"items": 1024}, {"staleness": 1}, {"micro_batches": 8}, {"devices": {"": 96}}
    ]  # fmt: skip

    def said(changes: dict[str, Any]) -> list[tuple[str, float]]:
        return [(p.shape, p.seconds) for p in answer(plans, **changes)]

    fresh = []
    for changes in asked:
        fitted.cache_clear()
        fresh.append(said(changes))
    order = list(range(len(asked)))
    random.Random(1).shuffle(order)
    assert [said(asked[i]) for i in order] == [fresh[i] for i in order]


def test_a_worker_is_fitted_once_however_it_comes_and_leaves() -> None:
    worker = six_workers().workers["a"]
    assert fit_worker(dataclasses.replace(worker, onload_s=9.0, memory=Memory(1.0), calls=3.0)) is fit_worker(worker)
    assert fit_worker(dataclasses.replace(worker, samples=worker.samples[:2])) is not fit_worker(worker)


def test_exponents_that_are_tried_together_are_those_that_were_tried_one_by_one() -> None:
    rng = random.Random(3)
    for case in range(60):
        samples = [Sample(d, float(i), (0.5 + i / d**0.7, 10 * rng.random(), 1e-3 * i / d)[case % 3])
                   for d in rng.sample([1, 2, 4, 8, 64], rng.randint(2, 4)) for i in rng.sample([4, 100, 512], rng.randint(1, 2))]  # fmt: skip
        n, m, t = (np.array([getattr(s, f) for s in samples], float) for f in ("devices", "items", "seconds"))
        known = any(len(set(m[n == k])) > 1 for k in set(n))
        fits = [_affine(_whole(m, n, 1, p, 1) * n**-p, t, known) for p in EXPONENTS]
        best = int(np.argmin([f[2] for f in fits]))
        curve = Curve.fit(samples, None)
        assert (curve.fixed, curve.each, curve.exponent) == (*fits[best][:2], float(EXPONENTS[best]))


def test_seconds_of_a_worker_are_made_once_for_all_company_that_leaves_it_as_much_memory() -> None:
    setting = Setting.of(six_workers(), 64)
    tables, forms = setting.tables, setting.arrangements()[0].forms
    rows = {staying: tables._rows(0, staying, forms) for staying in range(0, 64, 2)}
    assert rows[0b10] is rows[0b100] is rows[0b1000]  # of 10 GiB each
    assert len({id(made) for made in rows.values()}) < 10  # of 32 sets


def test_in_streams_alone_everybody_else_needs_devices_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same plans as without bounds, and few points are worth keeping."""
    spatial = Only(("spatial",))
    for problem in [random_problem(seed, leaves=(3, 5), devices=(6, 16)) for seed in range(80)] + [random_problem(s, kinds=2) for s in range(20)]:
        truth = min((f.seconds for f in solver._Solver(problem, np.inf, spatial).plans()), default=np.inf)
        assert min((f.seconds for f in solver._Solver(problem, truth, spatial).plans()), default=np.inf) == truth
    kept, best_of = list[int](), solver._Solver._best_of

    def counted(self: solver._Solver, leaves: int, front: Any) -> Any:
        found = best_of(self, leaves, front)
        kept.append(len(found))
        return found

    monkeypatch.setattr(solver._Solver, "_best_of", counted)
    setting = Setting.of(six_workers(), 256)
    guess(setting.problem(setting.arrangements()[0]), only=spatial)
    assert sum(kept) < 20_000  # 27,407 before
