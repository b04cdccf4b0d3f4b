"""A scene as SVG. It follows the page's theme, JupyterLab's too, or has the colours of one theme for a paper."""

from __future__ import annotations

import base64
import re
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Sequence
from html import escape

from rlinf_lab.errors import UnknownNameError
from rlinf_lab.timeline.draw.palette import CAUSE_COLOURS, INK, MODES, colour_numbers, worker_colour
from rlinf_lab.timeline.draw.picture import Scene
from rlinf_lab.timeline.record.span import Cause

#: What a document of XML 1.0 cannot hold, not even escaped.
_NO_XML = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
#: Shapes of a 6 x 6 tile; their colour comes from the cause.
_HATCH = {
    Cause.STARVED: '<path d="M0 6L6 0" class="{0}s" stroke-width="1.2"/>',
    Cause.BLOCKED: '<path d="M0 0L6 6M0 6L6 0" class="{0}s" stroke-width="1"/>',
    Cause.LOCK: '<circle cx="3" cy="3" r="1.4" class="{0}"/>',
    Cause.SETUP: '<rect width="6" height="3" class="{0}"/>',
    Cause.SWITCH: '<rect width="3" height="6" class="{0}"/>',
    Cause.FILL: '<rect width="6" height="6" class="{0}" opacity=".3"/>',
    Cause.DRAIN: '<rect width="6" height="6" class="{0}" opacity=".55"/>',
    Cause.TAIL: '<path d="M0 3H6" class="{0}s" stroke-width="1.4"/>',
}


_times: Counter[str] = Counter()  # each picture has been shown, by its beginning
_lock = threading.Lock()


def shown_svg(scene: Scene) -> str:
    """As `to_svg`, for a page that may show the same picture twice. No two have an id in common.

    Of two equal ids a page takes the first, and paints nothing where that one is hidden, as the picture above a widget
    is. What tells them apart is the notebook's cell and how often this process has shown this very picture there: a
    notebook that is run again from its start is stored as it was.
    """
    return _svg(scene, "auto", _counted(_prefix(scene, _cell())))


def _counted(name: str) -> str:
    """The name, and how often it was asked for."""
    with _lock:
        _times[name] += 1
        return f"{name}-{_times[name]}"


def shown_html(scene: Scene, drawn: str = "") -> str:
    """`shown_svg`, also for a page that takes SVG out of HTML. ``drawn``: what that gave, where it is there already."""
    return anywhere(drawn or shown_svg(scene), to_svg(scene, "light"), scene.title, scene.width)


def anywhere(drawn: str, image: str, title: str, width: int = 0) -> str:
    """HTML that shows the SVG ``drawn``, or ``image``, another one. The latter where a page takes SVG out and leaves
    its words.

    JupyterLab does so in a notebook of somebody else, with style sheets, too: so what is drawn is hidden, and a style
    sheet shows it and hides the image. The name is of this picture alone, as in `shown_svg`, for a notebook may hold
    what is taken out beside the same that the reader has run.
    ``width``: CSS pixels of the image; 0: its own.
    """
    name, data = (
        f"picture-{_counted(f'{zlib.crc32(repr((drawn, _cell())).encode()):x}')}",
        base64.b64encode(image.encode()).decode("ascii"),
    )
    style = f"<style>.{name}-drawn{{display:block!important}}.{name}-image{{display:none!important}}</style>"
    wide = f' width="{width}"' if width else ""
    seen = (
        f'<img class="{name}-image"{wide} style="max-width:100%;background:#fff" alt="{_text(title)}" '
        f'src="data:image/svg+xml;base64,{data}">'
    )
    return f'<div style="display:none" class="{name}-drawn">{style}{drawn}</div>{seen}'


def to_svg(scene: Scene, theme: str = "auto") -> str:
    """The picture as SVG text, the same for the same scene. ``theme``: "light", "dark", or "auto" for that of the page
    it is in.

    Raises `UnknownNameError` for another theme.
    """
    if theme not in (*MODES, "auto"):
        raise UnknownNameError.of("theme", theme, (*MODES, "auto"))
    return _svg(scene, theme, _prefix(scene, theme))


def _prefix(scene: Scene, where: str) -> str:
    """How its ids begin. Patterns and classes of several pictures in one page must not meet."""
    return f"h{zlib.crc32(repr((scene.bars, where)).encode()):x}"


def _cell() -> str:
    """The id of the notebook's cell that runs, which the file keeps. "" where the page does not tell it."""
    module = sys.modules.get("ipykernel.kernelbase")
    if module is None or not module.Kernel.initialized():
        return ""
    return str((module.Kernel.instance().get_parent("shell") or {}).get("metadata", {}).get("cellId", ""))


def _svg(scene: Scene, theme: str, prefix: str) -> str:
    used = [cause for cause in _HATCH if any(bar.fill is cause for bar in scene.bars)]
    patterns = "".join(
        f'<pattern id="{prefix}-{cause}" width="6" height="6" '
        f'patternUnits="userSpaceOnUse">{_HATCH[cause].format(f"{prefix}-{cause[:2]}")}</pattern>'
        for cause in used
    )
    number = colour_numbers(scene.placed, scene.workers)
    parts = [f"<style>{_style(prefix, theme, used, sorted(set(number.values())))}</style><defs>{patterns}</defs>"]
    for bar in scene.bars:
        fill = (
            f'fill="url(#{prefix}-{bar.fill})"'
            if isinstance(bar.fill, Cause)
            else f'class="{prefix}-w{number[bar.fill]}"'
        )
        parts.append(f'<rect x="{bar.x:g}" y="{bar.y:g}" width="{bar.width:g}" height="{bar.height:g}" {fill}/>')
    parts += [
        f'<path class="{prefix}-l" d="M{line.x0:.5g} {line.y0:g}L{line.x1:.5g} {line.y1:g}" '
        f'stroke-width="{line.width:g}"' + f' opacity="{line.opacity:g}"' * (line.opacity < 1) + "/>"
        for line in scene.lines
    ]
    parts += [
        f'<text class="{prefix}-t" x="{word.x:g}" y="{word.y:g}" text-anchor="{word.anchor}">{_text(word.text)}</text>'
        for word in scene.words
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {scene.width} {scene.height}" width="100%" role="img"'
        f' style="max-width:{scene.width}px"><title>{_text(scene.title)}</title>{"".join(parts)}</svg>'
    )


def _style(prefix: str, theme: str, used: Sequence[Cause], colours: Sequence[int]) -> str:
    if theme != "auto":
        return _rules(prefix, theme, used, colours, "")
    dark = _rules(prefix, "dark", used, colours, "")
    named = "".join(
        _rules(prefix, mode, used, colours, f'body[data-jp-theme-light="{str(mode == "light").lower()}"] ')
        for mode in MODES
    )
    return f"{_rules(prefix, 'light', used, colours, '')}@media(prefers-color-scheme:dark){{{dark}}}{named}"


def _rules(prefix: str, mode: str, used: Sequence[Cause], colours: Sequence[int], where: str) -> str:
    """Colours of one theme, for elements within ``where``."""
    p = f"{where}.{prefix}-"
    rules = [f"{p}t{{fill:{INK[mode]};font:11px system-ui,sans-serif}}{p}l{{stroke:{INK[mode]}}}"]
    rules += [f"{p}w{i}{{fill:{worker_colour(i, mode)}}}" for i in colours]
    rules += [
        f"{p}{c[:2]}{{fill:{CAUSE_COLOURS[mode][c]}}}{p}{c[:2]}s{{stroke:{CAUSE_COLOURS[mode][c]};fill:none}}"
        for c in used
    ]
    return "".join(rules)


def _text(text: str) -> str:
    """The text as XML can hold it. It has no control characters, which a name may have, nor halves of characters."""
    return escape(_NO_XML.sub("\N{REPLACEMENT CHARACTER}", text))
