"""The runner is chosen by measuring, said, remembered, and never slower than what it was measured against."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, EnvError, UnknownNameError
from rlinf_lab.vecenv import LoopVecEnv, environment, make_vec
from rlinf_lab.vecenv import runners as module
from rlinf_lab.vecenv.processes import ProcessVecEnv
from rlinf_lab.vecenv.spaces import sampled


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLINF_LAB_CACHE", str(tmp_path / "made" / "when needed"))
    monkeypatch.setattr(module, "_KNOWN", {})
    return tmp_path / "made" / "when needed" / "runners.json"


class Own(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_the_faster_one_is_taken_and_said(memory: Path) -> None:
    env = make_vec("CartPole-v1", 64)
    rates = env.spec.runner.rates  # whichever it is on a busy machine
    assert set(rates) == {"numpy", "loop"} and env.spec.runner.name == max(rates, key=rates.__getitem__)
    assert f"runner {env.spec.runner.name} (measured)" in repr(env) and f"{env.spec.runner.name} (measured: {env.spec.runner.name} " in repr(env.spec.runner)
    assert repr(environment("CartPole-v1").for_run(64)) == f"EnvFactory('gymnasium/CartPole-v1', steps by {env.spec.runner.name})"
    (rates,) = json.loads(memory.read_text()).values()
    assert rates == env.spec.runner.rates
    with pytest.raises(EnvError, match="before reset"):  # what was tried was another vector
        env.step(np.zeros(64, int))


def test_what_is_remembered_is_believed(memory: Path) -> None:
    make_vec("CartPole-v1", 2)
    (key,) = json.loads(memory.read_text())
    memory.write_text(json.dumps({key: {"numpy": 1.0, "loop": 2.0}}))
    module._KNOWN.clear()  # as in another process
    env = make_vec("CartPole-v1", 2)
    assert isinstance(env.env, LoopVecEnv) and str(env.spec.runner) == "loop (measured: loop 2, numpy 1 steps/s)"
    memory.write_text("not json")
    module._KNOWN.clear()
    assert make_vec("CartPole-v1", 2).spec.runner.why == "measured"


@pytest.mark.long
def test_processes_are_taken_where_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured for real, so that both are made and closed; then as on a machine where one of them is faster."""
    env = make_vec(Own, 2, cores=2)
    assert set(env.spec.runner.rates) == {"loop", "processes"}
    env.close()
    for faster, slower in (("processes", "loop"), ("loop", "processes")):
        monkeypatch.setattr(module, "_remembered", lambda key, f=faster, s=slower: {f: 20.0, s: 10.0})
        env = make_vec(Own, 2, cores=2)
        try:
            assert isinstance(env.env, ProcessVecEnv) == (faster == "processes") and env.spec.runner.name == faster
            assert env.spec.runner.cores == (2 if faster == "processes" else 1)
        finally:
            env.close()
    assert str(make_vec(Own, 2).spec.runner) == "loop (the only one)"


def test_one_can_be_asked_for() -> None:
    assert isinstance(make_vec("CartPole-v1", 64, runner="loop"), LoopVecEnv)
    with pytest.raises(UnknownNameError, match="Did you mean 'numpy'"):
        make_vec("CartPole-v1", 4, runner="numpi")
    alone = make_vec("CartPole-v1", 4, runner="processes")
    assert isinstance(alone, ProcessVecEnv) and alone.cores == 1
    alone.close()
    with pytest.raises(ConfigError, match="cores=0"):
        make_vec("CartPole-v1", 4, cores=0)
    with pytest.raises(ConfigError, match="runner=3"):
        make_vec("CartPole-v1", 4, runner=3)


def test_a_state_goes_on_in_the_runner_that_saved_it() -> None:
    saved = make_vec("CartPole-v1", 2, runner="numpy")
    saved.reset(seed=0)
    with pytest.raises(EnvError, match="a state of runner 'numpy' cannot go on in 'loop'. Next: .*runner='numpy'"):
        make_vec("CartPole-v1", 2, runner="loop").restore_state(saved.save_state())


def test_the_catalogue_says_what_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "metaworld", None)
    table = lab.envs.list()
    assert table.loc["numpy", "runs"] and table.loc["gymnasium", "tasks"] > 5
    assert not table.loc["metaworld", "runs"] and table.loc["metaworld", "needs"] == "rlinf-lab[metaworld]" and table.loc["metaworld", "why not"]
    tasks = lab.envs.list("numpy")
    assert tasks.loc["numpy/ReachArm-v0", "observation"].shape == (8,) and tasks.loc["numpy/ReachArm-v0", "max_episode_steps"] == 60
    with pytest.raises(UnknownNameError, match="simulator"):
        lab.envs.list("nympy")


def as_if_measured(monkeypatch: pytest.MonkeyPatch, faster: str) -> None:
    monkeypatch.setattr(module, "steps_per_second", lambda make, num_envs: 20.0 if make.args[1].get("runner") == faster else 10.0)
    monkeypatch.setenv("RLINF_LAB_CACHE", "")
    module._KNOWN.clear()


@pytest.mark.parametrize("id", ["CartPole-v1", "gymnasium/Hopper-v5"])
def test_what_was_chosen_by_measuring_takes_in_a_state_of_another_runner(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on another machine, where another one is faster; the numbers go on as those of the runner that saved, to the last bit."""
    names = list(lab.vecenv.environment(id).runners())
    assert len(names) == 2
    for here, there in (names, names[::-1]):
        as_if_measured(monkeypatch, here)
        saved = make_vec(id, 3, 9)
        assert saved.spec.runner.name == here
        saved.reset(seed=0)
        actions = [sampled(saved.spec.action_space, np.random.default_rng(k), 3) for k in range(30)]
        for action in actions[:12]:
            saved.step(action)
        state = saved.save_state()
        as_if_measured(monkeypatch, there)
        other = make_vec(id, 3, 9)
        assert other.spec.runner.name == there
        other.restore_state(state)
        assert other.spec.runner.name == here and "as the state was saved" in repr(other)
        for action in actions[12:]:
            one, two = saved.step(action), other.step(action)
            assert np.array_equal(one.obs_N, two.obs_N) and np.array_equal(one.reward_N, two.reward_N)
        other.close()
        saved.close()


def test_a_run_has_one_runner_however_it_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is faster for few, the batch for many: chosen for the vector, a plan of more ranks would give other numbers."""
    from rlinf_lab.recipes import ppo  # not above: processes of tests import this module, and torch with it

    by_size = lambda make, num_envs: float(num_envs) if make.args[1].get("runner") == "numpy" else 10.0  # noqa: E731
    monkeypatch.setattr(module, "steps_per_second", by_size)
    factory = lab.vecenv.environment("CartPole-v1")
    assert [factory(n).spec.runner.name for n in (4, 64)] == ["loop", "numpy"]
    of_run = pickle.loads(pickle.dumps(factory.for_run(64)))
    assert [of_run(n).spec.runner.name for n in (4, 64)] == ["numpy", "numpy"] and of_run(4).spec.runner.why == "measured"
    assert of_run(4, runner="loop").spec.runner.name == "loop" and factory.for_run(4, runner="numpy")(4).spec.runner.why == "by its name"
    simulator = ppo.build(ppo.PPOConfig("CartPole-v1", num_envs=64)).workers["simulator"]
    assert simulator.kwargs["env"].runner.name == "numpy"
