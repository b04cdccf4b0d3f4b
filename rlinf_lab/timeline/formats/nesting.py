"""Lanes on which spans nest. Viewers draw a thread as a stack, in which a span ends before the one that encloses it.

Spans of one rank may overlap without enclosing each other (asynchronous work): those get lanes of their own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.timeline.record.batch import SpanArray


def nested(spans: SpanArray) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(row numbers by track, lane and start, lane of each of them). Lane 0 of a track holds whatever nests; those that
    would cut a span come after.
    """
    order = np.lexsort((spans["kind"], -spans["end"], spans["start"], spans["track"]))
    lanes = np.zeros(len(order), np.intp)
    stacks: list[list[int]] = []  # ends of the open spans of each lane of a track
    track = -1
    rows = zip(
        spans["track"][order].tolist(), spans["start"][order].tolist(), spans["end"][order].tolist(), strict=True
    )
    for i, (of_track, start, end) in enumerate(rows):
        if of_track != track:
            track, stacks = of_track, [[]]
        lane = 0
        while lane < len(stacks):
            stack = stacks[lane]
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or end <= stack[-1]:
                break
            lane += 1
        else:
            stacks.append([])
        stacks[lane].append(end)
        if lane:
            lanes[i] = lane
    if lanes.any():
        again = np.lexsort((lanes, spans["track"][order]))
        order, lanes = order[again], lanes[again]
    return order, lanes
