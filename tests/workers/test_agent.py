"""Answers that call tools: one text that is never made from text again, calls side by side, failures as data."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, UnknownNameError, WorkflowError
from rlinf_lab.generation import NOT_SAMPLED, Completion, small_model, token_batch, token_log_probs
from rlinf_lab.recipes.grpo import GRPOConfig, build
from rlinf_lab.tasks import Calculator, Products, PythonProgram, Search, Tool
from rlinf_lab.tasks.tools import answered, call_of, tools_of
from rlinf_lab.workers.reasoning import ToolTurn, ToolWorker
from rlinf_lab.workflow.worker import Collected, Scripted

SMALL = {"prompts": 3, "group_size": 2, "max_tokens": 24, "warm_up_steps": 0, "hidden": 16, "layers": 1, "iterations": 3, "slots": 6}


class Echo(Tool):
    """Says what it is given; fails for a digit 7."""

    name = "echo"

    def run(self, argument):
        if "7" in argument:
            raise ValueError("seven")
        return argument[:3]


def test_an_answer_with_tools_is_one_text_of_which_its_own_tokens_are_learnt_from():
    config = GRPOConfig("reasoning/products", **SMALL, tools=(Echo(),), temperature=1.5)
    flow = build(config)
    run = lab.run(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"]), iterations=3, dashboard=False)
    run.wait(120)
    assert all(m["mismatch_max"] < 1e-3 for m in run.results)  # log-probabilities of many turns are the trainer's
    assert run.metrics["tool_calls"].sum() > 0 and run.metrics["tool_failures"].max() < run.metrics["tool_calls"].max()


def test_tokens_that_a_tool_said_are_read_and_not_learnt_from():
    model = small_model("0123456789[];", hidden=16, layers=1, heads=2)
    ids, said = model.encode("[12]"), model.encode("12;")
    tokens = np.concatenate([ids, said, model.encode("9")])
    versions = np.array([3] * 4 + [NOT_SAMPLED] * 3 + [4])
    completion = Completion(model.encode("12"), tokens, np.zeros(8, np.float32), versions, "stop", "x")
    batch = token_batch([completion])
    assert batch.mask_BT.tolist() == [[True] * 4 + [False] * 3 + [True]] and completion.oldest == 3
    log_prob = token_log_probs(model, batch)
    assert (log_prob[0, 4:7] == 0).all()
    row = torch.from_numpy(np.concatenate([completion.prompt_ids, tokens]))[None]
    expected = model.module(input_ids=row).logits.log_softmax(-1)[0, -2, tokens[-1]]
    torch.testing.assert_close(log_prob[0, 7], expected, atol=1e-5, rtol=1e-5)  # after having read what the tool said


def turn(*calls, patience=float("inf"), idle=True):
    return ToolTurn(tuple(calls), patience, idle)


def test_calls_run_side_by_side_and_come_back_as_they_are_done():
    together, first = threading.Barrier(3), threading.Event()

    class Meets(Tool):
        name = "meets"

        def run(self, argument):
            if argument == "slow":
                first.wait(300)
                return "slow"
            together.wait(300)  # three calls must be here at once
            return argument

    worker, out = ToolWorker([Meets()], concurrency=4, timeout_s=600.0), Collected()

    class Turns(Scripted):
        def __iter__(self):
            yield [turn(("s", "slow"), ("a", "1"), ("b", "2"), ("c", "3"), patience=0.0)]
            first.set()
            yield [turn(patience=float("inf"))]

    told = worker.answer(Turns([]), out)
    results = [key for answers in out for key, _ in answers.results]
    assert sorted(results) == ["a", "b", "c", "s"] and told == {"calls": 4.0, "failed": 0.0}
    worker.close()


def test_a_tool_that_hangs_or_fails_is_a_failure_of_one_call():
    release = threading.Event()

    class Hangs(Tool):
        name = "hangs"

        def run(self, argument):
            release.wait(600)
            return "late"

    worker, out = ToolWorker([Hangs()], concurrency=2, timeout_s=0.05), Collected()
    assert worker.answer(Scripted([turn(("a", "x"))]), out) == {"calls": 1.0, "failed": 1.0}
    assert out[0].results[0][1].error == "TimeoutError: nothing after 0.05 s"
    release.set()
    worker.close()
    worker = ToolWorker([Hangs(), Echo()], concurrency=2, timeout_s=600.0)
    worker.answer(Scripted([turn(("b", "echo:7"), ("c", "nobody:1"), ("d", "echo:12"))]), out)
    errors = {key: result.error for key, result in out[1].results}
    assert "ValueError: seven" in errors["b"] and "there is no tool 'nobody'" in errors["c"] and errors["d"] == ""
    worker.close()


def test_a_planned_cell_takes_the_steps_that_were_simulated(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import tool_cell

    cell = lab.planning.ToolCell(0.004, 0.03, tools=4).best(tool_cell.TURNS)
    assert tool_cell.executed(4, float("inf")) == cell.simulate(tool_cell.TURNS).steps == 33


def test_tools():
    one = tools_of(["calculator"])
    assert answered(one, "3*(4+1)").text == "15" and answered(one, "calc:7/2").text == "7/2" and "divides by zero" in answered(one, "1/0").error
    search = Search(["the learner publishes weights", "a generator pulls weights", "rewards are judged"])
    assert search.run("who pulls weights?") == "a generator pulls weights" and search.run("xyz") == ""
    two = tools_of(["python", search])
    assert answered(two, "python:print(6*7)").text == "42" and "exit code 1" in answered(two, "python:1/0").error
    assert answered(two, "search:judged").text == "rewards are judged" and answered(two, "6*7").error
    assert call_of("a[1][2*3]") == "2*3" and call_of("[1]x") is None and call_of("1]") is None
    assert isinstance(two["python"], PythonProgram) and isinstance(one["calc"], Calculator)
    task = Products()
    (problem,) = task.sample(np.random.default_rng(0), 1, 2)
    assert task.reward(problem, task.solution(problem)).value == 1 and set(task.solution(problem)) <= set(task.alphabet)


@pytest.mark.parametrize(("make", "kind", "says"), [
    (lambda: tools_of(["calculater"]), UnknownNameError, "Did you mean 'calculator'"), (lambda: tools_of([3]), ConfigError, "3 is no tool"),
    (lambda: tools_of([Echo(), Echo()]), ConfigError, "two are called 'echo'"), (lambda: Search([]), ConfigError, "at least one text"),
    (lambda: ToolWorker([]), ConfigError, "at least one tool"), (lambda: GRPOConfig("products", tools=("calc",)), UnknownNameError, "calculator"),
    (lambda: GRPOConfig("products", tools=("calculator",), staleness="pace"), ConfigError, "tools is .* empty with staleness"),
    (lambda: GRPOConfig("products", tools=("calculator",), patience_s=-1), ConfigError, "patience_s is -1"),
])  # fmt: skip
def test_what_cannot_work_is_named(make, kind, says):
    with pytest.raises(kind, match=says):
        make()


def test_a_tool_worker_is_one():
    worker = ToolWorker([Echo()])
    worker._context = type("Two", (), {"name": "tools", "rank": 0, "ranks": 2, "device": "cpu"})()
    with pytest.raises(WorkflowError, match="2 ranks; it has one. Next: concurrency=16"):
        worker.preflight()
