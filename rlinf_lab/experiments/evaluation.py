"""How good a policy is: whole episodes on environments of its own.

Each environment of the vector plays its share of the episodes, however long they last: counting whatever ends first
would favour short ones. Legend: N environments, E episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.records import Episodes
from rlinf_lab.vecenv.stepping import is_chunk, step_chunk
from rlinf_lab.vecenv.stepping.on_host import on_host

AT_ONCE = 16  # environments at most: more of them wait for the longest episode


@dataclass(frozen=True)
class Told:
    """Of which policy, on which environments."""

    iteration: int
    """updates that went into the policy"""
    seed: int
    """as the user gave it: what environments are seeded with is made of it"""


@dataclass(frozen=True, eq=False)
class Evaluation(Mapping[str, Any]):
    """What `evaluate` found, a mapping: ``return``, ``return_interval``, ``length``, ``episodes``, ``iteration``;
    ``success_rate`` where the task tells.

    ``return``: mean undiscounted return of an episode; ``return_interval``: where that mean lies with 95 % confidence,
    from the spread over the episodes (Student's t); ``length``: mean steps; ``success_rate``: at the end of an episode,
    with ``success_interval`` (Wilson's, 95 %); ``success_once``: in any step, with ``success_once_interval``.
    """

    returns_E: np.ndarray
    lengths_E: np.ndarray
    success_E: np.ndarray | None
    """None where the task has no signal of success"""
    of: Told
    once_E: np.ndarray | None = None
    """success in any step of an episode; None as for ``success_E``"""

    def as_dict(self) -> dict[str, Any]:
        """The same as a plain dict."""
        unknown_E = np.full(len(self.returns_E), np.nan)
        told = (unknown_E if known_E is None else known_E for known_E in (self.success_E, self.once_E))
        found = Episodes(self.returns_E, self.lengths_E, *told).summary() | {"iteration": self.of.iteration}
        return {name: value for name, value in found.items() if self.once_E is not None or "once" not in name}

    def __getitem__(self, name: str) -> Any:
        return self.as_dict()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_dict())

    def __len__(self) -> int:
        return len(self.as_dict())

    def row(self) -> dict[str, float]:
        """As columns of `run.metrics`."""
        found = self.as_dict()
        low, high = found["return_interval"]
        numbers = {
            "eval_return": found["return"],
            "eval_return_low": low,
            "eval_return_high": high,
            "eval_length": found["length"],
        }
        return numbers | ({"eval_success_rate": found["success_rate"]} if "success_rate" in found else {})

    def __repr__(self) -> str:
        found = self.as_dict()
        low, high = found["return_interval"]
        success = ""
        if "success_rate" in found:
            least, most = found["success_interval"]
            success = f", success {found['success_rate']:.0%} ({least:.0%} to {most:.0%})"
        return (
            f"Evaluation(return {found['return']:.4g}, 95 % interval {low:.4g} to {high:.4g}{success}, length "
            f"{found['length']:.4g}; "
            f"{found['episodes']} episodes, seed {self.of.seed}, iteration {self.of.iteration})"
        )


def check_counts(who: str, episodes: object, seed: object) -> None:
    """Raises `ConfigError` for what is no number of episodes, or no seed."""
    for name, value, least in (("episodes", episodes, 1), ("seed", seed, 0)):
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
            raise ConfigError(
                f"{who}({name}={shown(value)}): a whole number of at least {least}. Next: {who}(episodes=50, seed=1)."
            )


def play(make: Callable[[int], Any], act: Callable[[Any], Any], episodes: int, first_seed: int, of: Told) -> Evaluation:
    """Play ``episodes`` with ``act`` on a vector that ``make(num_envs)`` gives, and close it. Environment i begins with
    ``first_seed + i``.
    """
    env = on_host(make(min(episodes, AT_ONCE)))
    try:
        n_envs = env.num_envs
        left_N = np.array([(episodes + i) // n_envs for i in range(n_envs)])
        return_N, length_N, once_N = np.zeros(n_envs), np.zeros(n_envs, int), np.zeros(n_envs, bool)
        ended: list[_Ended] = []
        obs_N = env.reset(seed=first_seed)
        while left_N.any():
            step = _advanced(env, act(obs_N))
            obs_N = step.obs_N
            return_N += step.reward_N
            length_N += step.steps_N
            once_N |= step.once_N
            for n in np.flatnonzero(step.ended_N).tolist():
                if left_N[n]:
                    left_N[n] -= 1
                    ended.append(_Ended(n, return_N[n], length_N[n], step.at_end(n), bool(once_N[n])))
                return_N[n], length_N[n], once_N[n] = 0.0, 0, False
    finally:
        env.close()
    # of an environment in order: what is told does not depend on which ended first
    ended.sort(key=lambda e: e.environment)
    _, returns, lengths, at_end, once = (np.array(column) for column in zip(*ended, strict=True))
    known = not any(s is None for s in at_end.tolist())
    success = (at_end.astype(bool), once.astype(bool)) if known else (None, None)
    return Evaluation(returns.astype(float), lengths.astype(int), success[0], of, success[1])


class _Ended(NamedTuple):
    """An episode that has ended."""

    environment: int
    total: float
    length: int
    at_end: bool | None
    once: bool


class _Step(NamedTuple):
    """A step or a chunk of a vector, as an evaluation sees it."""

    obs_N: Any
    reward_N: np.ndarray
    steps_N: np.ndarray
    ended_N: np.ndarray
    once_N: np.ndarray
    success_N: np.ndarray | None

    def at_end(self, n: int) -> bool | None:
        return None if self.success_N is None else bool(self.success_N[n])


def _advanced(env: Any, action_N: Any) -> _Step:
    """One action of each environment, or a chunk of them."""
    if not is_chunk(env.spec.action_space, action_N):
        step = env.step(action_N)
        steps_N = np.ones(env.num_envs, int) if step.reset_only_N is None else 1 - step.reset_only_N.astype(int)
        once_N = np.zeros(env.num_envs, bool) if step.success_N is None else step.success_N
        return _Step(step.obs_N, step.reward_N, steps_N, step.terminated_N | step.truncated_N, once_N, step.success_N)
    chunk = step_chunk(env, action_N)
    success_N = None
    if chunk.success_NK is not None:
        success_N = np.take_along_axis(chunk.success_NK, np.maximum(chunk.steps_N - 1, 0)[:, None], 1)[:, 0]
    once_N = np.zeros(env.num_envs, bool) if chunk.success_NK is None else np.any(chunk.success_NK, axis=1)
    return _Step(
        chunk.obs_N, chunk.reward_NK.sum(1), chunk.steps_N, chunk.terminated_N | chunk.truncated_N, once_N, success_N
    )
