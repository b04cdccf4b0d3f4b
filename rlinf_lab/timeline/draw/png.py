"""A scene as PNG, drawn with Pillow."""

from __future__ import annotations

import io
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlinf_lab.errors import TimelineError, UnknownNameError, shown
from rlinf_lab.timeline.draw.palette import CAUSE_COLOURS, GROUND, INK, MODES, colour_numbers, worker_colour
from rlinf_lab.timeline.draw.picture import Scene
from rlinf_lab.timeline.record.span import Cause

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

_MAX_WIDTH_PX = 40_000  # pixels of width
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}


def to_png(scene: Scene, path: str | Path, theme: str = "light", scale: float = 3.0) -> Path:
    """Write the picture, ``scale`` pixels for each CSS pixel. 3 is about 290 dpi at the width of a page. Returns the
    path.
    """
    if theme not in MODES:
        raise UnknownNameError.of("theme", theme, MODES)
    if (
        isinstance(scale, bool)
        or not isinstance(scale, int | float)
        or not 0.1 <= scale <= 20
        or scene.width * scale > _MAX_WIDTH_PX
    ):
        raise TimelineError(
            f"to_png(scale={shown(scale)}): pixels for each CSS pixel, from 0.1 to 20, at most {_MAX_WIDTH_PX} in all. "
            "Next: "
            "scale=3."
        )
    _drawn(scene, theme, scale).save(path, "PNG", dpi=(96 * scale, 96 * scale))
    return Path(path)


def png_bytes(scene: Scene, scale: float = 1.5) -> bytes:
    """The picture on white as the content of a PNG file, for a notebook."""
    buffer = io.BytesIO()
    _drawn(scene, "light", scale).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _drawn(scene: Scene, theme: str, scale: float) -> Image:
    from PIL import Image, ImageDraw

    at = lambda *values: [round(v * scale) for v in values]  # noqa: E731
    image = Image.new("RGB", tuple(at(scene.width, scene.height)), GROUND[theme])
    draw, number = ImageDraw.Draw(image), colour_numbers(scene.placed, scene.workers)
    for bar in scene.bars:
        x0, y0, x1, y1 = at(bar.x, bar.y, bar.x + bar.width, bar.y + bar.height)
        if isinstance(bar.fill, Cause):
            _hatch(image, (x0, y0, x1, y1), bar.fill, theme, scale)
        else:
            draw.rectangle((x0, y0, x1 - 1, y1 - 1), worker_colour(number[bar.fill], theme))
    for line in scene.lines:
        draw.line(
            at(line.x0, line.y0, line.x1, line.y1),
            _mixed(INK[theme], GROUND[theme], line.opacity),
            max(1, round(line.width * scale)),
        )
    font = _font(11 * scale)
    for word in scene.words:
        draw.text((word.x * scale, word.y * scale), word.text, INK[theme], font, anchor=_ANCHORS[word.anchor])
    return image


def _font(size: float) -> FreeTypeFont:
    """matplotlib's own font, which the texts of an SVG have on Debian, too.

    Pillow's has no µ, no ∞ and no dashes.
    """
    from PIL import ImageFont

    found = find_spec("matplotlib")
    assert found is not None and found.origin is not None
    return ImageFont.truetype(Path(found.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf", size)


def _hatch(image: Image, box: tuple[int, int, int, int], cause: Cause, theme: str, scale: float) -> None:
    """Fill a box with a cause's pattern, in step with that of its neighbours."""
    from PIL import Image

    tile, (x0, y0, x1, y1) = np.asarray(_tile(cause, theme, max(2, round(6 * scale)))), box
    rows, columns = np.arange(y0, y1) % len(tile), np.arange(x0, x1) % len(tile)
    if rows.size and columns.size:
        image.paste(Image.fromarray(tile[rows[:, None], columns]), (x0, y0))


@cache
def _tile(cause: Cause, theme: str, size: int) -> Image:
    """The shapes of `rlinf_lab.timeline.draw.svg` on one square, drawn four times as large and shrunk."""
    from PIL import Image, ImageDraw

    big, ink = 4 * size, CAUSE_COLOURS[theme][cause]
    tile = Image.new("RGB", (big, big), GROUND[theme])
    draw, thick = ImageDraw.Draw(tile), max(1, round(big / 5))
    if cause in (Cause.FILL, Cause.DRAIN):
        draw.rectangle((0, 0, big, big), _mixed(ink, GROUND[theme], 0.3 if cause is Cause.FILL else 0.55))
    elif cause is Cause.SETUP:
        draw.rectangle((0, 0, big, big // 2), ink)
    elif cause is Cause.SWITCH:
        draw.rectangle((0, 0, big // 2, big), ink)
    elif cause is Cause.LOCK:
        draw.ellipse((big * 0.27, big * 0.27, big * 0.73, big * 0.73), ink)
    elif cause is Cause.TAIL:
        draw.line((0, big // 2, big, big // 2), ink, thick)
    else:
        for shift in (-big, 0, big):  # the neighbours' lines reach into the corners
            draw.line((shift, big, shift + big, 0), ink, thick)
            if cause is Cause.BLOCKED:
                draw.line((shift, 0, shift + big, big), ink, thick)
    return tile.resize((size, size), Image.Resampling.LANCZOS)


def _mixed(ink: str, ground: str, share: float) -> tuple[int, ...]:
    """An ink at this opacity on the ground."""
    from PIL import Image

    below, above = (Image.new("RGB", (1, 1), colour) for colour in (ground, ink))
    return tuple(Image.blend(below, above, share).tobytes())
