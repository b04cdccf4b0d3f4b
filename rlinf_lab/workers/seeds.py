"""Which random numbers belong to whom. Streams come from numpy's `SeedSequence`, so that no two purposes ever share
numbers.

Environments are seeded with whole numbers (a simulator takes nothing else), environment ``i`` of a vector with ``base +
i``. Each purpose has a range of such numbers to itself: an episode of an evaluation, or of a film, can therefore never
be one that training has seen.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

RANGE = 1 << 29  # of the numbers below 2^31, which every simulator takes
ROOM = 1 << 24  # numbers that may follow a base


class Purpose(IntEnum):
    """What random numbers are for. The first four have ranges of seeds of environments; the value is part of the
    stream's key.
    """

    TRAINING = 0
    EVALUATION = 1
    FILM = 2
    EXPLORATION = 3
    MINIBATCHES = 4
    DEMONSTRATIONS = 3  # of the same value: seeds of environments, and none of them is a stream's


def stream(seed: int, purpose: Purpose, *key: int) -> np.random.SeedSequence:
    """The stream of ``purpose`` in the run with this ``seed``; ``key`` tells its parts apart."""
    return np.random.SeedSequence(seed, spawn_key=(int(purpose), *key))


def environment_seed(seed: int, purpose: Purpose, *key: int) -> int:
    """The seed of a vector's first environment. Up to 2^24 environments may count on from it without leaving the
    purpose's range.
    """
    (drawn,) = stream(seed, purpose, *key).generate_state(1)
    return int(purpose) * RANGE + int(drawn) % (RANGE - ROOM)


def looks_seed(seed: int) -> int:
    """The seed of evaluations during a run. They choose its best policy, so others than those that judge it."""
    return int(stream(seed, Purpose.EVALUATION, 1).generate_state(1)[0])
