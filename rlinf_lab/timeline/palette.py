"""The colours of workers and of causes, the same in every picture: the widget's, for light and for dark grounds.

Ten workers and nine causes that stay apart in the three colour-vision deficiencies, with contrast 3 against their ground (tested).
"""

from __future__ import annotations

MODES = ("light", "dark")
WORKERS = {
    "light": ("#1e69b4", "#3ca578", "#b40078", "#a587d2", "#ff5a00", "#785a00", "#003c00", "#0000c3", "#b400ff", "#4b005a"),
    "dark": ("#4b96ff", "#2de169", "#ff4bb4", "#e1b4ff", "#c31e0f", "#a5960f", "#a5fff0", "#ffff0f", "#a500c3", "#5a6969"),
}
#: By `Cause`.
CAUSE_COLOURS = {
    "light": {
        "starved": "#b18f21", "blocked": "#ae3719", "lock": "#9a6cfb", "setup": "#1d021a", "switch": "#007bb6",
        "fill": "#33c5f4", "drain": "#c3bf55", "tail": "#f984ab", "off": "#dcdfe3",
    },
    "dark": {
        "starved": "#ffb700", "blocked": "#e87a00", "lock": "#a45aff", "setup": "#d9fbf7", "switch": "#1e89a9",
        "fill": "#3b4f80", "drain": "#744208", "tail": "#ac5f53", "off": "#2a2d31",
    },
}  # fmt: skip
INK = {"light": "#1f2328", "dark": "#e6e8ea"}
GROUND = {"light": "#ffffff", "dark": "#111111"}


def worker_colour(number: int, mode: str) -> str:
    """The colour of the worker with this number, in order of appearance; they repeat after ten."""
    return WORKERS[mode][number % len(WORKERS[mode])]
