"""What the benchmarks of generation work on: a model of 109,000 parameters and 512 requests whose answers have a long tail."""

from __future__ import annotations

import numpy as np
import torch

from rlinf_lab.generation import LanguageModel, Request, SamplingParams, small_model

ALPHABET = "0123456789+-*/= abcdefghij"
SLOTS = 128


def model(*, tied: bool = True, seed: int = 0) -> LanguageModel:
    """Random weights, large enough for the next token to be anything but even odds: rounding would not show there."""
    made = small_model(ALPHABET, tied=tied, seed=seed)
    with torch.no_grad():
        for weight in made.module.parameters():
            if weight.ndim > 1:
                weight.mul_(8.0)
    return made


def lengths(count: int) -> np.ndarray:
    """Tokens of each answer: log-normal, mean about 45, at most 256."""
    return np.clip(np.random.default_rng(0).lognormal(3.6, 0.7, count).astype(int), 4, 256)


def requests(count: int, *, temperature: float = 1.0, name: str = "") -> list[Request]:
    rng = np.random.default_rng(1)
    prompts = [rng.integers(2, len(ALPHABET) + 2, size=n) for n in rng.integers(6, 20, count)]
    return [
        Request(prompt, SamplingParams(max_tokens=int(n), temperature=temperature, stop_ids=()), f"{name}{i}")
        for i, (prompt, n) in enumerate(zip(prompts, lengths(count), strict=True))
    ]
