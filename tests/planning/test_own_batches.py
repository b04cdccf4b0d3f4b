"""Workers that take their items otherwise than in a plan's batches: as many as they ask for, several batches at a time, what another reader left."""

from __future__ import annotations

import pytest
from test_habits_of_workers import (
    DEVICES,
    ITEMS,
    Habitual,
    Learner,
    Source,
    Stage,
    measured,
    took,
)

import rlinf_lab as lab
from rlinf_lab.planning.fit.habits import Moments, agreed
from rlinf_lab.runtime.threads.clocks import MockClock


class Choosy(Habitual):
    """``habit``: "get 6" asks for six items at a time, "2 batches" works on two batches together."""

    def work(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        count, held = int(self.habit.split()[-1 if self.habit.startswith("get") else 0]), []
        if self.habit.startswith("get"):
            while batch := inbox.get(count):
                self.spend(len(batch))
                out.put_all(batch)
            return
        for i, batch in enumerate(inbox, start=1):
            held += batch
            if i % count == 0:
                self.spend(len(held))
                out.put_all(held)
                held = []
        if held:
            self.spend(len(held))
            out.put_all(held)


def choosy(habit: str, capacity: int | None = None) -> lab.Workflow:
    flow = lab.Workflow("choosy")
    a, b, c = flow.channel("a", capacity=None), flow.channel("b", capacity=capacity), flow.channel("c", capacity=None)
    source, stage = flow.worker(Source, "stream", 0.0, 0.001, name="source"), flow.worker(Stage, "batch", 0.002, 0.003, name="stage")
    taker, learner = flow.worker(Choosy, habit, 0.002, 0.003, name="taker"), flow.worker(Learner, "batch", 0.0, 0.001, name="learner")

    @flow.iteration
    def iteration() -> None:
        source.make(a)
        stage.work(a, b)
        taker.work(b, c)
        learner.train(c)

    return flow


@pytest.mark.parametrize("count", [2, 4, 6])
def test_who_asks_for_so_many_is_sent_as_many(count: int) -> None:
    """Plans had it work on two items where it waited for six: 19 % too fast."""
    flow = choosy(f"get {count}")
    profile = measured(flow)
    assert {(e.producer, e.consumer): e.group for e in profile.edges}["stage", "taker"] == count
    assert any(f"'taker' asks for {count} items at a time" in n for n in profile.notes)
    plans = lab.plan(flow, DEVICES, profile)
    assert plans.best.seconds == pytest.approx(took(flow, plans.best), rel=0.01)
    for plan in plans:
        assert plan.execution.micro_batches["b"] % count == 0, plan.shape
        assert plan.seconds_are == "followed" or plan.seconds >= 0.97 * took(flow, plan), plan.shape


@pytest.mark.parametrize("habit", ["get 5", "get 12", "1 batches"])
def test_who_takes_what_comes_is_in_no_groups(habit: str) -> None:
    """So is who asks for all, and who asks for a number that does not divide all of them; of that one it is said."""
    profile = measured(choosy(habit))
    assert {e.group for e in profile.edges} == {1}
    assert any("'taker' asks for 5 items at a time, whatever a plan's batches are" in n for n in profile.notes) == (habit == "get 5")


def test_who_takes_several_batches_before_it_works_is_told() -> None:
    assert any("'taker' takes 2 batches before it works" in n for n in measured(choosy("2 batches")).notes)
    for habit in ("1 batches", "get 6"):
        assert not any("before it works" in n for n in measured(choosy(habit)).notes)


@pytest.mark.parametrize(("between", "told"), [(0.01, True), (0.05, None), (0.3, False)])
def test_a_read_that_waited_for_its_core_tells_nothing(between: float, told: bool | None) -> None:
    moments = Moments()
    for seconds in (0.0, between, 1.0 - between):
        moments.computed(seconds)
        if moments.busy < 1.0:
            moments.got("c", 4)
    moments.gave("out", 8)
    assert moments.takes_all("c", 4) is told
    assert agreed([told, True]) is (told is not False)


def test_who_got_nothing_is_not_taken_for_quick() -> None:
    """Where one of two readers took everything, the other one counted as needing no time for it, and any plan was off by any factor."""
    flow = lab.Workflow("two readers")
    a, b = flow.channel("a", capacity=None), flow.channel("b", capacity=None)
    source, learner = flow.worker(Source, "end", 0.0, 0.001, name="source"), flow.worker(Learner, "batch", 0.002, 0.003, name="learner")
    readers = [flow.worker(Stage, "batch", fixed, 0.003, name=name) for name, fixed in (("one", 0.002), ("other", 0.001))]

    @flow.iteration
    def iteration() -> None:
        source.make(a)
        for reader in readers:
            reader.work(a, b)
        learner.train(b)

    profile = measured(flow)
    assert [(s.items, round(s.seconds, 6)) for s in profile.workers["other"].samples] == [(ITEMS / 2, 0.01)]
    assert any("Channel 'a' is read by one, other" in n for n in profile.notes)
    best = lab.plan(flow, DEVICES, profile).best
    assert best.seconds >= 0.9 * took(flow, best)  # it was 0.75 of that; shares are as they were measured


class Rounds(Habitual):
    """Environments that go on one by one, each as soon as it has its answer; eight of them, whatever a plan says."""

    def roll(self, actions: lab.Inbox, obs: lab.Outbox, done: lab.Outbox) -> None:
        left = dict.fromkeys(range(8), 3)
        for e in left:
            self.spend(1)
            obs.put(e)
        while left:
            (e,) = actions.get(1)
            left[e] -= 1
            if left[e]:
                self.spend(1)
                obs.put(e)
            else:
                del left[e]
                done.put(e)

    def act(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
        for batch in obs:
            self.spend(len(batch))
            actions.put_all(batch)


def answered(cls: type[Habitual], answer: float) -> lab.Workflow:
    """Environments, a policy that takes ``answer`` seconds for each item, a learner."""
    flow = lab.Workflow("answered")
    actions, obs, done = (flow.channel(name, capacity=None) for name in ("actions", "obs", "done"))
    environments, policy = flow.worker(cls, "", 0.004, 0.0005, name="environments"), flow.worker(cls, "", 0.003, answer, name="policy")
    learner = flow.worker(Learner, "batch", 0.002, 0.002, name="learner")

    @flow.iteration
    def iteration() -> None:
        environments.roll(actions, obs, done)
        policy.act(obs, actions)
        learner.train(done)

    return flow


def test_a_run_of_so_many_sub_batches_does_not_tell_whose_number_it_was() -> None:
    """What was read off it could not be planned: the environments, all of them at once, "would have 8 items on a device"."""
    flow = answered(Rounds, answer=0.0)
    plan = lab.plan(flow, DEVICES, measured(flow)).best.execution
    assert plan.sub_batches["environments"] == 8
    run = lab.run(flow, plan, 3, dashboard=False, clock=MockClock())
    run.wait()
    best = lab.plan(flow, DEVICES, lab.planning.profile_from_run(flow, plan, run.timeline)).best
    assert best.seconds == pytest.approx(took(flow, best), rel=0.01)
