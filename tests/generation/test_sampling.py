"""Noise against plain integers, choices against the definition of top-k and top-p in plain Python."""

from __future__ import annotations

import math

import numpy as np
import torch

from rlinf_lab.generation.sampling import Choice, choose, uniform

MASK = (1 << 64) - 1


def splitmix64(key: int, position: int) -> float:
    """The published algorithm, in integers of Python."""
    z = (key + (position + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    z ^= z >> 31
    return (z >> 41) / 2**23


def test_noise_is_splitmix64():
    keys = [0, 1, 2**62 + 12345, 2**63 - 1]
    positions = [0, 1, 4095, 10**6]
    got = uniform(torch.tensor(keys).repeat_interleave(4), torch.tensor(positions * 4)).tolist()
    assert got == [splitmix64(k, p) for k in keys for p in positions]
    many = uniform(torch.arange(200)[:, None], torch.arange(200)[None]).flatten().numpy()
    counts = np.histogram(many, 50, (0, 1))[0]
    assert abs(counts / len(many) - 0.02).max() < 0.004 and many.max() < 1  # 5 standard deviations


def by_definition(logits: list[float], temperature: float, top_p: float, top_k: int, u: float) -> tuple[int, float]:
    if temperature == 0:
        best = max(range(len(logits)), key=logits.__getitem__)
        return best, logits[best] - math.log(sum(map(math.exp, logits)))
    weights = [math.exp(x / temperature) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: -weights[i])[: top_k or None]
    kept, reached, total = [], 0.0, sum(weights[i] for i in order)
    for i in order:
        kept.append(i)
        reached += weights[i] / total
        if reached >= top_p:
            break
    total, aim, seen = sum(weights[i] for i in kept), 0.0, 0.0
    aim = u * total
    for i in range(len(logits)):
        if i in kept:
            seen += weights[i]
            if seen > aim:
                return i, math.log(weights[i] / total)
    raise AssertionError


def test_choices_follow_the_definition():
    rng = np.random.default_rng(0)
    rows = 400
    logits = rng.normal(size=(rows, 13)).astype(np.float32) * 2
    temperature = rng.choice([0.0, 0.5, 1.0, 2.0], rows).astype(np.float32)
    top_p, top_k = rng.choice([1.0, 0.9, 0.4, 0.01], rows).astype(np.float32), rng.choice([0, 1, 3, 50], rows)
    key, position = rng.integers(0, 2**62, rows), rng.integers(0, 500, rows)
    choice = Choice(*map(torch.from_numpy, (key, temperature, top_p, top_k)), truncated=True)
    token, log_prob = choose(torch.from_numpy(logits), choice, torch.from_numpy(position))
    for r in range(rows):
        expected = by_definition(logits[r].tolist(), temperature[r], top_p[r], top_k[r], splitmix64(int(key[r]), int(position[r])))
        assert int(token[r]) == expected[0]
        assert math.isclose(float(log_prob[r]), expected[1], abs_tol=1e-4)


def test_without_truncation_nothing_else_is_chosen():
    rng = np.random.default_rng(1)
    logits = torch.from_numpy(rng.normal(size=(300, 13)).astype(np.float32))
    columns = torch.arange(300), torch.full((300,), 0.7), torch.ones(300), torch.zeros(300, dtype=torch.int64)
    quick, slow = (choose(logits, Choice(*columns, truncated=t), torch.arange(300)) for t in (False, True))
    assert quick[0].tolist() == slow[0].tolist()
    torch.testing.assert_close(quick[1], slow[1])
