"""The front door on a real, private Ray: what is written in a notebook's cell trains there, is evaluated, kept and gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import rlinf_lab as lab
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.workflow.workflow import Workflow

pytestmark = [pytest.mark.long, pytest.mark.ray]


def side_by_side(flow: Workflow) -> ExecutionPlan:
    return ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"simulator": [0], "policy": [0], "learner": [1]})


def test_an_environment_of_a_cell_trains_on_ray_as_it_does_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Line(gymnasium.Env[Any, Any]):
        """It exists in this process alone, as a class of a cell does."""

        observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32), gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.x, self.t = self.np_random.uniform(-1, 1, 1).astype(np.float32), 0
            return self.x.copy(), {}

        def step(self, action: Any) -> Any:
            self.t += 1
            self.x = np.clip(self.x + 0.2 * (2 * int(action) - 1), -1, 1).astype(np.float32)
            return self.x.copy(), float(-abs(self.x[0])), False, self.t == 10, {"is_success": bool(abs(self.x[0]) < 0.2)}

    monkeypatch.chdir(tmp_path)
    lab.envs.register("cell/Line", lambda num_envs=1, max_episode_steps=None: gymnasium.vector.SyncVectorEnv([Line] * num_envs))
    settings: dict[str, Any] = {"num_envs": 4, "n_steps": 10, "batch_size": 20, "n_epochs": 2, "iterations": 3, "progress": False, "plan": side_by_side}
    remote = lab.train("ppo", "cell/Line", executor="ray", eval_every={"iterations": 2}, eval_episodes=4, **settings).wait()
    here = lab.train("ppo", "cell/Line", executor="local", folder=False, **settings).wait()
    assert remote.state == "finished" and {track.host for track in remote.timeline.tracks} == {"driver", "host0", "host1"}
    for name, array in here.policy().module.weights().arrays.items():
        assert np.array_equal(array, remote.policy().module.weights().arrays[name]), name
    found = remote.evaluate(episodes=4, seed=1)
    assert found["episodes"] == 4 and found["length"] == 10 and 0 <= found["success_rate"] <= 1 and remote.metrics["eval_return"].count() == 1
    kept = remote.save(tmp_path / "kept")
    obs = np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    assert np.array_equal(lab.load_policy(kept).act(obs), remote.policy().act(obs))
    more = lab.resume(kept, total_timesteps=160, progress=False)
    assert more.wait().iteration == 4 and "host1" in {track.host for track in more.timeline.tracks}, "on Ray again"
