"""The socket for simulators: what a vector of environments is, and what a record of one says.

Legend: N environments, O observation, A action.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.records import EnvStep


@dataclass(frozen=True)
class EnvSpec:
    """What is true of every environment of a vector."""

    id: str
    """"simulator/task", as `make_vec` takes it"""
    obs_size: int
    """numbers in one observation"""
    action_size: int
    """numbers in one action; a policy acts in [-1, 1] and the adapter maps to the simulator's range"""
    horizon: int
    """steps after which an episode is cut (truncated)"""
    success: str = "reported by the task after each step"
    """where ``success_N`` comes from"""
    renders: bool = True
    """whether `render` can give a picture on this machine"""


@runtime_checkable
class VecEnv(Protocol):
    """N environments stepped together, gymnasium's names, numpy arrays.

    Episodes that end are reset within the same step (gymnasium's SAME_STEP): ``obs_NO`` is then the new episode's first
    observation and ``final_obs_NO`` the old one's last. Actions outside [-1, 1] are clipped.
    """

    num_envs: int
    spec: EnvSpec

    def reset(self, *, seed: int | None = None) -> NDArray[np.float32]:
        """Begin new episodes, environment ``i`` with ``seed + i`` (None: go on with the generators as they are). Returns obs_NO."""
        ...

    def step(self, action_NA: NDArray) -> EnvStep: ...

    def render(self) -> NDArray[np.uint8] | None:
        """A picture of the environments, H×W×3; None where this machine cannot draw (``spec.renders`` is then False)."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Restorable(Protocol):
    """A vector of environments that can leave a device: its state is saved, it is closed, made anew later and goes on from there.

    The same actions then give the same numbers to the last bit, and the same new episodes. Where that depends on the task a vector also has
    ``cannot_leave()``, which returns why not, or "".
    """

    def save_state(self) -> Any:
        """Everything that the next steps depend on, generators included, in host memory; it pickles, and later steps do not touch it."""
        ...

    def restore_state(self, state: Any) -> None:
        """Go on where another vector of the same task, size and horizon was when ``state`` was saved, perhaps in another process."""
        ...


def cannot_leave(env: object) -> str:
    """Why a vector of environments (or a single one of a `LoopVecEnv`) cannot leave its device; "" when it can (see `Restorable`).

    Of a class: "" when its vectors may be able to.
    """
    if not (hasattr(env, "save_state") and hasattr(env, "restore_state")):
        return f"{env.__name__ if isinstance(env, type) else type(env).__name__} has no save_state() and restore_state()"
    asked = None if isinstance(env, type) else getattr(env, "cannot_leave", None)
    return str(asked()) if callable(asked) else ""
