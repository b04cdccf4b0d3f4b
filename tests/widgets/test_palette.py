"""The colours stay apart for the colour-blind: OKLab distances after simulating three deficiencies (Machado et al. 2009)."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from rlinf_lab.timeline.account.accounting import CAUSES
from rlinf_lab.timeline.draw import palette
from rlinf_lab.widgets.assets import STATIC

VISION = {
    "normal": np.eye(3),
    "protan": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deutan": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "tritan": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}
TO_LMS = np.array([[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566], [0.0883024619, 0.2817188376, 0.6299787005]])
TO_LAB = np.array([[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099], [0.0259040371, 0.7827717662, -0.8086757660]])


def linear(hexes: list[str]) -> np.ndarray:
    rgb = np.array([[int(h[i : i + 2], 16) for i in (1, 3, 5)] for h in hexes]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def colours(table: str, mode: str) -> list[str]:
    text = (STATIC / "base.js").read_text(encoding="utf-8")
    block = text[text.index(f"const {table} ") :]
    line = next(row for row in block.splitlines() if row.strip().startswith(f"{mode}:"))
    return re.findall(r"#[0-9a-f]{6}", line)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_static_pictures_have_the_widgets_colours(mode: str) -> None:
    assert colours("WORKERS", mode) == list(palette.WORKERS[mode])
    assert colours("CAUSE_COLOURS", mode) == [palette.CAUSE_COLOURS[mode][cause] for cause in CAUSES]


def nearest(rgb: np.ndarray, vision: str) -> float:
    """Smallest distance x 100 of two of the colours."""
    lab = np.cbrt(np.clip(rgb @ VISION[vision].T, 0, 1) @ TO_LMS.T) @ TO_LAB.T
    pairs = np.triu_indices(len(lab), 1)
    return 100 * float(np.linalg.norm(lab[pairs[0]] - lab[pairs[1]], axis=1).min())


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("table", ["WORKERS", "CAUSE_COLOURS"])
def test_every_two_colours_are_apart(table: str, mode: str, vision: str) -> None:
    assert nearest(linear(colours(table, mode)), vision) >= 10


@pytest.mark.parametrize(("mode", "background"), [("light", "#ffffff"), ("dark", "#111111")])
def test_workers_stand_out_from_the_background(mode: str, background: str) -> None:
    luminance = linear([*colours("WORKERS", mode), background]) @ [0.2126, 0.7152, 0.0722] + 0.05
    contrast = np.maximum(luminance[:-1], luminance[-1]) / np.minimum(luminance[:-1], luminance[-1])
    assert contrast.min() >= 3


NAMES = ["simulator", "policy", "learner", "a", "b", "w0", "w1", "W", "\u30e6", "x" * 300, "a b", "", "0", "training", "reward"]


def test_a_worker_has_its_colour_whatever_the_order_and_whoever_has_no_device() -> None:
    rng = random.Random(1)
    for _ in range(50):
        names = rng.sample(NAMES, rng.randint(1, len(NAMES)))
        known, others = palette.colour_numbers(names), rng.sample(NAMES, 4)
        assert palette.colour_numbers(reversed(names)) == known
        seen = palette.colour_numbers(names, others)
        assert {name: seen[name] for name in names} == known and seen.keys() == {*names, *others}


def test_no_two_workers_share_a_colour_before_all_are_taken() -> None:
    for count in range(1, 31):
        numbers = list(palette.colour_numbers(f"worker {i}" for i in range(count)).values())
        uses = [numbers.count(n) for n in range(10)]
        assert max(uses) - min(uses) <= 1 and len(numbers) == count
    five = palette.colour_numbers(("u", "v", "x", "y", "z"))
    assert len(set(five.values())) == 5


def test_the_usual_names_have_colours_of_their_own_in_any_company() -> None:
    usual = "simulator policy learner, simulator generator training, rollout reward ref actor critic, rollout inference training reward, generator trainer"
    flows = [tuple(names.split()) for names in usual.split(", ")]
    alone = {name: palette.colour_numbers([name])[name] for flow in flows for name in flow}
    assert all(palette.colour_numbers(flow) == {name: alone[name] for name in flow} for flow in flows)
    assert [alone[name] for name in flows[0]] == [0, 1, 2]
