"""Draws the two pictures of ARCHITECTURE.md: ``docs/floors.svg`` and ``docs/bubbles.svg``.

    python tools/draw_docs.py

The floors are those of the import contract in `pyproject.toml`. Each bubble is accounted by `rlinf_lab.timeline`
before it is drawn, so a picture cannot show a cause that the library would not tell. Both pictures bring their own
ground, for dark pages and for light ones.
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.timeline.draw.palette import CAUSE_COLOURS, GROUND, INK, WORKERS, colour_numbers

ROOT = Path(__file__).parents[1]
WIDTH, MARGIN = 960, 16
FONT = "font-family='system-ui, -apple-system, Segoe UI, sans-serif'"
K = SpanKind

#: Where a room's own first sentence does not fit into its box.
PURPOSES = {
    "cli": "the shell's way in",
    "notebook": "live views of runs",
    "demo": "the arm that learns",
    "checkup": "what works here",
    "terminal": "progress in a shell",
    "planning_commands": "plans in a shell",
    "experiment_commands": "training in a shell",
    "recipes": "one readable file per experiment: a configuration, a workflow",
    "experiments": "train, evaluate, keep, compare",
    "runtime": "doing it: local, processes, Ray",
    "workers": "simulator, policy, learner",
    "widgets": "timeline, dashboard, explorer",
    "planning": "how to do it: profile, search, simulate, plan",
    "workflow": "workers, channels",
    "vecenv": "simulators",
    "policies": "obs to action",
    "generation": "token samplers",
    "tasks": "prompts, rewards",
    "algorithms": "losses, advantages",
    "replay": "past transitions",
    "records": "what travels",
    "trees": "arrays in dicts and tuples",
    "timeline": "what happened when: spans, bubbles, traces",
    "errors": "every public exception",
}


@dataclass(frozen=True)
class Example:
    """One small picture: whose device idles, when, and what each rank did.

    A span is (worker, rank, devices, kind, start, end).
    """


    cause: str
    words: str
    device: int
    from_to: tuple[int, int]
    spans: tuple[tuple[str, int, tuple[int, ...], SpanKind, int, int], ...]
    iterations: tuple[tuple[int, int], ...] = ((0, 100),)


EXAMPLES = (
    Example("starved", "waits for input from another worker", 1, (40, 70), (
        ("rollout", 0, (0,), K.RUN, 0, 70), ("learner", 0, (1,), K.RUN, 20, 40), ("learner", 0, (1,), K.GET, 40, 70),
        ("learner", 0, (1,), K.RUN, 70, 100))),
    Example("blocked", "its output channel is full", 0, (30, 60), (
        ("rollout", 0, (0,), K.RUN, 0, 30), ("rollout", 0, (0,), K.PUT, 30, 60), ("rollout", 0, (0,), K.RUN, 60, 90),
        ("learner", 0, (1,), K.RUN, 0, 60), ("learner", 0, (1,), K.RUN, 60, 100))),
    Example("lock", "work is ready, the device is not: another one of its set is taken", 0, (30, 60), (
        ("rollout", 0, (0,), K.RUN, 0, 30), ("rollout", 1, (1,), K.RUN, 0, 60), ("learner", 0, (0, 1), K.LOCK, 30, 60),
        ("learner", 0, (0, 1), K.RUN, 60, 100))),
    Example("switch", "one worker leaves the device (offload), another comes (onload)", 0, (35, 65), (
        ("rollout", 0, (0,), K.RUN, 0, 35), ("rollout", 0, (0,), K.OFFLOAD, 35, 50),
        ("learner", 0, (0,), K.ONLOAD, 50, 65), ("learner", 0, (0,), K.RUN, 65, 100),
        ("rollout", 1, (1,), K.RUN, 0, 100))),
    Example("fill", "nothing has reached this device in the iteration yet", 1, (0, 35), (
        ("rollout", 0, (0,), K.RUN, 0, 75), ("learner", 0, (1,), K.RUN, 35, 100))),
    Example("drain", "its worker has done its part of the iteration", 0, (55, 100), (
        ("rollout", 0, (0,), K.RUN, 0, 55), ("learner", 0, (1,), K.RUN, 20, 100))),
    Example("tail", "another rank of its worker still has the last items", 0, (50, 90), (
        ("rollout", 0, (0,), K.RUN, 0, 50), ("rollout", 1, (1,), K.RUN, 0, 90))),
    Example("setup", "a worker is being built, once a run", 0, (0, 40), (
        ("learner", 0, (0,), K.SETUP, 0, 40), ("learner", 0, (0,), K.RUN, 40, 100),
        ("rollout", 0, (1,), K.RUN, 20, 100)), ((20, 100),)),
    Example("off", "nothing is placed here, or no iteration goes on", 0, (40, 60), (
        ("rollout", 0, (0,), K.RUN, 0, 40), ("rollout", 0, (0,), K.RUN, 60, 100), ("learner", 0, (1,), K.RUN, 10, 40),
        ("learner", 0, (1,), K.RUN, 70, 100)), ((0, 40), (60, 100))),
)  # fmt: skip


def accounted(example: Example) -> str:
    """The cause that the library's own accounting gives the bubble of ``example``."""
    devices = ("cpu:0", "cpu:1")
    recorder, timeline = Recorder(), Timeline(devices)
    for number, (start, end) in enumerate(example.iterations):
        recorder.add(recorder.track("driver", 0, ()), K.MARK, recorder.name("iteration"), start, end, number, 0, 0, -1)
    for worker, rank, on, kind, start, end in example.spans:
        at = next((n for n, (first, last) in enumerate(example.iterations) if first <= start < last), 0)
        recorder.add(
            recorder.track(worker, rank, tuple(devices[d] for d in on)),
            kind,
            recorder.name("call"),
            start,
            end,
            at,
            0,
            0,
            -1,
        )
    timeline.extend(recorder.drain())
    start, end = example.from_to
    table = timeline.bubbles(by=None)
    here = table[(table.device == devices[example.device]) & (table.start_ns < end) & (table.end_ns > start)]
    (cause,) = set(map(str, here.cause))
    if (here.start_ns.min(), here.end_ns.max()) != (start, end):
        raise ValueError(
            f"the bubble of {example.cause!r} reaches from {here.start_ns.min()} to {here.end_ns.max()}, "
            f"not {example.from_to}"
        )
    return cause


def bubbles() -> str:
    """Nine causes, three in a row."""
    columns, gap, height = 3, 20, 128
    wide = (WIDTH - 2 * MARGIN - (columns - 1) * gap) / columns
    colours = colour_numbers({"rollout", "learner"})
    drawn = []
    for number, example in enumerate(EXAMPLES):
        if accounted(example) != example.cause:
            raise ValueError(f"{example.cause!r} is drawn, {accounted(example)!r} is what the accounting says")
        left, top = MARGIN + number % columns * (wide + gap), 40 + number // columns * height
        drawn.append(_text(left, top + 14, example.cause, weight=600))
        drawn.append(_text(left, top + 32, example.words, size=11.5, wide=wide))
        for device in (0, 1):
            drawn.append(_text(left, top + 60 + 30 * device, f"device {device}", size=11))
        x0, per = left + 58, (wide - 58) / 100
        for worker, _, on, kind, start, end in example.spans:
            if kind is not K.RUN:
                continue
            y, tall = top + 45 + 30 * min(on), 22 + 30 * (len(on) - 1)
            drawn.append(
                f"<rect class='w{colours[worker]}' x='{x0 + start * per:.1f}' y='{y}' "
                f"width='{(end - start) * per - 1:.1f}' height='{tall}' rx='2'/>"
            )
        start, end = example.from_to
        y = top + 45 + 30 * example.device
        box = f"x='{x0 + start * per:.1f}' y='{y}' width='{(end - start) * per - 1:.1f}' height='22' rx='2'"
        drawn.append(f"<rect class='{example.cause} bubble' {box}/><rect fill='url(#hatch)' {box}/>")
    legend = MARGIN
    for worker in ("rollout", "learner"):
        drawn.append(
            f"<rect class='w{colours[worker]}' x='{legend}' y='14' width='14' height='14' rx='2'/>"
            + _text(legend + 20, 26, worker)
        )
        legend += 90
    drawn.append(
        f"<rect class='bubble off' x='{legend}' y='14' width='14' height='14' rx='2'/>"
        f"<rect fill='url(#hatch)' x='{legend}' y='14' width='14' height='14'/>"
    )
    drawn.append(_text(legend + 20, 26, "the bubble: idle device time, with exactly one cause"))
    return _page(40 + -(-len(EXAMPLES) // columns) * height, drawn, "Bubbles by cause")


def floors(contracts: Path = ROOT / "pyproject.toml") -> str:
    """The layers of the import contract, roof first."""
    layers = next(
        c for c in tomllib.loads(contracts.read_text())["tool"]["importlinter"]["contracts"] if c["type"] == "layers"
    )["layers"]
    rows = [[room.strip(" ()") for room in layer.replace("|", ":").split(":")] for layer in layers]
    rows = [[room for room in row if room != "__main__"] for row in rows]
    rows = [row for row in rows if row]
    height, gap = 58, 8
    drawn = []
    for number, row in enumerate(rows):
        top = 12 + number * (height + gap)
        wide = (WIDTH - 2 * MARGIN - (len(row) - 1) * gap) / len(row)
        for place, room in enumerate(row):
            left = MARGIN + place * (wide + gap)
            drawn.append(f"<rect class='room' x='{left:.1f}' y='{top}' width='{wide:.1f}' height='{height}' rx='6'/>")
            drawn.append(_text(left + 12, top + 24, room, weight=600, size=14 if wide > 130 else 12))
            drawn.append(_text(left + 12, top + 43, _purpose(room), size=12, wide=wide - 16))
    below = 12 + len(rows) * (height + gap)
    drawn.append(
        _text(
            MARGIN,
            below + 12,
            "Rooms import from the floors below them. Simulators (envs/) stand outside and are found by name.",
            size=12,
        )
    )
    return _page(below + 26, drawn, "Floors of rlinf_lab")


def _purpose(room: str) -> str:
    """The first sentence of what a room says of itself, or a shorter one."""
    if room in PURPOSES:
        return PURPOSES[room]
    package = ROOT / "rlinf_lab" / room
    source = (package / "__init__.py" if package.is_dir() else package.with_suffix(".py")).read_text()
    return (ast.get_docstring(ast.parse(source)) or "").split("\n")[0].split(". ")[0].rstrip(".").replace("`", "")


def _text(x: float, y: float, words: str, *, size: float = 13, weight: int = 400, wide: float | None = None) -> str:
    """``wide``: the words are squeezed where they would be wider (a rough measure: half the size a letter)."""
    squeezed = (
        f" textLength='{wide:.0f}' lengthAdjust='spacingAndGlyphs'"
        if wide is not None and len(words) * size * 0.52 > wide
        else ""
    )
    return f"<text x='{x:.1f}' y='{y}' font-size='{size}' font-weight='{weight}'{squeezed}>{escape(words)}</text>"


def _page(height: float, drawn: list[str], title: str) -> str:
    def style(mode: str) -> str:
        fills = "".join(f".{cause}{{fill:{colour}}}" for cause, colour in CAUSE_COLOURS[mode].items())
        fills += "".join(f".w{n}{{fill:{colour}}}" for n, colour in enumerate(WORKERS[mode]))
        room = {"light": "#eef3fa", "dark": "#1d2733"}[mode]
        ground, ink = GROUND[mode], INK[mode]
        edges = f".room{{fill:{room};stroke:{ink};stroke-opacity:.35}}.bubble{{stroke:{ink}}}"
        return f".ground{{fill:{ground}}}text{{fill:{ink}}}{edges}{fills}"

    return "\n".join((
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}' "
        f"role='img' {FONT}>",
        f"<title>{title}</title>",
        f"<style>{style('light')}@media (prefers-color-scheme: dark){{{style('dark')}}}</style>",
        "<defs><pattern id='hatch' width='6' height='6' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
        "<rect class='ground' width='1.5' height='6' fill-opacity='.7'/></pattern></defs>",
        f"<rect class='ground' width='{WIDTH}' height='{height}' rx='8'/>", *drawn, "</svg>", "",
    ))  # fmt: skip


if __name__ == "__main__":
    (ROOT / "docs/floors.svg").write_text(floors())
    (ROOT / "docs/bubbles.svg").write_text(bubbles())
