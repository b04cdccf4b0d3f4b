"""A trained policy by itself: observations in, actions out.

Both as the environment has them; normalisation is inside.
"""

from __future__ import annotations

import functools
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.datasets.space_json import typed
from rlinf_lab.errors import ConfigError, counted, shown
from rlinf_lab.experiments.evaluation import Evaluation, Told, check_counts, play
from rlinf_lab.policies.leaves import Leaf, flatten, leaves_of, unflatten
from rlinf_lab.policies.weights import PolicyWeights
from rlinf_lab.trees import rows
from rlinf_lab.vecenv.base import LONGEST
from rlinf_lab.vecenv.spaces import Native, is_finite
from rlinf_lab.workers.seeds import Purpose, environment_seed

if TYPE_CHECKING:
    from rlinf_lab.experiments.film import Film


class TrainedPolicy:
    """What `load_policy` and `run.policy()` give. ``version``: updates that went into it; ``module``: the torch module.

    Observations are as the environment gives them, a tree of arrays for Dict and Tuple spaces.
    """

    def __init__(self, config: Any, weights: PolicyWeights) -> None:
        self.config = config
        self.observation_space, self.action_space = config.spec.observation_space, config.spec.action_space
        self.module = config.make_policy()()
        try:
            self.module.load(weights)
        except RuntimeError as error:  # torch's
            lines = [line.strip() for line in str(error).splitlines()]
            first = next((line for line in lines if "size mismatch" in line), lines[-1])
            raise ConfigError(
                f"These weights are of another policy than {config.factory.id} has: {first} Next: the environment and "
                "the network that they were trained on."
            ) from error
        native = config.spec.native_action_space
        self._native = None if native is None else Native(native)
        self.version = weights.version

    def act(self, obs: Any) -> Any:
        """Greedy actions for observations of one environment, or of a vector of them.

        They are as `make_vec` takes them: of a bounded Box in [-1, 1]. A policy of chunks gives all actions of a chunk,
        one after another along an axis before the action's own. Raises `ValueError` naming the leaf of an observation
        that does not fit or is not finite.
        """
        space = self.observation_space
        given = flatten(space, obs, "observation")  # in the space's order: an environment may give keys in another
        for leaf, array in zip(self._leaves, given, strict=True):
            _require_numbers(f"observation{leaf.name}", np.asarray(array))
        is_one = all(np.ndim(array) == len(leaf.shape) for leaf, array in zip(self._leaves, given, strict=True))
        action = self._greedy(unflatten(space, [np.asarray(leaf)[None] for leaf in given] if is_one else given))
        return rows(action, 0) if is_one else action

    @functools.cached_property
    def _leaves(self) -> tuple[Leaf, ...]:
        return leaves_of(self.observation_space)

    def _greedy(self, obs_N: Any) -> Any:
        """What environments get."""
        action_N, _ = self.module.act(obs_N, None)
        return self.module.executed(action_N) if hasattr(self.module, "executed") else action_N

    def predict(self, obs: Any, deterministic: bool = True) -> tuple[Any, None]:
        """Greedy actions for gymnasium's own ``env.step``, and no state.

        As stable-baselines3 has it: in the bounds of the environment.

        Of a chunk the first action: whoever steps one by one asks again for each step.
        """
        if not deterministic:
            raise ConfigError("predict(deterministic=False): a policy by itself acts greedily. Next: predict(obs).")
        action = self.act(obs)
        if getattr(self.config, "chunk", None) is not None:
            action = np.take(action, 0, axis=np.ndim(action) - len(self.action_space.shape) - 1)
        return (action if self._native is None else self._native(typed(self.action_space, action, cut=True))), None

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write it for other programs, normalisation inside: ".pt2" (torch.export) or ".onnx". Returns the path. See
        `deploying.export`.
        """
        from rlinf_lab.experiments.deploying import export

        return export(self, Path(path))

    def film(self, path: str | os.PathLike[str], episodes: int = 2) -> Film:
        """Greedy episodes as an MP4, on seeds of their own. Returns what was written, or why nothing was; in a notebook
        it plays.
        """
        from rlinf_lab.experiments.film import film

        return film(self.config, self.module.weights(), Path(path), episodes)

    def evaluate(self, episodes: int = 50, seed: int | None = None) -> Evaluation:
        """Play whole episodes greedily on environments of its own; ``seed``: of these, None: the run's.

        Where nothing limits an episode it is cut after 10,000 steps, with a warning.
        """
        seed = self.config.seed if seed is None else seed
        check_counts("evaluate", episodes, seed)
        first = environment_seed(seed, Purpose.EVALUATION)
        factory, steps = self.config.factory, self.config.max_episode_steps
        is_endless = steps is None and factory.spec().max_episode_steps is None
        found = play(
            lambda n: factory(factory.size or n, LONGEST if is_endless else steps),
            self._greedy,
            episodes,
            first,
            Told(self.version, seed),
        )
        if is_endless and (cut := int((found.lengths_E >= LONGEST).sum())):
            warnings.warn(
                f"{factory.id}: {cut} of {episodes} evaluated episodes were cut after {LONGEST:,} steps. Next: "
                "max_episode_steps=.",
                stacklevel=2,
            )
        return found

    def __repr__(self) -> str:
        return f"TrainedPolicy({self.config.factory.id!r}, after {counted(self.version, 'update')})"


def _require_numbers(name: str, given: NDArray) -> None:
    """`ConfigError` for what no action should be taken on."""
    if given.dtype.kind not in "biuf":
        found = shown(given.tolist())
        raise ConfigError(f"act: the {name} is {found}, which are no numbers. Next: what env.reset() gives.")
    if not is_finite(given):
        value = given[~np.isfinite(given)][0]
        raise ConfigError(f"act: {value} is in the {name}. Next: find where it comes from; no action follows from it.")
