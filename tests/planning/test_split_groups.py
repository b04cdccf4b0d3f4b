"""A worker that is fed item by item and puts groups has one rank in plans of the search: several would each have a part of a group."""

from __future__ import annotations

from typing import Any

import pytest
from mock_runs import run
from timed_flows import Timed

import rlinf_lab as lab
from rlinf_lab.errors import PlanError
from rlinf_lab.planning.profile.profile import Profile

ITEMS, GROUP = 32, 4


class Stage(Timed):
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

    def whole(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        self.worked(inbox.get_all(), [out])

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
    a, b, c = (flow.worker(Stage, items, 0.0, each, puts, name=n) for n, (items, each, puts) in given.items())

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
