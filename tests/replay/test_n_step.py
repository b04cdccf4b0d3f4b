"""Transitions over n steps against a loop over each environment's own episode."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf_lab.errors import ConfigError
from rlinf_lab.replay import NStep


def stream(T=23, N=3, seed=0):
    rng = np.random.default_rng(seed)
    terminated = rng.random((T, N)) < 0.15
    truncated = (rng.random((T, N)) < 0.15) & ~terminated
    number = np.arange(T * N, dtype=float).reshape(T, N)
    return [
        {"obs": {"n": number[t]}, "action": number[t], "reward": rng.normal(size=N), "next_obs": {"n": number[t] + 0.5},
         "terminated": terminated[t], "truncated": truncated[t]}
        for t in range(T)
    ]  # fmt: skip


@pytest.mark.parametrize("n", [1, 2, 5])
def test_equals_a_loop(n):
    steps, folder = stream(), NStep(n, 0.9)
    made = [m for step in steps if (m := folder.push(step))] + folder.flush()
    assert len(made) == len(steps)
    for t, transition in enumerate(made):
        for e in range(3):
            reward = 0.0
            for k in range(t, min(t + n, len(steps))):
                reward += 0.9 ** (k - t) * steps[k]["reward"][e]
                if steps[k]["terminated"][e] or steps[k]["truncated"][e]:
                    break
            assert transition["reward"][e] == pytest.approx(reward)
            assert transition["obs"]["n"][e] == steps[t]["obs"]["n"][e]
            assert transition["next_obs"]["n"][e] == steps[k]["next_obs"]["n"][e]
            expected = 0.0 if steps[k]["terminated"][e] else 0.9 ** (k - t + 1)
            assert transition["discount"][e] == pytest.approx(expected)
            assert transition["truncated"][e] == steps[k]["truncated"][e]


def test_bad_input():
    with pytest.raises(ConfigError, match=r"lacks \['truncated'\]"):
        NStep(2, 0.9).push({k: v for k, v in stream()[0].items() if k != "truncated"})
    with pytest.raises(ConfigError, match=r"NStep\(0"):
        NStep(0, 0.9)
