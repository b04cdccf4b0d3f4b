"""What the dashboard's script remembers of iterations, in the browser's own engine, against tables made anew."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from rlinf_lab.widgets.assets import DASHBOARD, module, stylesheet

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page()
    page.add_style_tag(content=stylesheet())  # without it a dashboard grows with each frame, and is drawn for ever
    code = module("base.js", "history.js", "charts.js", "panels.js")
    page.add_script_tag(content=f"{code}\nwindow.parts = {{ Rows, Sums, axisEnd, LineChart, headline, palette }};", type="module")
    page.wait_for_function("() => window.parts", timeout=10_000)
    yield page
    page.close()


ROWS = """([said, looks]) => {
  const rows = new parts.Rows(), seen = [];
  said.forEach((row, k) => {
    rows.put(row);
    if (looks.includes(k)) for (const name of ["x", "y"]) seen.push(structuredClone(rows.points(name)));
  });
  return { all: rows.all, names: [...rows.names], x: rows.points("x"), y: rows.points("y"), seen };
}"""


def test_rows_that_come_in_any_order_and_again_make_the_curves_of_the_last_ones(page: Any) -> None:
    said: list[dict[str, Any]] = []
    state = 11
    for number in range(400):
        state = state * 16807 % 2147483647
        iteration = max(0, number // 2 - (state % 7 if state % 3 == 0 else 0))
        row: dict[str, Any] = {"iteration": iteration, "x": number}
        if state % 2:
            row["y"] = -number
        said.append(row)
    looks = list(range(0, 400, 13))
    found = page.evaluate(ROWS, [said, looks])
    table = {row["iteration"]: row for row in said}
    last = [table[i] for i in sorted(table)]
    assert found["all"] == last
    assert found["x"] == [[r["iteration"], r["x"]] for r in last]
    assert found["y"] == [[r["iteration"], r["y"]] for r in last if "y" in r]
    assert dict(found["names"]) == {"iteration": len(last), "x": len(last), "y": sum("y" in r for r in last)}
    for at, (x, _) in zip(looks, zip(found["seen"][::2], found["seen"][1::2], strict=True), strict=True):
        then = {row["iteration"]: row["x"] for row in said[: at + 1]}
        assert x == [[i, then[i]] for i in sorted(then)]


def test_a_metric_that_diverged_is_not_shown_as_what_it_was(page: Any) -> None:
    found = page.evaluate("""async () => {
      const rows = new parts.Rows(), chart = new parts.LineChart("Loss");
      [1, 0.5, "NaN", "NaN"].forEach((loss, iteration) => rows.put({ iteration, loss, always: iteration, never: "∞" }));
      rows.put({ iteration: 4, always: 4 }); // an iteration that does not measure it
      document.body.append(chart.node);
      chart.colours = parts.palette("light");
      Object.assign(chart.stage.style, { flex: "none", width: "300px", height: "100px" });
      chart.set(rows.points("loss"), 0, rows.last.iteration, rows.latest("loss"));
      const diverged = [chart.value.textContent, chart.value.dataset.odd];
      rows.put({ iteration: 5, loss: 0.25 });
      chart.set(rows.points("loss"), 0, rows.last.iteration);
      return {
        diverged, back: [chart.value.textContent, chart.value.dataset.odd], names: [...rows.names.keys()], points: rows.points("loss"),
        tiles: parts.headline(["loss", "never", "always", "unknown"], rows, new parts.Sums(["busy"])).slice(0, 4),
      };
    }""")
    assert found["diverged"] == ["NaN", "true"] and found["back"] == ["0.250", "false"]
    assert found["names"] == ["iteration", "loss", "always", "never"] and found["points"] == [[0, 1], [1, 0.5], [5, 0.25]]
    assert [tile[1] for tile in found["tiles"]] == ["0.250", "∞", "4.00", "–"]


def test_sums_of_stretches(page: Any) -> None:
    rows = [{"iteration": i, "busy": i, "starved": 2} if i % 2 else {"iteration": i, "busy": i} for i in range(10)]
    found = page.evaluate(
        """(rows) => {
          const sums = new parts.Sums(["busy", "starved"]);
          rows.forEach((row) => sums.add(row));
          return [sums.of("busy"), sums.of("starved", 2, 5), sums.merged(3), sums.merged(100).length, sums.last.iteration, new parts.Sums(["busy"]).merged(3)];
        }""",
        rows,
    )
    merged = [{"busy": 6, "starved": 4}, {"busy": 22, "starved": 4}, {"busy": 17, "starved": 2}]
    assert found == [45, 2, merged, 10, 9, []]


AXES = [
    (0, 0, 2), (0, 5000, 2), (7, 5000, 8), (17, 60, 18), (39, 5000, 40), (40, 5000, 42), (49, 50, 49), (45, 50, 46), (101, 5000, 110),
    (4999, 5000, 4999), (300, 0, 300), (120, 60, 120),
]  # fmt: skip


@pytest.mark.parametrize(("done", "planned", "end"), AXES)
def test_a_curve_has_most_of_its_axis_however_many_iterations_are_planned(page: Any, done: int, planned: int, end: int) -> None:
    assert page.evaluate("([done, planned]) => parts.axisEnd(done, planned)", [done, planned]) == end


# A dashboard of such charts, ``el``; ``hear`` tells it something and waits until it is drawn; ``seen``: what is found.
HEARS = """
  const { default: widget } = await import(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
  const made = widget(), el = document.createElement("div"), config = { title: "heard", charts, iterations: 9 };
  let tell, seq = 0;
  const model = { get: () => config, send: () => {}, on: (_, hear) => { tell = hear; } }, seen = [];
  el.style.width = "1000px";
  document.body.append(el);
  made.initialize({ model });
  made.render({ model, el });
  const hear = async (message) => {
    tell({ type: seq ? "delta" : "history", seq: ++seq, ...message }, []);
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  };"""


def test_a_run_that_measures_nothing_has_no_empty_charts(page: Any) -> None:
    """Before the first iteration has ended nobody knows; then the lanes get the room, until there is something to plot."""
    found = page.evaluate(
        """async ([code, charts]) => { HEARS
          const look = async (message) => {
            await hear(message);
            const tiles = [...el.querySelectorAll(".rl-kpi > span")].map((s) => s.textContent);
            seen.push([el.querySelectorAll(".rl-chart").length, el.querySelector(".rl-dashboard").dataset.bare, tiles]);
          };
          await look({ state: { state: "starting" } });
          await look({ state: { state: "running", iteration: 1 }, metrics: [{ iteration: 0, seconds: 0.5 }] });
          await look({ state: { state: "running", iteration: 2 }, metrics: [{ iteration: 1, seconds: 0.5, loss: 3 }] });
          return seen;
        }""".replace("HEARS", HEARS),
        [module(*DASHBOARD), ["loss", "return"]],
    )
    assert found == [[2, "false", ["Loss", "Return", "Iteration"]], [0, "true", ["Iteration"]], [1, "false", ["Loss", "Iteration"]]]


@pytest.mark.parametrize(("every", "early", "late"), [(0.5, 5, 65), (60, 200, 260), (None, 65, 100_000)])
def test_a_kernel_that_is_not_heard_any_more_is_told_of_while_the_run_is_not_over(page: Any, every: float | None, early: int, late: int) -> None:
    """Restarted, it never says that the run has ended: what is shown would seem to be how it is. Pushed by hand, nobody knows when there will be news."""
    found = page.evaluate(
        """async ([code, every, early, late]) => {
          const { default: widget } = await import(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
          const made = widget(), el = document.createElement("div"), now = performance.now;
          const config = { title: "gone", charts: ["loss"], iterations: 9, every_seconds: every };
          let tell, seq = 0, away = 0;
          performance.now = () => now.call(performance) + away;
          const model = { get: () => config, send: () => {}, on: (_, hear) => { tell = hear; } }, seen = [];
          el.style.width = "1000px";
          document.body.append(el);
          made.initialize({ model });
          const end = made.render({ model, el }), said = () => el.querySelector(".rl-silence").textContent;
          const hear = (state) => tell({ type: seq ? "delta" : "history", seq: ++seq, state: { state, iteration: 1 } }, []);
          const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          hear("running");
          await frame();
          seen.push(said());
          for (const seconds of [early, late]) {
            away = 1000 * seconds;
            for (let i = 0; i < (seconds === late && every ? 200 : 25) && !said(); i++) await new Promise((done) => setTimeout(done, 50));
            seen.push(said());
          }
          hear("running");
          await frame();
          seen.push(said());
          hear("finished");
          away = 1e9;
          await frame();
          seen.push(said());
          end();
          performance.now = now;
          return seen;
        }""",
        [module(*DASHBOARD), every, early, late],
    )
    assert found[0] == found[1] == found[3] == found[4] == ""
    assert re.fullmatch(r"nothing heard for [14]:\d\d" if every else "", found[2])


EMPTY = """async ([code, charts]) => { HEARS
  const look = async (message) => {
    await hear(message);
    const said = [...el.querySelectorAll(".rl-empty")].filter((e) => e.offsetHeight);
    const fits = (e) => {
      const [a, b] = [e, e.closest(".rl-panel")].map((n) => n.getBoundingClientRect());
      return a.bottom <= b.bottom && a.right <= b.right && e.parentNode.scrollHeight <= e.parentNode.clientHeight;
    };
    seen.push([said.map((e) => e.textContent), said.every(fits)]);
  };
  await look({ state: { state: "running" } });
  await look({ state: { state: "running" }, counters: [[0, { "cpu:0": 0.5 }], [1, { "cpu:0": 0.6 }]], bubbles: [{ iteration: 0, busy: 2, starved: 1 }] });
  await look({ state: { state: "running", iteration: 4 } });
  const stack = el.querySelector(".rl-stackstage canvas"), widest = () => {
    const { data, width } = stack.getContext("2d").getImageData(0, 8, stack.width, 1);
    let last = 0;
    for (let x = 0; x < width; x++) if (data[4 * x + 3]) last = x + 1;
    return last / width;
  };
  const narrow = widest();
  await look({ state: { state: "stopped", iteration: 4 } });
  return [seen, narrow, widest()];
}""".replace("HEARS", HEARS)


def test_what_is_still_empty_says_so_in_full(page: Any) -> None:
    """And of a run that is over no room is kept for bars of iterations that will not come."""
    seen, live, over = page.evaluate(EMPTY, [module(*DASHBOARD), ["loss"]])
    assert [texts for texts, _ in seen] == [["no picture yet", "nothing sampled yet", "no iteration accounted for yet"], ["no picture yet"], [], []]
    assert all(fits for _, fits in seen)
    assert live < 0.2 and over > 0.98
