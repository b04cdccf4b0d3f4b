"""Profiles: JSON there and back; what is odd has a plan that is right, or one line that names the field and says what would do; the documentation's examples."""

from __future__ import annotations

import copy
import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rlinf_lab.cli import main
from rlinf_lab.errors import ConfigError, PlanError, UnknownNameError
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.planner.candidates import candidates
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.profile.profile import (
    Cell,
    EdgeProfile,
    Fingerprint,
    Lengths,
    Memory,
    Profile,
    RankRule,
    Sample,
    WorkerProfile,
)
from rlinf_lab.planning.schema.json_schema import schema

ROOT = Path(__file__).parents[2]
GOOD: dict[str, Any] = {
    "name": "grpo", "items": 512, "device_memory_gib": 80,
    "workers": {
        "rollout": {
            "kind": "generation", "samples": [{"devices": 8, "items": 512, "seconds": 60}],
            "lengths": {"max_tokens": 4096, "mean_tokens": 1000}, "ranks": {"devices_per_rank": 2},
        },
        "learner": {
            "samples": [{"devices": 8, "items": 512, "seconds": 30, "beside": ["rollout"]}, {"devices": 4, "items": 512, "seconds": 55}],
            "memory": {"resident_gib": 40}, "onload_s": 2, "offload_s": 1.5,
        },
    },
    "edges": [{"producer": "rollout", "consumer": "learner", "group": 8}],
}  # fmt: skip
ONE = {"samples": [{"devices": 1, "items": 64, "seconds": 4.0}]}
BASE: dict[str, Any] = {"items": 64, "workers": {"a": {"samples": [{"devices": 1, "items": 64, "seconds": 8.0}]}, "b": ONE},
                        "edges": [{"producer": "a", "consumer": "b"}]}  # fmt: skip
GENERATOR = {**BASE["workers"]["a"], "kind": "generation", "lengths": {"max_tokens": 1000, "mean_tokens": 200}}
GENERATION = {**BASE, "workers": {"a": GENERATOR, "b": ONE}}
PAIR = {"calls": 10, "samples": [{"devices": 1, "items": 8, "seconds": 0.1}, {"devices": 1, "items": 64, "seconds": 0.5}]}
CELL = {"items": 64, "workers": {"s": {**PAIR, "kind": "simulator"}, "p": PAIR, "t": ONE},
        "edges": [{"producer": "s", "consumer": "p"}, {"producer": "p", "consumer": "s"}, {"producer": "s", "consumer": "t", "whole": True}]}  # fmt: skip


def changed(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy; a change's key is a path such as ``workers.a.samples.0.seconds``, its value `...` where nothing is to be there."""
    found = copy.deepcopy(base)
    for path, value in changes.items():
        *way, last = (int(k) if k.isdigit() else k for k in path.split("."))
        at: Any = found
        for key in way:
            at = at[key]
        if value is ...:
            del at[last]
        else:
            at[last] = value
    return found


def test_json_there_and_back(tmp_path: Path) -> None:
    profile = Profile.from_dict(GOOD)
    profile.save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json") == profile == Profile.from_json(profile.to_json())
    assert "groups of 8" in repr(profile) and "<table" in profile._repr_html_()
    noted = profile.replace(notes=("<b>read off by hand</b>",))
    assert repr(noted).endswith("note: <b>read off by hand</b>") and "&lt;b&gt;read off by hand" in noted._repr_html_()
    jsonschema.validate(profile.to_dict(), schema(Profile))


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
        (GENERATION, {"workers.a.lengths": {"max_tokens": 100, "quantiles": [[0, 0.9], [50, 0.9], [100, 1]], "tail": 2}}),
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


LEARNER, ROLLOUT = "workers.learner.", "workers.rollout."
NINE, HELD = "workers.a.lengths", {"shared_gib": 3, "shared_as": "m"}


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        (GOOD, {LEARNER + "samples.0.seconds": -1}, r"profile\.workers\.learner\.samples\[0\]\.seconds is -1 s; it must be at least 0 s"),
        (GOOD, {LEARNER + "samples.1.items": ...}, r"samples\[1\]\.items is missing: items of the measured call"),
        (GOOD, {LEARNER + "samples.1.devices": 0}, r"samples\[1\]\.devices is 0.*resource: 'host'"),
        (GOOD, {LEARNER + "samples.0.beside": ["rolout"]}, r"Did you mean 'rollout'.*samples\[0\]\.beside"),
        (GOOD, {LEARNER + "samples.0.items": 1e-300}, r"samples\[0\]\.items is 1e-300, hardly any of an item.*Next: "),
        (GOOD, {LEARNER + "samples": []}, r"learner\.samples is empty"),
        (GOOD, {LEARNER + "kind": "bach"}, r"Did you mean 'batch'"),
        (GOOD, {LEARNER + "memori": {}}, r"Did you mean 'memory'.*profile\.workers\.learner"),
        (GOOD, {LEARNER + "memory.resident_gib": True}, r"resident_gib is True; it must be a number"),
        (GOOD, {LEARNER + "max_running": 4}, r"belong to kind 'generation'"),
        (GOOD, {LEARNER + "in_turn": [["rollout"]]}, r"it must have 2 entries. Next: such as \['a name', 0\.5\]"),
        (GOOD, {ROLLOUT + "exponent": 1.5}, r"rollout\.exponent is 1\.5: of a generator it is the part .* Next: 1 or less"),
        (GOOD, {ROLLOUT + "lengths": ...}, r"rollout\.lengths is missing"),
        (GOOD, {ROLLOUT + "lengths.mean_tokens": 5000}, r"mean_tokens is 5000, not below max_tokens = 4096"),
        (GOOD, {ROLLOUT + "lengths.quantiles": [[10, 0.5], [20, 1.0]]}, r"gives quantiles, mean_tokens; exactly one"),
        (GOOD, {ROLLOUT + "lengths.max_tokens": 5e-324}, r"max_tokens is 4\.94066e-324 tokens; it must be at least 1.*Next: "),
        (GOOD, {ROLLOUT + "lengths.mean_tokens": None}, r"lengths gives none.*Next: "),
        (GOOD, {ROLLOUT + "kind": "batch"}, r"kind is 'batch', but lengths.*Next: "),
        (GOOD, {"edges.0.consumer": "rollout"}, r"to itself"),
        (GOOD, {"edges": {}}, r"it must be a list\. Next: \[\{\.\.\.\}\]"),
        (GOOD, {"workers": []}, r"it must be an object, by name\. Next: \{'a name': \{\.\.\.\}\}"),
        (GOOD, {"items": ...}, r"profile\.items is missing: items of one iteration\. Next: 'items': 1\."),
        (GOOD, {"items": "four"}, r"it must be a whole number\. Next: such as 1\."),
        (GOOD, {"items": "64"}, r"it must be a whole number\. Next: 64\."),
        (GOOD, {"items": 63.7}, r"it must be a whole number\. Next: 64\."),
        (GOOD, {"kinds": [{"name": "h"}, {"name": "a", "speed": 5e-324}]}, r"kinds\[1\]\.speed is 4\.94066e-324; it must be at least 1e-06.*Next: "),
        (GOOD, {"kinds": [{"name": "h"}, {"name": ""}]}, r"profile\.kinds has the name '', in which there is nothing to read.*Next: "),
        (BASE, {FIRST + "seconds": 10**400}, r"profile\.workers\.a\.samples\[0\]\.seconds is 1000.*it must be a number below 1\.8e\+308"),
        (BASE, {FIRST + "outputs": [[-1, 0.5]]}, r"samples\[0\]\.outputs goes from \[-1\.0, 0\.5\]"),
        (BASE, {FIRST + "outputs": [[4, 0.5], [200, 1]]}, r"outputs ends with \[200\.0, 1\.0\]: 200 s after .* a call of 8 s\. Next: .* at most 8"),
        (BASE, {FIRST + "beside": ["a"]}, r"samples\[0\]\.beside names 'a' itself\. Next: only the others"),
        (BASE, {"workers.a.resource": "host", FIRST + "devices": 0, "workers.a.devices": 2}, r"a\.devices is 2, but a worker on the host takes no device"),
        (BASE, {"workers.b.in_turn": [["x", 1.0]]}, r"workers\.b\.in_turn names x, but b is fed by a\. Next"),
        (BASE, {"workers.b.in_turn": [["a", 1.5]]}, r"workers\.b\.in_turn has the parts \[1\.5\].* whose sum is 1"),
        (BASE, {"link": {"gib_per_s": 0}}, r"link\.gib_per_s"),
        (BASE, {"edges.0.item_mib": -1}, r"item_mib"),
        (BASE, {"handovers": [{"worker": "d", "method": "load", "seconds": 1}]}, r"profile\.handovers\[0\]\.worker"),
        (BASE, {"handovers": [{"worker": "a", "method": "load", "seconds": 1, "after": ["x"]}]}, r"profile\.handovers\[0\]\.after"),
        (BASE, {"handovers": [{"worker": "a", "method": "load", "seconds": -1}]}, r"profile\.handovers\[0\]\.seconds is -1 s"),
        (BASE, {"edges.0.producer": "aa"}, r"Did you mean 'a'.*profile\.edges\[0\]\.producer"),
        (BASE, {"workers.a.ranks": {"counts": [-1, 0]}}, r"a\.ranks\.counts\[0\] is -1; .* from 1 to 1000000"),
        (BASE, {"workers.a.ranks": {"counts": [3], "divides": 8}}, r"no number of ranks at all: 1 device a rank, ranks: 3, .* divides 8\. Next: leave out"),
        (BASE, {"workers.a.ranks": {"counts": [9000]}}, r"needs at least 9000 devices by .*\(1 device a rank, ranks: 9000\), .* there are 8 devices"),
        (BASE, {"workers.a.ranks": {"counts": [2, 12]}, "workers.a.devices": 10}, r"devices is 10, which .* not allow: .*ranks: 2 or 12\. Next: 12"),
        (BASE, {"edges.0.group": 3}, r"edges\[0\]\.group is 3, which does not divide the 64 items of an iteration\. Next: 2\."),
        (BASE, {"workers": {"a\nb": ONE}, "edges": []}, r"profile\.workers has the name 'a\\nb', .* line of text\. Next: 'a_b'"),
        (BASE, {"workers": {"driver": ONE}, "edges": []}, r"profile\.workers\.driver: 'driver' is the loop that calls the workers\. Next: another name"),
        (BASE, {"workers": {"\ud800": ONE}, "edges": []}, r"a name in profile\.workers is '\\ud800', whose character 0 is no character\. Next"),
        (GENERATION, {NINE: {"max_tokens": 9, "completion": [[0, 1]]}}, r"completion ends with \[0\.0, 1\.0\]: all .* take 0 seconds\. Next"),
        (GENERATION, {NINE: {"max_tokens": 9, "quantiles": [[-5, 0.1], [9, 1]]}}, r"quantiles\[0\] is \[-5\.0, 0\.1\]: -5 tokens\. Next"),
        (GENERATION, {NINE + ".tail": 16}, r"2 iterations end later .*: 'a' takes .* s of each\. Next"),
        (CELL, {"cells": [{"members": ["s", "t"]}]}, r"cells\[0\]\.members is \['s', 't'\], which is no cycle .* Next: all members of one: s, p"),
        (CELL, {"cells": [{"members": ["s", "p"]}, {"members": ["p", "s"]}]}, r"cells\[1\]\.members is \['p', 's'\], .* no cycle .* no other entry"),
        (CELL, {"cells": [{"members": ["s", "p"], "sub_batches": [1, 2], "tokens": 12}]}, r"cells\[0\] has tokens: 12, which go round together .*"),
        (CELL, {"cells": [{"members": ["s", "p"], "sub_batches": [65]}]}, r"cells\[0\].sub_batches is \[65\]; give numbers from 1 to 64"),
        (CELL, {"cells": [{"members": ["s", "p"]}], "edges.1.at_end": True}, r"at_end is True between members of a cell"),
        (BASE, {"workers.a.memory": {"shared_gib": 3}}, r"profile.workers.a.memory.shared_gib is 3.0 without shared_as.* Next: both"),
        (BASE, {"workers.a.memory": HELD, "workers.b.memory": {**HELD, "shared_as": "n"}}, r"a.memory.shared_as is 'm', which no other worker has; others are 'n'"),
        (BASE, {"workers.a.memory": HELD, "workers.b.memory": {**HELD, "shared_gib": 4}}, r"the weights 'm' have one size, not a 3, b 4. Next: what differs"),
        (BASE, {"cells": [{"members": ["a"]}]}, r"cells\[0\]\.members is \['a'\].* Next: leave it out"),
    ],
)  # fmt: skip
def test_what_means_nothing_is_one_line(base: dict[str, Any], changes: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = changed({**base, "cells": [], "name": "odd"}, changes)
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(data))
    assert main(["plan", "--profile", str(path), "--devices", "8"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises((ConfigError, PlanError, UnknownNameError), match=says):
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


def test_a_changed_machine_or_another_gpu_makes_it_stale() -> None:
    one, many = Fingerprint.here(["NVIDIA H100"]), Fingerprint.here(["NVIDIA H100"] * 8)
    profile = Profile.from_dict(GOOD).replace(fingerprint=one)
    assert profile.stale(one) == profile.stale(many) == Profile.from_dict(GOOD).stale() == () and Profile.from_json(profile.to_json()).fingerprint == one
    said = " ".join(profile.stale(Fingerprint({**one.versions, "torch": "1.0"}, one.processor, one.cores + 1, one.devices)))
    assert "torch was" in said and "cores were" in said
    for gpus, words in ((["NVIDIA A100"], "are NVIDIA A100"), ([], "are none")):
        assert profile.stale(Fingerprint.here(gpus)) == (f"devices were NVIDIA H100, {words}",)
    assert profile.replace(fingerprint=Fingerprint.here([])).stale(many) == (), "measured on the cores"
    assert "8 × NVIDIA H100" in str(many)


def test_ranks() -> None:
    rule = RankRule(devices_per_rank=4, divides=128)
    assert [n for n in range(1, 65) if rule.allows(n)] == [4, 8, 16, 32, 64]
    assert [n for n in range(1, 9) if RankRule(counts=(3, 5), most=4).allows(n)] == [3]


def test_the_documentations_examples_are_valid() -> None:
    blocks = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "profile.md").read_text(), re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        profile = Profile.from_json(block)
        jsonschema.validate(json.loads(block), schema(Profile))
        assert Profile.from_json(profile.to_json()) == profile


def test_the_documentation_names_every_field() -> None:
    text = (ROOT / "docs" / "profile.md").read_text()

    def walk(part: dict[str, Any]) -> None:
        for name, entry in part.get("properties", {}).items():
            assert f"`{name}`" in text, name
            for inner in (entry, entry.get("items", {}), entry.get("additionalProperties", {})):
                if isinstance(inner, dict):
                    walk(inner)

    walk(schema(Profile))


def test_two_edges_between_two_workers_are_refused() -> None:
    """A second edge would have been lost, or its channel would have had two specifications."""
    two = {n: WorkerProfile((Sample(1, 8.0, 1.0),)) for n in ("a", "b", "a-b", "a.b")}
    with pytest.raises(ConfigError, match=r"profile\.edges\[0\] and profile\.edges\[2\] both go from 'a' to 'b'\. Next: one edge"):
        Profile(8, two, (EdgeProfile("a", "b"), EdgeProfile("b", "a"), EdgeProfile("a", "b", group=4)))
    with pytest.raises(ConfigError, match=r"edges\[0\] \('a-b' to 'b'\) and profile\.edges\[1\] \('a\.b' to 'b'\) cannot .*both .*'a_b_to_b'"):
        Profile(8, two, (EdgeProfile("a-b", "b"), EdgeProfile("a.b", "b")))
    assert EdgeProfile("1 a", "b").channel == "_1_a_to_b"


def test_a_field_that_there_is_not_is_named_with_the_nearest() -> None:
    profile = Profile.from_dict(GOOD)
    worker = next(iter(profile.workers))
    with pytest.raises(UnknownNameError, match=r"Unknown profile field 'itmes'\. Did you mean 'items'\?.*profile\.replace\(itmes=\.\.\.\)"):
        profile.replace(itmes=3)
    with pytest.raises(UnknownNameError, match=r"Unknown profile field 'zz'.*Known: .*items"):
        profile.replace(zz=3)
    with pytest.raises(UnknownNameError, match=r"Unknown worker field 'onload'\. Did you mean 'onload_s'\?"):
        profile.with_worker(worker, onload=3)
