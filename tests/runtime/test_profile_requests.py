"""What `lab.profile` is asked for: refused in a line when it cannot be, and compared with the profile that is in the file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import rlinf_lab as lab
from rlinf_lab.errors import PlanError, RlinfLabError
from rlinf_lab.planning.profile.fingerprint import Fingerprint
from rlinf_lab.planning.profile.profile import EdgeProfile, Lengths, Profile, RankRule, Sample, WorkerProfile
from rlinf_lab.runtime.profiling.request import Request
from rlinf_lab.runtime.profiling.subject import subject


class Source(lab.Worker):
    def make(self, out: lab.Outbox) -> None:
        for i in range(4):
            self.compute(0.001)
            out.put(i)


class Sink(lab.Worker):
    def use(self, inbox: lab.Inbox) -> None:
        for batch in inbox:
            self.compute(0.001 * len(batch))


def flow(first: str = "a", last: str = "b") -> lab.Workflow:
    made = lab.Workflow("two")
    channel = made.channel("items", capacity=None)
    source, sink = made.worker(Source, name=first), made.worker(Sink, name=last)

    @made.iteration
    def iteration() -> None:
        source.make(channel)
        sink.use(channel)

    return made


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


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ranks": {"b": 2}}, r"profile: ranks\['b'\] is 2; the numbers that it may have\. Next: ranks=\{'b': \[1, 2\]\}"),
        ({"ranks": [1]}, r"profile: ranks is \[1\]; for each worker .* Next: ranks=\{'a': \[1, 2\]\}"),
        ({"ranks": {"b": [3]}}, r"one of ranks\['b'\] is 3; give a whole number, at most 2 \(devices: 2\)\. Next: 2"),
        ({"ranks": {"c": [1]}}, "Unknown worker 'c'"),
        ({"iterations": 0}, r"iterations=\.\.\.\) is 0; give a whole number, at least 1"),
        ({"items": 0}, r"profile\(items=\.\.\.\) is 0; give a whole number, at least 1\. Next: 1"),
        ({"iterations": True}, r"profile\(iterations=\.\.\.\) is True"),
        ({"inputs": []}, r"profile\(inputs=\[\]\): at least one argument"),
        ({"devices": []}, r"profile\(devices=\[\]\): names of at least one device\. Next: devices=lab\.devices\(\)"),
        ({"generators": ["a"]}, r"profile\(generators=\['a'\]\): .* Next: generators=\{'a': 4096\}"),
        ({"path": 5}, r"profile\(path=5\): no path\. Next"),
        ({"path": "/nowhere/x.json"}, r"is in '/nowhere', which is no folder\. Next"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_measured(given: dict[str, Any], says: str) -> None:
    with pytest.raises(RlinfLabError, match=says):
        lab.profile(flow(), **{"devices": ["cpu:0", "cpu:1"], "progress": False, **given})


def worker(*devices: int, **fields: Any) -> WorkerProfile:
    return WorkerProfile(tuple(Sample(n, 4.0, 1.0) for n in devices), **{"ranks": RankRule(most=1), **fields})


KEPT = Profile(4, {"a": worker(1), "b": worker(1)}, (EdgeProfile("a", "b"),), fingerprint=Fingerprint.here([]))
SEVERAL = KEPT.replace(workers={"a": worker(1), "b": worker(1, 2, ranks=RankRule())})


def request(made: lab.Workflow, **asked: Any) -> Request:
    nothing = dict.fromkeys(("ranks", "items", "inputs", "generators", "path"))
    return Request.of(made, **{**nothing, "devices": ["cpu:0", "cpu:1"], "iterations": 1, "executor": "local", **asked})


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


def test_the_profile_of_another_workflow_is_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    KEPT.save(path)
    assert lab.profile(flow(), ["cpu:0"], path=path) == KEPT  # read, not measured
    other = lab.profile(flow("x", "y"), ["cpu:0"], iterations=1, path=path, progress=False)
    assert "it is of workers a, b, the workflow has x, y): measuring again" in capsys.readouterr().out
    assert list(other.workers) == ["x", "y"] and Profile.load(path) == other


def test_what_was_written_by_hand_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    KEPT.replace(fingerprint=None).save(path)
    before = path.read_text()
    with pytest.raises(PlanError, match=r"was written by hand and is not what is asked for: it is of workers a, b, .* Next: another path"):
        lab.profile(flow("x", "y"), ["cpu:0"], path=path)
    assert path.read_text() == before


class Sleeper(lab.Worker):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def make(self, n: int, out: lab.Outbox) -> None:
        for i in range(n):
            self.compute(self.seconds)
            out.put(i)


def quicker(times: int) -> type[Sleeper]:
    class Local(Sleeper):
        def make(self, n: int, out: lab.Outbox) -> None:
            for i in range(n):
                self.compute(self.seconds / times)
                out.put(i)

    return Local


def sleeping(cls: type[Sleeper] = Sleeper, seconds: float = 0.001, items: int = 4) -> lab.Workflow:
    made = lab.Workflow("sleeping")
    channel = made.channel("items", capacity=None)
    source, sink = made.worker(cls, seconds, name="a"), made.worker(lambda batch: batch, name="b")
    out = made.channel("out", capacity=None)

    @made.iteration
    def iteration(n: int = 1) -> None:
        source.make(n * items, channel)
        sink(channel, out)
        out.get_all()

    return made


def test_a_profile_is_of_these_inputs_arguments_and_this_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.json"

    def measured(made: lab.Workflow, inputs: list[int]) -> tuple[Profile, str]:
        found = lab.profile(made, ["cpu:0"], inputs=inputs, iterations=1, path=path, progress=False)
        streams = capsys.readouterr()
        return found, streams.out + streams.err

    first, _ = measured(sleeping(), [2])
    assert first.items == 8 and measured(sleeping(), [2]) == (first, "")
    more, said = measured(sleeping(), [4])
    assert more.items == 16 and "iteration was measured with (2), is (4)" in said
    _, said = measured(sleeping(seconds=0.002), [4])
    assert "a was measured with Sleeper(0.001), is Sleeper(0.002)" in said
    _, said = measured(sleeping(seconds=0.002, items=5), [4])
    assert "the code of iteration has changed" in said, "what it has from outside counts, too"
    _, said = measured(sleeping(quicker(2), 0.002, 5), [4])
    assert "a was measured with Sleeper(0.002), is Local(0.002)" in said
    assert measured(sleeping(quicker(2), 0.002, 5), [4])[1] == ""
    _, said = measured(sleeping(quicker(3), 0.002, 5), [4])
    assert "the code of a has changed" in said


def test_arguments_are_told_apart_without_addresses() -> None:
    class Thing:
        def __repr__(self) -> str:
            raise ValueError("no")

    made = [lab.Workflow("w") for _ in range(2)]
    for flow_ in made:
        flow_.worker(Sleeper, object(), name="a")
        flow_.worker(Sleeper, "x" * 500, name="b")
        flow_.worker(Sleeper, Thing(), name="c")
        flow_.worker(Sleeper, lambda x: x + 1, name="d")
        flow_.iteration(lambda: None)
    one, other = (subject(flow_, (object(),)) for flow_ in made)
    assert one == other and all(len(line) < 200 for line in one)
