"""Numbers that are next to nothing, names of nothing and of thousands of letters in a profile: an error that names the field, and no warning of numpy."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

from rlinf_lab import Profile, plan
from rlinf_lab.errors import RlinfLabError

DATA: dict[str, Any] = {
    "items": 64, "kinds": [{"name": "h", "memory_gib": 80}, {"name": "a", "speed": 0.5}],
    "workers": {
        "gen": {"kind": "generation", "samples": [{"devices": 1, "items": 64, "seconds": 40, "outputs": [[1, 0.1], [40, 1.0]]}],
                "lengths": {"max_tokens": 4096, "mean_tokens": 900}, "memory": {"resident_gib": 30, "per_item_gib": 0.1}},
        "train": {"samples": [{"devices": 1, "items": 64, "seconds": 20}]},
    },
    "edges": [{"producer": "gen", "consumer": "train"}], "notes": ["<b>read off by hand</b>"],
}  # fmt: skip


def with_value(value: object, *path: str | int) -> dict[str, Any]:
    data = copy.deepcopy(DATA)
    here: Any = data
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("value", "path", "named"),
    [
        (1e-300, ("workers", "train", "samples", 0, "items"), "workers.train.samples[0].items is 1e-300, hardly any of an item"),
        (5e-324, ("workers", "gen", "lengths", "max_tokens"), "workers.gen.lengths.max_tokens is 4.94066e-324 tokens; it must be at least 1"),
        (5e-324, ("kinds", 1, "speed"), "kinds[1].speed is 4.94066e-324; it must be at least 1e-06"),
        ("", ("kinds", 1, "name"), "profile.kinds has the name '', in which there is nothing to read"),
        ([0.5], ("workers", "gen", "samples", 0, "outputs", 0), "outputs[0] is [0.5]; it must have 2 entries"),
        ([9.0, 3.0], ("workers", "gen", "samples", 0, "outputs", 1), "outputs goes from [1.0, 0.1] to [9.0, 3.0]"),
        (9000, ("workers", "gen", "lengths", "mean_tokens"), "mean_tokens is 9000, not below max_tokens = 4096"),
        (None, ("workers", "gen", "lengths", "mean_tokens"), "lengths gives none"),
        ("batch", ("workers", "gen", "kind"), "kind is 'batch', but lengths"),
    ],
)
def test_the_error_names_the_field_the_value_and_what_to_do(value: object, path: tuple[str | int, ...], named: str) -> None:
    with pytest.raises(RlinfLabError) as caught:
        Profile.from_dict(with_value(value, *path))
    assert named in str(caught.value) and "Next: " in str(caught.value)


def test_an_unknown_name_of_thousands_of_letters_is_cut() -> None:
    with pytest.raises(RlinfLabError, match=r"Unknown worker 'xxx.*\.\.\.\. Known: gen, train") as caught:
        Profile.from_dict(with_value("x" * 3000, "edges", 0, "producer"))
    assert len(str(caught.value)) < 300


def test_next_to_no_memory_for_each_item_is_no_limit() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny = plan(Profile.from_dict(with_value(5e-324, "workers", "gen", "memory", "per_item_gib")), {"h": 2}, micro_batches=2)
        none = plan(Profile.from_dict(with_value(0, "workers", "gen", "memory", "per_item_gib")), {"h": 2}, micro_batches=2)
    assert tiny.best.seconds == pytest.approx(none.best.seconds)


def test_a_profile_shows_its_notes() -> None:
    profile = Profile.from_dict(DATA)
    assert repr(profile).endswith("note: <b>read off by hand</b>") and "&lt;b&gt;read off by hand" in profile._repr_html_()
