"""A channel of whole batches hands each rank of its consumer an equal share, once: a plan counts what a run then does, in seconds and in memory."""

from __future__ import annotations

from typing import Any

import pytest
from mock_runs import run, seconds
from timed_flows import Timed

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, PlanError
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.planner.lower_bound import lower_bound
from rlinf_lab.planning.profile.profile import Profile

SECONDS = 8.0  # of each worker for all items on one device
GIB, CAP = 3.0, 80.0


class Learner(Timed):
    def whole(self, inbox: lab.Inbox, out: lab.Outbox) -> list[int]:
        return [self.worked(inbox.get_all(), [out])]


def flow_of(items: int, once: bool) -> lab.Workflow:
    flow = lab.Workflow("whole")
    all_at_once, stream = flow.channel("a", whole=True), flow.channel("b", capacity=None)
    parts = (("rollout", SECONDS), ("learner", SECONDS), ("logger", SECONDS / 4))
    rollout, learner, logger = (flow.worker(Learner, items, 0.0, s / items, 1, name=name) for name, s in parts)

    @flow.iteration
    def iteration() -> Any:
        rollout.make(all_at_once)
        sizes = (learner.whole if once else learner.work)(all_at_once, stream)
        return {"sizes": sizes, "written": logger.work(stream)}

    return flow


def profile_of(items: int, tight: bool = False, whole: bool = True, **edge: Any) -> Profile:
    def sample(part: float = 1.0) -> list[dict[str, Any]]:
        return [{"devices": 1, "items": items, "seconds": SECONDS * part}]

    memory = {"resident_gib": 30.0, "per_item_gib": GIB} if tight else {}
    workers = {
        "rollout": {"samples": sample(), "ranks": {"counts": [1]}},
        "learner": {"samples": sample(), "memory": memory, "offloadable": not tight},
        "logger": {"samples": sample(1 / 4), "ranks": {"counts": [1]}},
    }
    edges = [{"producer": "rollout", "consumer": "learner", "whole": whole, **edge}, {"producer": "learner", "consumer": "logger"}]
    return Profile.from_dict({"items": items, "workers": workers, "edges": edges, "device_memory_gib": CAP if tight else None})


def ran(flow: lab.Workflow, plan: Any) -> tuple[float, list[list[int]]]:
    """Seconds of the last iteration, and the learner's batches by rank."""
    done = run(flow, plan, 3)
    last = done.wait()[-1]
    sizes = last["sizes"]
    assert sum(last["written"]) == sum(sum(s) if isinstance(s, list) else s for s in sizes)
    return seconds(done), sizes if isinstance(sizes[0], list) else [sizes]


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize(("items", "devices", "tight"), [(32, 1, False), (30, 4, False), (7, 3, False), (2, 4, False), (32, 2, True), (32, 3, True)])
def test_a_run_takes_what_the_plan_says_and_each_rank_has_its_share_which_fits(items: int, devices: int, tight: bool, once: bool) -> None:
    flow, ranks = flow_of(items, once), set()
    for planned in lab.plan(flow, [f"cpu:{i}" for i in range(devices)], profile_of(items, tight), micro_batches=8):
        took, batches = ran(flow, planned)
        assert took == pytest.approx(planned.seconds, rel=1e-6), planned.shape
        shares = [items * (r + 1) // len(batches) - items * r // len(batches) for r in range(len(batches))]
        assert [sum(sizes) for sizes in batches] == shares and all(len([s for s in sizes if s]) <= 1 for sizes in batches), planned.shape
        placement = planned.candidate.placement
        assert not tight or 30 + GIB * max(map(max, batches)) <= max(map(placement.gib, range(devices))) <= CAP, planned.shape
        assert planned.execution.micro_batches["a"] == 0 and placement.seats["learner"].micro_batches == 1, planned.shape
        ranks.add(len(batches))
    assert max(ranks) > 1 or devices == 1, "some plan has the learner on several devices"


def test_there_is_no_plan_where_a_share_does_not_fit() -> None:
    """In micro-batches it would: an edge that is not whole has a plan on one device."""
    assert lab.plan(profile_of(32, tight=True, whole=False), 1, micro_batches=8).best.candidate.placement.seats["learner"].micro_batches > 1
    with pytest.raises(PlanError, match=r"'learner' needs 126 GiB on 1 device, and a device has 80 GiB.*devices=2"):
        lab.plan(profile_of(32, tight=True), 1, micro_batches=8)


def test_who_only_waits_for_a_value_has_chunks_of_its_own() -> None:
    handed, given = (Setting.of(profile_of(32, **edge), 4, micro_batches=8) for edge in ({}, {"value": True}))
    assert handed.handed_all == {handed.home["learner"]} and not given.handed_all
    assert lab.plan(given.profile, 4, micro_batches=8).best.seconds < lab.plan(handed.profile, 4, micro_batches=8).best.seconds
    assert lab.plan(given.profile, 4, micro_batches=8).best.execution.placements.keys() == given.profile.workers.keys()
    assert lower_bound(given).seconds <= lower_bound(handed).seconds
    with pytest.raises(ConfigError, match=r"edges\[0\].value is True and whole is False"):
        profile_of(32, whole=False, value=True)


@pytest.mark.parametrize("edge", [{"whole": False}, {"value": True}])
def test_a_profile_in_chunks_of_a_workflow_that_hands_over_everything_is_refused(edge: dict[str, bool]) -> None:
    with pytest.raises(PlanError, match=r"profile.edges\[0\] \(rollout to learner\) .* channel 'a' of workflow 'whole' is declared whole"):
        lab.plan(flow_of(32, True), ["cpu:0"], profile_of(32, **edge))


class Picky(lab.Worker):
    """Asks for less than everything, in one of the ways there are."""

    def read(self, inbox: lab.Inbox, how: str) -> list[int]:
        found: list[int] = []
        for n in range(2):
            if how == "nowait":
                there, got = inbox.qsize(), inbox.get_nowait(1)
                assert (there, got) == ((7, [1]) if n else (0, []))
                found += got or inbox.get(1)
            else:
                found += [inbox.take()] if how == "take" else inbox.get(1) if how == "number" else inbox.get_weight(1)
            self.compute(1.0)
        return found


@pytest.mark.parametrize("how", ["number", "weight", "take", "nowait"])
def test_nobody_is_given_a_part_of_a_whole_batch_before_all_is_there(how: str) -> None:
    flow = lab.Workflow("picky")
    batch = flow.channel("batch", whole=True, discard_unread=True)
    rollout, picky = flow.worker(Timed, 8, 0.0, SECONDS / 8, 1, name="rollout"), flow.worker(Picky, name="picky")

    @flow.iteration
    def iteration() -> Any:
        rollout.make(batch)
        return picky.read(batch, how)

    done = run(flow, lab.ExecutionPlan("by hand", ("cpu:0", "cpu:1"), {"rollout": ((0,),), "picky": ((1,),)}), 2)
    assert done.wait() == [[0, 1], [0, 1]]
    assert done.timeline.iterations()["seconds"].tolist() == [SECONDS + 2, SECONDS + 2]  # else the whole would be ready with its last item: 8


# --- groups that several ranks would split --------------------------------------------------------------------------
ITEMS, GROUP = 32, 4


class OfGroups(Learner):
    """Of groups: ``each`` seconds an item. `work` takes them item by item."""

    def answers(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        """A group for each prompt."""
        for batch in inbox:
            for prompt in batch:
                self.worked([prompt * GROUP + i for i in range(GROUP)], [out])

    def filters(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        """Groups in, groups out; of 8 groups each 4th is dropped."""
        for batch in inbox:
            for group in batch:
                self.worked(group, [out] if group[0] // GROUP % 4 else [])

    def fours(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        while batch := inbox.get(GROUP):
            self.worked(batch, [out])

    def keyed(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        for key in range(self.rank, ITEMS // GROUP, self.ranks):
            self.worked(inbox.get(GROUP, key=key), [out])

    def samples(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        """Groups for prompts, some dropped: less than a group comes of each prompt."""
        for batch in inbox:
            for prompt in batch:
                self.worked([prompt * GROUP + i for i in range(GROUP)], [out] if prompt % 4 else [])


def profile(group_in: int = 1, passing: int = ITEMS, **worker: Any) -> Profile:
    workers: dict[str, Any] = {n: {"samples": [{"devices": 1, "items": ITEMS, "seconds": s}]} for n, s in zip("abc", (0.32, 32.0, 0.8), strict=True)}
    workers["a"]["ranks"] = workers["c"]["ranks"] = {"counts": [1]}
    workers["b"] |= worker
    first = {"producer": "a", "consumer": "b", "group": group_in, "items": passing}
    return Profile.from_dict({"items": ITEMS, "workers": workers, "edges": [first, {"producer": "b", "consumer": "c", "group": GROUP}]})


DEVICES = [f"cpu:{i}" for i in range(4)]


def made(method: str, group: int = 1) -> tuple[lab.Workflow, Profile]:
    """``group``: of what b takes. The profile says what comes and goes."""
    flow, count = lab.Workflow(f"{method} of {group}"), ITEMS // (GROUP if method in ("answers", "samples") else 1)
    x = flow.channel("x", capacity=None, group=group, whole=method == "whole", keyed=method == "keyed")
    y = flow.channel("y", capacity=None, group=GROUP)
    given = {"a": (count, 0.01, GROUP if method == "keyed" else group), "b": (0, 1.0, GROUP), "c": (0, 0.1 / GROUP, 1)}
    a, b, c = (flow.worker(OfGroups, items, 0.0, each, puts, name=n) for n, (items, each, puts) in given.items())

    @flow.iteration
    def iteration() -> Any:
        a.make(x)
        getattr(b, method)(x, y)
        return c.work(y)

    known = profile(group, count).to_dict()
    known["edges"][0]["whole"] = method == "whole"
    if method in ("filters", "samples"):
        known["edges"][1]["items"] = 3 * ITEMS / 4
    return flow, Profile.from_dict(known)


@pytest.mark.parametrize(("method", "group", "several"), [("work", 1, False), ("answers", 1, True), ("work", GROUP, True)])
def test_plans_of_the_search_run(method: str, group: int, several: bool) -> None:
    flow, costs = made(method, group)
    plans = lab.plan(flow, DEVICES, costs, micro_batches=8)
    assert any(p.placement["b"]["ranks"] > 1 for p in plans) == several
    said = "'b' has one rank: it takes items of 'x' in batches as they come and puts as many items into 'y', in groups of 4"
    for planned in plans:
        assert any(said in note and "group=4" in note and "Next: " in note for note in planned.notes) != several
        assert sum(run(flow, planned, 2).wait()[-1]) == ITEMS
    assert (said in repr(plans)) != several
    assert not any("from several ranks" in note for planned in plans for note in planned.notes), "a group of each is whole"


@pytest.mark.parametrize("method", ["filters", "whole", "fours", "keyed", "samples"])
def test_who_may_hand_on_whole_groups_has_any_number_of_ranks(method: str) -> None:
    flow, costs = made(method, GROUP if method == "filters" else 1)
    best = lab.plan(flow, DEVICES, costs, micro_batches=8).best
    assert best.placement["b"]["ranks"] == len(DEVICES)
    assert sum(run(flow, best, 2).wait()[-1]) == ITEMS * (3 if method in ("filters", "samples") else 4) // 4
    notes = [note for note in best.notes if "groups of 4" in note]
    assert len(notes) == (method in ("whole", "fours", "samples"))
    assert all("'b' puts groups of 4 into 'y', from several ranks" in note and "is in its code" in note for note in notes)
    pinned = lab.plan(flow, DEVICES, costs.with_worker("b", devices=2), micro_batches=8).best  # nobody is refused
    assert pinned.placement["b"]["ranks"] == 2


def test_a_worker_that_must_have_several_ranks_is_refused_by_name() -> None:
    for worker, why in (({"ranks": {"counts": [2, 4]}}, "its ranks are 1 device a rank, ranks: 2 or 4"), ({"devices": 2}, r"profile.workers.b.devices is 2")):
        with pytest.raises(PlanError, match=rf"'b' has one rank: .*'x'.*'y'.*, but {why}\. Next: declare channel 'x' with group=4"):
            lab.plan(made("work")[0], DEVICES, profile(**worker))


def test_a_plan_by_hand_that_splits_groups_says_how_many_ranks_there_are() -> None:
    flow = made("work")[0]
    plan = lab.ExecutionPlan.temporal(flow, DEVICES[:2], {"b": 2}, micro_batches={"x": 1})
    with pytest.raises(lab.errors.WorkerError, match=r"with 2 of key \d, one of its 2 ranks.*Next: .*a plan with one rank of 'b', or groups of 4 in what it reads"):
        run(flow, plan, 1)
