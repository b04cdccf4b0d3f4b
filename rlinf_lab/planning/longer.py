"""Responses of another length than those that were measured, and what that means for whoever works on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlinf_lab.planning.costs import GenerationModel, fit_worker
from rlinf_lab.planning.profile import Profile


def longer(profile: Profile, generator: str, length: float = 1.0, tail: float = 1.0) -> Profile:
    """A profile in which a generator's responses are so many times as long, and their ratio to the median length is taken to the power ``tail``
    (`profile.Lengths.factor`, `.tail`). Where tokens are weights, whoever works on them has more to do (`slower_with`)."""
    lengths = profile.workers[generator].lengths
    assert lengths is not None  # checked by the profile
    changed = profile.with_worker(generator, lengths=replace(lengths, factor=lengths.factor * length, tail=lengths.tail * tail))
    others = slower_with(profile, generator) - {generator}
    if others:
        before, after = (_mean_length(p, generator) for p in (profile, changed))
        for name in others:
            changed = changed.scaled(name, after / before)
    return changed


def slower_with(profile: Profile, generator: str) -> frozenset[str]:
    """Workers whose seconds depend on the length of a generator's responses: itself, and batch work on them where tokens are weights."""
    reached, open_ = set[str](), [generator] if profile.weights == "tokens" else []
    while open_:
        here = open_.pop()
        for edge in profile.edges:
            if edge.producer == here and edge.consumer not in reached and edge.consumer != generator:
                reached.add(edge.consumer)
                open_.append(edge.consumer)
    return frozenset({generator, *(name for name in reached if profile.workers[name].kind == "batch")})


def _mean_length(profile: Profile, generator: str) -> float:
    """In tokens."""
    model = fit_worker(profile.workers[generator])
    assert isinstance(model, GenerationModel)
    return float(np.mean(model.asked))
