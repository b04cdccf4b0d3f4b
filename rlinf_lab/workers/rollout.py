"""Simulator and policy as one worker.

What a cell becomes whose members are together on every device.

    environments ──observation──> policy ──action──> environments ──> row of the slot's Trajectory       in one thread

Two workers of one core wait for each other twice a step, which costs as much as stepping some environments. The
trajectories are those of `SimulatorWorker` and `PolicyWorker` under any plan, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf_lab.policies import Actor, PolicyWeights
from rlinf_lab.records import Trajectory
from rlinf_lab.workers.policy import PolicyWorker
from rlinf_lab.workers.simulator import SimulatorWorker
from rlinf_lab.workflow.weights import Weights
from rlinf_lab.workflow.worker import Outbox


class RolloutWorker(SimulatorWorker, PolicyWorker):
    """Steps its environments with actions of its own policy. ``env`` and ``simulator``: see `SimulatorWorker`; the
    rest: see `PolicyWorker`.
    """

    def __init__(
        self,
        env: Any,
        policy: Callable[[], Actor],
        *,
        seed: int = 0,
        weights: PolicyWeights | None = None,
        **simulator: Any,
    ) -> None:
        SimulatorWorker.__init__(self, env, seed=seed, **simulator)
        PolicyWorker.__init__(self, policy, seed=seed, weights=weights)

    def setup(self) -> None:
        SimulatorWorker.setup(self)
        PolicyWorker.setup(self)

    def offload(self) -> None:
        SimulatorWorker.offload(self)
        PolicyWorker.offload(self)

    def onload(self) -> None:
        PolicyWorker.onload(self)
        SimulatorWorker.onload(self)

    def roll_out(self, trajectories: Outbox[Trajectory], weights: Weights) -> None:
        """``n_steps`` steps of every environment with the newest of ``weights``; then one `Trajectory` per slot."""
        self._update(weights)
        rows = self.n_steps // (self.chunk_size or 1)
        for group in self.groups:
            group.begin(rows)
        for _ in range(rows):
            for group in self.groups:
                (action,) = self.answers([group.observation()])
                group.record(action)
            self._show()
        trajectories.put_all(group.finish() for group in self.groups)
