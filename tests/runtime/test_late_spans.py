"""What other processes recorded of an iteration comes after its mark: until it is there, the iteration is not taken for whole."""

from __future__ import annotations

import time
from collections import Counter

from sessions import until

import rlinf_lab as lab
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.timeline.account.tables import Standing, whole_iterations
from rlinf_lab.timeline.timeline import Timeline

ITERATIONS = 4


class Source(lab.Worker):
    def generate(self, out: lab.Outbox) -> None:
        out.put_all(range(4))


class Learner(lab.Worker):
    def train(self, inbox: lab.Inbox) -> None:
        for _ in inbox:
            pass


def test_an_iteration_is_whole_when_every_process_has_told_of_it() -> None:
    flow = lab.Workflow("late")
    items = flow.channel("items")
    source, learner = flow.worker(Source, name="source"), flow.worker(Learner, name="learner")

    flow.iteration(lambda: (source.generate(items), learner.train(items))[:0])
    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"source": [0], "learner": [1]}, micro_batch=1)
    looks: list[Timeline] = []
    with lab.session(flow, plan, executor="processes", emulate=True) as session:
        for _ in range(ITERATIONS):
            session.step()
            for _ in range(10):
                looks.append(session.timeline.snapshot())
                time.sleep(0.01)
        until(lambda: whole_iterations(session.timeline) == set(range(ITERATIONS)))  # though nothing more happens
    final = Counter(session.timeline.spans["iteration"].tolist())
    for look in looks:
        seen, whole = Counter(look.spans["iteration"].tolist()), whole_iterations(look) or set()
        assert {i: seen[i] for i in whole} == {i: final[i] for i in whole}
        marked = set(look.marks()["iteration"].tolist())
        assert set(Standing.of(look).arriving) == marked - whole
    assert whole_iterations(session.timeline) == set(range(ITERATIONS)) and not session.timeline.arriving
