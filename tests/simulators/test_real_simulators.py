"""Meta-World and ManiSkill, the real ones."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from rlinf_lab.errors import MissingDependencyError, UnknownNameError
from rlinf_lab.vecenv import check_env, ids, make_vec


@pytest.mark.long
def test_metaworld_keeps_the_contract() -> None:
    check_env(lambda: make_vec("metaworld/button-press-v3", 2, 15))
    env = make_vec("metaworld/button-press-v3", 1, 100)
    assert (env.spec.observation_space.shape, env.spec.action_space.shape, env.spec.max_episode_steps) == ((39,), (4,), 100)
    env.close()


def test_metaworld_equals_the_stock_environment() -> None:
    """The adapter leaves wrappers out; physics, observations, rewards and success are those of the class itself."""
    import metaworld
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    env = make_vec("metaworld/reach-v3", 1, 50)
    ours = env.reset(seed=3)
    rng = np.random.default_rng(3)
    stock = ALL_V3_ENVIRONMENTS["reach-v3"]()
    tasks = metaworld.MT1("reach-v3", seed=0).train_tasks
    stock.set_task(tasks[rng.integers(len(tasks))])
    theirs, _ = stock.reset(seed=int(rng.integers(2**31)))
    assert np.allclose(ours[0], theirs)
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 1, 4))
    for action in actions:
        step = env.step(action)
        observation, reward, _, _, info = stock.step(action[0])
        assert np.allclose(step.final_obs_N[0], observation, atol=1e-6)
        assert step.reward_N[0] == pytest.approx(reward, rel=1e-5) and bool(step.success_N[0]) == bool(info["success"])


def test_metaworld_draws() -> None:
    env = make_vec("metaworld/button-press-v3", 1, 10)
    if not env.spec.renders:
        if os.environ.get("RLINF_LAB_REQUIRE_RENDER"):
            pytest.fail("no renderer, but RLINF_LAB_REQUIRE_RENDER is set")
        pytest.skip("neither OSMesa nor EGL here")
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (240, 320, 3) and picture.dtype == np.uint8 and picture.std() > 10
    env.close()


def test_unknown_tasks_are_suggested() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'metaworld/button-press-v3'"):
        make_vec("metaworld/button-pres-v3")
    assert "metaworld/button-press-v3" in ids("metaworld")


def test_a_missing_simulator_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "metaworld", None)
    with pytest.raises(MissingDependencyError, match=r"rlinf-lab\[metaworld\]"):
        make_vec("metaworld/button-press-v3")


@pytest.mark.long
def test_a_scene_that_needs_a_renderer_says_so_where_there_is_none() -> None:
    script = """
from rlinf_lab.errors import EnvError
from rlinf_lab.vecenv import make_vec
try:
    make_vec("maniskill/ReplicaCAD_SceneManipulation-v1", 1)
except EnvError as error:
    assert "no Vulkan device" in str(error) and "Next:" in str(error), error
else:
    raise SystemExit("it was made")
"""
    environment = {**os.environ, "VK_ICD_FILENAMES": "/nonexistent", "VK_DRIVER_FILES": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
