"""The colours of workers and of causes, the same in every picture. They are the widget's, for light and for dark
grounds.

Ten workers and nine causes that stay apart in the three colour-vision deficiencies, with contrast 3 against their
ground (tested).
"""

from __future__ import annotations

from collections.abc import Iterable

MODES = ("light", "dark")
WORKERS = {
    "light": (
        "#1e69b4",
        "#3ca578",
        "#b40078",
        "#a587d2",
        "#ff5a00",
        "#785a00",
        "#003c00",
        "#0000c3",
        "#b400ff",
        "#4b005a",
    ),
    "dark": (
        "#4b96ff",
        "#2de169",
        "#ff4bb4",
        "#e1b4ff",
        "#c31e0f",
        "#a5960f",
        "#a5fff0",
        "#ffff0f",
        "#a500c3",
        "#5a6969",
    ),
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


#: Five that are most apart come first; the salt puts the usual names of reinforcement learning on different ones.
_FIRST, _SALT, _PRIME = 5, 37888430, 16777619


def colour_numbers(workers: Iterable[str], others: Iterable[str] = ()) -> dict[str, int]:
    """The number of each worker's colour. It follows from its name, not its place, so that a worker looks the same
    whatever the plan.

    Whose colour is taken has the next one that fewest have. ``others`` (workers without a device) choose after
    ``workers``, and change nothing for those. The same as in the widget (`colourNumbers` in base.js).
    """
    slots = len(WORKERS["light"])
    taken, found = [0] * slots, dict[str, int]()
    for group in (set(workers), set(others) - set(workers)):
        for hashed, name in sorted((_hash(name), name) for name in group):
            turn = [((hashed >> 8) % _FIRST + step) % slots for step in range(slots)]
            found[name] = min(turn, key=taken.__getitem__)
            taken[found[name]] += 1
    return found


def _hash(name: str) -> int:
    """FNV-1a, 32 bits."""
    value = _SALT
    for byte in name.encode("utf-8", "replace"):
        value = (value ^ byte) * _PRIME & 0xFFFFFFFF
    return value


def worker_colour(number: int, mode: str) -> str:
    """The colour with this number."""
    return WORKERS[mode][number]
