"""Atari 2600 games through the Arcade Learning Environment, such as "atari/Breakout-v5".

ALE's own vectors in C++, with the usual preprocessing.

Observation: the last 4 frames in grey, 84×84, uint8. A step is 4 frames with the same action (the two last ones maximised), an episode begins with up to 30
frames without one, and ends when the game does. Rewards are the game's own. Episodes are cut after 27,000 steps (108,000 frames). Options are those of
``ale_py.AtariVectorEnv``, such as repeat_action_probability, frameskip, stack_num, grayscale, episodic_life and reward_clipping. Raw frames one
environment at a time are "ALE/Breakout-v5" of gymnasium.
"""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode

from envs.gymnasium.vectors import GymnasiumVector
from rlinf_lab.errors import MissingDependencyError
from rlinf_lab.vecenv import EnvSpec
from rlinf_lab.vecenv.spaces import presented_action, presented_observation

NEEDS = "rlinf-lab[atari]"
FRAMES, FRAMES_A_STEP = 108_000, 4


def _games() -> dict[str, str]:
    """Name of the task -> ALE's name of the game."""
    try:
        import ale_py
    except ImportError as error:
        raise MissingDependencyError.of("ale_py", "atari", "An Atari game") from error
    if "ALE/Pong-v5" not in gymnasium.registry:
        gymnasium.register_envs(ale_py)
    found = {task.partition("/")[2]: spec.kwargs["game"] for task, spec in gymnasium.registry.items() if task.startswith("ALE/")}
    return {task: game for task, game in found.items() if "-ram" not in task}


def tasks() -> list[str]:
    return list(_games())


def runners(task: str, options: dict[str, Any]) -> dict[str, bool]:
    """See `vecenv.registry.Adapter`."""
    return {"ale": True}


def has(task: str) -> bool:
    return task in _games()


def cannot_leave(task: str) -> str:
    return "ALE's vectors keep their states to themselves"


class AtariVector(GymnasiumVector):
    """ALE's vector; ``cores``: threads that share the environments."""

    def __init__(self, env: Any, spec: EnvSpec, cores: int) -> None:
        super().__init__(env, spec, AutoresetMode.SAME_STEP)
        self.cores = cores


def make(task: str, num_envs: int, max_episode_steps: int | None = None, *, cores: int = 1, **options: Any) -> AtariVector:
    """``cores``: threads. ``options``: of ale_py.AtariVectorEnv."""
    game = _games()[task]
    from ale_py.vector_env import AtariVectorEnv

    frames_a_step = options.get("frameskip", FRAMES_A_STEP)
    limit = max_episode_steps or FRAMES // frames_a_step
    given = {"reward_clipping": False, **options, "max_num_frames_per_episode": limit * frames_a_step, "autoreset_mode": AutoresetMode.SAME_STEP}
    env, id = AtariVectorEnv(game, num_envs, num_threads=cores, **given), f"atari/{task}"
    observation, action = presented_observation(env.single_observation_space, id), presented_action(env.single_action_space, id)
    names = None if options.get("full_action_space") else _action_names(game)
    return AtariVector(env, EnvSpec(id, observation, action, limit, action_names=names), cores)


@functools.cache
def _action_names(game: str) -> tuple[str, ...]:
    """What the game's own choices are called."""
    from ale_py import Action, ALEInterface, LoggerMode, roms

    ALEInterface.setLoggerMode(LoggerMode.Error)  # it greets
    console = ALEInterface()
    console.loadROM(str(roms.get_rom_path(game)))
    chosen: Any = console.getMinimalActionSet()
    return tuple(Action(choice).name.lower() for choice in chosen)
