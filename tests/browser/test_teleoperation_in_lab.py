"""An environment driven by keys, mouse and gamepad in JupyterLab: real keys, a real simulator, data in the kernel."""

from __future__ import annotations

from typing import Any

import pytest
from test_live_widgets import data, pixels, watch_errors

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]

ROOT = ".rl-teleop"
REACH = """
import rlinf_lab as lab
seat = lab.teleoperate("metaworld/reach-v3", max_episode_steps=60, seed=2)
seat
"""
POLICY = """
import numpy as np
import rlinf_lab as lab
seat = lab.teleoperate("metaworld/reach-v3", lambda obs_N: np.full((len(obs_N), 4), 0.1), max_episode_steps=60, keep="all")
seat
"""
# On a busy machine a page may be late to say that it has seen a picture; the kernel shall let go of nothing for that.
PATIENT = "import rlinf_lab.experiments.teleoperation.panel as panel\npanel.GONE_S = 1e9\n"
# A gamepad that the page finds: its left stick to the right, its right stick up.
PAD = """() => {
    window.pad = {connected: true, axes: [0.75, 0, 0, -0.5], buttons: Array.from({length: 16}, () => ({value: 0}))};
    navigator.getGamepads = () => [window.pad];
}"""


def opened(jupyterlab: Any, name: str, cell: str, says: str, theme: str = "light") -> tuple[Any, list[str]]:
    cells = [PATIENT + cell, f"print({says})"]
    lab = jupyterlab.open_notebook(jupyterlab.write_notebook(name, cells), theme=theme)
    errors = watch_errors(lab.page)
    lab.run_all()
    lab.wait_until(lambda: lab.page.locator(ROOT).count() and data(lab, ROOT, "state") == "ready", "an environment")
    return lab, errors


def until_step(lab: Any, step: int) -> None:
    lab.wait_until(lambda: int(data(lab, ROOT, "step")) >= step, f"step {step}")



def said(lab: Any) -> str:
    """What the second cell prints now."""
    cell = lab.page.locator(".jp-CodeCell").nth(1)
    before = cell.locator(".jp-InputPrompt").inner_text()
    cell.locator(".cm-content").click()
    lab.page.keyboard.press("Shift+Enter")
    lab.wait_until(lambda: cell.locator(".jp-InputPrompt").inner_text() not in (before, "[*]:"), "the cell has ended")
    return cell.locator(".jp-OutputArea-output pre").inner_text().strip()


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_keys_drive_the_arm_and_an_episode_is_kept(jupyterlab: Any, theme: str) -> None:
    says = "[len(e) for e in seat.data], [e.action_T.max(0).tolist() for e in seat.data], [e.action_T.min() for e in seat.data] == [0]"
    lab, errors = opened(jupyterlab, f"teleop_{theme}", REACH, says, theme)
    before = pixels(lab.page, f"{ROOT} .rl-view img")
    assert lab.page.locator(f"{ROOT} .rl-over").inner_text() == "Click here to take the controls"
    cells = lab.page.locator(".jp-Cell").count()
    lab.page.locator(f"{ROOT} .rl-view").click()
    lab.page.keyboard.down("KeyD")
    lab.page.keyboard.down("KeyE")
    until_step(lab, 4)
    lab.screenshot(f"teleoperation-{theme}")
    lab.page.keyboard.up("KeyD")
    lab.page.keyboard.up("KeyE")
    lab.page.keyboard.press("KeyX")  # cuts the cell, were it JupyterLab's
    assert lab.page.locator(".jp-Cell").count() == cells
    assert [row.inner_text() for row in lab.page.locator(f"{ROOT} .rl-axis .rl-name").all()] == ["forward, x", "right, y", "up, z", "gripper", "strength"]
    assert (pixels(lab.page, f"{ROOT} .rl-view img") != before).any(axis=2).mean() > 0.01, "the arm has moved"
    lab.page.keyboard.press("Enter")
    lab.wait_until(lambda: data(lab, ROOT, "state") == "over", "the episode's end")
    steps = data(lab, ROOT, "step")
    assert f"{steps} steps" in lab.page.locator(f"{ROOT} .rl-over").inner_text()
    lab.page.locator(f"{ROOT} button", has_text="Keep").last.click()
    lab.wait_until(lambda: data(lab, ROOT, "kept") == "1", "it is kept")
    # A slider, and what is discarded.
    slider = lab.page.locator(f'{ROOT} input[aria-label="forward, x"]').bounding_box()
    lab.page.mouse.move(slider["x"] + slider["width"] / 2, slider["y"] + slider["height"] / 2)
    lab.page.mouse.down()
    lab.page.mouse.move(slider["x"] + slider["width"] * 0.9, slider["y"] + slider["height"] / 2)
    until_step(lab, 2)
    lab.page.mouse.up()
    lab.page.locator(f"{ROOT} button", has_text="Discard").last.click()
    lab.wait_until(lambda: data(lab, ROOT, "state") == "ready", "another beginning")
    assert said(lab) == f"[{steps}] [[0.0, 1.0, 1.0, 0.0]] True"
    box = lab.page.locator(ROOT).bounding_box()
    assert box["height"] <= 560 and lab.page.locator(ROOT).evaluate("(e) => e.scrollWidth <= e.clientWidth + 1")
    assert (pixels(lab.page, ROOT)[3, 3].mean() > 200) == (theme == "light")
    assert not errors and not lab.errors()


def test_a_policy_is_taken_over_and_a_gamepad_drives(jupyterlab: Any) -> None:
    lab, errors = opened(jupyterlab, "teleop_policy", POLICY, "sorted({tuple(row) for e in seat.corrections for row in e.action_T.round(2).tolist()})")
    lab.page.locator(f"{ROOT} button", has_text="Start").last.click()
    lab.wait_until(lambda: lab.page.locator(f"{ROOT} .rl-who").inner_text() == "policy", "the policy acts")
    lab.page.keyboard.down("KeyA")
    lab.wait_until(lambda: lab.page.locator(f"{ROOT} .rl-who").inner_text() == "you", "I act")
    lab.page.keyboard.up("KeyA")
    lab.wait_until(lambda: lab.page.locator(f"{ROOT} .rl-who").inner_text() == "policy", "the policy acts again")
    lab.page.evaluate(PAD)
    lab.wait_until(lambda: lab.page.locator(f"{ROOT} .rl-axis output").nth(1).inner_text() == "0.75", "the stick")
    assert lab.page.locator(f"{ROOT} .rl-axis output").nth(2).inner_text() == "0.50"
    lab.page.evaluate("() => { window.pad.axes = [0, 0, 0, 0]; }")
    lab.wait_until(lambda: lab.page.locator(f"{ROOT} .rl-who").inner_text() == "policy", "the stick was let go of")
    lab.wait_until(lambda: data(lab, ROOT, "kept") == "1", "a whole episode is kept without asking")
    lab.page.locator(f"{ROOT} button", has_text="Pause").last.click()
    found = said(lab)
    assert "(0.0, -1.0, 0.0, 0.1" in found and "(0.0, 0.75, 0.5, 0.1" in found, "what the policy holds is still held"
    assert not errors and not lab.errors()


# A point on a line that never ends by itself, quick to step and to draw.
LINE = """
import gymnasium, numpy as np, rlinf_lab as lab
from gymnasium import spaces
class Line(gymnasium.Env):
    observation_space, action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32), ACTIONS
    metadata, render_mode = {"render_modes": ["rgb_array"]}, "rgb_array"
    def reset(self, *, seed=None, options=None):
        self.x = 0.0
        return np.zeros(1, np.float32), {}
    def step(self, action):
        self.x += float(np.sum(action))
        return np.array([self.x], np.float32), self.x, False, False, {}
    def render(self):
        return np.full((60, 60, 3), 128, np.uint8)
seat = lab.teleoperate(Line, SETTINGS)
seat
"""


def line(actions: str, settings: str) -> str:
    return LINE.replace("ACTIONS", actions).replace("SETTINGS", settings)


def test_a_slider_that_comes_back_to_where_it_was_is_let_go_of(jupyterlab: Any) -> None:
    lab, errors = opened(jupyterlab, "teleop_slider", line("spaces.Box(-1, 1, (3,), np.float32)", "max_episode_steps=500"), "seat")
    box = lab.page.locator(f'{ROOT} input[aria-label="action 1"]').bounding_box()
    middle, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    lab.page.mouse.move(middle, y)
    lab.page.mouse.down()
    lab.page.mouse.move(middle + 40, y)
    until_step(lab, 2)
    lab.page.mouse.move(middle, y)
    lab.page.mouse.move(middle, y - 200)  # off it
    lab.page.mouse.up()
    lab.page.keyboard.down("KeyW")  # of the same axis: the slider would go before it
    lab.wait_until(lambda: lab.page.locator(f"{ROOT} .rl-axis output").nth(1).inner_text() == "1.00", "the key")
    lab.page.keyboard.up("KeyW")
    # By its own keys it moves step by step, and keeps the focus.
    lab.page.locator(f'{ROOT} input[aria-label="action 2"]').focus()
    step = int(data(lab, ROOT, "step"))
    lab.page.keyboard.press("ArrowRight")
    until_step(lab, step + 1)
    assert lab.page.evaluate("() => document.activeElement.ariaLabel") == "action 2"
    assert not errors and not lab.errors()


def test_buttons_are_pressed_by_keys_of_their_own(jupyterlab: Any) -> None:
    lab, errors = opened(jupyterlab, "teleop_buttons", line("spaces.Discrete(3)", "max_episode_steps=500"), "[e.action_T.tolist() for e in seat.data]")
    lab.page.locator(f"{ROOT} .rl-choice").nth(1).focus()
    lab.page.keyboard.press("Enter")
    until_step(lab, 1)
    lab.page.keyboard.press("Space")
    until_step(lab, 2)
    lab.page.locator(f"{ROOT} button", has_text="End").last.focus()
    lab.page.keyboard.press("Enter")
    lab.wait_until(lambda: data(lab, ROOT, "state") == "over", "the episode's end")
    lab.page.locator(f"{ROOT} .rl-asks button", has_text="Discard").focus()
    lab.page.keyboard.press("Enter")  # elsewhere it keeps the episode
    lab.wait_until(lambda: data(lab, ROOT, "state") == "ready", "another beginning")
    lab.page.keyboard.press("Digit3")
    until_step(lab, 1)
    lab.page.keyboard.press("Enter")
    lab.wait_until(lambda: data(lab, ROOT, "state") == "over", "the episode's end")
    lab.page.keyboard.press("Enter")
    lab.wait_until(lambda: data(lab, ROOT, "kept") == "1", "it is kept")
    assert said(lab) == "[[2]]"
    assert not errors and not lab.errors()


def test_what_is_held_at_an_end_or_where_the_page_goes_is_let_go_of(jupyterlab: Any) -> None:
    lab, errors = opened(jupyterlab, "teleop_held", line("spaces.Box(-1, 1, (1,), np.float32)", "max_episode_steps=4, keep='all'"), "len(seat.data), seat._seat._held")
    lab.page.locator(f"{ROOT} .rl-view").click()
    lab.page.keyboard.down("ArrowRight")
    lab.wait_until(lambda: data(lab, ROOT, "kept") == "1" and data(lab, ROOT, "state") == "ready", "the next beginning")
    lab.page.evaluate(PAD)
    until_step(lab, 1)  # the stick is at it
    lab.wait_until(lambda: data(lab, ROOT, "kept") == "2" and data(lab, ROOT, "state") == "ready", "it waits for the stick to be let go of")
    assert said(lab) == "2 None"
    lab.page.keyboard.up("ArrowRight")
    lab.page.evaluate("() => { window.pad.connected = false; }")
    lab.page.locator(f"{ROOT} .rl-view").click()
    lab.page.keyboard.down("ArrowLeft")
    until_step(lab, 1)
    lab.page.evaluate("() => window.dispatchEvent(new Event('blur'))")
    lab.wait_until(lambda: said(lab).endswith("None"), "nothing is held")
    assert not errors and not lab.errors()


def test_two_views_of_one_seat_and_a_page_that_comes_back(jupyterlab: Any) -> None:
    cell = line("spaces.Box(-1, 1, (1,), np.float32)", "max_episode_steps=5000").replace("\nseat\n", "\ndisplay(seat)\nseat\n")
    lab, errors = opened(jupyterlab, "teleop_twice", cell, "seat._seat._held, seat._news.step")
    assert lab.page.locator(ROOT).count() == 2
    lab.page.locator(f"{ROOT} .rl-view").nth(1).click()
    lab.page.keyboard.down("ArrowRight")
    until_step(lab, 4)
    lab.page.keyboard.up("ArrowRight")
    assert {view.evaluate("(e) => e.dataset.state") for view in lab.page.locator(ROOT).all()} == {"running"}
    lab.save()
    lab.page.locator(f"{ROOT} .rl-view").nth(0).click()
    step = int(data(lab, ROOT, "step"))
    lab.page.keyboard.down("ArrowRight")
    until_step(lab, step + 1)
    lab.page.evaluate("() => { WebSocket.prototype.send = () => {}; }")  # it goes without a word
    lab.reload()
    lab.wait_until(lambda: lab.page.locator(ROOT).count() == 2 and data(lab, ROOT, "state") == "running", "the views")
    lab.page.keyboard.up("ArrowRight")
    lab.wait_until(lambda: said(lab).startswith("None"), "nothing is held")
    step = int(said(lab).split()[1])
    lab.wait_until(lambda: int(data(lab, ROOT, "step")) == step, "the last step before the rest")
    assert not errors and not lab.errors()
