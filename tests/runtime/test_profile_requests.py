"""What `lab.profile` is asked for: refused in a line when it cannot be, compared with the profile in the file; errors of workers name them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import rlinf_lab as lab
from rlinf_lab.errors import PlanError, RlinfLabError, WorkerError
from rlinf_lab.planning.profile.fingerprint import Fingerprint
from rlinf_lab.planning.profile.profile import EdgeProfile, Lengths, Profile, RankRule, Sample, WorkerProfile
from rlinf_lab.runtime.profiling.request import Request


class Source(lab.Worker):
    def __init__(self, fails: str = "", items: int = 4, most: int = 4) -> None:
        self.fails, self.items, self.most = fails, items, most

    def can_leave(self) -> bool:
        self.fail("can_leave")
        return True

    def offload(self) -> None:
        self.fail("offload")

    def onload(self) -> None:
        self.fail("onload")

    def fail(self, where: str) -> None:
        if where == self.fails:
            raise OSError(f"not in {where}")

    def make(self, times: int, out: lab.Outbox) -> None:
        if self.ranks > self.most:
            raise RuntimeError(f"no more than {self.most}")
        for i in range(self.rank, times * self.items, self.ranks):
            self.compute(1e-4)
            out.put(i)


class Sink(lab.Worker):
    def use(self, inbox: lab.Inbox) -> None:
        for batch in inbox:
            self.compute(1e-4 * len(batch))


DEVICES = ["cpu:0", "cpu:1"]


def flow(first: str = "a", last: str = "b", cls: type[Source] = Source, times: int = 1, **of_source: Any) -> lab.Workflow:
    made = lab.Workflow("two")
    channel = made.channel("items", capacity=None, may_be_empty=True)
    source, sink = made.worker(cls, name=first, **of_source), made.worker(Sink, name=last)
    made.iteration(lambda n=1: (source.make(n * times, channel), sink.use(channel)))
    return made


def profile_of(made: lab.Workflow, devices: list[str] = DEVICES, **asked: Any) -> lab.Profile:
    return lab.profile(made, devices, **{"iterations": 1, "progress": False, **asked})


ODD = (-1, 0, 1.5, float("nan"), True, "x", "", b"x", [], [None], (1, 2), {}, {1: 2}, {"b": 2}, {"b": []}, {"b": [True]}, {"b": "2"}, {"b": [10**30]},
       {"a": -5}, {"a": "x"}, {"a": None}, 10**30, object(), "\0", "x" * 5000, ["cuda:99"], ["gpu:0"], "cpu:0", Path("/nowhere/x.json"), Path("/"))  # fmt: skip


@pytest.mark.parametrize("name", ["flow", "devices", "ranks", "items", "inputs", "iterations", "executor", "generators", "path"])
def test_no_foreign_error_comes_out(name: str) -> None:
    for odd in ODD:
        given = {"flow": flow(), "devices": ["cpu:0"], "ranks": None, "items": None, "inputs": None, "iterations": 1, "executor": "local",
                 "generators": None, "path": None, name: odd}  # fmt: skip
        try:
            asked = Request.of(**given)
        except RlinfLabError as error:
            assert name in str(error) or name == "flow" or "does not have" in str(error), odd
        else:
            assert asked.devices and asked.iterations >= 1 and (asked.items is None or asked.items >= 1), odd


def test_what_cannot_be_is_told_before_anything_is_measured() -> None:
    for given, says in (
        ({"ranks": {"b": 2}}, r"ranks\['b'\] is 2;"), ({"ranks": {"b": [3]}}, r"ranks\['b'\] is 3; .* at most 2"),
        ({"ranks": {"c": [1]}}, "Unknown worker 'c'"), ({"iterations": 0}, "is 0; .* at least 1"), ({"inputs": []}, r"inputs=\[\]"),
        ({"generators": ["a"]}, r"generators=\['a'\]"), ({"path": "/nowhere/x.json"}, "no folder"),
    ):  # fmt: skip
        with pytest.raises(RlinfLabError, match=says):
            profile_of(flow(), **given)


def worker(*devices: int, **fields: Any) -> WorkerProfile:
    return WorkerProfile(tuple(Sample(n, 4.0, 1.0) for n in devices), **{"ranks": RankRule(most=1), **fields})


KEPT = Profile(4, {"a": worker(1), "b": worker(1)}, (EdgeProfile("a", "b"),), fingerprint=Fingerprint.here([]))
SEVERAL = KEPT.replace(workers={"a": worker(1), "b": worker(1, 2, ranks=RankRule())})


def request(made: lab.Workflow, **asked: Any) -> Request:
    nothing = dict.fromkeys(("ranks", "items", "inputs", "generators", "path"))
    return Request.of(made, **{**nothing, "devices": DEVICES, "iterations": 1, "executor": "local", **asked})


@pytest.mark.parametrize(
    ("kept", "asked", "why"),
    [
        (KEPT, {}, ()),
        (KEPT, {"items": 4}, ()),
        (SEVERAL, {"ranks": {"b": [1, 2]}}, ()),
        (SEVERAL, {"ranks": {"b": [2]}}, ()),
        (KEPT.replace(notes=("2 ranks: not measured, it failed",)), {"ranks": {"b": [1, 2]}}, ()),
        (KEPT.replace(fingerprint=None).with_worker("b", ranks=RankRule()), {}, ()),
        (KEPT, {"items": 8}, ("it counts 4 items an iteration, asked for are 8",)),
        (KEPT, {"ranks": {"b": [1, 2]}}, ("b was not measured with 2 ranks",)),
        (SEVERAL, {}, ("it lets b have several ranks, asked for is one",)),
        (KEPT.replace(edges=()), {}, ("it has no edge from a to b",)),
        (KEPT.replace(edges=(EdgeProfile("b", "a"),)), {}, ("it has no edge from a to b", "it has an edge from b to a, the workflow has none")),
        (KEPT.replace(workers={"a": worker(1)}, edges=()), {}, ("it is of workers a, the workflow has a, b",)),
        (KEPT, {"generators": {"a": 64}}, ("a is no generator in it, asked for are up to 64 tokens",)),
        (
            KEPT.with_worker("a", kind="generation", lengths=Lengths(64.0, mean_tokens=9.0)), {"generators": {"a": 32}},
            ("a generates up to 64 tokens in it, asked for are up to 32 tokens",),
        ),
        (
            KEPT.replace(fingerprint=dataclasses.replace(KEPT.fingerprint, devices=("H100",))), {},
            ("it was measured on accelerators: H100; asked for are: none",),
        ),
    ],
)  # fmt: skip
def test_why_a_profile_is_not_what_is_asked_for(kept: Profile, asked: dict[str, Any], why: tuple[str, ...]) -> None:
    assert request(flow(), **asked).misses(kept, []) == why


def test_a_profile_of_another_workflow_or_machine_is_measured_again_unless_it_was_written_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    KEPT.save(path)
    assert lab.profile(flow(), ["cpu:0"], path=path) == KEPT  # read, not measured
    other = profile_of(flow("x", "y"), ["cpu:0"], path=path)
    assert "it is of workers a, b, the workflow has x, y): measuring again" in capsys.readouterr().out
    assert list(other.workers) == ["x", "y"] and Profile.load(path) == other
    KEPT.replace(fingerprint=dataclasses.replace(KEPT.fingerprint, cores=999)).save(path)
    again = profile_of(flow(), ["cpu:0"], path=path)
    assert "cores were 999" in capsys.readouterr().out and again.fingerprint.cores != 999 and Profile.load(path) == again
    elsewhere = dataclasses.replace(KEPT.fingerprint, processor="another")
    assert any("profile is stale: processor was" in note for note in lab.plan(again.replace(fingerprint=elsewhere), 1).notes)
    KEPT.replace(fingerprint=None).save(path)
    before = path.read_text()
    with pytest.raises(PlanError, match=r"was written by hand and is not what is asked for: it is of workers a, b, .* Next: another path"):
        lab.profile(flow("x", "y"), ["cpu:0"], path=path)
    assert path.read_text() == before


def another(seconds: float) -> type[Source]:
    class Local(Source):
        def make(self, times: int, out: lab.Outbox) -> None:
            self.compute(seconds)
            super().make(times, out)

    return Local


def test_a_profile_is_of_these_inputs_arguments_and_this_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.json"

    def measured(made: lab.Workflow, inputs: list[int]) -> tuple[Profile, str]:
        found = profile_of(made, ["cpu:0"], inputs=inputs, path=path)
        streams = capsys.readouterr()
        return found, streams.out + streams.err

    first, _ = measured(flow(fails=object()), [2])
    assert first.items == 8 and measured(flow(fails=object()), [2]) == (first, ""), "addresses do not count"
    more, said = measured(flow(fails=object()), [4])
    assert more.items == 16 and "iteration was measured with (2), is (4)" in said
    for made, why in (
        (flow(items=5), "is Source(items=5)"),
        (flow(items=5, times=2), "the code of iteration has changed"),  # what it has from outside counts, too
        (flow(items=5, times=2, cls=another(1e-4)), "a was measured with Source(items=5), is Local(items=5)"),
        (flow(items=5, times=2, cls=another(1e-4)), ""),
        (flow(items=5, times=2, cls=another(2e-4)), "the code of a has changed"),
    ):
        said = measured(made, [4])[1]
        assert why in said and bool(why) == bool(said), said


@pytest.mark.parametrize("method", ["can_leave", "offload", "onload"])
def test_who_fails_by_itself_is_named(method: str) -> None:
    with pytest.raises(WorkerError, match=rf"Worker 'a' rank 0 failed in {method}\(\): OSError: not in {method}") as caught:
        profile_of(flow(fails=method))
    assert (caught.value.worker, caught.value.method) == ("a", method) and isinstance(caught.value.__cause__, OSError)


def test_plans_give_nobody_more_ranks_than_it_worked_with() -> None:
    profile = profile_of(flow(most=1), ranks={"a": [1, 2], "b": [1, 2]})
    assert any(note.startswith("2 ranks: not measured, Worker 'a' rank") for note in profile.notes)
    for name, worker in profile.workers.items():
        assert worker.ranks.most == 1
        assert f"{name}: plans give it at most 1 rank, for the run with 2 failed." in profile.notes
    for plan in lab.plan(profile, 2):
        assert all(seat.ranks == 1 for seat in plan.candidate.placement.seats.values())


def test_ranks_that_this_machine_has_no_cores_for_are_not_forbidden_and_a_channel_that_nothing_passed_is_told() -> None:
    many = [f"cpu:{i}" for i in range(1024)]
    profile, empty = profile_of(flow(), many, ranks={"a": [1, 1024]}), profile_of(flow(items=0))
    assert any(note.startswith("1024 ranks: not measured, Plan '1024 ranks' uses") for note in profile.notes)
    assert profile.workers["a"].ranks == RankRule()
    told = "Nothing passed channel 'items' in the iterations that were measured: what items of it cost is not known."
    assert told in empty.notes and told not in profile.notes


def test_a_run_can_be_asked_about_other_ranks_than_it_had() -> None:
    made = flow()
    plan = lab.ExecutionPlan.temporal(made, DEVICES[:1])
    run = lab.run(made, plan, 3, dashboard=False)
    run.wait()
    as_it_was = lab.planning.profile_from_run(made, plan, run.timeline)
    assert [w.ranks.counts for w in as_it_was.workers.values()] == [(1,), (1,)]
    other = lab.planning.profile_from_run(made, plan, run.timeline, ranks={"b": [4, 1, 2, 2]})
    assert [w.ranks.counts for w in other.workers.values()] == [(1,), (1, 2, 4)]
    assert "or those that were asked for: b (a 1, b 1 or 2 or 4). Next: ranks=" in other.notes[0]
    assert max(p.candidate.placement.seats["b"].ranks for p in lab.plan(made, DEVICES, other)) == 2
    zero = r"ranks\['b'\] is 0; give a whole number, at least 1. Next: 1"
    for ranks, said in (({"bb": [1]}, "Unknown worker 'bb'. Did you mean 'b'"), ({"b": [1, 0]}, zero)):
        with pytest.raises((PlanError, LookupError), match=said):
            lab.planning.profile_from_run(made, plan, lab.Timeline(), ranks=ranks)
