"""The what-if explorer in JupyterLab: it draws, in both themes, and answers the mouse and the keyboard."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_live_widgets import data, pixels, watch_errors

from rlinf_lab.timeline.draw.palette import colour_numbers, worker_colour

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]

PROFILES = Path(__file__).parents[2] / "docs" / "profiles"
EXPLORER = """
import rlinf_lab as lab
from rlinf_lab.planning.profile.profile import Memory
profile = lab.Profile.load({path!r})
for name, gib in {gib!r}.items():
    profile = profile.with_worker(name, memory=Memory(gib), onload_s=2.0, offload_s=2.0)
explorer = lab.PlanExplorer(lab.plan(profile, {devices}))
explorer
"""
ROOT = ".rl-explorer"


KEYS = """(all) => all.map((key) => {
    const rgb = getComputedStyle(key.querySelector("i")).backgroundColor.match(/\\d+/g);
    return [key.textContent, "#" + rgb.map((v) => Number(v).toString(16).padStart(2, "0")).join("")];
})"""


def opened(jupyterlab: Any, theme: str, name: str, devices: int, gib: dict[str, float], first: str = "") -> tuple[Any, list[str], list[str]]:
    cell = first + EXPLORER.format(path=str(PROFILES / f"{name}.json"), devices=devices, gib=gib)
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook(f"explorer_{name}_{theme}", [cell]), theme=theme)
    errors, outside = watch_errors(lab.page), list[str]()
    own = (jupyterlab.url, jupyterlab.url.replace("http", "ws"), "data:", "blob:")
    lab.page.on("request", lambda r: None if r.url.startswith(own) else outside.append(r.url))
    lab.run_all()
    lab.wait_until(lambda: data(lab, ROOT, "best") != "", "an answer")
    lab.page.locator(ROOT).evaluate("(e) => e.scrollIntoView({block: 'end'})")
    lab.page.wait_for_timeout(300)
    return lab, errors, outside


def slider(lab: Any, label: str) -> Any:
    return lab.page.locator(f'{ROOT} input[aria-label="{label}"]')


def step(lab: Any, label: str, key: str, times: int = 1) -> None:
    slider(lab, label).focus()
    for _ in range(times):
        lab.page.keyboard.press(key)


def settled(lab: Any, shows: str) -> None:
    """Until what is asked has been simulated and ``shows`` stands in the head or the message."""
    lab.wait_until(lambda: shows in lab.page.locator(ROOT).inner_text(), shows)
    lab.wait_until(lambda: is_answered(lab) or data(lab, ROOT, "stale") == "true", "a simulation")


def is_answered(lab: Any) -> bool:
    """Nothing more comes: until then plans change places, and a click meets another one than was read."""
    return data(lab, ROOT, "how") == "simulated" and not data(lab, ROOT, "open")


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_it_draws_plans_side_by_side_and_fits_a_laptop(jupyterlab: Any, theme: str) -> None:
    lab, errors, outside = opened(jupyterlab, theme, "grpo_7b_case4", 64, {})
    lab.screenshot(f"explorer-{theme}")
    box = lab.page.locator(ROOT).bounding_box()
    assert box["height"] <= 640
    first = lab.page.locator(f"{ROOT} tbody tr").first
    assert first.get_attribute("data-selected") == "true" and f"Why {first.locator('td').first.inner_text()}?" in lab.page.locator(f"{ROOT} .rl-why").inner_text()
    titles = lab.page.locator(f"{ROOT} .rl-gantt header b").all_inner_texts()
    assert titles[:2] == ["temporal", "spatial"] and titles[2].startswith("hybrid")
    for i in range(3):
        picture = pixels(lab.page, f"{ROOT} .rl-gantt:nth-child({i + 1}) canvas")
        colours = {tuple(c) for c in picture.reshape(-1, 3)[::7]}
        assert len(colours) > 6, "bars of several workers"
    assert (pixels(lab.page, ROOT)[3, 3].mean() > 200) == (theme == "light")
    assert lab.page.locator(f"{ROOT} tbody tr").count() >= 3
    keys = lab.page.locator(f"{ROOT} .rl-answers .rl-legend").first.locator(".rl-key").evaluate_all(KEYS)
    workers = {name: colour for name, colour in keys if name != "switching"}
    assert len(workers) > 1 and workers == {name: worker_colour(number, theme) for name, number in colour_numbers(workers).items()}, "as in its timelines"
    lab.set_theme("dark" if theme == "light" else "light")
    lab.wait_until(lambda: (pixels(lab.page, ROOT)[3, 3].mean() > 200) == (theme == "dark"), "the other theme")
    assert not errors and not lab.errors() and not outside


def test_sliders_selection_and_refusals(jupyterlab: Any) -> None:
    lab, errors, _ = opened(jupyterlab, "dark", "grpo_1.5b_case1", 64, {"rollout": 20.0, "inference": 20.0, "training": 60.0})
    before = lab.page.locator(f"{ROOT} .rl-headline").inner_text()
    canvas = pixels(lab.page, f"{ROOT} .rl-gantt canvas")
    step(lab, "devices", "ArrowRight", 2)
    lab.wait_until(lambda: lab.page.locator(f"{ROOT} .rl-headline").inner_text() != before, "another answer")
    lab.wait_until(lambda: is_answered(lab), "a simulation")
    after = pixels(lab.page, f"{ROOT} .rl-gantt canvas")
    assert before != lab.page.locator(f"{ROOT} .rl-headline").inner_text() and (canvas.shape != after.shape or (canvas != after).any())
    # Why not this one?
    last = lab.page.locator(f"{ROOT} tbody tr[tabindex]").last
    name = last.locator("td").first.inner_text()
    last.click()
    lab.wait_until(lambda: f"Why not {name}?" in lab.page.locator(f"{ROOT} .rl-why").inner_text(), "the reason")
    assert "% slower" in lab.page.locator(f"{ROOT} .rl-why").inner_text()
    # What does not fit.
    step(lab, "memory", "Home")
    settled(lab, "GiB on 1 device")
    lab.screenshot("explorer-refused")
    assert data(lab, ROOT, "stale") == "true" and lab.page.locator(f"{ROOT} .rl-chip").inner_text() == "no plan"
    lab.page.get_by_role("button", name="Reset").click()
    lab.wait_until(lambda: lab.page.locator(f"{ROOT} .rl-headline").inner_text() == before and data(lab, ROOT, "stale") == "false", "as it was")
    # A faster worker, compared with the pinned plan.
    lab.page.locator(f"{ROOT} .rl-speeds summary").click()
    step(lab, "rollout", "ArrowRight", 4)
    lab.wait_until(lambda: "→" in lab.page.locator(f"{ROOT} .rl-headline").inner_text() and is_answered(lab), "what it gains")
    faster = lab.page.locator(f"{ROOT} .rl-headline").inner_text()
    assert re.match(r"[\d.,]+ → [\d.,]+ s an iteration, 1\.\d+×: ", faster) and before.startswith(faster.split(" → ")[0] + " s ")
    lab.screenshot("explorer-speed")
    lab.page.get_by_role("button", name="Pin").click()
    lab.wait_until(lambda: "→" not in lab.page.locator(f"{ROOT} .rl-headline").inner_text(), "pinned")
    lab.page.get_by_role("button", name="Reset").click()
    lab.wait_until(lambda: lab.page.locator(f"{ROOT} .rl-headline").inner_text().startswith(faster.split(" → ")[1].split(" s ")[0] + " → "), "the way back")
    assert not errors and not lab.errors()


# Elements whose text is wider or higher than they are, or that reach out of the explorer.
CUT = """(root) => {
  const seen = [...root.querySelectorAll("*")].filter((e) => e.clientWidth && !e.matches("h2, canvas, input"));
  const cut = (e) => e.scrollWidth > e.clientWidth + 1 || (e.scrollHeight > e.clientHeight + 1 && !e.matches(".rl-tablestage"));
  const right = (e) => e.getBoundingClientRect().right;
  const out = (e) => [...root.querySelectorAll(".rl-panel")].some((panel) => panel.contains(e) && right(e) > right(panel) + 1);
  return seen.filter((e) => cut(e) || out(e)).map((e) => `${e.className} ${e.tagName}: ${e.textContent}`);
}"""


@pytest.mark.long
def test_bars_of_the_table_are_as_long_as_plans_take(jupyterlab: Any) -> None:
    lab, errors, _ = opened(jupyterlab, "light", "maniskill_openvla", 16, {})
    rows = lab.page.locator(f"{ROOT} tbody tr[tabindex]")
    seconds = [float(text) for text in rows.locator("td:nth-child(2)").all_inner_texts()]
    widths = rows.locator(".rl-length").evaluate_all("(all) => all.map((e) => e.getBoundingClientRect().width)")
    assert len(seconds) >= 3 and seconds[-1] > 1.3 * seconds[0]
    assert np.allclose(np.array(widths) / widths[-1], np.array(seconds) / seconds[-1], rtol=0.03)
    assert not errors and not lab.errors()


# Moves a slider, and once more when the first position is being simulated; tells every state that could be seen (what is open, how the figures
# came about, which question was answered), and how the answers looked right after each movement.
MOVED_TWICE = """(root) => new Promise((done) => {
  const input = root.querySelector('input[aria-label="devices"]'), seen = [], looked = [];
  const note = () => {
    const now = [root.dataset.open, root.dataset.how, root.dataset.answered].join("|");
    if (seen.at(-1) !== now) seen.push(now);
    if (root.dataset.open === "rough" && looked.length === 1) move();
    if (root.dataset.open === "" && root.dataset.how === "simulated" && root.dataset.answered !== "0") done({ seen, looked });
  };
  const move = () => {
    input.value = +input.value - 1;
    input.dispatchEvent(new Event("input", { bubbles: true }));
    looked.push([root.querySelector(".rl-chip").textContent, +getComputedStyle(root.querySelector(".rl-answers")).opacity < 0.6]);
    note();
  };
  new MutationObserver(note).observe(root, { attributes: true });
  move();
})"""


@pytest.mark.long
def test_a_drag_waits_for_no_simulation_and_what_is_older_is_marked(jupyterlab: Any) -> None:
    lab, errors, _ = opened(jupyterlab, "dark", "grpo_7b_by_hand", 64, {})
    told = lab.page.locator(ROOT).evaluate(MOVED_TWICE)
    assert told["looked"] == [["updating…", True]] * 2, "in the very moment"
    quick = ["older|simulated|0", "|followed|1", "rough|followed|1"]
    rest = ["older|followed|1", "|followed|3", "rough|followed|3", "rough|simulated|3", "|simulated|4"]
    assert told["seen"] == [*quick, *rest], "the second question was given up; of the third what is shown is simulated, then better plans are searched"
    assert lab.page.locator(f"{ROOT} .rl-chip").inner_text() == "simulated"
    assert not errors and not lab.errors()


@pytest.mark.long
def test_four_workers_and_long_notes_find_room_on_a_laptop(jupyterlab: Any) -> None:
    lab, errors, _ = opened(jupyterlab, "light", "grpo_7b_by_hand", 64, {})
    assert lab.page.locator(f"{ROOT} .rl-notes li").count() >= 4 and lab.page.locator(f"{ROOT} .rl-message").is_hidden()
    lab.wait_until(lambda: is_answered(lab), "a simulation")
    rows = lab.page.locator(f"{ROOT} tbody tr[tabindex]")
    for i in range(rows.count()):
        name = rows.nth(i).locator("td").first.inner_text()
        rows.nth(i).click()
        lab.wait_until(lambda name=name: f"{name}?" in lab.page.locator(f"{ROOT} .rl-why h3").inner_text(), "the reason")
        assert lab.page.locator(ROOT).evaluate(CUT) == []
    lab.page.locator(ROOT).evaluate("(e) => e.scrollIntoView({block: 'end'})")
    lab.screenshot("explorer-four-workers")
    assert lab.page.locator(ROOT).bounding_box()["height"] <= 656, "the window without JupyterLab's own bars"
    assert lab.page.locator(f"{ROOT} .rl-headline").inner_text()[0].isdigit(), "of a long headline the seconds are seen"
    assert not errors and not lab.errors()
