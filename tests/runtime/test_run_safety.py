"""What users and their machines do to a run: time-outs, stops at bad moments, workers that raise or draw."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from flows import Numbers, apart

from rlinf_lab import ExecutionPlan, Worker, Workflow
from rlinf_lab.errors import WorkerError
from rlinf_lab.runtime.run.run import run, session


class Odd(Worker):
    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def wait_for(self, go: threading.Event) -> int:
        assert go.wait(60)
        return 7

    def show(self, image: Any) -> None:
        self.frame(image)


class Forgetful(Odd):
    def close(self) -> None:
        raise OSError("could not write the checkpoint")


class Slow(Odd):
    def setup(self) -> None:
        time.sleep(60)


def alone(cls: type[Worker], method: str, *args: Any) -> tuple[Workflow, ExecutionPlan]:
    """A workflow of one worker and one call."""
    flow = Workflow("alone")
    worker = flow.worker(cls, name="w")
    flow.iteration(lambda: getattr(worker, method)(*args))
    return flow, ExecutionPlan.temporal(flow, ["cpu:0"])


def test_a_wait_that_timed_out_does_not_disturb_the_iteration() -> None:
    flow, said, go = Workflow("late"), list[str](), threading.Event()
    items = flow.channel("items")
    sleeper, producer = flow.worker(Odd, name="sleeper"), flow.worker(Numbers, name="producer")

    @flow.iteration
    def iteration() -> Any:
        held = sleeper.wait_for(go)
        producer.make(8, items)
        try:
            held.wait(timeout=0.05)
        except TimeoutError as error:
            said.append(str(error))
        go.set()
        return items.get_all(), held

    with session(flow, apart(flow)) as s:
        for _ in range(2):
            go.clear()
            assert s.step() == (list(range(8)), 7)
    after = "Next: wait longer, or without a timeout; status() tells who waits for whom."
    assert said == [f"driver[0] waited 0.05 s for the value of sleeper[0]; it has not come. {after}"] * 2


def test_what_close_raises_is_told() -> None:
    flow, plan = alone(Forgetful, "sleep", 0.0)
    failed = run(flow, plan, 1)
    with pytest.raises(WorkerError, match=r"'w' rank 0 failed in close\(\): OSError: could not write the checkpoint"):
        failed.wait(20)
    assert failed.state == "failed"
    with pytest.raises(WorkerError, match="could not write the checkpoint"), session(flow, plan) as s:
        assert s.step() == 0.0


@pytest.mark.long
def test_stopping_while_a_worker_is_set_up_or_computes_ends_and_says_who_was_left() -> None:
    for cls, wait_for in ((Slow, "starting"), (Odd, "running")):
        flow, plan = alone(cls, "sleep", 60.0)
        stopped = run(flow, plan, 1)
        while stopped.state != wait_for:
            time.sleep(0.01)
        time.sleep(0.1)
        with pytest.warns(RuntimeWarning, match=r"w\[0\] did not end in time"):
            stopped.stop()
        assert stopped.state == "stopped" and stopped.left_behind == ["w[0]"]


def test_pictures_become_rgb_and_what_is_none_is_refused_where_it_was_shown() -> None:
    for shape in ((4, 6), (4, 6, 1), (4, 6, 3), (4, 6, 4)):
        shown = run(*alone(Odd, "show", np.full(shape, 7, np.uint8)), 1)
        shown.wait(60)
        assert shown.frames["w[0]"].shape == (4, 6, 3) and (shown.frames["w[0]"] == 7).all()
    for image in (np.zeros((4, 6, 3)), np.zeros((2, 4, 6, 3), np.uint8), np.zeros((0, 4, 3), np.uint8), "a picture"):
        with pytest.raises(WorkerError, match=r"w\[0\]: frame\(\) got an array of shape .* Next: give one picture"):
            run(*alone(Odd, "show", image), 1).wait(60)
