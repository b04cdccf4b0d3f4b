"""Profiles: JSON there and back, errors that name the field, staleness, the documentation's examples."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.planning.profile.profile import EdgeProfile, Fingerprint, Profile, RankRule, Sample, WorkerProfile
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


def changed(path: str, value: Any) -> dict[str, Any]:
    data = copy.deepcopy(GOOD)
    here: Any = data
    *way, last = [int(k) if k.isdigit() else k for k in path.split(".")]
    for key in way:
        here = here[key]
    if value is ...:
        del here[last]
    else:
        here[last] = value
    return data


def test_json_there_and_back(tmp_path: Path) -> None:
    profile = Profile.from_dict(GOOD)
    profile.save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json") == profile == Profile.from_json(profile.to_json())
    assert "groups of 8" in repr(profile) and "<table" in profile._repr_html_()
    noted = profile.replace(notes=("<b>read off by hand</b>",))
    assert repr(noted).endswith("note: <b>read off by hand</b>") and "&lt;b&gt;read off by hand" in noted._repr_html_()
    jsonschema.validate(profile.to_dict(), schema(Profile))


@pytest.mark.parametrize(
    ("path", "value", "error", "says"),
    [
        ("workers.learner.samples.0.seconds", -1, ConfigError, r"profile\.workers\.learner\.samples\[0\]\.seconds is -1 s; it must be at least 0 s"),
        ("workers.learner.samples.1.items", ..., ConfigError, r"samples\[1\]\.items is missing: items of the measured call"),
        ("workers.learner.samples.1.devices", 0, ConfigError, r"samples\[1\]\.devices is 0.*resource: 'host'"),
        ("workers.learner.samples.0.beside", ["rolout"], UnknownNameError, r"Did you mean 'rollout'.*samples\[0\]\.beside"),
        ("workers.learner.samples", [], ConfigError, r"learner\.samples is empty"),
        ("workers.learner.onload_s", "2", ConfigError, r"onload_s is '2'; it must be a number"),
        ("workers.learner.kind", "bach", UnknownNameError, r"Did you mean 'batch'"),
        ("workers.learner.memori", {}, UnknownNameError, r"Did you mean 'memory'.*profile\.workers\.learner"),
        ("workers.learner.memory.resident_gib", True, ConfigError, r"resident_gib is True; it must be a number"),
        ("workers.learner.max_running", 4, ConfigError, r"belong to kind 'generation'"),
        ("workers.rollout.exponent", 1.5, ConfigError, r"rollout\.exponent is 1\.5: of a generator it is the part .* Next: 1 or less"),
        ("workers.rollout.lengths", ..., ConfigError, r"rollout\.lengths is missing"),
        ("workers.rollout.lengths.mean_tokens", 5000, ConfigError, r"mean_tokens is 5000, not below max_tokens = 4096"),
        ("workers.rollout.lengths.quantiles", [[10, 0.5], [20, 1.0]], ConfigError, r"gives quantiles, mean_tokens; exactly one"),
        ("workers.rollout.devices", 3, ConfigError, r"devices is 3, which profile\.workers\.rollout\.ranks does not allow"),
        ("edges.0.consumer", "lerner", UnknownNameError, r"Did you mean 'learner'.*profile\.edges\[0\]\.consumer"),
        ("edges.0.group", 7, ConfigError, r"edges\[0\]\.group is 7, which does not divide the 512 items"),
        ("edges.0.consumer", "rollout", ConfigError, r"to itself"),
        ("items", 2.5, ConfigError, r"profile\.items is 2\.5; it must be a whole number"),
        ("items", ..., ConfigError, r"profile\.items is missing"),
        ("workers", {}, ConfigError, r"workers is empty"),
        ("device_memory_gib", float("nan"), ConfigError, r"must be finite"),
        ("workers.learner.samples.0.items", 1e-300, ConfigError, r"samples\[0\]\.items is 1e-300, hardly any of an item.*Next: "),
        ("workers.rollout.lengths.max_tokens", 5e-324, ConfigError, r"max_tokens is 4\.94066e-324 tokens; it must be at least 1.*Next: "),
        ("workers.rollout.lengths.mean_tokens", None, ConfigError, r"lengths gives none.*Next: "),
        ("workers.rollout.kind", "batch", ConfigError, r"kind is 'batch', but lengths.*Next: "),
        ("kinds", [{"name": "h"}, {"name": "a", "speed": 5e-324}], ConfigError, r"kinds\[1\]\.speed is 4\.94066e-324; it must be at least 1e-06.*Next: "),
        ("kinds", [{"name": "h"}, {"name": ""}], ConfigError, r"profile\.kinds has the name '', in which there is nothing to read.*Next: "),
    ],
)
def test_errors_name_the_field(path: str, value: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Profile.from_dict(changed(path, value))


def test_a_worker_on_the_host_cannot_be_pinned() -> None:
    """It takes no device: the number was passed over in silence."""
    with pytest.raises(ConfigError, match=r"workers\.a\.devices is 2, but a worker on the host takes no device\. Next: leave it out, or resource: 'device'"):
        Profile(8, {"a": WorkerProfile((Sample(0, 8, 2.0),), resource="host", devices=2)})


def test_files_that_are_no_profiles(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{")
    with pytest.raises(ConfigError, match=r"No profile at .*other\.json"):
        Profile.load(tmp_path / "profile.json")
    with pytest.raises(ConfigError, match="not JSON: .*line 1"):
        Profile.load(tmp_path / "other.json")
    with pytest.raises(UnknownNameError, match=r"Unknown worker 'xxx.*\.\.\.\. Known: learner, rollout") as caught:
        Profile.from_dict(changed("edges.0.producer", "x" * 3000))
    assert len(str(caught.value)) < 300, "of thousands of letters some are shown"


def test_a_changed_machine_makes_it_stale() -> None:
    here = Fingerprint.here(["NVIDIA H100"])
    profile = Profile.from_dict(GOOD).replace(fingerprint=here)
    assert profile.stale(here) == () and Profile.from_json(profile.to_json()).fingerprint == here
    other = Fingerprint({**here.versions, "torch": "1.0"}, here.processor, here.cores + 1, ("NVIDIA A100",))
    said = " ".join(profile.stale(other))
    assert "torch was" in said and "cores were" in said and "devices were NVIDIA H100, are NVIDIA A100" in said
    assert Profile.from_dict(GOOD).stale() == ()


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


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "Next: {...}."),
        ({"workers": {}}, "profile.items is missing: items of one iteration. Next: 'items': 1."),
        ({"items": 4}, "profile.workers is missing: by name. Next: 'workers': {...}."),
        ({"items": "four", "workers": {}}, "it must be a whole number. Next: such as 1."),
        ({"items": "64", "workers": {}}, "it must be a whole number. Next: 64."),
        ({"items": 63.7, "workers": {}}, "it must be a whole number. Next: 64."),
        ({"items": 0.2, "workers": {}}, "it must be a whole number. Next: 1."),
        ({"items": 4, "device_memory_gib": "79.5", "workers": {}}, "it must be a number. Next: 79.5."),
        ({"items": 4, "workers": []}, "it must be an object, by name. Next: {'a name': {...}}."),
        ({"items": 4, "workers": {}, "edges": {}}, "it must be a list. Next: [{...}]."),
        ({"items": 4, "workers": {"a": {"samples": [], "in_turn": [["b"]]}}}, "it must have 2 entries. Next: such as ['a name', 0.5]."),
        ({"items": 4, "workers": {"a": {"samples": [], "onload_s": float("nan")}}}, "it must be finite. Next: such as 0.5."),
    ],
)
def test_every_refusal_of_a_field_says_what_would_do(data: object, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Profile.from_dict(data)  # type: ignore[arg-type]
    assert says in str(refused.value)


def test_a_field_that_there_is_not_is_named_with_the_nearest() -> None:
    profile = Profile.from_dict(GOOD)
    worker = next(iter(profile.workers))
    with pytest.raises(UnknownNameError, match=r"Unknown profile field 'itmes'\. Did you mean 'items'\?.*profile\.replace\(itmes=\.\.\.\)"):
        profile.replace(itmes=3)
    with pytest.raises(UnknownNameError, match=r"Unknown profile field 'zz'.*Known: .*items"):
        profile.replace(zz=3)
    with pytest.raises(UnknownNameError, match=r"Unknown worker field 'onload'\. Did you mean 'onload_s'\?"):
        profile.with_worker(worker, onload=3)
