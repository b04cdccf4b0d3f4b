"""Spaces on their way through a file, and data sets one after another."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from gymnasium import spaces
from made_episodes import made

from rlinf_lab.datasets.space_json import from_json, leaf_spaces, to_json
from rlinf_lab.errors import ConfigError


def drawn(rng: np.random.Generator, deep: int = 0) -> spaces.Space:
    kind = rng.integers(7 if deep < 2 else 5)
    shape = tuple(rng.integers(1, 4, rng.integers(0, 3)).tolist())
    if kind == 0:
        low = np.where(rng.random(shape) < 0.3, -np.inf, rng.normal(size=shape)).astype(np.float32)
        return spaces.Box(low, np.where(rng.random(shape) < 0.3, np.inf, low + 1).astype(np.float32), shape, np.float32)
    if kind == 1:
        dtype = rng.choice([np.uint8, np.int16, np.int64, np.uint64])
        ends = np.iinfo(dtype)
        return spaces.Box(ends.min, ends.max, shape, dtype) if rng.random() < 0.5 else spaces.Box(
            np.full(shape, ends.min + (1 if deep else 0), dtype), np.asarray(ends.max - rng.integers(0, 3, shape).astype(dtype), dtype), shape, dtype
        )  # fmt: skip
    if kind == 2:
        return spaces.Discrete(int(rng.integers(1, 9)), start=int(rng.integers(-3, 3)))
    if kind == 3:
        choices = rng.integers(1, 9, shape or (2,))
        return spaces.MultiDiscrete(choices, start=rng.integers(-3, 3, choices.shape))
    if kind == 4:
        return spaces.MultiBinary(shape or 3)
    parts = [drawn(rng, deep + 1) for _ in range(rng.integers(1, 4))]
    return spaces.Tuple(parts) if kind == 5 else spaces.Dict({f"part {i}": part for i, part in enumerate(parts)})


@pytest.mark.parametrize("seed", range(8))
def test_a_space_comes_back_as_it_was_written(seed: int) -> None:
    """Bit by bit: gymnasium's == lets bounds differ a little."""
    rng = np.random.default_rng(seed)
    for space in (drawn(rng) for _ in range(40)):
        back = from_json(json.loads(json.dumps(to_json(space), allow_nan=False)))
        assert back == space
        for (_, one), (_, other) in zip(leaf_spaces(space), leaf_spaces(back), strict=True):
            if isinstance(one, spaces.Box):
                assert one.dtype == other.dtype and (one.low == other.low).all() and (one.high == other.high).all()


def test_files_of_before_are_read() -> None:
    """Without starts, and with floats for the bounds of whole numbers."""
    assert from_json({"multi_discrete": [3, 4]}) == spaces.MultiDiscrete([3, 4])
    old = from_json({"box": [2], "dtype": "int64", "low": -9.223372036854775808e18, "high": 9.223372036854775807e18})
    assert (old.low == np.iinfo(np.int64).min).all() and (old.high == np.iinfo(np.int64).max).all()
    with pytest.raises(ConfigError, match="is no space"):
        from_json({"box": [2], "dtype": "int64", "low": "nan", "high": 3})
    with pytest.raises(ConfigError, match="is no space"):
        from_json({"multi_discrete": [3, 4], "start": [1, 2, 3]})


def test_what_is_said_of_two_data_sets_is_true_of_both() -> None:
    """Another task is not played again in the first one's name."""
    one = made()
    other = dataclasses.replace(one, spec=dataclasses.replace(one.spec, env="metaworld/reach-v3", max_episode_steps=5))
    both = one + other
    assert (both.spec.env, both.spec.max_episode_steps, both.spec.by) == (None, None, "somebody") and len(both) == 10
    assert (one + one).spec == one.spec
    with pytest.raises(ConfigError, match="does not say which environment"):
        both.replay(7)
    with pytest.raises(ConfigError, match="20 fps, and .* 10 fps"):
        one + dataclasses.replace(one, spec=dataclasses.replace(one.spec, fps=10.0))
