"""Cells in which no channel is keyed: how often their members take their turn is counted from what they moved, and plans take as long as the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlinf_lab.planning.adapt.replan import replan
from rlinf_lab.planning.fit.fit import fitted, profile_from_run
from rlinf_lab.planning.fit.habits import Circulation
from rlinf_lab.planning.fit.samples import Observed
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.planner.planner import planned
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.planning.simulator.simulator import SimCall, Simulator, get, put, run
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

MS = 1_000_000
DEVICES = ["cpu:0", "cpu:1", "cpu:2"]
STEPS = 6


class Stage(Worker):
    def roll(self, acts: Inbox, obs: Outbox, done: Outbox) -> None: ...
    def see(self, obs: Inbox, feats: Outbox) -> None: ...
    def act(self, feats: Inbox, acts: Outbox) -> None: ...
    def fit(self, done: Inbox) -> None: ...


def ring() -> Workflow:
    flow = Workflow("ring")
    obs, feats, acts, done = flow.channels("obs", "feats", "acts", "done")
    sim, critic, policy, learner = (flow.worker(Stage, name=n) for n in ("sim", "critic", "policy", "learner"))

    @flow.iteration
    def iteration() -> None:
        sim.roll(acts, obs, done)
        critic.see(obs, feats)
        policy.act(feats, acts)
        learner.fit(done)

    return flow


def rounds(puts: int, items: int, gets: int) -> Callable:
    """So many puts of so many items, then a get of so many, and again."""

    def roll(turn):
        for _ in range(STEPS):
            for _ in range(puts):
                yield run(4 * MS)
                yield put("obs", items)
            yield get("acts", gets)
        yield put("done", 8)

    return roll


one_at_a_time, all_at_once, three_for_one = rounds(1, 1, 1), rounds(1, 4, 4), rounds(3, 1, 1)


def two_under_way(turn):
    """Two tokens, each of which goes round by itself."""
    for step in range(STEPS):
        for _ in range(2):
            if step:
                yield get("acts", 1)
            yield run(4 * MS)
            yield put("obs")
    yield get("acts", 1)
    yield get("acts", 1)
    yield put("done", 8)


def last_unanswered(turn):
    for step in range(STEPS):
        if step:
            yield get("acts", 1)
        yield run(4 * MS)
        yield put("obs")
    yield put("done", 8)


def answers(source: str, target: str, ms: int, of: int = 1):
    def script(turn):
        count = 0
        while n := (yield get(source)):
            yield run(ms * MS)
            for _ in range(n):
                count += 1
                if count % of == 0:
                    yield put(target)

    return script


def fit(turn):
    while n := (yield get("done")):
        yield run(2 * n * MS)


def ran(flow: Workflow, plan: ExecutionPlan, roll: Callable, of: int = 1) -> Timeline:
    calls = [
        SimCall("sim", "roll", roll, reads=("acts",), writes=("obs", "done")),
        SimCall("critic", "see", answers("obs", "feats", 2), reads=("obs",), writes=("feats",), starts_on_device=False),
        SimCall("policy", "act", answers("feats", "acts", 3, of), reads=("feats",), writes=("acts",), starts_on_device=False),
        SimCall("learner", "fit", fit, reads=("done",), starts_on_device=False),
    ]
    return Simulator(flow.graph, plan).simulate(calls, 4)


def together(flow: Workflow, sims: int = 1) -> ExecutionPlan:
    return ExecutionPlan.temporal(flow, DEVICES[:sims], {"sim": sims})


def apart(flow: Workflow) -> ExecutionPlan:
    places = {"sim": [[0]], "critic": [[1]], "policy": [[2]], "learner": [[0]]}
    return ExecutionPlan("apart", DEVICES, places, micro_batches={"obs": 1, "feats": 1, "acts": 1})


def took(done: Timeline) -> float:
    return float(done.iterations()["seconds"].iloc[-1])


def busy(profile: Profile, worker: str) -> float:
    """Of an iteration in which all tokens are one batch, or come in such batches as were measured."""
    own = profile.workers[worker]
    largest = max(own.samples, key=lambda s: s.items)
    return own.calls * largest.seconds * profile.items / largest.items


@pytest.mark.parametrize(
    ("roll", "of", "calls", "sub_batches"),
    [
        (one_at_a_time, 1, 6, (1,)), (last_unanswered, 1, 6, (1,)), (all_at_once, 1, 6, (1,)),
        (two_under_way, 1, 6, (2,)), (three_for_one, 3, 6, (1,)),
    ],
)  # fmt: skip
def test_the_steps_of_a_ring_are_counted_and_plans_take_as_long_as_the_run(roll: Callable, of: int, calls: int, sub_batches: tuple[int, ...]) -> None:
    flow = ring()
    plan = together(flow)
    done = ran(flow, plan, roll, of)
    profile = profile_from_run(flow, plan, done)
    assert {w: profile.workers[w].calls for w in flow.graph.workers} == {"sim": calls, "critic": calls, "policy": calls, "learner": 1}
    assert [w for w, p in profile.workers.items() if p.kind == "simulator"] == ["sim"]
    assert profile.cells[0].sub_batches == sub_batches
    for worker in ("sim", "critic", "policy"):
        worked = [s.end_ns - s.start_ns for s in done.rows() if s.track.worker == worker and s.kind == SpanKind.RUN and s.iteration == 2]
        assert busy(profile, worker) == pytest.approx(sum(worked) / 1e9), worker
    best = planned(flow, plan, profile)
    assert best.seconds == pytest.approx(took(done), rel=0.02)
    found = replan(done, best)
    assert [d.percent for d in found.drifts] == ["0 %"] * 4 and found.elapsed.measured == pytest.approx(found.elapsed.expected, rel=0.02)


@pytest.mark.parametrize("roll", [one_at_a_time, two_under_way])
def test_members_on_devices_of_their_own_take_as_long_as_the_run(roll: Callable) -> None:
    """Two tokens of which each goes round by itself keep two members busy at a time, whatever the plan says of sub-batches."""
    flow = ring()
    done = ran(flow, apart(flow), roll)
    seen = profile_from_run(flow, together(flow), ran(flow, together(flow), roll))
    for profile in (seen, profile_from_run(flow, apart(flow), done)):
        assert planned(flow, apart(flow), profile).seconds == pytest.approx(took(done), rel=0.05)


def test_ranks_of_the_head_each_have_their_tokens() -> None:
    flow = ring()
    plan = ExecutionPlan(
        "two", DEVICES, {"sim": [[0], [1]], "critic": [[2]], "policy": [[2]], "learner": [[2]]}, micro_batches={"obs": 2, "feats": 1, "acts": 1}
    )
    run_ = Observed.of(flow.graph, plan, ran(flow, plan, one_at_a_time))
    cell = run_.cell(flow.graph.cells[0])
    assert (cell.head, cell.tokens, cell.steps) == ("sim", 2, STEPS)
    profile = fitted([run_])
    assert busy(profile, "critic") == pytest.approx(0.002 * STEPS)
    assert [(s.items, s.seconds) for s in profile.workers["policy"].samples] == [(profile.items / 2, pytest.approx(0.003))]  # it was asked one by one
    single = ExecutionPlan("one by one", DEVICES, plan.placements, micro_batches={"obs": 1, "feats": 1, "acts": 1})
    notes = profile_from_run(flow, single, ran(flow, single, one_at_a_time)).notes
    assert any("'sim' has 2 ranks, and 'critic' took what they put" in n for n in notes) and not any("batches of" in n for n in profile.notes)


@pytest.mark.parametrize(
    ("roll", "of", "says"),
    [(three_for_one, 3, "puts 18 items an iteration into it and gets 6 back"), (all_at_once, 1, "puts 4 items into the cell"), (two_under_way, 1, "")],
)
def test_what_cannot_be_told_is_said_by_name(roll: Callable, of: int, says: str) -> None:
    flow = ring()
    notes = " ".join(profile_from_run(flow, together(flow), ran(flow, together(flow), roll, of)).notes)
    assert says in notes and bool(says) == ("cell" in notes)


def test_what_is_in_flight_is_counted_from_what_was_moved() -> None:
    def of(*moves: int) -> Circulation:
        return Circulation.of([{0: moves}, {0: moves}])

    assert (of(1, -1, 1, -1).tokens, of(1, -1, 1, -1).steps) == (1, 2)
    assert of(*[1, 1, 1, -3] * 5) == Circulation(3, 5.0)
    assert of(1, 1, *[-1, 1] * 8, -1, -1) == Circulation(2, 5.0, waits=False)
    assert (of(-1, *[1, -1] * 4, 1).tokens, of(-1, *[1, -1] * 4, 1).steps) == (1, 5)  # fed from outside: it answers first
    assert of(*[1, 1, 1, -1] * 4).steps == 4 and "gets 4 back" in of(*[1, 1, 1, -1] * 4).doubt
    assert "nothing comes back" in of(1, 1, 1).doubt and "puts nothing" in of(-1, -1).doubt and "puts nothing" in Circulation.of([]).doubt
    varies = Circulation.of([{0: [1, -1] * 4}, {0: [1, 1, -1, -1] * 2}, {0: [1, -1] * 4}])
    assert (varies.tokens, varies.steps) == (1, 4.0) and "between 1 and 2" in varies.doubt
