"""A workflow of three workers in a row."""

from __future__ import annotations

import rlinf_lab as lab


class Maker(lab.Worker):
    def make(self, out: lab.Outbox) -> None:
        out.put_all(range(8))


class Passer(lab.Worker):
    def work(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        for batch in inbox:
            out.put_all(batch)


class Taker(lab.Worker):
    def take(self, inbox: lab.Inbox) -> int:
        return len(inbox.get_all())


def chain_of_three() -> lab.Workflow:
    flow = lab.Workflow("three")
    made, done = flow.channel("made"), flow.channel("done")
    source, stage, sink = flow.worker(Maker, name="source"), flow.worker(Passer, name="stage"), flow.worker(Taker, name="sink")

    @flow.iteration
    def iteration() -> int:
        source.make(made)
        stage.work(made, done)
        return sink.take(done).wait()

    return flow
