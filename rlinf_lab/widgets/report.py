"""A timeline as one HTML file. It opens without a kernel, a server or a network."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable
from html import escape
from pathlib import Path

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.timeline import Timeline
from rlinf_lab.timeline.record.files import writing
from rlinf_lab.timeline.record.span import writable
from rlinf_lab.widgets.assets import TIMELINE, module, stylesheet
from rlinf_lab.widgets.feed import TimelineFeed, message

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="generator" content="rlinf_lab"><title>{title}</title>
<style>{style}
html, body {{ margin: 0; height: 100%; }}
body {{ color-scheme: light dark; }}
#page {{ display: flex; flex-direction: column; height: 100vh; }}
#page > h1 {{ margin: 0; padding: 10px 14px 2px; font: 600 15px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }}
#page > p {{
  margin: 0; padding: 0 14px 6px; font: 12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; opacity: .7;
}}
#timeline {{ flex: 1; min-height: 0; padding: 6px 14px 10px; }}
</style></head>
<body><div id="page"><h1>{title}</h1><p>{summary}</p><div id="timeline"></div></div>
<script type="application/json" id="data">{data}</script>
<script type="module">
{script}
</script></body></html>
"""


def timeline_html(
    timeline: Timeline,
    path: str | Path,
    title: str = "Timeline",
    *,
    over: Timeline | None = None,
    labels: tuple[str, str] = ("measured", "predicted"),
) -> Path:
    """Write ``timeline`` as an interactive page, the widget's own canvas; returns its path. ``over`` is laid over it.

    ``labels`` names the two. Raises `ConfigError` for what is no timeline, title or label, `TimelineError` where the
    page cannot be written.
    """
    if not isinstance(title, str):
        raise ConfigError(f"timeline_html(title={shown(title)}): a text. Next: title='Timeline'.")
    both, named = pair("timeline_html", timeline, over, labels)
    content, parts = message([TimelineFeed(t).take(final=True) for t in both])
    data = {"content": content, "parts": {name: _packed(part) for name, part in parts.items()}, "labels": named}
    page = _PAGE.format(
        title=escape(writable(title)),
        summary=escape(" · ".join(repr(t) for t in both)),
        style=stylesheet(),
        # A "</script>" inside a name must not end the element.
        data=json.dumps(data).replace("<", "\\u003c"),
        script=module(*TIMELINE, "page.js"),
    )
    with writing("timeline_html", path) as target:
        target.write_text(page, encoding="utf-8")
    return Path(path)


def pair(who: str, timeline: object, over: object, labels: object) -> tuple[list[Timeline], list[str]]:
    """A timeline, the one to lay over it or None, and their names. Raises `ConfigError` for anything else."""
    both: list[Timeline] = []
    for given in (timeline, *([] if over is None else [over])):
        if not isinstance(given, Timeline):
            raise ConfigError(
                f"{who}({shown(given)}): a Timeline. Next: {who}(run.timeline{', ...' * (who == 'timeline_html')})."
            )
        both.append(given)
    texts = list(labels) if isinstance(labels, Iterable) and not isinstance(labels, str) else []
    if len(texts) < len(both) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(
            f"{who}(labels={shown(labels)}): a name for each timeline. Next: labels=('measured', 'predicted')."
        )
    return both, texts[: len(both)]


def _packed(rows: bytes) -> str:
    return base64.b64encode(gzip.compress(rows, compresslevel=6, mtime=0)).decode("ascii")
