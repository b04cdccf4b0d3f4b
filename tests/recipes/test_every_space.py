"""Every space through the whole path of PPO, and what must not get through: numbers that are not finite, arrays that change, pictures that fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, EnvError, WorkerError
from rlinf_lab.recipes.ppo import PPOConfig, build
from rlinf_lab.trees import leaves
from rlinf_lab.vecenv import make_vec
from rlinf_lab.vecenv.spaces import sampled
from rlinf_lab.workers import LearnerWorker, PolicyWorker, SimulatorWorker
from rlinf_lab.workers.returns import DiscountedReturns
from rlinf_lab.workflow.worker import Collected, Context, Scripted

IMAGE = Box(0, 255, (12, 12, 3), np.uint8)
CASES = {
    "plane": (Box(-1, 1, (2, 3), np.float64), Box(-3, 5, (2,), np.float32)),
    "choices": (Discrete(4, start=-1), Discrete(3, start=2)),
    "several choices": (MultiDiscrete([3, 4]), MultiDiscrete([2, 3])),
    "bits": (MultiBinary(3), MultiBinary(2)),
    "tree": (
        Dict(camera=IMAGE, state=Tuple((Box(-1, 1, (2,), np.float32), Discrete(2)))),
        Dict(gripper=Discrete(2), move=Tuple((Box(-2, 0, (2,), np.float32), MultiBinary(1)))),
    ),
    "image": (IMAGE, Discrete(2)),
    "unbounded": (Box(-np.inf, np.inf, (1,), np.float32), Box(-np.inf, np.inf, (1, 2), np.float32)),
    "numbers without axes": (Box(-1, 1, (), np.float32), Box(-1, 1, (), np.float32)),
    "nothing seen": (Box(0, 0, (1,), np.float32), Discrete(2)),
}  # fmt: skip


def env_of(observation: Any, action: Any) -> type[gymnasium.Env]:
    class Random(gymnasium.Env):
        """Shows anything of its space and insists on actions of its own."""

        observation_space, action_space = observation, action

        def seen(self):
            shown = sampled(observation, self.np_random, 1)
            return _first(shown)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.age = 0
            return self.seen(), {}

        def step(self, given):
            assert self.action_space.contains(given), given
            self.age += 1
            return self.seen(), 1.0, self.age == 5, False, {}

    return Random


def _first(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _first(part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(_first, tree))
    return tree[0]


class Cell:
    """A policy worker as both ends of the simulator's cell."""

    def __init__(self, make: Any) -> None:
        self.worker, self.waiting = PolicyWorker(make, seed=1), {}
        self.worker.setup()

    def put(self, token: Any, *, key: Any = None) -> None:
        out = Collected()
        self.worker.act(Scripted([token]), out)
        self.waiting[token.slot] = out[0]

    def take(self, *, key: Any) -> Any:
        return self.waiting.pop(key)


def small(env: Any, **more: Any) -> PPOConfig:
    return PPOConfig(env, **{"num_envs": 4, "n_steps": 6, "batch_size": 8, "n_epochs": 2, "iterations": 3, "net_arch": (8,), **more})


def by_hand(config: PPOConfig, sub_batches: int = 1) -> tuple[SimulatorWorker, Cell, LearnerWorker]:
    make = config.make_policy()
    simulator = SimulatorWorker(config.factory, num_envs=config.num_envs, n_steps=config.n_steps, max_episode_steps=config.max_episode_steps)
    simulator._context = Context()
    simulator._context.sub_batches = sub_batches
    simulator.setup()
    learner = LearnerWorker(make, gamma=0.9, gae_lambda=0.9, learning_rate=1e-3, n_epochs=2, batch_size=8, normalize_reward=True)
    learner.setup()
    return simulator, Cell(make), learner


def collected(simulator: SimulatorWorker, cell: Any) -> list[Any]:
    out = Collected()
    simulator.collect(cell, cell, out)
    return list(out)


@pytest.mark.parametrize("name", CASES)
def test_a_space_is_seen_acted_in_and_learnt_from(name: str) -> None:
    """Two groups: what is seen and done does not depend on them. The learner's first ratio is one: it evaluates what was done as it was done."""
    config = small(env_of(*CASES[name]))
    simulator, cell, learner = by_hand(config, 2)
    whole, halves = collected(by_hand(config)[0], by_hand(config)[1])[0], collected(simulator, cell)
    for field in ("obs_TN", "action_TN"):
        for leaf, first, second in zip(*(leaves(getattr(t, field)) for t in (whole, *halves)), strict=True):
            np.testing.assert_allclose(leaf, np.concatenate([first, second], 1), rtol=1e-5, atol=1e-6)
            assert leaf.dtype == first.dtype and leaf.dtype != np.float64
    before = learner.weights()
    update = learner.train(Scripted(halves))
    assert update.metrics["clip_fraction"] < 1 and "success_rate" not in update.metrics and update.metrics["length"] == 5
    assert any(not np.array_equal(before.arrays[key], update.weights.arrays[key]) for key in before.arrays)
    alone = by_hand(config)[2]
    alone.settings.update(n_epochs=1, batch_size=24)
    assert alone.train(Scripted([whole])).metrics["kl"] == pytest.approx(0, abs=1e-5)


def test_what_fits_no_policy_is_refused_when_the_workflow_is_built() -> None:
    with pytest.raises(EnvError, match=r"its observation_space\['words'\] is Text"):
        build(small(env_of(Dict(words=gymnasium.spaces.Text(3)), Discrete(2))))
    with pytest.raises(ConfigError, match=r"observation_space\['more'\] is Dict\(\): nothing is in it"):
        build(small(env_of(Dict(more=Dict({}), seen=Discrete(2)), Discrete(2))))
    with pytest.raises(ConfigError, match="Box of int64"):
        build(small(env_of(Discrete(2), Box(0, 5, (1,), np.int64))))


def test_rewards_are_divided_by_the_spread_of_discounted_returns() -> None:
    """Against the sums written out step by step, over two iterations, ends of episodes and a beginning anew."""
    simulator, cell, _ = by_hand(small(env_of(Discrete(2), Discrete(2))))
    found, seen, running = DiscountedReturns(), [], np.zeros(4)
    for k in range(3):
        if k == 2:
            simulator.groups[0].forget()
        (t,) = collected(simulator, cell)
        if t.is_fresh:
            running[:] = 0
        for reward_N, ended_N in zip(t.reward_TN, t.terminated_TN | t.truncated_TN, strict=True):
            running = 0.9 * running + reward_N
            seen.append(running.copy())
            running = np.where(ended_N, 0, running)
        found = found.update([t], 0.9)
    assert found.std == pytest.approx(np.std(seen)) and DiscountedReturns().std == 1.0


# --- what must not get through -----------------------------------------------------------------------------------------------
class Point(gymnasium.Env):
    """One array for all of its life, as many simulators have."""

    observation_space, action_space = Box(-99, 99, (2,), np.float32), Box(-1, 1, (2,), np.float32)
    reuses, breaks, metadata = True, "", {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.state = render_mode, np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state[:], self.age = self.np_random.uniform(-1, 1, 2), 0
        return self.state if self.reuses else self.state.copy(), {}

    def step(self, action):
        self.state += 0.1 * action
        self.age += 1
        reward = np.nan if self.breaks == "reward" and self.age == 4 else -float(np.abs(self.state).sum())
        if self.breaks == "observation" and self.age == 4:
            self.state[1] = np.inf
        return self.state if self.reuses else self.state.copy(), reward, False, False, {}

    def render(self):
        raise RuntimeError("no OpenGL here")


def test_an_array_that_is_used_again_is_copied_where_it_is_kept() -> None:
    class Copies(Point):
        reuses = False

    (reused,), (copied,) = (collected(*by_hand(small(env, max_episode_steps=4))[:2]) for env in (Point, Copies))
    np.testing.assert_array_equal(reused.obs_TN, copied.obs_TN)
    np.testing.assert_array_equal(reused.end_obs_E, copied.end_obs_E)
    assert len(copied.end_E2) and not np.array_equal(copied.obs_TN[0], copied.obs_TN[1])


@pytest.mark.parametrize(("what", "value"), [("reward", "nan"), ("observation", "inf")])
def test_a_number_that_is_not_finite_ends_the_run_before_an_update(what: str, value: str, tmp_path: Path) -> None:
    kept = tmp_path / "policy.safetensors"
    kept.write_bytes(b"of another run")

    class Breaks(Point):
        breaks = what

    flow = build(small(Breaks, max_episode_steps=20, save_to=str(kept)))
    run = lab.run(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"]), iterations=2)
    with pytest.raises(WorkerError, match=rf"test_every_space/Breaks, environment 0, step 4 of its episode .*: the {what} is {value}"):
        run.wait(60)
    assert kept.read_bytes() == b"of another run" and not len(run.results)


def test_weights_that_are_not_finite_are_neither_published_nor_saved(tmp_path: Path) -> None:
    kept = tmp_path / "policy.safetensors"
    simulator, cell, learner = by_hand(small(Point, max_episode_steps=4))
    learner._save_to = str(kept)
    good = learner.train(Scripted(collected(simulator, cell))).weights
    learner.settings.update(learning_rate=1e38, max_grad_norm=1e38)
    with pytest.raises(FloatingPointError, match=r"update 2 made weights that are not finite .*Next: a smaller learning_rate"):
        learner.train(Scripted(collected(simulator, cell)))
    learner.close()
    from rlinf_lab.policies import PolicyWeights

    assert PolicyWeights.load(kept).version == good.version == 1


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_picture_that_cannot_be_drawn_stops_nothing() -> None:
    simulator, cell, _ = by_hand(small(Point, max_episode_steps=4))
    simulator._context.wants_frame = lambda: True
    simulator._context.frame = lambda image: pytest.fail("there is none")
    with pytest.warns(UserWarning, match=r"test_every_space/Point cannot be drawn here: no OpenGL here\. Next: lab\.doctor"):
        assert len(collected(simulator, cell)) == 1
    assert make_vec(Point, 1).spec.renders


SCRIPT = """
import gymnasium, numpy as np
import rlinf_lab as lab
from rlinf_lab.recipes.ppo import PPOConfig, build

class Line(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self.x.copy(), {}
    def step(self, action):
        self.x[0] += 0.1 * action
        return self.x.copy(), float(-abs(self.x[0])), False, False, {}

gymnasium.register("Line-v0", entry_point=Line, max_episode_steps=10)
gymnasium.register("Named-v0", entry_point="__main__:Line", max_episode_steps=10)
lab.envs.register("mine/Line", lambda num_envs, max_episode_steps: lab.envs.make_vec("Line-v0", num_envs, max_episode_steps))

if __name__ == "__main__":
    for env in ("Named-v0", "mine/Line"):
        flow = build(PPOConfig(env, max_episode_steps=10, num_envs=2, n_steps=10, iterations=1, batch_size=10, n_epochs=1))
        plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"simulator": [0], "policy": [0], "learner": [1]})
        print("OK", lab.run(flow, plan, iterations=1, executor="processes").wait(100)[0]["length"])
"""


@pytest.mark.long
def test_what_is_registered_in_a_cell_is_found_in_every_process(tmp_path: Path) -> None:
    script = tmp_path / "cell.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240)
    assert done.stdout.count("OK 10.0") == 2, done.stderr[-3000:]
