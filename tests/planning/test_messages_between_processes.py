"""Messages cost computing at both ends, and their flight where a cell waits for it; in predictions of runs and in forecasts of profiles."""

from __future__ import annotations

import dataclasses

import pytest
from built import timeline_of
from driving import executed
from timed_flows import cell

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError
from rlinf_lab.planning.forecast.message_costs import Hops, message_of
from rlinf_lab.planning.plan.layout import checked_layout
from rlinf_lab.planning.profile.profile import (
    Cell,
    EdgeProfile,
    Link,
    Message,
    Profile,
    RankRule,
    Sample,
    WorkerProfile,
)
from rlinf_lab.planning.replay.estimate import estimate
from rlinf_lab.planning.replay.loop_script import seen_messages
from rlinf_lab.timeline.record.span import SpanKind

UNIX, TCP = Message("unix", 0.003, 0.001), Message("tcp", 0.03, 0.01)
STEPS = 5
MS = 1_000_000


def one(flow: lab.Workflow, tokens: int = 1) -> lab.ExecutionPlan:
    return lab.ExecutionPlan.temporal(flow, ["cpu:0"], sub_batches={"sim": tokens}, micro_batches={"obs": 1})


def apart(flow: lab.Workflow, there: str = "cpu:1", tokens: int = 1) -> lab.ExecutionPlan:
    return lab.ExecutionPlan.spatial(flow, ["cpu:0", there], {"sim": [0], "policy": [1]}, sub_batches={"sim": tokens}, micro_batches={"obs": 1})


@pytest.mark.parametrize(("there", "message"), [("cpu:1", UNIX), ("node1/cpu:0", TCP)])
def test_a_round_trip_costs_two_flights_and_computing_at_four_ends(there: str, message: Message) -> None:
    flow = cell(0.010, 0.020, STEPS)
    timeline = executed(flow, one(flow))
    here = estimate(flow, one(flow), timeline)
    there_too = estimate(flow, one(flow), timeline, messages=(UNIX, TCP))
    assert here.notes == ("policy.act: every batch had 1 items; others are assumed to take time in proportion",)
    plan = apart(flow, there)
    assert here.iteration_seconds(plan) == pytest.approx((STEPS + 1) * 0.010 + STEPS * 0.020)
    each = 2 * message.latency_s + 4 * message.busy_s
    assert there_too.iteration_seconds(plan) == pytest.approx(here.iteration_seconds(plan) + STEPS * each)
    assert there_too.iteration_seconds(one(flow)) == here.iteration_seconds(one(flow)), "one process: no message"


def test_who_asks_another_host_for_items_pays_a_message_there_and_one_back() -> None:
    flow = cell(0.010, 0.020, STEPS)
    plan = lab.ExecutionPlan.temporal(flow, ["cpu:0", "cpu:1"], {"sim": 2, "policy": 2})
    hops = Hops(checked_layout(flow, plan), (UNIX,))
    near, far = hops.taking("policy", 0, "obs"), hops.taking("policy", 1, "obs")
    assert far == (0.0, 2 * UNIX.busy_s, 2 * UNIX.latency_s)
    assert near == pytest.approx((UNIX.busy_s / 2, 0.0, 0.0))  # half of the simulator's ranks are on the other host
    assert [hops.flight("sim", r, "obs") for r in (0, 1)] == [0.0, UNIX.latency_s]
    assert [hops.sending("policy", r, "act", key) for r, key in ((0, 0), (0, 1), (1, 1))] == [0.0, UNIX.busy_s, 0.0]


def test_what_the_measured_run_had_is_not_added_again_and_what_a_plan_does_not_send_is_taken_off() -> None:
    """Computing for messages is in the durations of a run in processes; the flights are not."""
    flow = cell(0.010, 0.020, STEPS)
    known = estimate(flow, apart(flow), executed(flow, apart(flow)), messages=(UNIX,))
    in_processes = dataclasses.replace(known, in_processes=True)
    added, there, here = (made._simulated(plan, 1, True).elapsed_ns for made, plan in ((known, apart(flow)), (in_processes, apart(flow)), (in_processes, one(flow))))
    assert added - there == STEPS * 4 * UNIX.busy_s * 1e9
    assert in_processes.iteration_seconds(apart(flow)) == pytest.approx(in_processes.measured_seconds)
    all_but_one = (4 * STEPS - 1) * UNIX.busy_s  # after its last answer the policy does nothing that could be shorter
    assert there - here == pytest.approx(1e9 * (STEPS * 2 * UNIX.latency_s + all_but_one))


def test_a_flight_that_ends_before_its_item_is_wanted_costs_nobody_anything() -> None:
    """Two tokens time-share: what one's step takes, the other's answer flies."""
    flow = cell(0.010, 0.020, STEPS)
    timeline = executed(flow, one(flow, 2))
    plan = apart(flow, tokens=2)
    without, flying = (estimate(flow, one(flow, 2), timeline, messages=m) for m in ((), (Message("unix", 0.003),)))
    found = flying.iteration_seconds(plan) - without.iteration_seconds(plan)
    # The policy (20 ms an answer) is busy all the time, but for the first observation's flight and the last answer's.
    assert found == pytest.approx(2 * 0.003)


def test_flights_are_read_off_the_run() -> None:
    """10 and 30 ms on their way, and the reader of each goes on 1 ms later."""
    flow = cell(0.010, 0.020, STEPS)
    rows: list[tuple] = []
    for start, took in ((10 * 10**9, 10), (11 * 10**9, 30)):
        rows.append(("host0 → host1", 0, (), SpanKind.TRANSFER, start, start + took * MS, 1, "obs", -1, 1, "unix"))
        rows.append(("policy", 0, ("cpu:1",), SpanKind.GET, start - MS, start + (took + 1) * MS, 1, "obs", -1, 1))
    timeline = timeline_of(*rows, devices=["cpu:0", "cpu:1"])
    assert seen_messages(flow.graph, timeline, {1}, ()) == (Message("unix", pytest.approx(0.021)),)
    assert seen_messages(flow.graph, timeline, {1}, (UNIX, TCP)) == (Message("unix", pytest.approx(0.021), UNIX.busy_s), TCP)
    assert seen_messages(flow.graph, timeline, {0}, (UNIX,)) == (UNIX,), "none in that iteration"


def profile(messages: tuple[Message, ...]) -> Profile:
    """A simulator and a policy, ten steps of 10 and 20 ms; nothing but messages speaks against devices of their own."""
    workers = {
        name: WorkerProfile((Sample(1, 8, seconds),), "simulator" if name == "sim" else "batch", 10.0, ranks=RankRule(most=1))
        for name, seconds in (("sim", 0.010), ("policy", 0.020))
    }
    edges = (EdgeProfile("sim", "policy"), EdgeProfile("policy", "sim"))
    return Profile(8, workers, edges, "cell", cells=(Cell(("sim", "policy"), (1,)),), messages=messages)


def test_a_forecast_of_members_apart_pays_for_every_step() -> None:
    found = []
    for messages in ((), (UNIX,)):
        plans = [p for p in lab.plan(profile(messages), 2) if p.mode == "spatial"]
        found.append(min(p.simulate(1).elapsed_ns for p in plans) / 1e9)
    assert found[1] - found[0] == pytest.approx(10 * (2 * UNIX.latency_s + 4 * UNIX.busy_s), rel=0.12)


def test_profiles_keep_messages_and_links() -> None:
    made = profile((UNIX, TCP))
    for kept in (made, moving(Link(12.0, 1e-4))):
        assert Profile.from_json(kept.to_json()) == kept
    with pytest.raises(ConfigError, match="profile.messages names a transport twice"):
        made.replace(messages=(UNIX, UNIX))
    assert message_of((UNIX,), one_node=False) == UNIX and message_of((UNIX, TCP), one_node=True) == UNIX


# --- items that are moved between devices ---------------------------------------------------------------------------
ITEMS = 64


def moving(link: Link | None, mib: float | None = 16.0, whole: bool = False) -> Profile:
    """Two workers that scale with devices: 2 s and 2 s on one device each; 64 items of 16 MiB are a GiB."""
    workers = {name: WorkerProfile((Sample(1, ITEMS, 2.0),), exponent=0.0) for name in ("make", "use")}
    return Profile(ITEMS, workers, (EdgeProfile("make", "use", whole=whole, item_mib=mib),), "chain", link=link)


def streamed(profile: Profile) -> lab.Timeline:
    """The plan with both workers on devices of their own, simulated."""
    return next(p for p in lab.plan(profile, 2) if p.mode == "spatial").simulate()


@pytest.mark.parametrize("latency", [0.0, 0.01])
def test_moving_takes_latency_and_bytes_over_bandwidth(latency: float) -> None:
    moved = streamed(moving(Link(1.0, latency)))
    spans = moved.to_pandas().query("worker == 'link_make_to_use' and kind == 'run' and iteration == 0")
    assert spans["seconds"].sum() == pytest.approx(1.0 + latency * len(spans), rel=1e-6) and len(spans) > 1  # a GiB at a GiB/s
    assert moved.elapsed_ns > streamed(moving(None)).elapsed_ns
    assert "link_make_to_use" not in {track.worker for track in streamed(moving(Link(1.0, latency), None)).tracks}, "of no known size"


def test_moving_overlaps_with_work_but_for_its_last_batch() -> None:
    """The whole batch is wanted: 2 s of making, of which the last part is still to be moved, 2 s of using."""
    timeline = streamed(moving(Link(1.0), whole=True))
    first = timeline.iterations()["seconds"].iloc[0]
    assert 4.0 < first <= 4.0 + 1.0 + 1e-6
    assert streamed(moving(None, whole=True)).iterations()["seconds"].iloc[0] == pytest.approx(4.0)
    made = moving(Link(1.0), whole=True)  # who makes is fed an item at a time, and what it has made is on its way
    fed = made.replace(workers={"src": made.workers["make"], **made.workers}, edges=(EdgeProfile("src", "make"), *made.edges))
    assert 4.0 < lab.plan(fed, 3, modes=("spatial",)).best.simulate(1).iterations()["seconds"].iloc[0] < 4.2


def test_a_slow_link_decides_for_sharing_devices() -> None:
    assert lab.plan(moving(Link(1000.0)), 2).best.mode == "spatial"
    slow = lab.plan(moving(Link(0.1)), 2)  # 10 s to move what takes 4 s to make and to use on the same devices
    assert slow.best.mode == "temporal" and slow.best.seconds < 10 < next(p.seconds for p in slow if p.mode == "spatial")
