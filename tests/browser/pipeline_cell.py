"""The cell of a notebook in which a source and a sink run for ever, each on a core of its own."""

from __future__ import annotations

_CELL = """
import json, time
import rlinf_lab as lab

class Source(lab.Worker):
    def produce(self, out: lab.Outbox):
        for i in range({items}):
            self.compute({source_seconds})
            out.put(i)

class Sink(lab.Worker):
    def consume(self, inbox: lab.Inbox):
        total = 0
        for batch in inbox:
            self.compute({sink_seconds})
            total += sum(batch)
        self.log(reward=total)
        return {{"return": total}}

flow = lab.Workflow("{name}")
numbers = flow.channel("numbers")
source, sink = flow.worker(Source), flow.worker(Sink)

@flow.iteration
def iteration():
    source.produce(numbers)
    return sink.consume(numbers)

plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {{"source": [0], "sink": [1]}}{more})
run = lab.run(flow, plan, emulate=True)
"""


def pipeline_cell(name: str, items: int, source_seconds: float, sink_seconds: float, micro_batch: int | None = None) -> str:
    """``items`` of an iteration; what each takes in the source, and each batch in the sink."""
    more = "" if micro_batch is None else f", micro_batch={micro_batch}"
    return _CELL.format(name=name, items=items, source_seconds=source_seconds, sink_seconds=sink_seconds, more=more)
