"""The still picture beside a widget: what a saved notebook shows where no widget can load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rlinf_lab.timeline import Timeline

_WIDTH, _HEIGHT, _PAD = 240, 90, 14


class Still:
    """HTML that needs no script: for `display_handle.update` when a run has ended."""

    def __init__(self, html: str, text: str) -> None:
        self.html, self.text = html, text

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


def with_picture(bundle: Any, html: str, text: str) -> Any:
    """A widget's mimebundle (data, or data and metadata) with the still picture beside the widget."""
    data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
    return {**(data or {}), "text/html": html, "text/plain": text}, metadata


def timeline_picture(timeline: Timeline | None) -> str:
    """Static SVG of a timeline; empty when there is none yet."""
    return timeline._repr_html_() if timeline is not None and len(timeline) else ""


def timelines_picture(timelines: Sequence[Timeline], labels: Sequence[str]) -> str:
    """One above the other; with more than one, each under its label."""
    if len(timelines) == 1:
        return timeline_picture(timelines[0])
    heads = [f'<p style="margin:6px 0 0;font:12px system-ui,sans-serif">{escape(label)}</p>' for label in labels]
    return "".join(head + timeline_picture(t) for head, t in zip(heads, timelines, strict=True))


def dashboard_picture(config: Mapping[str, Any], state: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]], timeline: Timeline | None) -> str:
    """Title, state, learning curves and timeline, as HTML with inline SVG."""
    of = state.get("iterations") or config["iterations"]
    done = f"{state.get('iteration', 0)} / {of}" if of else f"iteration {state.get('iteration', 0)}"
    parts = [config["title"], config["plan"], state.get("state", "starting"), done]
    head = " · ".join(escape(str(p)) for p in parts if p)
    curves = "".join(_curve(key, metrics) for key in _keys(config["charts"], metrics))
    return (
        f'<div style="font:12px system-ui,sans-serif"><p style="margin:0 0 6px"><b>{head}</b></p>'
        f'<div style="display:flex;gap:16px;flex-wrap:wrap">{curves}</div>{timeline_picture(timeline)}</div>'
    )


def _keys(wished: Sequence[str], metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    known = list(dict.fromkeys(k for row in metrics for k in row))
    return [k for name in wished for k in known if k == name or k.endswith((f".{name}", f"_{name}"))]


def _curve(key: str, metrics: Sequence[Mapping[str, Any]]) -> str:
    values = [float(row[key]) for row in metrics if isinstance(row.get(key), int | float)]
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    step = _WIDTH / max(1, len(values) - 1)
    points = " ".join(f"{i * step:.1f},{_PAD + (1 - (v - low) / span) * (_HEIGHT - 2 * _PAD):.1f}" for i, v in _seen(values))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f'<text x="0" y="10" font-size="11" fill="currentColor">{escape(key)}: {values[-1]:.3g} ({low:.3g} to {high:.3g})</text>'
        f'<polyline fill="none" stroke="#3c82d2" stroke-width="1.75" points="{points}"/></svg>'
    )


def _seen(values: Sequence[float]) -> list[tuple[int, float]]:
    """(place, value) of what a line this wide can show: the lowest and the highest of each pixel, in order."""
    size = max(1, len(values) // _WIDTH)
    if size == 1:
        return list(enumerate(values))
    kept = {0, len(values) - 1}
    for start in range(0, len(values), size):
        places = range(start, min(start + size, len(values)))
        kept |= {min(places, key=values.__getitem__), max(places, key=values.__getitem__)}
    return [(i, values[i]) for i in sorted(kept)]
