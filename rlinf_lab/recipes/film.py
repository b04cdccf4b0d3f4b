"""A film of a policy at work."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlinf_lab.policies import Weights
from rlinf_lab.recipes.ppo import PPOConfig
from rlinf_lab.vecenv import make_vec

FRAMES_PER_SECOND = 25


def film(config: PPOConfig, weights: Weights, path: Path, episodes: int = 2, seed: int = 2_000_000) -> str:
    """Greedy episodes as an MP4, each up to one second after its success. Returns what was written, or why nothing was."""
    import imageio.v2 as imageio

    env = make_vec(config.env_id, 1, config.horizon)
    try:
        if not env.spec.renders:
            return f"no film: {config.env_id} cannot draw on this machine. Next: rlinf-lab doctor says what is missing."
        policy = config.policy()()
        policy.load(weights)
        with imageio.get_writer(path, fps=FRAMES_PER_SECOND, macro_block_size=8, quality=7) as writer:
            for episode in range(episodes):
                obs_NO = env.reset(seed=seed + episode)
                left = None
                for _ in range(config.horizon or env.spec.horizon):
                    picture = env.render()
                    if picture is None:
                        return f"no film: {config.env_id} gave no picture."
                    writer.append_data(np.asarray(picture))
                    action_NA, _ = policy.act(obs_NO, None)
                    step = env.step(action_NA)
                    obs_NO = step.obs_NO
                    left = FRAMES_PER_SECOND if left is None and step.success_N[0] else left
                    if left is not None:
                        left -= 1
                    if left == 0 or step.truncated_N[0] or step.terminated_N[0]:
                        break
    finally:
        env.close()
    return f"{path.name}: {episodes} episodes of the learnt policy"
