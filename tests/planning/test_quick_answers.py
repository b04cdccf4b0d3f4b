"""What a slider is answered with for many workers: as good as before and sooner, and the same whatever was asked before."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from six_workers import six_workers

from rlinf_lab.planning.adapt.whatif import Question
from rlinf_lab.planning.costs import fitted
from rlinf_lab.planning.costs.batch import EXPONENTS, Curve, _affine, _whole
from rlinf_lab.planning.planner.planner import Plans, plan
from rlinf_lab.planning.profile.profile import Sample

pytestmark = pytest.mark.xdist_group("six workers")  # planned once: it takes a quarter of a minute


@pytest.fixture(scope="module")
def plans() -> Plans:
    return plan(six_workers(), 64, simulate=False)


def answer(plans: Plans, **changes: Any) -> Plans:
    return dataclasses.replace(Question.of(plans), **changes).answer(plans.profile, like=plans)


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
