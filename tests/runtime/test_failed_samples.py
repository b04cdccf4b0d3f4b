"""A sample's failure is data: the run goes on, and says which sample of which rank failed and why."""

from __future__ import annotations

from typing import Any

import rlinf_lab as lab
from rlinf_lab.workflow.worker import Collected, Scripted

BAD = 3


class Reward(lab.Worker):
    def score(self, samples: lab.Inbox, scored: lab.Outbox) -> None:
        for batch in samples:
            for one in batch:
                try:
                    if one % 5 == BAD:
                        raise ValueError(f"no parse of {one}")
                    scored.put((one, 1.0))
                except ValueError as error:
                    self.log_failure(error, sample=one)
                    scored.put((one, None))


def flow_of(n: int) -> lab.Workflow:
    flow = lab.Workflow("failing")
    samples, scored = flow.channels("samples", "scored")
    reward = flow.worker(Reward)

    flow.iteration(lambda: (samples.put_all(range(n)), reward.score(samples, scored), len(scored.get_all()))[2])
    return flow


def test_a_bad_sample_is_told_and_stops_nothing() -> None:
    flow = flow_of(10)
    plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"reward": [0, 1]}, micro_batches={"samples": 1})
    run = lab.run(flow, plan, iterations=2, dashboard=False, executor="processes", emulate=True)
    assert run.wait(60) == [10, 10]
    failures = run.failures.sort_values(["iteration", "sample"])
    assert failures["iteration"].tolist() == [0, 0, 1, 1] and failures["sample"].tolist() == ["3", "8"] * 2
    assert failures["error"].tolist() == ["ValueError: no parse of 3", "ValueError: no parse of 8"] * 2
    assert set(failures["worker"]) == {"reward"} and set(failures["rank"]) <= {0, 1} and failures.attrs["total"] == 4


def test_only_the_first_thousand_are_kept_and_all_are_counted_and_without_a_runtime_nothing_happens() -> None:
    flow = flow_of(6000)
    run = lab.run(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"]), iterations=1, dashboard=False)
    run.wait(60)
    assert len(run.failures) == 1000 and run.failures.attrs["total"] == 1200
    scored: Collected[Any] = Collected()
    Reward().score(Scripted([2, 3]), scored)
    assert scored == [(2, 1.0), (3, None)]
