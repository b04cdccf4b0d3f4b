from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from rlinf_lab.algorithms.moments import Moments
from rlinf_lab.errors import ConfigError
from rlinf_lab.experiments.storage.snapshot import Snapshot
from rlinf_lab.policies.weights import PolicyWeights

STATE = {
    "weights": PolicyWeights({"layer": np.arange(6.0).reshape(2, 3)[:, ::-1]}, 7),
    "optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(2, dtype=torch.float64)}}, "betas": (0.9, 0.999)},
    "moments": Moments.of(np.random.default_rng(0).normal(size=(9, 2))),
    "rng": np.random.default_rng(3).bit_generator.state,
    "odd": {"~": "tensor", "text": "é", "none": None, "flag": True, "inf": float("-inf"), "scalar": np.float32(0.1), "mask": np.array([True, False])},
}


def equal(a: object, b: object) -> bool:
    """An oracle of its own: same types, same bits, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)  # type: ignore[arg-type,call-overload,index]
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))  # type: ignore[arg-type]
    if isinstance(a, (PolicyWeights, Moments)):
        return equal(vars(a), vars(b))
    if isinstance(a, (np.ndarray, torch.Tensor)):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())  # type: ignore[attr-defined]
    return bool(a == b)


def test_a_state_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    Snapshot(5, STATE).save(tmp_path / "state")
    back = Snapshot.load(tmp_path / "state")
    assert back.iteration == 5 and equal(back.state, STATE)


def test_a_file_names_weights_as_it_always_did(tmp_path: Path) -> None:
    """Files from before `PolicyWeights` had its name open, and those of today open there."""
    Snapshot(5, STATE).save(tmp_path / "state")
    with safe_open(str(tmp_path / "state"), framework="numpy") as file:
        assert json.loads(file.metadata()["tree"])["weights"]["type"] == "Weights"


def test_what_is_no_data_is_refused_by_its_place_and_what_was_there_stays(tmp_path: Path) -> None:
    Snapshot(1, STATE).save(tmp_path / "state")
    with pytest.raises(ConfigError, match=r"state\['optimizer'\]\['hook'\] is <built-in function len>"):
        Snapshot(2, {**STATE, "optimizer": {"hook": len}}).save(tmp_path / "state")
    assert Snapshot.load(tmp_path / "state").iteration == 1


@pytest.mark.parametrize("cut", [0, 5, 200, -1])
def test_a_damaged_file_is_named(tmp_path: Path, cut: int) -> None:
    Snapshot(1, STATE).save(tmp_path / "state")
    (tmp_path / "state").write_bytes((tmp_path / "state").read_bytes()[:cut])
    with pytest.raises(ConfigError, match="state"):
        Snapshot.load(tmp_path / "state")


def test_weights_alone_are_no_state(tmp_path: Path) -> None:
    STATE["weights"].save(tmp_path / "policy.safetensors")  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="no learner's state"):
        Snapshot.load(tmp_path / "policy.safetensors")
