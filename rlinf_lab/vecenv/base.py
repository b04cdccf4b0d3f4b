"""The socket for simulators.

What a vector of environments is, and what a record of one says.

Legend: N environments.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlinf_lab.errors import counted, with_old_names
from rlinf_lab.records import EnvStep
from rlinf_lab.trees import Tree


@dataclass(frozen=True)
class Runner:
    """What steps the environments of a vector, and why that one; see `runners`."""

    name: str
    why: str
    rates: dict[str, float] = field(default_factory=dict, hash=False)
    """environment steps a second that each candidate took, where they were measured"""
    cores: int = 1
    """how many it keeps busy, by threads or processes; a plan that gives a rank fewer shares them"""

    def __str__(self) -> str:
        told = ", ".join(f"{name} {rate:,.0f}" for name, rate in self.rates.items())
        cores = f" on {self.cores} cores" if self.cores > 1 else ""
        return f"{self.name}{cores} ({self.why}{f': {told} steps/s' if told else ''})"

    @property
    def brief(self) -> str:
        """Without the rates: for the reprs of others."""
        return f"{self.name}{f' on {self.cores} cores' if self.cores > 1 else ''} ({self.why})"

    def __repr__(self) -> str:
        return f"Runner({self})"


LONGEST = 10_000
"""steps after which whoever plays whole episodes cuts one that nothing limits"""


@with_old_names(
    {
        "horizon": "max_episode_steps", "obs_size": "observation_space=, as the environment has it",
        "action_size": "action_space=, as the environment has it",
    }
)  # fmt: skip
@dataclass(frozen=True)
class EnvSpec:
    """What is true of every environment of a vector."""

    id: str
    """"simulator/task", as `make_vec` takes it"""
    observation_space: spaces.Space
    """of one environment; floats are float32, images uint8"""
    action_space: spaces.Space
    """of one environment, as a policy acts: a Box with finite bounds is Box(-1, 1), and the adapter maps to the simulator's range"""
    max_episode_steps: int | None = None
    """steps after which an episode is cut (truncated); None: the task itself ends it, or nobody"""
    success: str | None = None
    """where ``success_N`` comes from; None: the task has no such signal, as far as is known yet"""
    renders: bool = False
    """whether `render` may give a picture"""
    device: str | None = None
    """where it hands over torch tensors, and takes actions, such as "cuda:0"; None: numpy arrays. `on_host` makes arrays of them"""
    runner: Runner | None = field(default=None, compare=False)
    """what steps the environments; None: not said"""
    native_action_space: spaces.Space | None = None
    """the simulator's own, to which the adapter maps; None: not said"""
    action_names: tuple[str, ...] | None = None
    """of the numbers of a Box, or of the choices of a Discrete; None: not said"""

    def __repr__(self) -> str:
        limit = "no limit of steps" if self.max_episode_steps is None else f"at most {counted(self.max_episode_steps, 'step')}"
        told = [f"success: {self.success}"] if self.success else []
        told += [f"torch tensors on {self.device}"] if self.device else []
        told += [f"steps by {self.runner.brief}"] if self.runner else []
        own = "" if self.native_action_space in (None, self.action_space) else f", the simulator's own {self.native_action_space}"
        lines = [f"observation {self.observation_space}", f"action {self.action_space}{own}", *told]
        return "\n  ".join([f"EnvSpec(id={self.id!r}, {limit}, {'renders' if self.renders else 'draws no pictures'})", *lines])

    @functools.cached_property
    def action_bounds(self) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """(low, high) of a Box of actions; None for other spaces.

        Without axes where they are the same everywhere, which clips twice as fast.
        """
        space = self.action_space
        if not isinstance(space, spaces.Box):
            return None
        bounds = space.low, space.high
        if space.low.size and all((bound == bound.flat[0]).all() for bound in bounds):
            bounds = np.array(space.low.flat[0]), np.array(space.high.flat[0])
        return bounds


@runtime_checkable
class VecEnv(Protocol):
    """N environments stepped together, with gymnasium's names.

    Trees of numpy arrays, or of torch tensors on ``spec.device``.

    Episodes that end are reset within the same step (gymnasium's SAME_STEP): ``obs_N`` is then the new episode's first
    observation and ``final_obs_N`` the old one's last. Actions outside of a Box are clipped. Arrays that were handed over are not written
    again; the workers copy what they keep all the same.
    """

    num_envs: int
    spec: EnvSpec

    def reset(self, *, seed: int | None = None) -> Tree:
        """Begin new episodes, environment ``i`` with ``seed + i``. Returns obs_N.

        None: go on with the generators as they are.
        """
        ...

    def step(self, action_N: Tree) -> EnvStep: ...

    def render(self) -> NDArray[np.uint8] | None:
        """A picture of the environments, H×W×3; None where this machine cannot draw."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Restorable(Protocol):
    """A vector of environments that can leave a device.

    Its state is saved, it is closed, made anew later and goes on from there.

    The same actions then give the same numbers to the last bit, and the same new episodes. Where that depends on the task a vector also has
    ``cannot_leave()``, which returns why not, or "".
    """

    def save_state(self) -> Any:
        """Everything that the next steps depend on, generators included, in host memory. It pickles, and later steps do not touch it."""
        ...

    def restore_state(self, state: Any) -> None:
        """Go on where another vector was when ``state`` was saved.

        One of the same task, size and limit of steps, perhaps in another process.
        """
        ...


def cannot_leave(env: object) -> str:
    """Why a vector cannot leave its device; "" when it can (see `Restorable`).

    Asked of a single environment of a `LoopVecEnv` as well.

    Of a class: "" when its vectors may be able to.
    """
    if not (hasattr(env, "save_state") and hasattr(env, "restore_state")):
        return f"{env.__name__ if isinstance(env, type) else type(env).__name__} has no save_state() and restore_state()"
    asked = None if isinstance(env, type) else getattr(env, "cannot_leave", None)
    return str(asked()) if callable(asked) else ""
