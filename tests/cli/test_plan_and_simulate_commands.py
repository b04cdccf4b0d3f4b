"""`rlinf-lab plan` and `rlinf-lab simulate`."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from rlinf_lab.cli import main
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.planning.schema.json_schema import schema

DOCS = Path(__file__).parents[2] / "docs"
MANISKILL = str(DOCS / "profiles" / "maniskill_openvla.json")


def test_plan_prints_ranked_plans(capsys: pytest.CaptureFixture) -> None:
    assert main(["plan", "--profile", MANISKILL, "--devices", "16"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("4 plans for 'ManiSkill with OpenVLA' on 16 devices") and "(simulator | generator) > training" in said


def test_plan_prints_json(capsys: pytest.CaptureFixture) -> None:
    assert main(["plan", "--profile", MANISKILL, "--devices", "16", "--memory-gib", "80", "--modes", "temporal", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [p["mode"] for p in data["plans"]] == ["temporal"] and data["plans"][0]["workers"]["training"]["devices"] == 16
    assert data["plans"][0]["seconds"] == pytest.approx(711.7, rel=1e-3) and data["devices"] == 16


def test_simulate_prints_and_writes(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    for ending in ("html", "json", "json.gz", "parquet", "svg"):
        out = tmp_path / f"timeline.{ending}"
        assert main(["simulate", "--profile", MANISKILL, "--devices", "16", "--plan", "temporal", "--out", str(out), "--json"]) == 0
        assert out.stat().st_size > 1000
    reports = capsys.readouterr().out.replace("}\n{", "}\n\0{").split("\0")
    report = json.loads(reports[-1])
    assert len(reports) == 5
    assert report["plan"] == "temporal" and len(report["iteration_s"]) == 3
    assert report["busy_share"] + sum(report["idle_share"].values()) == pytest.approx(1)
    assert main(["simulate", "--profile", MANISKILL, "--devices", "16", "--iterations", "2", "--noise", "0.2", "--seed", "3"]) == 0
    assert "devices busy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "--profile", "nowhere.json", "--devices", "4"], "No profile at 'nowhere.json'"),
        (["plan", "--profile", MANISKILL, "--devices", "four"], "--devices is 'four'; give a number such as 64"),
        (["plan", "--profile", MANISKILL, "--devices", "0"], "devices is 0; give a whole number of devices, at least 1"),
        (["plan", "--profile", MANISKILL, "--devices", "gpu=4"], "Unknown kind of device 'gpu'"),
        (["plan", "--profile", MANISKILL, "--devices", "16", "--modes", "spacial"], "Did you mean 'spatial'"),
        (["simulate", "--profile", MANISKILL], "--devices is missing: plans are searched for so many. Next: --devices 64"),
        (["simulate", "--profile", MANISKILL, "--plan", "nowhere.json"], "No plan at 'nowhere.json'"),
        (["simulate", "--profile", MANISKILL, "--plan", MANISKILL], "Unknown plan field"),
        (["simulate", "--profile", MANISKILL, "--plan", "p.json", "--staleness", "1"], "--staleness together with --plan p.json"),
        (["plan", "--profile", MANISKILL, "--devices", "16", "--save", "no/such/folder/plan.json"], "The plan cannot be written to 'no/such/folder/plan.json'"),
        (["simulate", "--profile", MANISKILL, "--devices", "16", "--plan", "hybird"], "Did you mean 'hybrid'"),
        (["simulate", "--profile", MANISKILL, "--devices", "16", "--out", "t.pnk"], "Unknown ending of a timeline's file '.pnk'"),
        (["simulate", "--profile", MANISKILL, "--devices", "16", "--iterations", "0"], "iterations is 0; give a whole number, at least 1"),
        (["simulate", "--profile", MANISKILL, "--devices", "16", "--staleness", "65"], "staleness is 65; give a whole number, at most 64"),
    ],
)
def test_what_cannot_work_is_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert says in said and "Traceback" not in said


def test_advice_for_a_mode_without_a_plan_can_be_followed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path, sample = tmp_path / "two.json", {"samples": [{"devices": 1, "items": 64, "seconds": 8.0}]}
    path.write_text(json.dumps({"items": 64, "workers": {"a": sample, "b": sample}, "edges": [{"producer": "a", "consumer": "b"}]}))
    asked = ["simulate", "--profile", str(path), "--devices", "4", "--plan"]
    assert main([*asked, "hybrid"]) == 2
    said = capsys.readouterr().err
    assert "There is no hybrid plan" in said and said.rstrip().endswith("Next: --plan temporal.")
    assert main([*asked, "temporal"]) == 0


def test_advice_for_a_plan_of_a_file_can_be_followed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    sample, path, made = [{"devices": 1, "items": 64, "seconds": 8.0}], tmp_path / "two.json", tmp_path / "plan.json"
    workers = {"a": {"samples": sample}, "b": {"samples": sample, "memory": {"resident_gib": 30}}}
    path.write_text(json.dumps({"items": 64, "device_memory_gib": 80, "workers": workers, "edges": [{"producer": "a", "consumer": "b"}]}))
    assert main(["plan", "--profile", str(path), "--devices", "4", "--save", str(made)]) == 0
    asked = ["simulate", "--profile", str(path), "--plan", str(made), "--memory-gib"]
    assert main([*asked, "25"]) == 2
    assert capsys.readouterr().err.rstrip().endswith("needs 30 GiB on 1 device, and a device has 25 GiB. Next: --memory-gib 30.")
    assert main([*asked, "30"]) == 0


def test_one_is_not_several(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "one.json").write_text(json.dumps({"name": "one", "items": 8, "workers": {"a": {"samples": [{"devices": 1, "items": 8, "seconds": 1}]}}}))
    assert main(["plan", "--profile", str(tmp_path / "one.json"), "--devices", "1"]) == 0
    assert capsys.readouterr().out.startswith("1 plan for 'one' on 1 device; none can take less than 1 s")


def simulated(capsys: pytest.CaptureFixture, *arguments: str) -> dict:
    assert main(["simulate", "--profile", MANISKILL, "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_plan_of_a_file_is_simulated(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Saved it takes what it took; edited it is another plan; the timeline is written."""
    path, out = tmp_path / "plan.json", tmp_path / "timeline.html"
    found = simulated(capsys, "--devices", "16", "--plan", "temporal", "--save", str(path))
    again = simulated(capsys, "--plan", str(path), "--out", str(out))
    assert {k: v for k, v in again.items() if k != "workers"} == {k: v for k, v in found.items() if k != "workers"} and out.stat().st_size > 1000
    data = json.loads(path.read_text())
    data["placements"]["training"] = data["placements"]["training"][:8]
    path.write_text(json.dumps({**data, "name": "half"}))
    edited = simulated(capsys, "--plan", str(path), "--devices", "16")
    assert edited["plan"] == "half" and edited["workers"]["training"]["devices"] == 8 and edited["iteration_s"][-1] > found["iteration_s"][-1]
    assert main(["plan", "--profile", MANISKILL, "--devices", "16", "--save", str(path)]) == 0
    best = capsys.readouterr().out.split("\n")[1].split()[0]
    assert simulated(capsys, "--plan", str(path))["plan"] == best


@pytest.mark.parametrize(
    ("changed", "flags", "says"),
    [
        ({"placements": {}}, [], "places no rank of worker 'simulator'"),
        ({"micro_batches": {"simulator_to_trainer": 1}}, [], "Did you mean 'simulator_to_training'"),
        ({"staleness": -1}, [], "staleness"),
        ({}, ["--devices", "8"], "devices is 8, but plan 'temporal' has 16. Next: 16"),
        ({}, ["--memory-gib", "0"], "--memory-gib is 0"),
    ],
)
def test_a_plan_of_a_file_that_cannot_be_is_refused_in_words(changed: dict, flags: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "plan.json"
    plan(Profile.load(MANISKILL), 16)["temporal"].execution.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    assert main(["simulate", "--profile", MANISKILL, "--plan", str(path), *flags]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1, said


def test_what_plan_prints_is_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "plans.json"
    assert main(["plan", "--profile", MANISKILL, "--devices", "16", "--json"]) == 0
    path.write_text(capsys.readouterr().out)
    assert main(["simulate", "--profile", MANISKILL, "--plan", str(path)]) == 2
    assert "names no devices. Next: rlinf-lab plan ... --save" in capsys.readouterr().err


def test_a_broken_profile_names_its_field(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    data = json.loads(Path(MANISKILL).read_text())
    data["workers"]["training"]["samples"][0]["seconds"] = -3
    (tmp_path / "p.json").write_text(json.dumps(data))
    assert main(["plan", "--profile", str(tmp_path / "p.json"), "--devices", "16"]) == 2
    assert "profile.workers.training.samples[0].seconds is -3 s; it must be at least 0 s" in capsys.readouterr().err


def test_the_documented_schema_is_the_one_that_is_used() -> None:
    assert json.loads((DOCS / "profile.schema.json").read_text()) == schema(Profile)


@pytest.mark.parametrize("path", sorted((DOCS / "profiles").glob("*.json")), ids=lambda p: p.stem)
def test_the_profiles_of_the_documentation_are_as_saved(path: Path, tmp_path: Path) -> None:
    Profile.load(path).save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == path.read_text()


def named(folder: Path, name: str) -> str:
    """A profile of two workers, the first one with this name."""
    samples = [{"devices": 1, "items": 64, "seconds": 8}]
    profile = {"items": 64, "workers": {name: {"samples": samples}, "b": {"samples": samples}}, "edges": [{"producer": name, "consumer": "b"}]}
    (folder / "named.json").write_text(json.dumps(profile))
    return str(folder / "named.json")


@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_a_name_that_the_terminal_cannot_show_is_printed_as_an_escape(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main([command, "--profile", named(tmp_path, "é"), "--devices", "4"]) == 0
    sys.stdout.flush()
    assert r"\xe9" in written.getvalue().decode("ascii")


def test_an_error_names_what_cannot_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.BytesIO()
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(said, encoding="ascii"))
    assert main(["simulate", "--profile", named(tmp_path, "é"), "--devices", "4", "--plan", "ä"]) == 2
    sys.stderr.flush()
    assert r"'\xe4'" in said.getvalue().decode("ascii")


def kinds(folder: Path, **fields: object) -> str:
    """A profile of two kinds of devices, with other values of its fields."""
    samples = [{"devices": 1, "items": 64, "seconds": 8}]
    worker = {"samples": samples, "memory": {"resident_gib": 30}, "offloadable": False}
    there = [{"name": "h100", "memory_gib": 50}, {"name": "a100", "memory_gib": 50, "speed": 0.5}]
    profile = {"items": 64, "workers": {"a": worker, "b": worker}, "edges": [{"producer": "a", "consumer": "b"}], "kinds": there, **fields}
    (folder / "kinds.json").write_text(json.dumps({name: value for name, value in profile.items() if value is not None}))
    return str(folder / "kinds.json")


@pytest.mark.parametrize("arguments, says", [
    (["--devices", "h100=4,a100=1,h100=2"], "--devices names 'h100' more than once: 4 and 2. Next: --devices h100=6,a100=1"),
    (["--devices", "h100=1"], "Next: --memory-gib 60, or --devices h100=2."),
    (["--devices", "h100=2", "--modes", "temporal"], "Next: --modes temporal,spatial,hybrid, or --memory-gib 60"),
    (["--devices", "h100=2,a100=-1"], "--devices: a100 is -1; "),
    (["--devices", "h100=2,b100=1"], "It stands in --devices."),
    (["--devices", "h100=2", "--memory-gib", "-4"], "--memory-gib is -4.0; give a number, above 0, at most 1e+09. Next: 4."),
    (["--devices", "h100=2", "--micro-batches", "0"], "--micro-batches is 0; "),
])  # fmt: skip
def test_refusals_speak_of_flags(arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["plan", "--profile", kinds(tmp_path), *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said and "memory_gib" not in said and "modes=" not in said


@pytest.mark.parametrize("fields, says", [
    ({"items": None}, "profile.items is missing: items of one iteration. Next: 'items': 1."),
    ({"items": -5}, "profile.items is -5; it must be at least 1. Next: 5."),
    ({"workers": {"a": {"samples": [{"devices": 1, "seconds": 3}]}}}, "is missing: items of the measured call, over all its devices. Next: 'items': 1."),
    ({"workers": {"a": {"samples": [{"devices": 1, "items": 4, "seconds": -3}]}}}, "samples[0].seconds is -3 s; it must be at least 0 s. Next: 3."),
    ({"workers": {"a": {"samples": [{"devices": 1, "items": 0, "seconds": 3}]}}}, "samples[0].items is 0; it must be above 0. Next: 1."),
])  # fmt: skip
def test_a_field_that_cannot_be_names_a_value_that_can(fields: dict[str, object], says: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["plan", "--profile", kinds(tmp_path, **fields), "--devices", "h100=2"]) == 2
    assert says in capsys.readouterr().err


def test_a_plan_of_a_file_of_any_name(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    for name in ("mine", "MINE.JSON"):
        saved = str(tmp_path / name)
        found = simulated(capsys, "--devices", "16", "--plan", "temporal", "--save", saved)
        assert simulated(capsys, "--plan", saved)["iteration_s"] == found["iteration_s"]
