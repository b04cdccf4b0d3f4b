from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.experiments.acting import TrainedPolicy
from rlinf_lab.recipes.ppo import PPOConfig


class Both(gymnasium.Env[Any, Any]):
    """A Dict of numbers and of a category, and bounded actions."""

    observation_space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Box(-5, 5, (3,)), "b": gymnasium.spaces.Discrete(4)})
    action_space = gymnasium.spaces.Box(-2, 2, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"a": np.zeros(3, np.float32), "b": 1}, {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], 0.0, False, False, {}


def policy() -> TrainedPolicy:
    config = PPOConfig(env=Both)
    module = config.make_policy()()
    module.set_normaliser(np.full(module.normalised_size, 0.5), np.full(module.normalised_size, 2.0))
    return TrainedPolicy(config, module.weights())


@pytest.mark.parametrize("name", ["policy.pt2", "policy.onnx"])
def test_an_exported_policy_answers_as_the_policy_does(tmp_path: Path, name: str) -> None:
    own = policy()
    rng = np.random.default_rng(0)
    obs = {"a": rng.normal(size=(5, 3)).astype(np.float32), "b": rng.integers(0, 4, 5)}
    path = own.export(tmp_path / name)
    if path.suffix == ".onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
        (found,) = session.run(None, {given.name: obs[key] for given, key in zip(session.get_inputs(), ("a", "b"), strict=True)})
    else:
        found = torch.export.load(path).module()(*map(torch.as_tensor, obs.values())).numpy()
    assert np.abs(found - own.act(obs)).max() < 1e-5, "another size of the batch than it was traced with"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_where_no_file_can_be_is_said_before_anything_is_computed(tmp_path: Path) -> None:
    (tmp_path / "taken.onnx").mkdir()
    for name, why in (
        ("taken.onnx", r"that is a folder\. Next: a file in it, '.*taken\.onnx/policy\.pt2'"), ("none/policy.pt2", "mkdir -p .*none"),
        ("a" * 300 + ".pt2", "too long"), ("a\0.pt2", "null byte"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=rf"export\(.*{why}"):
            policy().export(tmp_path / name)
    assert [file.name for file in tmp_path.rglob("*")] == ["taken.onnx"]


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean '\.onnx'"):
        policy().export(tmp_path / "policy.onx")


def test_predict_is_in_the_bounds_of_the_environment_and_act_in_those_of_make_vec() -> None:
    own = policy()
    obs = {"a": np.full(3, 4.0, np.float32), "b": 2}
    action, state = own.predict(obs)
    assert state is None and own.action_space == gymnasium.spaces.Box(-1, 1, (2,)) and Both.action_space.contains(action)
    assert action == pytest.approx(2 * np.clip(own.act(obs), -1, 1))


SCRIPT = """
import os, signal
import rlinf_lab as lab
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background of a shell has it ignored
def tell(row):
    if row["iteration"] == 2: os.kill(os.getpid(), signal.{signal})
lab.train("ppo", "CartPole-v1", iterations=10_000, num_envs=2, n_steps=16, batch_size=32, n_epochs=1, plan=None, progress=False, folder="kept",
          checkpoint_on_sigterm={asked}, on_iteration=tell){wait}
"""


def _shaped(parts: dict[str, Any]) -> TrainedPolicy:
    """Of an environment with these observations that never acts here."""
    space = gymnasium.spaces.Dict(parts)
    config = PPOConfig(env=type("Shaped", (Both,), {"observation_space": space}))
    return TrainedPolicy(config, config.make_policy()().weights())


@pytest.mark.parametrize(
    ("space", "given"),
    [
        ({"x": gymnasium.spaces.Box(-9, 9, (3,)), "mode": gymnasium.spaces.Discrete(3)}, ({"x": np.ones(3), "mode": 1}, {"x": np.zeros(3), "mode": 2})),
        (
            {"b": gymnasium.spaces.Box(-9, 9, (3,)), "a": gymnasium.spaces.Box(-9, 9, (2, 2))},
            ({"b": np.ones(3), "a": np.eye(2)}, {"b": np.zeros(3), "a": np.ones((2, 2))}),
        ),
        ({"x": gymnasium.spaces.Discrete(4), "a": gymnasium.spaces.Box(-9, 9, (2,))}, ({"x": 3, "a": np.ones(2)}, {"x": 0, "a": np.zeros(2)})),
    ],
)
def test_observations_are_taken_as_the_environment_gives_them(space: dict[str, Any], given: tuple[dict[str, Any], ...]) -> None:
    """Keys in their own order, which gymnasium's Dict sorts; a category as Python's int; one, or a batch."""
    own = _shaped(space)
    batch = {key: np.stack([one[key] for one in given]) for key in space}
    actions = own.act(batch)
    assert actions.shape == (2, 2) and not np.allclose(*actions)
    for one, action in zip(given, actions, strict=True):
        assert np.allclose(own.act(one), action, atol=1e-6) and own.predict(one)[0].shape == (2,)
    assert own.predict(batch)[0].shape == (2, 2)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_no_action_follows_from_what_is_no_number(value: float) -> None:
    own = policy()
    good = {"a": np.zeros(3), "b": 1}
    with pytest.raises(ConfigError, match=rf"{value} is in the observation\['a'\]"):
        own.act({**good, "a": np.array([0, value, 0])})
    with pytest.raises(ConfigError, match=rf"{value} is in the observation\['a'\]"):
        own.predict({"a": np.array([[0.0] * 3, [0, value, 0]]), "b": np.array([1, 2])})
    with pytest.raises(ConfigError, match=r"the observation\['a'\] is \{'x': 1\}, which are no numbers"):
        own.act({**good, "a": {"x": 1}})
    assert np.isfinite(own.act(good)).all()


def test_a_policy_is_exported_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own writer ends the process on a full disk, so it is given memory."""
    path = tmp_path / "policy.pt2"
    path.write_bytes(b"before")

    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ConfigError, match=r"policy\.pt2.*No space left on device.*Next"):
        policy().export(path)
    assert path.read_bytes() == b"before" and [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(("asked", "sent", "wait", "status"), [(True, "SIGTERM", ".wait()", 143), (False, "SIGINT", "", 0)])
def test_a_script_that_is_told_to_end_writes_its_state(tmp_path: Path, warm_python: Any, asked: bool, sent: str, wait: str, status: int) -> None:
    """SIGINT comes while it waits at its exit, after its last line."""
    done = warm_python(SCRIPT.format(signal=sent, asked=asked, wait=wait), cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "kept" / "learner.safetensors").exists() and '"state": "stopped"' in (tmp_path / "kept" / "run.json").read_text()
