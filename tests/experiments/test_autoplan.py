"""A run that plans itself: what it chooses, on simulated measurements, and that a change of plans loses nothing of the training."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, WorkerError
from rlinf_lab.experiments.autoplan.choice import Choice, choose
from rlinf_lab.experiments.autoplan.phases import AutoPlan, Phase, of_a_gpu, reason
from rlinf_lab.experiments.autoplan.probes import gpu_probe, probes, rank_counts
from rlinf_lab.experiments.between import Between
from rlinf_lab.experiments.starting import all_devices, train
from rlinf_lab.experiments.storage.snapshot import Snapshot
from rlinf_lab.experiments.training import TrainingRun
from rlinf_lab.planning.fit.samples import Observed
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.simulator.scripts import ALL, SimCall, get, put, run
from rlinf_lab.planning.simulator.simulator import Simulator
from rlinf_lab.policies import PolicyWeights
from rlinf_lab.runtime.machine.devices import Gpus
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

MS, STEPS, ENVS = 10**6, 20, 8
DEVICES = ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]


class Stage(Worker):
    def collect(self, act: Inbox, obs: Outbox, results: Outbox) -> None: ...
    def act(self, obs: Inbox, act: Outbox) -> None: ...
    def train(self, results: Inbox) -> None: ...


def cell() -> Workflow:
    flow = Workflow("cell")
    obs, act, results = flow.channel("obs"), flow.channel("act", keyed=True), flow.channel("results", whole=True)
    env, policy, learner = (flow.worker(Stage, name=n) for n in ("env", "policy", "learner"))

    @flow.iteration
    def iteration() -> None:
        env.collect(act, obs, results)
        policy.act(obs, act)
        learner.train(results)

    return flow


def measured(
    flow: Workflow, plan: ExecutionPlan, env_ms: float, learner_ms: float, gpu: tuple[float, float] = (0.0, 0.0), disturbed: int = 0
) -> Timeline:
    """A step takes ``env_ms`` an environment and the policy's answer a tenth of that a batch; the update takes ``learner_ms``.

    ``gpu``: what an answer and the update take there. ``disturbed``: iterations after the third, in which steps take ten times as long.
    """
    k = plan.tokens("env")
    answer_ms = gpu[0] if plan.device_names("policy", 0) == ("cuda:0",) else 0.1 * env_ms
    learner_ms = gpu[1] if plan.device_names("learner", 0) == ("cuda:0",) else learner_ms

    def collect(turn: Any) -> Any:
        for step in range(STEPS):
            for slot in range(k):
                if step:
                    yield get("act", 1, slot)
                yield run(round((1 if turn.iteration < 3 else 10) * env_ms * ENVS / k * MS))
                yield put("obs")
        for slot in range(k):
            yield get("act", 1, slot)
            yield put("results")

    def answer(turn: Any) -> Any:
        number = 0
        while n := (yield get("obs")):
            yield run(round(answer_ms * MS))
            for _ in range(n):
                yield put("act", 1, number % k)
                number += 1

    def learn(turn: Any) -> Any:
        yield get("results", ALL)
        yield run(round(learner_ms * MS))

    calls = [
        SimCall("env", "collect", collect, reads=("act",), writes=("obs", "results")),
        SimCall("policy", "act", answer, reads=("obs",), writes=("act",), starts_on_device=False),
        SimCall("learner", "train", learn, reads=("results",), starts_on_device=False),
    ]
    return Simulator(flow.graph, plan).simulate(calls, 3 + disturbed)


def chosen(env_ms: float, learner_ms: float, remaining: int = 1000, change_s: float = 5.0) -> Any:
    flow = cell()
    plans = [p.plan for p in probes(flow, {"env": ENVS}, DEVICES)]
    runs = [Observed.of(flow.graph, plan, measured(flow, plan, env_ms, learner_ms)) for plan in plans]
    measured_s = (STEPS * (env_ms * ENVS + 0.1 * env_ms) + learner_ms) / 1000
    return choose(flow, runs, {"env": ENVS}, DEVICES, measured_s, remaining, change_s, "processes")


def test_a_slow_simulator_gets_all_cores() -> None:
    choice = chosen(env_ms=2.0, learner_ms=10.0)
    assert choice.changes and choice.new.ranks("env") == 4
    fused = (STEPS * (2.0 * ENVS / 4 + 0.2) + 10.0) / 1000  # each rank has two environments and answers them by itself
    assert choice.predicted_s == pytest.approx(fused, rel=0.05)


def test_no_change_where_the_update_takes_the_time() -> None:
    choice = chosen(env_ms=0.01, learner_ms=500.0)
    assert not choice.changes and choice.new is choice.old and "best plan found" in choice.reason


def test_no_change_that_does_not_pay_before_the_end() -> None:
    assert not (few := chosen(env_ms=2.0, learner_ms=10.0, remaining=12)).changes and "until the end" in few.reason
    assert chosen(env_ms=2.0, learner_ms=10.0, remaining=30, change_s=5.0).changes


def test_ranks_share_the_environments_evenly() -> None:
    assert rank_counts(12, 5) == (1, 2, 3, 4) and rank_counts(7, 5) == (1,)
    flow = cell()
    assert probes(flow, {"env": 7}, DEVICES) == [] == probes(flow, {"env": 8}, DEVICES[:1]) == probes(flow, {}, DEVICES)


def test_back_to_the_old_plan_when_the_new_one_is_slower() -> None:
    flow = cell()
    auto = AutoPlan({"env": ENVS}, DEVICES)
    plan = auto.first(flow).plan
    for probe_plan in [p.plan for p in probes(flow, {"env": ENVS}, DEVICES)]:
        assert plan == probe_plan and auto.ends_phase([9.0, 0.33, 0.33, 0.33], 1000)
        timeline = measured(flow, plan, 2.0, 10.0)
        plan = auto.next(flow, timeline, 1000, 0.0).plan
    assert auto.choice is not None and auto.choice.changes and plan.ranks("env") == 4
    assert not auto.ends_phase([9.0, 0.4], 900), "too early to say"
    assert auto.ends_phase([9.0, 0.4, 0.4, 0.4, 0.4], 900)
    assert auto.next(flow, timeline, 900, 0.0) == Phase(auto.choice.old, "local") and "back to it" in repr(auto)
    assert not auto.ends_phase([9.0, 99.0, 99.0, 99.0, 99.0, 99.0], 800), "decided once"


class Waiting:
    """Stands in for processes that import: `Spares`."""

    made: list[Waiting]

    def __init__(self, count: int, prepare: Any, cores: Any) -> None:
        self.count, self.ready, self.closed = count, False, False
        self.made.append(self)

    def are_ready(self) -> bool:
        return self.ready

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("remaining", [1000, 60])
def test_the_run_goes_on_until_the_processes_of_the_next_plan_are_there(remaining: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf_lab.experiments.autoplan.phases.Spares", Waiting)
    monkeypatch.setattr(Waiting, "made", [], raising=False)
    flow = cell()
    auto = AutoPlan({"env": ENVS}, DEVICES, prepare=list)
    plan = auto.first(flow).plan
    assert auto.ends_phase([9.0, 0.33, 0.33, 0.33], 1000) and not Waiting.made, "nothing disturbs what is measured"
    plan = auto.next(flow, measured(flow, plan, 2.0, 10.0), 1000, 0.0).plan
    assert not auto.ends_phase([9.0, 0.33, 0.33], 1000)
    (spares,) = Waiting.made
    assert spares.count == 4 and not auto.ends_phase([9.0, 0.33, 0.33, 0.8], 1000)
    spares.ready = True
    assert auto.ends_phase([9.0, 0.33, 0.33, 0.8, 0.8], 1000)
    phase = auto.next(flow, measured(flow, plan, 2.0, 10.0, disturbed=2), remaining, 100.0 if remaining < 1000 else 0.0)
    assert auto.choice is not None and auto.choice.predicted_s < 0.4, "of what was measured before"
    assert auto.choice.changes == (remaining == 1000) == (phase.options == {"spares": spares}) != spares.closed


def test_a_process_that_warms_up_has_imported_the_simulator_and_made_no_environment(warm_python: Any) -> None:
    code = """
import sys
from rlinf_lab.experiments.autoplan.warming import warm_up
warm_up(["rlinf_lab.workers.learner"], "metaworld/reach-v3")
made = sys.modules["envs.metaworld.quick"]._compiled.cache_info().currsize
assert "rlinf_lab.workers.learner" in sys.modules and "metaworld" in sys.modules and not made
"""
    done = warm_python(code)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def gpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that says it has one."""
    monkeypatch.setattr("rlinf_lab.runtime.machine.devices.gpus", lambda: Gpus(1))


def planned_beside_a_gpu(env_ms: float, learner_ms: float, gpu: tuple[float, float], remaining: int) -> tuple[AutoPlan, list[str]]:
    """A whole decision on four cores and a GPU; also the devices of every phase."""
    flow = cell()
    auto = AutoPlan({"env": ENVS}, [*DEVICES, "cuda:0"], networks=("policy", "learner"))
    phase, used = auto.first(flow), list[str]()
    seconds = (STEPS * (env_ms * ENVS + 0.1 * env_ms) + learner_ms) / 1000
    while auto.choice is None:
        used.append(" ".join(phase.plan.devices))
        assert auto.ends_phase([9.0, seconds, seconds, seconds], remaining)
        phase = auto.next(flow, measured(flow, phase.plan, env_ms, learner_ms, gpu), remaining, 0.0)
    return auto, used


def where(auto: AutoPlan, worker: str) -> set[str]:
    assert auto.choice is not None
    return {name for rank in range(auto.choice.new.ranks(worker)) for name in auto.choice.new.device_names(worker, rank)}


@pytest.mark.usefixtures("gpu_here")
def test_an_update_that_is_faster_on_the_gpu_goes_there_and_the_simulator_stays_on_all_cores() -> None:
    auto, used = planned_beside_a_gpu(env_ms=2.0, learner_ms=900.0, gpu=(5.0, 30.0), remaining=1000)
    assert used == ["cpu:0", "cpu:0", "cpu:0 cuda:0"]
    assert auto.choice is not None and auto.choice.changes
    assert where(auto, "learner") == {"cuda:0"} and where(auto, "env") == set(DEVICES) == where(auto, "policy"), "an answer there takes longer"
    assert auto.choice.predicted_s == pytest.approx((STEPS * (2.0 * ENVS / 4 + 0.2) + 30.0) / 1000, rel=0.05)


@pytest.mark.usefixtures("gpu_here")
def test_a_network_that_is_slower_on_the_gpu_stays_on_cores() -> None:
    auto, used = planned_beside_a_gpu(env_ms=2.0, learner_ms=20.0, gpu=(5.0, 60.0), remaining=5000)
    assert used[-1] == "cpu:0 cuda:0", "it was measured there"
    assert auto.choice is not None and auto.choice.changes and not any("cuda" in name for w in ("env", "policy", "learner") for name in where(auto, w))
    assert auto.choice.new.ranks("env") == 4


def test_a_gpu_is_not_tried_where_it_could_not_repay_the_look() -> None:
    auto, used = planned_beside_a_gpu(env_ms=2.0, learner_ms=10.0, gpu=(0.0, 0.0), remaining=60)
    assert used == ["cpu:0", "cpu:0"] and "cuda:0 was not tried: the networks take 0.014 s" in auto.note


@pytest.mark.usefixtures("gpu_here")
def test_one_core_and_a_gpu() -> None:
    flow = cell()
    auto = AutoPlan({"env": ENVS}, ["cpu:0", "cuda:0"], networks=("policy", "learner"))
    assert auto.first(flow).plan.devices == ("cpu:0",) and auto.ends_phase([9.0, 1.0, 1.0, 1.0], 1000)
    phase = auto.next(flow, measured(flow, auto.first(flow).plan, 2.0, 900.0), 1000, 0.0)
    assert phase.plan.devices == ("cpu:0", "cuda:0") and phase.executor == "local"
    auto.next(flow, measured(flow, phase.plan, 2.0, 900.0, (5.0, 30.0)), 1000, 0.0)
    assert where(auto, "learner") == {"cuda:0"} and where(auto, "env") == {"cpu:0"}


def test_the_gpus_of_the_machine_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf_lab.experiments.starting.gpus", lambda: Gpus(2))
    assert all_devices()[-2:] == ["cuda:0", "cuda:1"] and all_devices()[0] == "cpu:0"


@pytest.mark.gpu
def test_a_small_network_stays_on_cores_beside_a_real_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = train("ppo", "numpy/ReachArm-v0", iterations=600, progress=False, devices=["cpu:0", "cuda:0"]).wait()
    assert done.state == "finished" and done.auto is not None and done.phases[0].plan.devices == ("cpu:0",)
    assert done.phases[-1].plan.devices[0] == "cpu:0" and done.metrics["iteration"].tolist() == list(range(1, 601))


class EveryTwo(AutoPlan):
    """Changes the plan after every two iterations."""

    def first(self, flow: Workflow) -> Phase:
        return Phase(ExecutionPlan.temporal(flow, self.devices[:1]), "local")

    def ends_phase(self, seconds: Any, remaining: int) -> bool:
        return len(seconds) == 2 and remaining > 0

    def next(self, flow: Workflow, timeline: Any, remaining: int, setup_s: float) -> Phase:
        return Phase(ExecutionPlan.temporal(flow, self.devices[:1], sub_batches={"simulator": 2}, name=f"with {remaining} left"), "local")


def test_training_goes_on_over_changes_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlinf_lab.experiments.starting.AutoPlan", EveryTwo)
    done = train("ppo", "numpy/ReachArm-v0", num_envs=8, iterations=7, progress=False, devices=["cpu:0"]).wait()
    table = done.metrics
    assert table["iteration"].tolist() == [1, 2, 3, 4, 5, 6, 7] and np.diff(table["env_steps"]).tolist() == [done.config.env_steps] * 6
    assert [p.plan.name for p in done.phases] == ["temporal", "with 5 left", "with 3 left", "with 1 left"]
    assert done.policy().module.version == 7 and done.state == "finished" and done.folder is not None
    assert lab.load_policy(done.folder).module.version == 7


def test_devices_are_for_plans_that_are_searched() -> None:
    with pytest.raises(ConfigError, match="plan='auto' only"):
        lab.train("ppo", "numpy/ReachArm-v0", plan=None, devices=["cpu:0"])


@pytest.fixture
def a_gpu_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that says it has one, with a torch that cannot compute on it; a change of plans costs nothing."""
    if torch.cuda.is_available():
        pytest.skip("there is one")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlinf_lab.runtime.machine.devices.gpus", lambda: Gpus(1))
    monkeypatch.setattr("rlinf_lab.experiments.autoplan.phases.CHANGE_S", 0.0)


@pytest.mark.usefixtures("a_gpu_that_fails")
def test_a_gpu_that_fails_while_it_is_tried_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = AutoPlan._asks_the_gpu  # whatever setting up takes on this machine
    monkeypatch.setattr(AutoPlan, "_asks_the_gpu", lambda self, remaining, setup_s: asks(self, remaining, 0.0))
    done = train("ppo", "numpy/ReachArm-v0", num_envs=8, iterations=12, progress=False, folder=False, devices=["cpu:0", "cuda:0"]).wait()
    assert done.state == "finished" and done.metrics["iteration"].tolist() == list(range(1, 13))
    assert [phase.state for phase in done.phases] == ["finished", "finished", "failed", "finished"] and done.phases[2].plan.devices[1] == "cuda:0"
    assert done.auto is not None and "cuda:0 failed, the run goes on without: " in done.auto.note and "CUDA" in done.auto.note


@pytest.mark.usefixtures("a_gpu_that_fails")
def test_a_chosen_plan_whose_gpu_fails_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(flow: Workflow, runs: Any, shares: Any, devices: list[str], measured_s: float, *rest: Any) -> Choice:
        new = gpu_probe(flow, devices, ("policy", "learner")).plan
        return Choice(runs[0].plan, new, measured_s, measured_s / 2, True, "twice as fast")

    monkeypatch.setattr("rlinf_lab.experiments.autoplan.phases.choose", chosen)
    monkeypatch.setattr(AutoPlan, "_asks_the_gpu", lambda *asked: False)
    done = train("ppo", "numpy/ReachArm-v0", num_envs=8, iterations=12, progress=False, folder=False, devices=["cpu:0", "cuda:0"]).wait()
    assert done.state == "finished" and done.metrics["iteration"].tolist() == list(range(1, 13)) and done.plan.devices == ("cpu:0",)
    assert done.auto is not None and "cuda:0 failed" in done.auto.note


def test_a_chosen_plan_that_cannot_begin_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.getpid()

    def only_here() -> gymnasium.Env:
        if os.getpid() != here:
            raise RuntimeError("one licence, one process")
        return gymnasium.make("CartPole-v1")

    def chosen(flow: Workflow, runs: Any, shares: Any, devices: list[str], measured_s: float, *rest: Any) -> Choice:
        new = ExecutionPlan.spatial(flow, devices, {"simulator": [0], "policy": [0], "learner": [1]}, name="apart")
        return Choice(runs[0].plan, new, measured_s, measured_s / 2, True, "twice as fast")

    monkeypatch.setattr("rlinf_lab.experiments.autoplan.phases.choose", chosen)
    monkeypatch.setattr("rlinf_lab.experiments.autoplan.phases.CHANGE_S", 0.0)
    settings: dict[str, Any] = {"num_envs": 8, "n_steps": 32, "batch_size": 256, "iterations": 400, "progress": False, "folder": False}
    run = train("ppo", only_here, devices=["cpu:0", "cpu:1"], on_iteration=lambda row: ends_when_back(row), **settings)

    def ends_when_back(row: dict[str, float]) -> None:
        if run.auto is not None and "could not begin" in run.auto.note:
            run.stop(wait=False)

    run.wait(120)
    assert run.auto is not None
    assert "apart could not begin, back to temporal: Worker 'rollout' rank 0 failed in setup(): RuntimeError: one licence, one process" in run.auto.note
    assert run.state == "stopped" and run.plan.devices == ("cpu:0",)
    assert run.metrics["iteration"].tolist() == list(range(1, run.iteration + 1))


def test_a_run_says_that_it_measures_and_what_was_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(flow: Workflow, runs: Any, shares: Any, devices: list[str], measured_s: float, *rest: Any) -> Choice:
        return Choice(runs[0].plan, runs[0].plan, measured_s, measured_s, False, "no other plan is faster")

    monkeypatch.setattr("rlinf_lab.experiments.autoplan.phases.choose", kept)
    monkeypatch.setattr("rlinf_lab.experiments.autoplan.phases.CHANGE_S", 0.0)
    said, begun = [], threading.Event()

    def looks(_row: Any) -> None:
        assert begun.wait(60)
        said.append(repr(run))

    settings: dict[str, Any] = {"num_envs": 8, "n_steps": 16, "batch_size": 64, "iterations": 60, "progress": False, "folder": False}
    run = train("ppo", "numpy/ReachArm-v0", devices=["cpu:0", "cpu:1"], executor="local", on_iteration=looks, **settings)
    begun.set()
    run.wait(120)
    assert "running, iteration 1/60" in said[0] and "; plan='auto' measures its first iterations on one core; they may be slower" in said[0]
    assert "; plan temporal is kept, " in repr(run) and "no other plan is faster" in repr(run) and "measures" not in repr(run)
    short = train("ppo", "numpy/ReachArm-v0", devices=["cpu:0", "cpu:1"], executor="local", **{**settings, "iterations": 1}).wait()
    assert "measures" not in repr(short), "it has ended, and nothing was decided"


def test_a_machine_of_gpus_alone_has_nothing_to_go_on_with() -> None:
    flow, gpus = cell(), ["cuda:0", "cuda:1"]
    auto = AutoPlan({"env": 8}, gpus)
    assert auto.first(flow).plan.devices == ("cuda:0",)
    error = RuntimeError("CUDA error: out of memory")
    assert not auto.survives(error), "the error is said, not one of the search"
    auto = AutoPlan({"env": 8}, ["cpu:0", *gpus], networks=("policy", "learner"))
    auto.first(flow)
    auto._probes.append(gpu_probe(flow, auto.devices, auto.networks))
    auto._number = len(auto._probes) - 1
    assert auto.survives(error) and not auto.survives(RuntimeError("the arm is broken"))


def test_the_reason_of_a_failed_gpu_is_the_line_that_names_it() -> None:
    try:
        raise ValueError from RuntimeError("a kernel\nCUDA error: out of memory\n  at line 3")
    except ValueError as error:
        assert of_a_gpu(error) and reason(error) == "CUDA error: out of memory"


def test_code_that_speaks_of_a_gpu_is_no_fault_of_it() -> None:
    """From another process the text comes alone."""
    traceback = 'File "mine.py", line 3\n    if self.device == "cuda:0":\n'
    for cause, failed in ((ValueError("the arm is broken"), False), (RuntimeError("CUDA error: out of memory"), True)):
        error = WorkerError.of("learner", 0, "train", cause, f"{traceback}{type(cause).__name__}: {cause}\n")
        error.__cause__ = None
        assert of_a_gpu(error) == failed and ("out of memory" in reason(error)) == failed and "mine.py" not in reason(error)


def test_who_waits_for_weights_gets_those_of_the_phase_after_a_failed_one() -> None:
    """What had been trained after the newest state is taken back meanwhile."""
    between = Between(0, 9, lambda iteration: False, lambda row, snapshot: False)
    weights = PolicyWeights({}, 2)
    between.newest, between._trained, between._submitted = Snapshot(2, {"weights": weights}), 4, 5
    found: list[Snapshot] = []
    waiting = threading.Thread(target=lambda: found.append(between.snapshot(timeout=60)))
    waiting.start()
    while not between._wishes:
        waiting.join(0.001)
    between.rewind()
    between.attach(SimpleNamespace(metrics_since=lambda version: ([], version), state="running"))  # type: ignore[arg-type]
    assert between.trained == 2 and between._next() == "checkpoint"
    between._take_in(0, "checkpoint", {"metrics": {"return": 1.0}, "state": {"weights": weights}})
    waiting.join(60)
    assert [snapshot.iteration for snapshot in found] == [3]


class Survivor(EveryTwo):
    """Its second phase is said to have been on a GPU."""

    def survives(self, error: BaseException) -> bool:
        return of_a_gpu(error)

    def after_failure(self, flow: Workflow, error: BaseException, remaining: int, setup_s: float) -> Phase:
        return self.first(flow)._replace(plan=ExecutionPlan.temporal(flow, self.devices[:1], name=f"with {remaining} left"))


@pytest.mark.parametrize("said, survives", [("CUDA error: out of memory", True), ("the arm is broken", False)])
def test_what_a_failed_phase_trained_is_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, survives: bool) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlinf_lab.experiments.starting.AutoPlan", Survivor)
    seen: list[int] = []

    def fails_once(row: dict[str, float]) -> None:
        seen.append(int(row["iteration"]))
        if seen.count(4) == 1 and len(seen) == 4:
            raise RuntimeError(said)

    started = train("ppo", "numpy/ReachArm-v0", num_envs=8, iterations=7, progress=False, folder=False, devices=["cpu:0"], on_iteration=fails_once)
    if not survives:
        with pytest.raises(RuntimeError, match="the arm is broken"):
            started.wait()
        return
    done = started.wait()
    assert done.metrics["iteration"].tolist() == [1, 2, 3, 4, 5, 6, 7] and np.diff(done.metrics["env_steps"]).tolist() == [done.config.env_steps] * 6
    assert seen == [1, 2, 3, 4, 3, 4, 5, 6, 7], "from the newest state, which was that of the second iteration"


def test_a_phase_that_has_ended_before_anybody_looks_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlinf_lab.experiments.starting.AutoPlan", EveryTwo)
    begin = TrainingRun._begin

    def slowly(self: TrainingRun, workflow: Workflow, plan: ExecutionPlan, executor: str) -> None:
        begin(self, workflow, plan, executor)
        self.run.wait()

    monkeypatch.setattr(TrainingRun, "_begin", slowly)
    done = train("ppo", "numpy/ReachArm-v0", num_envs=8, iterations=5, progress=False, folder=False, devices=["cpu:0"]).wait(120)
    assert done.state == "finished" and done.metrics["iteration"].tolist() == [1, 2, 3, 4, 5]
