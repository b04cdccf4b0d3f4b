"""The still picture beside a widget, and above it as an output of its own.

It is what a saved notebook shows where no widget can load.

JupyterLab and Notebook show the widget of an output whenever it names one. Where its kernel has gone (a notebook that
is opened again) that is "Error displaying widget: model not found", though the same output has a picture. So the
picture comes first, by itself; it hides while the widget below it is seen, and hides what is said there when no widget
can be.
"""

from __future__ import annotations

import base64
import itertools
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from html import escape
from types import FrameType
from typing import Any

from rlinf_lab.timeline import Timeline
from rlinf_lab.timeline.draw.picture import Line, Scene, Word, heading, scene, stacked
from rlinf_lab.timeline.draw.png import png_bytes
from rlinf_lab.timeline.draw.svg import anywhere, shown_html

_WIDTH_PX, _HEIGHT_PX, _PAD_PX = 240, 90, 14
_CURVES_IN_A_ROW = 3

#: The type of what a page makes a live widget of.
WIDGET = "application/vnd.jupyter.widget-view+json"
_COMES_BACK = (
    "the run had not ended then. Where its kernel is still there, the live view comes back as soon as no cell is busy."
)
#: Metrics that are no numbers, as `no_number` writes them.
DIVERGED = ("NaN", "∞", "−∞")


class Still:
    """HTML that needs no script, and the same as a PNG. It is for `display_handle.update` when a run has ended.
    ``drawn`` gives what the PNG shows; None: no PNG.
    """

    def __init__(self, html: str, text: str, drawn: Callable[[], Scene | None] = lambda: None) -> None:
        self.html, self.text, self._drawn = html, text, drawn

    @cached_property
    def scene(self) -> Scene | None:
        """What the PNG shows. It is put together when it is asked for: most pictures of a run that goes on are
        `without_png`.
        """
        return self._drawn()

    def _repr_html_(self) -> str:
        return self.html

    def _repr_png_(self) -> bytes | None:
        return png_bytes(self.scene) if self.scene is not None else None

    def __repr__(self) -> str:
        return self.text

    def without_png(self) -> Still:
        """The same as HTML alone, in a tenth of the time."""
        return Still(self.html, self.text)

    def beside(self, bundle: Any, live: bool = True) -> Any:
        """A widget's mimebundle with this picture beside the widget, as HTML and PNG. The bundle is data, or data
        and metadata; the picture is instead of it unless ``live``.
        """
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        if not live:
            data = {kind: part for kind, part in (data or {}).items() if kind != WIDGET}
        image = self._repr_png_()
        drawn = {} if image is None else {"image/png": base64.b64encode(image).decode("ascii")}
        return {**(data or {}), "text/html": self.html, "text/plain": self.text, **drawn}, metadata


def timelines_still(timelines: Sequence[Timeline], labels: Sequence[str], text: str) -> Still:
    """Timelines one above the other; with more than one, each under its label. Empty ones are left out."""
    html, parts = list[str](), list[Scene]()
    for timeline, label in zip(timelines, labels, strict=True):
        now = timeline.snapshot()
        if len(timelines) > 1:
            html.append(f'<p style="margin:6px 0 0;font:12px system-ui,sans-serif">{escape(label)}</p>')
            parts.append(heading(label))
        if len(now):
            parts.append(scene(now, now.accounting()))
            html.append(f"<div>{shown_html(parts[-1])}<div><small>{escape(repr(now))}</small></div></div>")
    return Still("".join(html), text, lambda: stacked(parts, " over ".join(labels)) if parts else None)


def dashboard_still(
    config: Mapping[str, Any],
    state: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    timeline: Timeline | None,
    text: str,
    as_of: str = "",
) -> Still:
    """Title, state, why it failed or nothing moves, learning curves and timeline. ``as_of``: when a run that goes on
    was so, in words.
    """
    head, curves = _head(config, state), _curves(config, metrics)
    message = state.get("message", "")
    when = [f"{as_of[:1].upper()}{as_of[1:]}; {_COMES_BACK}"] if as_of else []
    plan = state.get("plan_note", "")
    told = [text for text in (plan, message) if text]
    why = when + told + [line for line in state.get("standstill", ()) if line not in message]
    reasons = "".join(f'<p style="margin:0 0 4px">{escape(line)}</p>' for line in why)
    below = timelines_still([] if timeline is None else [timeline], [] if timeline is None else [""], text)
    html = (
        '<div style="font:12px system-ui,sans-serif;overflow-wrap:anywhere"><p style="margin:0 0 '
        f'6px"><b>{escape(head)}</b></p>{reasons}'
        f'<div style="display:flex;gap:16px;flex-wrap:wrap">{"".join(_curve(*each) for each in curves)}</div>'
        f"{below.html}</div>"
    )

    def drawn() -> Scene:
        rows = [_curve_row(curves[i : i + _CURVES_IN_A_ROW]) for i in range(0, len(curves), _CURVES_IN_A_ROW)]
        return stacked([heading(head), *map(heading, why), *rows, *([below.scene] if below.scene else [])], head)

    return Still(html, text, drawn)


def _head(config: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    of = state.get("iterations") or config["iterations"]
    done = f"{state.get('iteration', 0)} / {of}" if of else f"iteration {state.get('iteration', 0)}"
    parts = [config["title"], config["plan"], state.get("state", "starting"), done]
    return " · ".join(str(p) for p in parts if p)


def no_number(value: float) -> str:
    """ "NaN", "∞" or "−∞": how the page is told of a metric that diverged."""
    return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"


def _curves(config: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[float]]]:
    """Name and values of each metric that is plotted and has some. The name says what it has become if that is no
    number; what is not finite is not drawn.
    """
    found = []
    for key in _keys(config["charts"], metrics):
        said = [row[key] for row in metrics if isinstance(row.get(key), int | float) or row.get(key) in DIVERGED]
        values = [float(value) for value in said if value not in DIVERGED and math.isfinite(value)]
        if values:
            last = said[-1] if said[-1] in DIVERGED else "" if math.isfinite(said[-1]) else no_number(said[-1])
            found.append((f"{key} is {last}, was" if last else key, values))
    return found


def _keys(wished: Sequence[str], metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics to plot, as static/dashboard.js finds them. These are the wished ones that are there ("a|b": b where
    no a is), else the first ones there are.
    """
    known = list(
        dict.fromkeys(
            k
            for row in metrics
            for k, v in row.items()
            if (isinstance(v, int | float) and not isinstance(v, bool)) or v in DIVERGED
        )
    )

    def called(name: str) -> list[str]:
        return (
            [name]
            if name in known
            else [k for k in known if k.endswith(f".{name}")] or [k for k in known if k.endswith(f"_{name}")][:1]
        )

    found = [k for names in wished for k in next(filter(None, map(called, (names, *names.split("|")))), [])]
    return list(dict.fromkeys(found)) or [k for k in known if k not in ("iteration", "seconds")][:3]


def _points(values: Sequence[float]) -> list[tuple[float, float]]:
    """px within `_WIDTH_PX` and `_HEIGHT_PX`."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    step = _WIDTH_PX / max(1, len(values) - 1)
    return [(i * step, _PAD_PX + (1 - (v - low) / span) * (_HEIGHT_PX - 2 * _PAD_PX)) for i, v in _seen(values)]


def _caption(key: str, values: Sequence[float]) -> str:
    return f"{key}: {values[-1]:.3g} ({min(values):.3g} to {max(values):.3g})"


def _curve(key: str, values: Sequence[float]) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in _points(values))
    drawn = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH_PX}" height="{_HEIGHT_PX}" viewBox="0 0 {_WIDTH_PX} '
        f'{_HEIGHT_PX}">'
        f'<text x="0" y="10" font-size="11" fill="currentColor">{escape(_caption(key, values))}</text>'
        f'<polyline fill="none" stroke="#3c82d2" stroke-width="1.75" points="{points}"/></svg>'
    )
    # an image has the ink of light paper by itself
    return f"<div>{anywhere(drawn, drawn, _caption(key, values))}</div>"


def _curve_row(curves: Sequence[tuple[str, Sequence[float]]]) -> Scene:
    made = Scene(960, _HEIGHT_PX, "", [])
    for column, (key, values) in enumerate(curves):
        left = 4 + column * (_WIDTH_PX + 2 * _PAD_PX)
        made.words.append(Word(left, 10, _caption(key, values)))
        made.lines += [
            Line(left + x0, y0, left + x1, y1, 1.75) for (x0, y0), (x1, y1) in itertools.pairwise(_points(values))
        ]
    return made


def _seen(values: Sequence[float]) -> list[tuple[int, float]]:
    """(place, value) of what a line this wide can show: each pixel's extremes, in order."""
    size = max(1, len(values) // _WIDTH_PX)
    if size == 1:
        return list(enumerate(values))
    kept = {0, len(values) - 1}
    for start in range(0, len(values), size):
        places = range(start, min(start + size, len(values)))
        kept |= {min(places, key=values.__getitem__), max(places, key=values.__getitem__)}
    return [(i, values[i]) for i in sorted(kept)]


_MARK = "rlinf-lab-still"
#: Between two outputs that follow each other on a page of Jupyter's. Roots of our widgets are called rl-…; a message
#: that there is none has only text.
_STYLE = (
    f"<style>.jp-OutputArea-child:has(.{_MARK}):has(+ .jp-OutputArea-child > .jp-OutputArea-output > .lm-Widget > "
    "[class^=rl-]),"
    f".jp-OutputArea-child:has(.{_MARK}) + .jp-OutputArea-child > .jupyter-widgets:not(:has(*))"
    "{display:none}</style>"
)


def is_possible() -> bool:
    """Whether this is a kernel whose page is Jupyter's own, as far as is known. Others would show both."""
    if (
        "ipykernel" not in sys.modules
        or "VSCODE_PID" in os.environ
        or "VSCODE_CWD" in os.environ
        or "google.colab" in sys.modules
    ):
        return False
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def is_update() -> bool:
    """Whether what asks for a picture now makes an output anew. As ``display_handle.update(view)`` does: IPython
    tells no repr of it.
    """
    from IPython.core.display_functions import display

    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is display.__code__:
            return bool(frame.f_locals.get("kwargs", {}).get("update"))
        frame = frame.f_back
    return False


def show(still: Still, name: str, again: bool = False) -> None:
    """Show it in a new output, and in all those of this ``name``. ``again``: in these only."""
    from IPython.display import display

    display(
        Still(f'{_STYLE}<div class="{_MARK}">{still.html}</div>', still.text, lambda: still.scene),
        display_id=name,
        update=again,
    )
