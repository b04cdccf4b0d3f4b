"""Models and requests for the tests of this room: random weights that are large enough for answers to vary."""

from __future__ import annotations

import functools

import numpy as np
import torch

from rlinf_lab.generation import LanguageModel, Request, SamplingParams, requests_for, small_model

ALPHABET = "0123456789+-*/= abcdef"


@functools.cache
def model(kind: str = "qwen2", tied: bool = True, seed: int = 0, max_length: int = 96) -> LanguageModel:
    """Shared: tests do not change it."""
    made = small_model(ALPHABET, kind=kind, tied=tied, seed=seed, max_length=max_length, kv_heads=1 if kind == "qwen3" else None)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in made.module.parameters():
            if p.ndim == 1:
                p.add_(0.3 * torch.randn(p.shape, generator=generator))  # biases begin at zero, norms at one: a swapped one would not show
            else:
                p.mul_(8.0)
    return made


def prompts(count: int, seed: int = 0, longest: int = 20) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(2, len(ALPHABET) + 2, size=n) for n in rng.integers(1, longest, count)]


def requests(count: int, *, repeat: int = 1, seed: int = 0, **params) -> list[Request]:
    return requests_for(prompts(count, seed), SamplingParams(**{"max_tokens": 24, **params}), repeat=repeat)


def by_id(completions) -> dict:
    return {c.id: c for c in completions}


def same(a, b, atol: float = 1e-4) -> None:
    """The same tokens for the same reasons; log-probabilities up to rounding."""
    assert a.keys() == b.keys()
    for key, one in a.items():
        other = b[key]
        assert one.token_ids.tolist() == other.token_ids.tolist(), key
        assert one.finish_reason == other.finish_reason
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=atol)
