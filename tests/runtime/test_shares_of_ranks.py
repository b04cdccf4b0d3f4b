"""What each rank of a consumer gets under a plan of the search, and in which calls: of a batch that is wanted whole, and of groups, which are never split."""

from __future__ import annotations

import pytest

import rlinf_lab as lab
from rlinf_lab.errors import PlanError
from rlinf_lab.planning.planner.planner import Planned, plan
from rlinf_lab.planning.profile.profile import EdgeProfile, Memory, Profile, RankRule, Sample, WorkerProfile
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline.timeline import Timeline

ITEMS, SECONDS = 32, 0.25


class Rollout(lab.Worker):
    def generate(self, out: lab.Outbox, group: int, items: int) -> None:
        for i in range(items):
            self.compute(SECONDS)
            if group > 1:
                out.put(i, key=i // group)
            else:
                out.put(i)


class Learner(lab.Worker):
    def train(self, inbox: lab.Inbox) -> list[int]:
        """Items of each batch."""
        sizes = []
        for batch in inbox:
            items = sum(len(item) if isinstance(item, list) else 1 for item in batch)
            self.compute(SECONDS * items)
            sizes.append(items)
        return sizes


def flow_of(whole: bool = False, group: int = 1, count: int = ITEMS) -> lab.Workflow:
    flow = lab.Workflow("chain")
    items = flow.channel("items", capacity=None, whole=whole, group=group)
    rollout, learner = flow.worker(Rollout, name="rollout"), flow.worker(Learner, name="learner")

    @flow.iteration
    def iteration() -> list[int]:
        rollout.generate(items, group, count)
        return learner.train(items)

    return flow


def profile(whole: bool = False, group: int = 1, gib: float = 0.0, cap: float = 80.0, count: int = ITEMS) -> Profile:
    """An item keeps ``gib`` of the learner's."""
    rollout = WorkerProfile((Sample(1, count, count * SECONDS),), ranks=RankRule(counts=(1,)))
    learner = WorkerProfile((Sample(1, count, count * SECONDS),), memory=Memory(0.0, gib))
    return Profile(count, {"rollout": rollout, "learner": learner}, (EdgeProfile("rollout", "learner", group, whole),), device_memory_gib=cap)


def executed(planned: Planned, flow: lab.Workflow, iterations: int = 1) -> tuple[list[list[int]], Timeline]:
    """The sizes of the batches of each rank, and the timeline."""
    run = lab.run(flow, planned, iterations, dashboard=False, clock=MockClock())
    sizes = run.wait()[-1]
    return [sizes] if planned.placement["learner"]["ranks"] == 1 else sizes, run.timeline


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize(("count", "group"), [(32, 4), (32, 16), (32, 32), (24, 3)])
def test_groups_take_what_the_plan_says_also_where_they_do_not_divide_by_the_ranks(count: int, group: int, devices: int) -> None:
    flow = flow_of(group=group, count=count)
    for planned in plan(flow, [f"cpu:{i}" for i in range(devices)], profile(group=group, count=count), micro_batches=8):
        sizes, timeline = executed(planned, flow, 3)
        assert timeline.iterations()["seconds"].iloc[-1] == pytest.approx(planned.seconds, rel=1e-6), planned
        assert sum(map(sum, sizes)) == count and all(n % group == 0 for rank in sizes for n in rank)


@pytest.mark.parametrize(("count", "group"), [(24, 8), (30, 5), (35, 5)])
def test_chunks_that_are_not_whole_groups_are_smaller_in_a_run(count: int, group: int) -> None:
    flow = flow_of(group=group, count=count)
    for planned in plan(flow, ["cpu:0", "cpu:1"], profile(group=group, count=count), micro_batches=8):
        _, timeline = executed(planned, flow, 3)
        assert timeline.iterations()["seconds"].iloc[-1] <= planned.seconds * (1 + 1e-6), planned


@pytest.mark.parametrize("devices", [1, 2])
def test_a_plan_counts_the_whole_groups_that_a_rank_holds(devices: int) -> None:
    flow, gib = flow_of(group=5, count=30), 8.0
    costs = profile(group=5, gib=gib, cap=66.0, count=30)
    for planned in plan(flow, [f"cpu:{i}" for i in range(devices)], costs.with_worker("learner", offloadable=False), micro_batches=8):
        sizes, _ = executed(planned, flow, 3)
        assert gib * max(n for rank in sizes for n in rank) <= max(map(planned.candidate.placement.gib, range(devices))) <= 66.0


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize(("whole", "group"), [(True, 1), (False, 4), (False, 16), (True, 8), (False, 32)])
def test_several_ranks_share_a_batch_as_predicted(whole: bool, group: int, devices: int) -> None:
    plans = plan(flow_of(whole, group), [f"cpu:{i}" for i in range(devices)], profile(whole, group), micro_batches=4)
    for planned in plans:
        if (ITEMS // group) % planned.placement["learner"]["ranks"]:
            continue  # they go on by themselves: said in its notes
        _, timeline = executed(planned, flow_of(whole, group), 3)
        assert timeline.iterations()["seconds"].iloc[-1] == pytest.approx(planned.seconds), planned


def test_a_whole_batch_is_one_call_in_a_plan_of_the_search() -> None:
    """Five GiB an item: at most 16 in one call. Who asks for everything at once would get more than a plan in micro-batches says."""
    with pytest.raises(PlanError, match=r"'learner' needs 160 GiB .*devices=2"):
        plan(flow_of(whole=True), ["cpu:0"], profile(whole=True, gib=5.0), micro_batches=4)
    for planned in plan(flow_of(whole=True), ["cpu:0", "cpu:1"], profile(whole=True, gib=5.0), micro_batches=4):
        assert executed(planned, flow_of(whole=True))[0] == [[16], [16]]


def test_a_plan_by_hand_may_take_a_whole_batch_in_several_calls() -> None:
    flow = flow_of(whole=True)
    run = lab.run(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"], micro_batches={"items": 16}), 1, dashboard=False, clock=MockClock())
    assert run.wait() == [[16, 16]]
    spans = run.timeline.to_pandas().query("kind == 'run'")
    assert spans[spans["worker"] == "learner"]["start_ns"].min() >= spans[spans["worker"] == "rollout"]["end_ns"].max()


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("cap", [70.0, 140.0])
def test_a_rank_gets_no_more_groups_than_fit(devices: int, cap: float) -> None:
    """Eight GiB an item, in groups of eight: where half a group is a rank's share, it gets a whole one."""
    plans = plan(flow_of(group=8), [f"cpu:{i}" for i in range(devices)], profile(group=8, gib=8.0, cap=cap), micro_batches=8)
    for planned in plans:
        sizes, _ = executed(planned, flow_of(group=8))
        assert 8 * max(n for rank in sizes for n in rank) <= cap, planned
        assert sum(n for rank in sizes for n in rank) == ITEMS


def test_a_group_that_fits_no_device_is_refused() -> None:
    with pytest.raises(PlanError, match=r"'learner' needs .*64 GiB"):
        plan(profile(group=8, gib=8.0, cap=60.0), 4)


def test_a_plan_by_hand_that_says_nothing_gives_each_rank_its_share() -> None:
    flow = flow_of(whole=True)
    by_hand = lab.ExecutionPlan.temporal(flow, ["cpu:0", "cpu:1"], {"learner": 2})
    (sizes,) = lab.run(flow, by_hand, 1, dashboard=False, clock=MockClock()).wait()
    assert sizes == [[16], [16]]
