"""The conformance check of the socket, for whoever brings an environment.

    single environments, as they are  ──>  arrays used again, types and shapes that are not the space's
    two vectors side by side          ──>  form, numbers, seeds, ends of episodes, steps that a reset swallows
    many first steps                  ──>  a goal that is not shown
    one that is saved                 ──>  goes on to the last bit

Legend: N environments.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from rlinf_lab.errors import ConfigError, EnvError, said, shown
from rlinf_lab.records import EnvStep
from rlinf_lab.trees import Tree, leaves, map_tree, named_leaves, rows
from rlinf_lab.vecenv.base import Restorable, VecEnv, cannot_leave
from rlinf_lab.vecenv.check_single import check_singles
from rlinf_lab.vecenv.hidden_goals import check_goal_is_shown
from rlinf_lab.vecenv.loop import LoopVecEnv
from rlinf_lab.vecenv.registry import environment, takes
from rlinf_lab.vecenv.spaces import empty, is_finite, sampled
from rlinf_lab.vecenv.stepping.on_host import on_host

STEPS = 1000  # of an episode that nothing limits
ENDS = 16  # of episodes, or beginnings, before what may be chance is called a fault


def check_env(env: Any, steps: int | None = None, seed: int = 0, num_envs: int = 3) -> None:
    """Run two vectors side by side; `EnvError` names a broken rule.

    The first one that is broken, and where.

    ``env``: whatever `make_vec` takes, an environment that has been made (copies of it are checked), or a function without arguments that makes a vector. Checked: that it is an environment at all; shapes and types;
    finite numbers; arrays that are written again after they were handed over; an episode that ends at its limit of steps and is reset in the same
    step with its final observation kept; that the first step of a new episode is one; the same seed giving the same episode, twice in one
    environment too; different environments beginning differently; a goal that rewards depend on and observations do not show. Of environments that can
    leave a device (`cannot_leave` says "") also that they go on from a saved state to the last bit, in a new vector and in one that was used.
    ``steps``: how many to take (default: one episode and two more). ``num_envs``: of the vectors, where ``env`` does not fix that.
    """
    make = _makes(env, num_envs)
    first, second = make(), make()
    count = steps or (first.spec.max_episode_steps or STEPS) + 2
    try:
        if isinstance(first, LoopVecEnv):
            check_singles(first, seed)
        _Pair(first, second, seed).check(count)
        check_goal_is_shown(first, seed)
        if not cannot_leave(first):
            _check_leaving(first, second, make, count, seed)
    finally:
        first.close()
        second.close()


def _makes(env: Any, num_envs: int) -> Callable[[], VecEnv]:
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise ConfigError(f"check_env({shown(env)}): two are compared. Next: the function that makes it, check_env(lambda: gymnasium.make_vec(...)).")
    if isinstance(env, gymnasium.Env) and env.spec is None:  # made already, as in gymnasium's own check
        env = _copies_of(env)
    if not isinstance(env, (str, gymnasium.Env)) and not callable(env):
        raise ConfigError(f"check_env({shown(env)}): an id, a class, or a function that makes a vector. Next: lab.envs.check_env('numpy/ReachArm-v0').")
    factory = environment(env)
    if not isinstance(env, (str, type, gymnasium.Env)) and not takes(env, "num_envs"):
        made = env()
        if isinstance(made, (gymnasium.vector.VectorEnv, VecEnv)):
            num_envs = made.num_envs
        if hasattr(made, "close"):
            made.close()
    return lambda: on_host(factory(num_envs))


def _copies_of(env: gymnasium.Env) -> Callable[[], gymnasium.Env]:
    """A function that makes more of an environment. `ConfigError` for one that cannot be copied."""
    kind = type(env.unwrapped)
    try:
        copy.deepcopy(env)
    except Exception as error:  # whatever a simulator raises
        raise ConfigError(
            f"check_env({shown(env)}): several are compared, and this one cannot be copied, {said(error)}. Next: the class, check_env({kind.__name__})."
        ) from error

    def copied() -> gymnasium.Env:
        return copy.deepcopy(env)

    copied.__module__, copied.__qualname__ = kind.__module__, kind.__qualname__  # it is named after what it copies
    return copied


class _Pair:
    """Two vectors that are given the same, or not."""

    def __init__(self, env: VecEnv, twin: VecEnv, seed: int) -> None:
        self.env, self.twin, self.seed = env, twin, seed
        self.spec, self.n = env.spec, env.num_envs
        self._begun_N, self._ended_N = np.zeros((2, env.num_envs), bool)  # an observation after an end is a new episode's; an episode

    def check(self, steps: int) -> None:
        self._check_beginnings()
        rng = np.random.default_rng(self.seed)
        history = self._walk(rng, steps)
        limit = self.spec.max_episode_steps
        self.require(bool(self._ended_N.any()) or limit is None or steps < limit, f"no episode ended in {steps} steps, max_episode_steps is {limit}")
        stale = np.flatnonzero(self._ended_N & ~self._begun_N)
        self.require(
            not len(stale),
            f"an episode of environment {stale[:1]} ended, but obs_N is still its last observation: reset in the same step, and keep final_obs_N",
        )
        self._check_again(history)
        self._check_first_steps(steps)

    def _check_beginnings(self) -> None:
        obs, other = self.env.reset(seed=self.seed), self.twin.reset(seed=self.seed)
        self._check_tree(obs, "reset()")
        self.require(equal(obs, other), "the same seed gives another first observation")
        if self.n > 1 and equal(rows(obs, 0), rows(obs, 1)):
            kept = map_tree(np.copy, rows(obs, 0))
            alike, one_beginning = True, True  # in a small space two begin alike by chance, but not with every seed
            for k in range(1, ENDS):
                others = self.env.reset(seed=self.seed + 1000 * k)
                alike &= equal(rows(others, 0), rows(others, 1))
                one_beginning &= equal(kept, rows(others, 0))
            self.require(one_beginning or not alike, "environments 0 and 1 begin alike: seeds must differ")

    def _walk(self, rng: np.random.Generator, steps: int) -> list[tuple[Tree, EnvStep]]:
        """Both do the same; what the first did, and came of it."""
        self._first_N = map_tree(np.copy, self.env.reset(seed=self.seed))
        self.twin.reset(seed=self.seed)
        history: list[tuple[Tree, EnvStep]] = []
        age_N = np.zeros(self.n, np.int64)
        last: EnvStep | None = None
        for t in range(steps):
            action_N = sampled(self.spec.action_space, rng, self.n)
            step, other = self.env.step(action_N), self.twin.step(action_N)
            if last is not None:
                problem = f"step {t} changed arrays that step {t - 1} had handed over: they are used again; hand over copies"
                self.require(same_step(last, history[-1][1]), problem)
            self._check_step(step, t)
            for name in ("obs_N", "reward_N", "terminated_N", "truncated_N"):
                same = equal(getattr(step, name), getattr(other, name))
                self.require(same, f"the same seed and actions give another {WORDS[name]} at step {t}")
            age_N = self._check_ends(step, age_N + 1, t)
            last = step
            history.append((action_N, copied(step)))
        return history

    def _check_ends(self, step: EnvStep, age_N: np.ndarray, t: int) -> np.ndarray:
        """Returns how many steps the episodes under way have had."""
        done_N = step.terminated_N | step.truncated_N
        limit = self.spec.max_episode_steps
        if step.reset_only_N is not None:
            age_N = np.where(step.reset_only_N, 0, age_N)
        late = np.flatnonzero(~done_N & (age_N >= (limit or np.inf)))
        self.require(not len(late), f"step {t}: an episode of environment {late[:1]} goes on after {limit} steps, which is max_episode_steps")
        running = ~done_N
        self.require(equal(rows(step.final_obs_N, running), rows(step.obs_N, running)), f"step {t}: final_obs_N differs without an end")
        self._ended_N |= done_N
        for i in np.flatnonzero(done_N):
            begun = rows(step.obs_N, i)  # a cliff is left where episodes begin: then the last observation is a first one, too
            self._begun_N[i] |= not equal(rows(step.final_obs_N, i), begun) or equal(rows(self._first_N, i), begun)
        if getattr(self.env, "begins_in_next_step", False):
            self._begun_N |= done_N
        return np.where(done_N, 0, age_N)

    def _check_again(self, history: list[tuple[Tree, EnvStep]]) -> None:
        """The same vector does it once more: nothing of the episodes before may be left."""
        self.env.reset(seed=self.seed)
        for t, (action_N, before) in enumerate(history):
            again = self.env.step(action_N)
            same = equal(again.obs_N, before.obs_N) and np.array_equal(again.reward_N, before.reward_N)
            self.require(same, f"the same seed does not reproduce the episode in the same vector: step {t} is another one the second time")

    def _check_first_steps(self, steps: int) -> None:
        """The first step after an end must depend on its action.

        It must where the first step after reset() does.

        Several ends are tried, for two actions may by chance come to the same; a step that is swallowed never depends on its action.
        """
        if getattr(self.env, "begins_in_next_step", False):
            return
        self._reset_both(self.seed)
        lost_N = self._until_an_end(self._differing(), self.seed, steps)
        lost_N &= ~self._differing()
        for trial in range(1, ENDS):
            if not lost_N.any():
                return
            ended_N = self._until_an_end(lost_N, self.seed + trial, steps)
            lost_N &= ~(ended_N & self._differing())
        self.require(
            not lost_N.any(),
            f"the first step after an end does nothing in environment {np.flatnonzero(lost_N)[:1]}, whatever the action: the reset swallows a step. "
            f"Is it gymnasium's NEXT_STEP? Then hand over the VectorEnv itself, which is converted",
        )

    def _until_an_end(self, of_N: np.ndarray, seed: int, steps: int) -> np.ndarray:
        """Both go from the beginning to the first end of an episode. Of ``of_N``; whose it was."""
        self._reset_both(seed)
        rng = np.random.default_rng(seed + 1)
        for _ in range(steps):
            action_N = sampled(self.spec.action_space, rng, self.n)
            step = self.env.step(action_N)
            self.twin.step(action_N)
            done_N = (step.terminated_N | step.truncated_N) & of_N
            if done_N.any():
                return done_N
        return np.zeros(self.n, bool)

    def _reset_both(self, seed: int) -> None:
        self.env.reset(seed=seed)
        self.twin.reset(seed=seed)

    def _differing(self) -> np.ndarray:
        """In which environments lowest and highest action make a difference.

        From the same state. Afterwards the two are in different ones.
        """
        low, high = (extreme(self.spec.action_space, self.n, which) for which in (0, 1))
        one, other = self.env.step(low), self.twin.step(high)
        differs = [one.reward_N[i] != other.reward_N[i] or not equal(rows(one.final_obs_N, i), rows(other.final_obs_N, i)) for i in range(self.n)]
        return np.array(differs, bool)

    def _check_step(self, step: EnvStep, t: int) -> None:
        for name in ("obs_N", "final_obs_N"):
            self._check_tree(getattr(step, name), f"step {t}: {name}")
        for name in ("reward_N", "terminated_N", "truncated_N", "success_N", "reset_only_N"):
            array = getattr(step, name)
            if array is None and name in ("success_N", "reset_only_N"):
                continue
            self._require_array(array, f"step {t}: {name}")
            self.require(array.shape == (self.n,), f"step {t}: {name} has shape {array.shape}, not {(self.n,)}")
            self.require(bool(np.isfinite(array).all()), f"step {t}: {name} is not finite")
            self.require(array.dtype == bool or name == "reward_N", f"step {t}: {name} is {array.dtype}, not bool")
        self.require(not (step.terminated_N & step.truncated_N).any(), f"step {t}: an episode is both terminated and truncated")

    def _check_tree(self, tree: Tree, what: str) -> None:
        expected = dict(named_leaves(empty(self.spec.observation_space, self.n)))
        found = dict(named_leaves(tree))
        self.require(found.keys() == expected.keys(), f"{what} has the parts {sorted(found)}, the space has {sorted(expected)}")
        for name, leaf in found.items():
            like = expected[name]
            self._require_array(leaf, f"{what}{name}")
            self.require(leaf.shape == like.shape, f"{what}{name} has shape {leaf.shape}, the space says {like.shape}")
            self.require(leaf.dtype == like.dtype, f"{what}{name} is {leaf.dtype}, the space says {like.dtype}")
            self.require(is_finite(leaf), f"{what}{name} is not finite")

    def _require_array(self, found: object, what: str) -> None:
        if not isinstance(found, np.ndarray):  # to show an array takes longer than all else that is done here
            self.require(False, f"{what} is {shown(found)}, no array")

    def require(self, holds: bool, problem: str) -> None:
        _require(self.spec.id, holds, problem)


WORDS = {"obs_N": "observation", "reward_N": "reward", "terminated_N": "end", "truncated_N": "end"}


def _check_leaving(env: VecEnv, used: VecEnv, make: Callable[[], VecEnv], steps: int, seed: int) -> None:
    """Saved in the middle of an episode; ``used`` is in the middle of another one."""
    id, rng = env.spec.id, np.random.default_rng(seed + 1)
    actions = [sampled(env.spec.action_space, rng, env.num_envs) for _ in range(steps + 3)]
    env.reset(seed=seed + 1)
    for action_N in actions[:3]:
        env.step(action_N)
    try:
        state = pickle.loads(pickle.dumps(cast(Restorable, env).save_state()))
    except EnvError:
        raise
    except Exception as error:
        raise EnvError(f"{id} breaks the VecEnv contract: its state does not pickle: {type(error).__name__}: {said(error)}.") from error
    expected = [copied(env.step(action_N)) for action_N in actions[3:]]
    fresh = make()
    try:
        for name, other in (("new", fresh), ("used", used)):
            cast(Restorable, other).restore_state(state)
            for t, (action_N, step) in enumerate(zip(actions[3:], expected, strict=True)):
                found = other.step(action_N)
                for field in dataclasses.fields(step):
                    same = equal(getattr(found, field.name), getattr(step, field.name))
                    _require(id, same, f"restored in a {name} vector, step {t} gives another {field.name}")
    finally:
        fresh.close()


def extreme(space: spaces.Space, n: int, which: int) -> Tree:
    """The lowest (0) or highest (1) action, ``n`` times; 1 in an unbounded direction."""
    if isinstance(space, spaces.Dict):
        return {key: extreme(part, n, which) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(extreme(part, n, which) for part in space.spaces)
    if isinstance(space, spaces.Box):
        one: Any = np.clip(2.0 * which - 1.0, space.low, space.high)
    elif isinstance(space, spaces.Discrete):
        one = space.start + which * (space.n - 1)
    elif isinstance(space, spaces.MultiDiscrete):
        one = space.start + which * (space.nvec - 1)
    else:
        one = np.full(space.shape or (), which)
    return np.stack([np.asarray(one, space.dtype)] * n)


def equal(a: Tree, b: Tree) -> bool:
    """Whether all leaves are."""
    return all(np.array_equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))


def copied(step: EnvStep) -> EnvStep:
    """Whatever becomes of its arrays."""
    values: dict[str, Any] = {f.name: getattr(step, f.name) for f in dataclasses.fields(step)}
    kept: dict[str, Any] = {name: None if v is None else map_tree(np.copy, v) for name, v in values.items()}
    return EnvStep(**kept)


def same_step(a: EnvStep, b: EnvStep) -> bool:
    """Whether all of their arrays are equal."""
    return all(equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))


def _require(id: str, holds: bool, problem: str) -> None:
    if not holds:
        raise EnvError(f"{id} breaks the VecEnv contract: {problem}.")
