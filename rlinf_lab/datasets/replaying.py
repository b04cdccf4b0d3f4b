"""A recorded episode played again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rlinf_lab.datasets.episodes import DataSpec, Episode
from rlinf_lab.datasets.playing import play_once
from rlinf_lab.datasets.presenting import acted
from rlinf_lab.errors import ConfigError
from rlinf_lab.trees import Tree, map_tree
from rlinf_lab.vecenv import environment


def replayed(episode: Episode, spec: DataSpec, env: Any = None) -> Episode:
    """The episode that the same actions make from the same seed.

    Its actions are in the units of ``episode``'s. `ConfigError` where environment or seed is not known, or actions are of another space.
    """
    if env is None and spec.env is None:
        raise ConfigError("This data does not say which environment it is of. Next: data.replay(index, env='metaworld/push-v3').")
    if episode.seed is None:
        raise ConfigError(f"{episode!r} does not say from which seed it began, so it cannot be replayed. Next: data of lab.collect.")
    # An episode that was recorded without an end ends here with its last action.
    was_cut = not (episode.terminated or episode.truncated)
    limit = len(episode) if was_cut else spec.max_episode_steps
    vector = environment(spec.env if env is None else env)(1, limit)
    try:
        actions_T = acted(spec.action_space, vector.spec)(episode.action_T)
    except ConfigError:
        vector.close()
        raise
    rows = iter(range(len(episode)))

    def act(_obs_N: Tree) -> Tree:
        t = next(rows, None)
        if t is None:
            raise ConfigError(f"{episode!r} was over after {len(episode)} steps, and the environment goes on: it is another one, or its limit of steps is.")
        return map_tree(lambda leaf: np.asarray(leaf)[t : t + 1], actions_T)

    try:
        found = play_once(vector, act, episode.seed, episode.task)[0]
        action_T = map_tree(lambda leaf: np.array(np.asarray(leaf)[: len(found)]), episode.action_T)
        return replace(found, action_T=action_T, truncated=found.truncated and not was_cut)
    finally:
        vector.close()
