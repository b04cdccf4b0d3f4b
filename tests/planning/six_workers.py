"""A branching flow with memory and switching: what makes quick answers slow."""

from __future__ import annotations

from typing import Any

from rlinf_lab.planning.profile.profile import Profile


def six_workers(workers: int = 6) -> Profile:
    """One worker feeds three, which feed a fifth, whose whole batch a sixth waits for; memory and switching."""

    def worker(seconds: float, exponent: float, fixed: float, gib: float = 10) -> dict[str, Any]:
        sizes = [(d, i) for d in (1, 8, 64) for i in (32, 2048)]
        return {
            "samples": [{"devices": d, "items": i, "seconds": seconds * i / 2048 / d**exponent + fixed} for d, i in sizes],
            "memory": {"resident_gib": gib, "per_item_gib": 0.02}, "onload_s": 2.0, "offload_s": 1.0,
        }  # fmt: skip

    made = {"a": worker(4000, 0.8, 0.3, 20), "b": worker(600, 0.9, 0.1), "c": worker(900, 0.7, 0.1), "d": worker(300, 0.95, 0.05),
            "e": worker(3000, 0.85, 0.2, 40), "f": worker(500, 0.9, 0.1)}  # fmt: skip
    names = [n for n in made if workers == 6 or n not in "df"]
    edges = [("a", x, False) for x in "bcd"] + [(x, "e", False) for x in "bcd"] + [("e", "f", True)]
    return Profile.from_dict({
        "items": 2048, "device_memory_gib": 64, "workers": {n: made[n] for n in names},
        "edges": [{"producer": p, "consumer": c, "whole": whole} for p, c, whole in edges if {p, c} <= set(names)],
    })  # fmt: skip
