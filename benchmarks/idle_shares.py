"""How long the trainer waits where generation is slower: two published cases, simulated.

SemiAnalysis (June 2026): 2.75 responses consumed and 1.95 to 1.98 produced a second, trainer idle about 30 %; consumption five times
production, 74 %. Lengths are RLinf's Fig. 2; the queue holds up generation when it is full.
"""

from __future__ import annotations

import numpy as np
from harness import Case
from length_replay import published

from rlinf_lab.planning.costs.response_lengths import ResponseLengths
from rlinf_lab.planning.simulator.rollouts import AsynchronousTraining
from rlinf_lab.planning.simulator.staleness import StalenessPolicy

SLOTS, BATCH, GROUP = 256, 128, 8


def idle(produced: float, consumed: float, updates: int) -> float:
    """Percent of the time in which the trainer waits; rates in responses a second."""
    lengths = ResponseLengths.of_completion(published()[1].completion, 1.0)
    seconds_N = lengths.draw(np.random.default_rng(0), (updates + 8) * BATCH) / lengths.mean * SLOTS / produced
    setting = AsynchronousTraining(SLOTS, BATCH, BATCH / consumed, GROUP, StalenessPolicy("block", queue=2))
    done = setting.simulate(seconds_N, updates=updates)
    return 100 * done.trainer_idle


def cases(smoke: bool) -> list[Case]:
    updates = 10 if smoke else 400
    note = f"{SLOTS} slots, {BATCH} responses of an update in groups of {GROUP}, {updates} updates, lengths of RLinf's Fig. 2"
    return [
        Case(
            "idle_shares: 2.75 consumed, 1.965 produced a second", "points from 30 %", lambda: abs(idle(1.965, 2.75, updates) - 30), target="<= 3",
            target_of="value", runs=1, note=note,
        ),
        Case("idle_shares: five times as much consumed", "points from 74 %", lambda: abs(idle(1.0, 5.0, updates) - 74), target="<= 8", target_of="value", runs=1, note=note),
    ]  # fmt: skip
