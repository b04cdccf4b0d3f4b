"""The least workflow: one call of one worker."""

from __future__ import annotations

from rlinf_lab import Worker, Workflow


class One(Worker):
    def one(self) -> int:
        return 1


def one_worker() -> Workflow:
    flow = Workflow("one")
    worker = flow.worker(One, name="w")

    @flow.iteration
    def iteration() -> object:
        return worker.one()

    return flow
