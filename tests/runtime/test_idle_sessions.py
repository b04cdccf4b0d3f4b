"""A session that waits for its next step costs next to nothing: it looks twice a second, and its hosts say as often that nothing has happened."""

from __future__ import annotations

import time

import pytest

import rlinf_lab as lab

SECONDS = 2.0  # of waiting; a busy machine looks less often, never oftener


class Counts(lab.Worker):
    counted = -1

    def count(self) -> int:
        self.counted += 1
        return self.counted


def counting() -> lab.Workflow:
    flow = lab.Workflow("counting")
    counts = flow.worker(Counts, name="counts")
    flow.iteration(lambda: {"n": counts.count().wait()})
    return flow


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_an_idle_session_rests_and_wakes_up_for_its_next_step(executor: str) -> None:
    flow = counting()
    looks: list[float] = []
    with lab.session(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"]), executor) as session:
        session.on_update(lambda _: looks.append(time.monotonic()))
        session.step()

        def rests() -> bool:
            """Over some time; not while what was recorded is still coming."""
            looks.clear()
            told = session._executor.rounds()
            time.sleep(SECONDS)
            said = session._executor.rounds() - told
            return 1 <= len(looks) <= 2 * SECONDS + 1 and (executor == "local" or 1 <= said <= 2 * SECONDS + 2)

        assert any(rests() for _ in range(6))
        assert session.step() == {"n": 1}
        began = time.monotonic()
        while len(session.metrics) < 2 and time.monotonic() < began + 30:
            time.sleep(0.01)
        assert session.metrics["n"].tolist() == [0, 1]
