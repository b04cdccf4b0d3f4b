"""Gymnasium's environments: registered ones ("gymnasium/CartPole-v1"), classes and functions of one's own, and its vectors.

Any space of Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of those. A Box of actions with finite bounds is presented as [-1, 1].
Success is what ``info["is_success"]`` or ``info["success"]`` says, where it says anything.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as Registered
from gymnasium.envs.registration import load_env_creator
from numpy.typing import NDArray

from envs import saving
from envs.gymnasium import classic_control
from envs.gymnasium.action_names import action_names
from envs.gymnasium.mujoco_batch import MujocoVecEnv
from envs.gymnasium.mujoco_rules import RULES
from envs.gymnasium.vectors import from_vector
from envs.rendering import choose_renderer
from rlinf_lab.errors import ConfigError, EnvError, MissingDependencyError, said, shown
from rlinf_lab.trees import leaves, rows
from rlinf_lab.vecenv import EnvSpec, LoopVecEnv, Outcome, VecEnv
from rlinf_lab.vecenv.spaces import Native, presented_action, presented_observation, sampled

__all__ = ["GymnasiumEnv", "cannot_leave", "from_maker", "from_spec", "from_vector", "has", "make", "runners", "tasks"]

TRIED = 8  # steps before an environment is saved, and half of those afterwards
_CANNOT_LEAVE: dict[tuple[str, Any], str] = {}  # of what was tried out


def tasks() -> list[str]:
    """Gymnasium's own tasks that can be made here. What other packages register when they are imported can be made by name."""
    return [task for task, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("gymnasium.envs.") and _can_be_made(task)]


def has(task: str) -> bool:
    return task in gymnasium.registry


def cannot_leave(task: str) -> str:
    """Why its environments cannot leave a device; "" when they can. Tried out, once for each task."""
    return _why_it_cannot_leave(Maker.of_spec(f"gymnasium/{task}", gymnasium.spec(task), None, {}))


def _can_be_made(task: str) -> bool:
    """Tried out: what it needs and which spaces it has is known to itself only. Some milliseconds each."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of versions that are out of date
            GymnasiumEnv(Maker.of_spec(f"gymnasium/{task}", gymnasium.spec(task), None, {})).close()
    except (EnvError, MissingDependencyError):
        return False
    return True


@dataclass(frozen=True, eq=False)
class Maker:
    """Makes single environments, all alike."""

    id: str
    make: Callable[[], gymnasium.Env]
    source: Any
    """what two makers of the same environments have in common"""

    @classmethod
    def of_spec(cls, id: str, spec: Registered, max_episode_steps: int | None, options: dict[str, Any]) -> Maker:
        limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
        if str(spec.entry_point).startswith("gymnasium.envs.mujoco"):
            choose_renderer()

        def make() -> gymnasium.Env:
            drawn = _render_mode(load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point)
            return gymnasium.make(spec, **limit, disable_env_checker=True, **{**drawn, **options})

        return cls(id, make, (str(spec.entry_point), str(spec.kwargs)))

    @classmethod
    def of_callable(cls, id: str, make: Callable[..., gymnasium.Env], options: dict[str, Any]) -> Maker:
        drawn = _render_mode(make) if isinstance(make, type) else {}
        return cls(id, lambda: make(**{**drawn, **options}), make)


def _render_mode(make: Any) -> dict[str, str]:
    """The argument with which an environment gives pictures, if it takes it.

    Drawing itself begins when somebody asks for one.
    """
    if "rgb_array" not in (getattr(make, "metadata", None) or {}).get("render_modes", ()):
        return {}
    with contextlib.suppress(TypeError, ValueError):  # written in C
        parameters = inspect.signature(make).parameters
        if "render_mode" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return {"render_mode": "rgb_array"}
    return {}


def takes_seed(reset: Callable[..., Any]) -> bool:
    """Whether this is called as gymnasium calls it."""
    taken = inspect.signature(reset).parameters
    return "seed" in taken or any(p.kind is p.VAR_KEYWORD for p in taken.values())


class GymnasiumEnv:
    """One environment. Takes actions of its own range."""

    def __init__(self, maker: Maker) -> None:
        self._maker, id = maker, maker.id
        try:
            self.env = maker.make()
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            raise MissingDependencyError(f"{id} needs a package of its own: {error}. Next: install that, or choose from lab.envs.ids('gymnasium').") from error
        if not isinstance(self.env, gymnasium.Env):
            raise EnvError(f"{id}: what should make a gymnasium.Env gave {shown(self.env)}.")
        for name in ("observation_space", "action_space"):
            if getattr(self.env, name, None) is None:
                raise EnvError(f"{id}: it has no {name}. Next: set self.{name} in its __init__.")
        self.observation_space = presented_observation(self.env.observation_space, id)
        self.action_space = presented_action(self.env.action_space, id)
        self._draws = bool(getattr(self.env, "render_mode", None))

    @property
    def draws(self) -> bool:
        """Whether a picture may be asked for."""
        return self._draws

    @property
    def limit(self) -> int | None:
        """After how many steps it truncates episodes itself, if that is known."""
        env: Any = self.env
        while env is not None:
            if isinstance(env, gymnasium.wrappers.TimeLimit):
                return int(env._max_episode_steps)
            env = vars(env).get("env")
        return None

    def reset(self, seed: int | None) -> Any:
        try:
            given = self.env.reset(seed=seed)
        except TypeError as error:
            if takes_seed(self.env.unwrapped.reset):
                raise
            raise EnvError(
                f"{self._maker.id}: its reset() takes no seed; gymnasium's signature is reset(self, *, seed=None, options=None). "
                f"Next: that one, and super().reset(seed=seed) as its first line."
            ) from error
        if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[1], dict):
            raise EnvError(f"{self._maker.id}: reset() gave {shown(given)}; gymnasium's gives (observation, info). Next: return observation, {{}}.")
        return given[0]

    def step(self, action: Any) -> Outcome:
        given = self.env.step(action)
        if not isinstance(given, tuple) or len(given) != 5:
            raise EnvError(
                f"{self._maker.id}: step() gave {shown(given)}; gymnasium's gives (observation, reward, terminated, truncated, info), five things. "
                f"Next: return observation, reward, terminated, False, {{}}."
            )
        observation, reward, terminated, truncated, info = given
        told = [info[name] for name in ("is_success", "success") if info.get(name) is not None] if info else []
        try:
            return Outcome(observation, float(reward), bool(terminated), bool(truncated), told[0] if told else None)
        except (TypeError, ValueError) as error:
            gave = {"reward": reward, "terminated": terminated, "truncated": truncated}
            raise EnvError(f"{self._maker.id}: step() gave {shown(gave, 200)}; one number and two truth values are needed. {said(error)}.") from error

    def render(self) -> NDArray[np.uint8] | None:
        """A picture; None where this machine cannot draw.

        Then with a warning the first time: training goes on without.
        """
        if not self._draws:
            return None
        try:
            picture: Any = self.env.render()
        except Exception as error:  # what a toolkit for drawing lacks it says in its own ways
            warnings.warn(f"{self._maker.id} cannot be drawn here: {said(error)}. Next: lab.doctor() says what to install.", stacklevel=2)
            self._draws, picture = False, None
        return picture if isinstance(picture, np.ndarray) else None

    def cannot_leave(self) -> str:
        """Why it cannot leave: tried out, once for each task.

        Whether all that an environment depends on can be copied is known to itself only.
        """
        return _why_it_cannot_leave(self._maker)

    def save_state(self) -> dict[str, Any]:
        """See `vecenv.Restorable`. `EnvError` when an attribute does not pickle."""
        try:
            return saving.save(self.env)
        except Exception as error:
            raise EnvError(
                f"{self._maker.id} cannot be saved: {type(error).__name__}: {said(error)}. Next: leave it where it is (lab.envs.check_env)."
            ) from error  # fmt: skip

    def restore_state(self, state: dict[str, Any]) -> None:
        saving.restore(self.env, state)

    def close(self) -> None:
        self.env.close()


# --- vectors ----------------------------------------------------------------------------------------------------------------
def make(task: str, num_envs: int, max_episode_steps: int | None = None, **options: Any) -> VecEnv:
    """``options``: of gymnasium.make."""
    return from_spec(f"gymnasium/{task}", gymnasium.spec(task), num_envs=num_envs, max_episode_steps=max_episode_steps, **options)


def runners(task: str, options: dict[str, Any]) -> dict[str, bool]:
    """``numpy`` and ``mujoco`` for tasks that have them.

    With the loop's numbers; see `classic_control` and `mujoco_batch`.
    """
    if task in classic_control.TASKS and not options:
        return {"numpy": False, "loop": False}
    if task in RULES and not options.keys() & {"xml_file", "frame_skip", "render_mode"}:
        return {"mujoco": True, "loop": False}
    return {"loop": False}


def from_spec(
    id: str, spec: Registered, *, num_envs: int, max_episode_steps: int | None, runner: str = "loop", cores: int = 1, **options: Any
) -> VecEnv:
    """Environments of what `gymnasium.register` or `gymnasium.spec` knows; ``max_episode_steps`` takes the place of the registered limit."""
    if runner == "numpy":
        return classic_control.TASKS[spec.id](id, num_envs, max_episode_steps)
    maker = Maker.of_spec(id, spec, max_episode_steps, options)
    if runner == "mujoco":
        return MujocoVecEnv(id, maker.make, num_envs, max_episode_steps, cores)
    return _vector(maker, num_envs, max_episode_steps)


def from_maker(id: str, make: Callable[..., gymnasium.Env], *, num_envs: int, max_episode_steps: int | None, **options: Any) -> LoopVecEnv:
    """Environments of a class, or of a function that makes one."""
    return _vector(Maker.of_callable(id, make, options), num_envs, max_episode_steps)


def _vector(maker: Maker, num_envs: int, max_episode_steps: int | None) -> LoopVecEnv:
    envs = [GymnasiumEnv(maker) for _ in range(num_envs)]
    first = envs[0]
    if len({id(env.env) for env in envs}) < num_envs:
        raise ConfigError(f"{maker.id}: the function gave the same environment twice. Next: let it make a new one each time.")
    limit = first.limit
    if max_episode_steps is not None and limit is not None and limit < max_episode_steps:
        warnings.warn(
            f"{maker.id}: max_episode_steps={max_episode_steps} will not be reached, the environment truncates after {limit} steps itself. "
            f"Next: make it without its TimeLimit.", stacklevel=2,
        )  # fmt: skip
    limits = [steps for steps in (limit, max_episode_steps) if steps is not None]
    spec = EnvSpec(
        maker.id, first.observation_space, first.action_space, min(limits) if limits else None, None, renders=first.draws,
        native_action_space=first.env.action_space, action_names=action_names(maker.id, first.env),
    )  # fmt: skip
    return LoopVecEnv(envs, spec, Native(first.env.action_space))


# --- leaving ----------------------------------------------------------------------------------------------------------------
def _why_it_cannot_leave(maker: Maker) -> str:
    try:
        key = (maker.id, maker.source)
        if key not in _CANNOT_LEAVE:
            _CANNOT_LEAVE[key] = _try_leaving(maker)
        return _CANNOT_LEAVE[key]
    except TypeError:  # made by something that has no hash
        return _try_leaving(maker)


def _try_leaving(maker: Maker) -> str:
    """Two environments: the second shall go on where the first was.

    Through the beginning of an episode. Both are made for it.
    """
    first, second = GymnasiumEnv(maker), GymnasiumEnv(maker)
    actions_T = Native(first.env.action_space)(sampled(first.action_space, np.random.default_rng(0), 3 * TRIED))
    try:
        first.reset(0)
        _walk(first, actions_T, range(TRIED))
        state = first.save_state()
        expected = _walk(first, actions_T, range(TRIED, 3 * TRIED))
        second.reset(1)
        second.restore_state(state)
        found = _walk(second, actions_T, range(TRIED, 3 * TRIED))
    except Exception as error:  # of the environment: what it is, only it knows
        return said(error).partition(" Next: ")[0].rstrip(".").removeprefix(f"{maker.id} cannot be saved: ")
    finally:
        first.close()
        second.close()
    if all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True)):
        return ""
    task = maker.id.partition("/")[2]
    return f"an environment that was given a copy of all that {task} holds in Python went on differently (its simulator keeps more)"


def _walk(env: GymnasiumEnv, actions_T: Any, steps: range) -> list[NDArray]:
    """What the steps give; a new episode in the middle and where one ends."""
    seen = []
    for t in steps:
        outcome = env.step(rows(actions_T, t))
        seen += [np.copy(leaf) for leaf in leaves(outcome.obs)]
        seen.append(np.array([outcome.reward, outcome.terminated, outcome.truncated, bool(outcome.success)]))
        if outcome.terminated or outcome.truncated or t == steps[len(steps) // 2]:
            seen += [np.copy(leaf) for leaf in leaves(env.reset(None))]
    return seen
