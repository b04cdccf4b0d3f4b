"""Curves of counters by the browser's own engine: what is drawn of few samples, of none, of numbers that are none; and how numbers read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.widgets import timeline_html
from rlinf_lab.widgets.assets import TIMELINE, module

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]

#: Draws one curve of a view 1000 px wide and 1000 ns long; the calls of the canvas, and the colour of what was filled or stroked.
DRAW = """([name, times, values, from, to]) => {
  const series = new parts.Series(name), calls = [];
  times.forEach((time, i) => series.add(time, Number(values[i])));
  const g = new Proxy({ measureText: (text) => ({ width: 6 * text.length }) }, {
    get: (state, key) => key in state ? state[key] : (...at) => calls.push([key, ...at, key === "fillRect" ? state.fillStyle : ""]),
    set: (state, key, value) => { state[key] = value; return true; },
  });
  const row = { kind: "counter", layer: 0, y: 40, h: 23, series };
  const view = {
    rows: [row], height: 400, gutter: 0, plot: 1000, from, to, shift: () => 0, colours: parts.palette("light"), stores: [{ end: to }],
    x: (time) => 1000 * (time - from) / (to - from),
  };
  parts.paintCounters(view, g, 1000);
  const bad = view.colours.bad;
  return {
    dense: calls.some(([key]) => key === "drawImage"), dots: calls.filter(([key]) => key === "arc").length,
    lines: calls.filter(([key]) => key === "stroke").length,
    corners: calls.filter(([key]) => ["moveTo", "lineTo"].includes(key)).map(([, x, y]) => [x, y]),
    holes: calls.filter((call) => call[0] === "fillRect" && call[call.length - 1] === bad).map(([, x]) => x + 1),
    ends: calls.filter(([key]) => key === "fillText").map(([, text]) => text), latest: parts.latest(view, row), columns: view.bars && (() => {
      const { width, height } = view.bars, data = view.bars.getContext("2d").getImageData(0, 0, width, height).data;
      return Array.from({ length: width }, (_, x) => Array.from({ length: height }, (_, y) => data[4 * (y * width + x) + 3]).some((a) => a > 60));
    })(),
  };
}"""


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page()
    names = "Series, palette, paintCounters, latest, figures, duration, rulerText, niceStep"
    page.add_script_tag(content=f"{module(*TIMELINE)}\nwindow.parts = {{ {names} }};", type="module")
    page.wait_for_function("() => window.parts", timeout=10_000)
    yield page
    page.close()


def draw(page: Any, values: list[float], name: str = "load", every: float = 10.0, window: tuple[float, float] = (0, 1000)) -> Any:
    texts = [str(v).replace("inf", "Infinity").replace("nan", "NaN") for v in values]
    return page.evaluate(DRAW, [name, [every * i for i in range(len(values))], texts, *window])


def test_a_single_sample_is_a_dot(page: Any) -> None:
    found = draw(page, [5.0])
    assert (found["dots"], found["lines"], found["latest"]) == (1, 0, "5.00")


def test_what_is_no_number_interrupts_the_curve_and_is_marked(page: Any) -> None:
    found = draw(page, [math.nan, 1, 2, math.nan, 3, math.inf, 4, 5, math.nan], every=5)
    assert (found["lines"], found["dots"]) == (2, 1)
    assert found["corners"] == [[x, pytest.approx(y)] for x, y in found["corners"]], "no corner is without a place"
    assert {x for x, _ in found["corners"]} == {5, 10, 30, 35} and found["holes"] == [0, 15, 25, 40]
    assert found["latest"] == "NaN" and draw(page, [1, -math.inf])["latest"] == "−∞"


@pytest.mark.parametrize(("every", "dots"), [(100, 5), (9, 5), (7, 0)])
def test_a_sample_holds_until_the_next_one_and_is_a_dot_where_it_is_alone(page: Any, every: float, dots: int) -> None:
    """A straight line from 5 to 1 would say that there were 3 in between, which nobody has seen."""
    found = draw(page, [0, 5, 1, 1, 4], every=every)
    assert found["dots"] == dots and found["lines"] == 1 and not found["dense"]
    line = found["corners"][:-2]  # then the area below it is closed
    assert all(x == other or y == pytest.approx(next_y) for (x, y), (other, next_y) in itertools.pairwise(line)), "level, or straight up or down"
    assert [x for x, _ in line] == [pytest.approx(every * i) for i in (0, 1, 1, 2, 2, 4, 4)], "and the last one holds no longer than it was seen"


def test_a_dense_curve_ends_with_its_last_sample(page: Any) -> None:
    found = draw(page, [float(i % 7) for i in range(400)], every=0.25)
    assert found["dense"] and [x for x, drawn in enumerate(found["columns"]) if drawn] == list(range(100))


def test_a_dense_curve_is_interrupted_too(page: Any) -> None:
    found = draw(page, [math.nan if 500 <= i < 1500 else math.sin(i / 99) for i in range(2000)], every=0.5)
    assert found["dense"] and found["lines"] == 0
    assert [x for x, drawn in enumerate(found["columns"]) if not drawn] == list(range(250, 750))
    assert found["holes"][0] == 250 and found["holes"][-1] in (749, 750)


@pytest.mark.parametrize(
    ("name", "values", "ends"),
    [
        ("load", [5, 7], ["7.00", "5.00"]), ("load", [1, 7], ["7.00"]), ("load", [7, 7], ["7.00"]), ("load", [-7, -7], ["0", "−7.00"]),
        ("load", [152.03, 152.11], ["152.1", "152.0"]), ("load", [-1, 1], ["1.00", "−1.00"]), ("load", [8.3e9, 9.29e9], ["9.29 G", "8.30 G"]),
        ("core 0 %", [10, 20], ["100"]), ("process %", [90, 210], ["210"]), ("load", [1.7e308, -1.7e308], ["1.7e308", "−1.7e308"]),
    ],
)  # fmt: skip
def test_both_ends_of_a_scale_are_said_unless_it_begins_at_zero(page: Any, name: str, values: list[float], ends: list[str]) -> None:
    found = draw(page, values, name, every=900)
    assert found["ends"] == ends
    assert all(40 <= y <= 63 for _, y in found["corners"]), "nothing is drawn beyond the row"


def test_at_the_end_the_last_sample_counts_which_comes_after_the_last_span(page: Any) -> None:
    assert draw(page, [1, 2, 3], every=600)["latest"] == "3.00"


@pytest.mark.parametrize(
    ("number", "text"),
    [(999.4, "999"), (999.7, "1000"), (1234.5, "1235"), (9999.7, "10.0 k"), (999_700, "1.00 M"), (9.29e9, "9.29 G"), (2.5e12, "2.50 T"), (1e15, "1.0e15"),
     (-1e300, "−1.0e300"), (0.00099999, "0.00100"), (1e-7, "1.0e−7"), (0, "0")],
)  # fmt: skip
def test_three_figures(page: Any, number: float, text: str) -> None:
    assert page.evaluate("(x) => parts.figures(x)", number) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [(999.7, "1.00 µs"), (999_700, "1.00 ms"), (999_700_000, "1.00 s"), (999, "999 ns"), (1_500, "1.50 µs"), (119.6e9, "120 s"), (187e9, "3:07")],
)
def test_durations_go_over_to_the_next_unit(page: Any, ns: float, text: str) -> None:
    assert page.evaluate("(x) => parts.duration(x)", ns) == text


@pytest.mark.parametrize(
    ("at", "text"),
    [((19.5e9, 5e8, 25e9), "19.5 s"), ((0, 5e8, 25e9), "0.0 s"), ((0, 5e8, 2.6e9), "0.0 s"), ((4e8, 2e8, 1.2e9), "400 ms"), ((1.5e6, 5e5, 4e6), "1.5 ms"),
     ((2e3, 1e3, 9e3), "2 µs"), ((3e11, 1e11, 9e11), "5:00"),
     ((1e14, 5e13, 1.8e14), "27:46:40"), ((-3e10, 3e10, 2e11), "−0:30"), ((5000.2e9, 2e8, 5001e9), "5000.2 s")],
)  # fmt: skip
def test_a_ruler_has_one_unit_and_short_numbers(page: Any, at: tuple[float, ...], text: str) -> None:
    assert page.evaluate("(at) => parts.rulerText(...at)", list(at)) == text


def test_ticks_of_a_long_ruler_are_at_whole_minutes_and_hours(page: Any) -> None:
    rulers = [[7e9, 1e11], [7e9, 2e11], [40e9, 1e13], [1300e9, 1e13], [20000e9, 2e14], [2e14, 1e16], [5e5, 1e13]]
    steps = page.evaluate("(rulers) => rulers.map((at) => parts.niceStep(...at))", rulers)
    assert steps == [10e9, 10e9, 60e9, 1800e9, 21600e9, 5 * 86400e9, 5e5]


def test_a_tip_goes_when_the_picture_moves_away_from_under_it(browser: Any, tmp_path: Any) -> None:
    recorder, made = Recorder(), Timeline(["cpu:0"])
    recorder.add(recorder.track("w", 0, ("cpu:0",)), SpanKind.RUN, recorder.name("step"), 0, 1_000_000)
    made.extend(recorder.drain())
    page = browser.new_page()
    page.goto(timeline_html(made, tmp_path / "tip.html").as_uri())
    page.wait_for_function("() => document.getElementById('timeline').dataset.spans == 1", timeout=15_000)
    canvas, tip = page.locator("#timeline canvas").first, page.locator(".rl-tip")
    box = canvas.bounding_box()
    canvas.focus()
    for move in (lambda: page.keyboard.press("d"), lambda: page.mouse.wheel(0, 40)):
        page.mouse.move(box["x"] + 600, box["y"] + 70)
        tip.wait_for()
        move()
        tip.wait_for(state="hidden", timeout=5_000)
        page.mouse.move(box["x"] + 500, box["y"] + 70)
    page.close()
