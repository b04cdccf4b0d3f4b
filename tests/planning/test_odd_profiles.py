"""Profiles that can be written and are odd: a plan that is right, or one line that names the field. Never a traceback, on the command line neither."""

from __future__ import annotations

import copy
import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest

from rlinf_lab.cli import main
from rlinf_lab.errors import ConfigError, PlanError
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.planner.candidates import candidates
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.profile.profile import (
    Cell,
    EdgeProfile,
    Lengths,
    Memory,
    Profile,
    RankRule,
    Sample,
    WorkerProfile,
)

ONE = {"samples": [{"devices": 1, "items": 64, "seconds": 4.0}]}
BASE: dict[str, Any] = {"items": 64, "workers": {"a": {"samples": [{"devices": 1, "items": 64, "seconds": 8.0}]}, "b": ONE},
                        "edges": [{"producer": "a", "consumer": "b"}]}  # fmt: skip
GENERATOR = {**BASE["workers"]["a"], "kind": "generation", "lengths": {"max_tokens": 1000, "mean_tokens": 200}}
GENERATION = {**BASE, "workers": {"a": GENERATOR, "b": ONE}}
PAIR = {"calls": 10, "samples": [{"devices": 1, "items": 8, "seconds": 0.1}, {"devices": 1, "items": 64, "seconds": 0.5}]}
CELL = {"items": 64, "workers": {"s": {**PAIR, "kind": "simulator"}, "p": PAIR, "t": ONE},
        "edges": [{"producer": "s", "consumer": "p"}, {"producer": "p", "consumer": "s"}, {"producer": "s", "consumer": "t", "whole": True}]}  # fmt: skip


def changed(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy; a change's key is a path such as ``workers.a.samples.0.seconds``."""
    found = copy.deepcopy(base)
    for path, value in changes.items():
        *way, last = (int(k) if k.isdigit() else k for k in path.split("."))
        at: Any = found
        for key in way:
            at = at[key]
        at[last] = value
    return found


FIRST = "workers.a.samples.0."
TWO = [{"devices": 1, "items": 64, "seconds": 0}, {"devices": 2, "items": 64, "seconds": 4}]


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (BASE, {FIRST + "seconds": 0, "workers.b.samples.0.seconds": 0}),
        (BASE, {FIRST + "seconds": 0}),
        (BASE, {FIRST + "seconds": 1e9, "workers.b.samples.0.seconds": 1e-300}),
        (BASE, {"workers.a.samples": TWO}),
        (GENERATION, {FIRST + "seconds": 0}),
        (GENERATION, {"workers.a.samples": TWO}),
        (GENERATION, {"workers.a.samples": [{**s, "seconds": 0} for s in TWO]}),
        (GENERATION, {"workers.a.resource": "host", FIRST + "devices": 0}),
        (GENERATION, {"workers.a.lengths": {"max_tokens": 100, "quantiles": [[0, 0.9], [100, 1]], "tail": 2}}),
        (GENERATION, {"workers.a.lengths": {"max_tokens": 1000, "completion": [[0, 0.0], [10, 1]]}}),
        *[(CELL, {"cells": [{"members": ["s", "p"], "sub_batches": [k]}]}) for k in (2, 3, 64)],
    ],
)  # fmt: skip
def test_an_odd_profile_is_planned(base: dict[str, Any], changes: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(changed(base, changes)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["plan", "--profile", str(path), "--devices", "8", "--json"]) == 0
        assert "DLASCL" not in capfd.readouterr().out  # LAPACK writes there what it was not given
        plans = plan(Profile.load(path), 8)
        assert repr(plans) and plans._repr_html_()
    assert plans.best.seconds >= plans.bound.seconds * (1 - 1e-6)


@pytest.mark.parametrize("kind", ["batch", "generation"])
@pytest.mark.parametrize("devices", [{"A": 2}, {"B": 2}, {"A": 2, "B": 3}])
@pytest.mark.parametrize("rule", ["fitted", "rlinf"])
def test_on_the_host_it_is_as_fast_as_measured_whatever_the_kind(devices: dict[str, int], rule: str, kind: str) -> None:
    """Faster devices are faster for who sits on them; samples of a host are on no kind, whatever they name."""
    base = changed(GENERATION, {"workers.a.max_running": 256}) if kind == "generation" else BASE
    for named in ("", "B"):
        kinds = [{"name": "A"}, {"name": "B", "speed": 2.0}]
        changes = {"workers.a.resource": "host", FIRST + "devices": 0, FIRST + "kind": named, "kinds": kinds}
        plans = plan(Profile.from_dict(changed(base, changes)), devices, rule=rule, simulate=False)
        assert plans.bound.seconds == pytest.approx(8.0) and plans.best.seconds > 8.0
        assert plans["a > b"].candidate.streamed.work[0].busy == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        (BASE, {FIRST + "seconds": 10**400}, r"profile\.workers\.a\.samples\[0\]\.seconds is 1000.*it must be a number below 1\.8e\+308"),
        (BASE, {FIRST + "outputs": [[-1, 0.5]]}, r"samples\[0\]\.outputs goes from \[-1\.0, 0\.5\]"),
        (BASE, {FIRST + "outputs": [[1, 0.5], [2, 0.4]]}, r"samples\[0\]\.outputs"),
        (BASE, {FIRST + "outputs": [[4, 0.5], [200, 1]]}, r"outputs ends with \[200\.0, 1\.0\]: 200 s after .* a call of 8 s\. Next: .* at most 8"),
        (BASE, {FIRST + "beside": ["a"]}, r"samples\[0\]\.beside names 'a' itself\. Next: only the others"),
        (BASE, {"workers.a.ranks": {"counts": [-1, 0]}}, r"a\.ranks\.counts\[0\] is -1; .* from 1 to 1000000"),
        (BASE, {"workers.a.ranks": {"counts": [10**30]}}, r"a\.ranks\.counts\[0\] is 10{29}.*; .* from 1 to 1000000"),
        (BASE, {"workers.a.ranks": {"counts": [3], "divides": 8}}, r"no number of ranks at all: 1 device a rank, ranks: 3, .* divides 8\. Next: leave out"),
        (BASE, {"workers.a.ranks": {"counts": [9000]}}, r"needs at least 9000 devices by .*\(1 device a rank, ranks: 9000\), .* there are 8 devices\. Next"),
        (BASE, {"workers.a.ranks": {"counts": [2, 12]}, "workers.a.devices": 10}, r"devices is 10, which .* not allow: .*ranks: 2 or 12\. Next: 12"),
        (BASE, {"edges": [{"producer": "a", "consumer": "b", "group": 3}]}, r"group is 3, which does not divide the 64 items of an iteration\. Next: 2\."),
        (BASE, {"kinds": [{"name": "A\tB"}]}, r"profile\.kinds has the name 'A\\tB', .* Next: 'A_B'"),
        (BASE, {"workers": {"a\nb": ONE}, "edges": []}, r"profile\.workers has the name 'a\\nb', .* line of text\. Next: 'a_b'"),
        (BASE, {"workers": {"driver": ONE}, "edges": []}, r"profile\.workers\.driver: 'driver' is the loop that calls the workers\. Next: another name"),
        (BASE, {"workers": {"\ud800": ONE}, "edges": []}, r"a name in profile\.workers is '\\ud800', whose character 0 is no character\. Next"),
        (BASE, {"name": "\ud800"}, r"profile\.name is '\\ud800'"),
        (GENERATION, {"workers.a.lengths": {"max_tokens": 9, "completion": [[0, 1]]}}, r"completion ends with \[0\.0, 1\.0\]: all .* take 0 seconds\. Next"),
        (GENERATION, {"workers.a.lengths": {"max_tokens": 9, "quantiles": [[0, 1]]}}, r"quantiles ends with \[0\.0, 1\.0\]: all .* take 0 tokens\. Next"),
        (GENERATION, {"workers.a.lengths": {"max_tokens": 9, "completion": [[-5, 0.1], [9, 1]]}}, r"completion\[0\] is \[-5\.0, 0\.1\]: -5 seconds\. Next"),
        (GENERATION, {"workers.a.lengths": {"max_tokens": 9, "quantiles": [[-5, 0.1], [9, 1]]}}, r"quantiles\[0\] is \[-5\.0, 0\.1\]: -5 tokens\. Next"),
        (GENERATION, {"workers.a.lengths.tail": 16}, r"2 iterations end later .*: 'a' takes .* s of each\. Next"),
        (CELL, {"cells": [{"members": ["s", "t"]}]}, r"cells\[0\]\.members is \['s', 't'\], which is no cycle .* Next: all members of one: s, p"),
        (CELL, {"cells": [{"members": []}]}, r"cells\[0\]\.members is \[\], which is no cycle"),
        (CELL, {"cells": [{"members": ["s", "p"]}, {"members": ["p", "s"]}]}, r"cells\[1\]\.members is \['p', 's'\], which is no cycle .* no other entry"),
        (BASE, {"cells": [{"members": ["a"]}]}, r"cells\[0\]\.members is \['a'\].* Next: leave it out"),
    ],
)  # fmt: skip
def test_what_means_nothing_is_one_line(base: dict[str, Any], changes: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = changed({**base, "cells": [], "name": "odd"}, changes)
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(data))
    assert main(["plan", "--profile", str(path), "--devices", "8"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    with pytest.raises((ConfigError, PlanError), match=says):
        plan(Profile.from_dict(data), 8)


@pytest.mark.parametrize("text", ['{"items": 64, "items": 32}', '{"items": 64, "workers": {"a": {}, "b": {}, "a": {}}}'])
def test_a_name_that_is_given_twice_is_no_last_word(text: str) -> None:
    with pytest.raises(ConfigError, match=r"gives '(items|a)' twice in one object: .* Next: one of the two\.$"):
        Profile.from_json(text)


@pytest.mark.filterwarnings("error")
def test_next_to_no_memory_for_each_item_is_no_limit() -> None:
    tiny, none = (Profile.from_dict(changed(GENERATION, {"workers.a.memory": {"resident_gib": 30, "per_item_gib": n}})) for n in (5e-324, 0))
    assert plan(tiny, 2, memory_gib=80, micro_batches=2).best.seconds == pytest.approx(plan(none, 2, memory_gib=80, micro_batches=2).best.seconds)


@pytest.mark.filterwarnings("error")
def test_plans_in_which_somebody_does_not_fit_are_not_followed() -> None:
    """One device more or less puts the generator beside a cell's member that keeps too much there."""
    lengths = Lengths(2000.0, mean_tokens=900.0)
    workers = {
        "a": WorkerProfile(
            (Sample(1, 12.0, 17.0, peak_gib=50.0),), "generation", memory=Memory(30, 0.5), ranks=RankRule(divides=12), offload_s=1, lengths=lengths
        ),
        "b": WorkerProfile((Sample(1, 12.0, 11.0),), memory=Memory(45), ranks=RankRule(most=1), onload_s=3),
        "s": WorkerProfile((Sample(1, 12.0, 3.0),), calls=9, memory=Memory(45, 0.5, True), ranks=RankRule(most=1), offload_s=1),
        "t": WorkerProfile((Sample(2, 12.0, 5.0, peak_gib=50.0),), calls=9, memory=Memory(0, 2, True), ranks=RankRule(2), onload_s=3),
    }
    edges = (EdgeProfile("a", "b", whole=True), EdgeProfile("s", "t"), EdgeProfile("t", "s"), EdgeProfile("t", "b"))
    profile = Profile(12, workers, edges, cells=(Cell(("s", "t"), (1,)),), device_memory_gib=80.0, weights="tokens")
    found = candidates(Setting.of(profile, 6))
    assert found and all(math.isfinite(c.seconds) for c in found)
