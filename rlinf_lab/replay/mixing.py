"""Batches from two buffers at once."""

from __future__ import annotations

import numpy as np

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.replay.buffer import ReplayBuffer, Sample
from rlinf_lab.replay.flat import flat, nested


def symmetric_sample(online: ReplayBuffer, offline: ReplayBuffer, size: int, *, offline_share: float = 0.5) -> Sample:
    """``size`` rows, so many of them from ``offline``; the online ones first. Indices are those of each buffer.

    While ``online`` is empty all rows are offline. Source: Ball et al., RLPD (arXiv 2302.02948), section 4.1,
    "symmetric sampling". Raises `ConfigError` for another share than 0 to 1, or for trees that differ.
    """
    if not 0.0 <= offline_share <= 1.0:
        raise ConfigError(f"symmetric_sample(offline_share={shown(offline_share)}): between 0 and 1, 0.5 is symmetric.")
    from_offline = round(size * offline_share) if len(online) else size
    if from_offline in (0, size):
        return (offline if from_offline else online).sample(size)
    new, old = online.sample(size - from_offline), offline.sample(from_offline)
    new_leaves, old_leaves = flat(new.data), flat(old.data)
    if new_leaves.keys() != old_leaves.keys():
        raise ConfigError(f"online and offline transitions differ in {sorted(new_leaves.keys() ^ old_leaves.keys())}.")
    joined = {name: np.concatenate([leaf, old_leaves[name]]) for name, leaf in new_leaves.items()}
    return Sample(
        nested(joined),
        np.concatenate([new.index_B, old.index_B]),
        np.concatenate([new.weight_B, old.weight_B]),
    )
