"""Depths of channels: against items counted one by one."""

from __future__ import annotations

import random
from collections import defaultdict

from rlinf_lab.timeline import Recorder, SpanKind, Timeline

K = SpanKind
Steps = dict[str, list[tuple[int, int]]]


def told(timeline: Timeline) -> Steps:
    """(time, depth) of every row, by channel."""
    found: Steps = defaultdict(list)
    for row in timeline.depths().itertuples():
        found[row.channel].append((row.time_ns, row.depth))
    return found


def counted(timeline: Timeline) -> Steps:
    """The same, one instant after the other: all that was put until then less all that was taken, and what iterations left that are over."""
    rows, found = [r for r in timeline.rows() if r.kind in (K.PUT, K.GET) and r.channel], {}
    ends = {r.iteration: r.end_ns for r in sorted(timeline.rows(), key=lambda r: r.end_ns) if r.kind is K.MARK}
    for channel in {r.channel for r in rows if r.kind is K.PUT and r.items}:
        own = [(r.end_ns, r.items if r.kind is K.PUT else -r.items, r.iteration) for r in rows if r.channel == channel and r.items]
        for iteration, end in ends.items():
            own.append((end, -sum(n for _, n, of in own if of == iteration), -2))
        times = sorted({at for at, n, _ in own if n})
        depths = [(at, max(0, sum(n for when, n, _ in own if when <= at))) for at in times]
        found[channel] = [step for i, step in enumerate(depths) if not i or step[1] != depths[i - 1][1]]
    return found


def randomly(seed: int) -> Timeline:
    """Puts and gets of three channels by several ranks, at few instants; some items are never taken, some are taken before they are put."""
    rng, recorder, timeline = random.Random(seed), Recorder(), Timeline(["cpu:0"])
    tracks = [recorder.track("w", r, ("cpu:0",)) for r in range(4)]
    step, channels = recorder.name("step"), [recorder.channel(c) for c in ("a", "b", "only_read")]
    for _ in range(rng.choice((0, 1, 99, 150))):
        start, kind, channel = rng.randrange(200), rng.choice((K.PUT, K.PUT, K.GET, K.RUN)), rng.choice((*channels, -1))
        if channel == channels[2]:
            kind = K.GET
        recorder.add(rng.choice(tracks), kind, step, start, start + rng.choice((0, 3, 40)), rng.randrange(-1, 4), rng.choice((0, 1, 5)), 0, channel)
    for iteration in range(rng.randrange(4)):  # some have not ended
        recorder.add(tracks[0], K.MARK, recorder.name("iteration"), 60 * iteration, 60 * iteration + rng.randrange(90), iteration)
    timeline.extend(recorder.drain())
    return timeline


def test_every_change_of_random_timelines() -> None:
    seen = 0
    for seed in range(60):
        timeline = randomly(seed)
        assert told(timeline) == counted(timeline), seed
        frame = timeline.depths()
        assert frame.columns.tolist() == ["channel", "time_ns", "seconds", "depth"]
        order = frame.assign(number=[timeline.names.index(c) for c in frame["channel"]])
        assert order.sort_values(["time_ns", "number"]).index.tolist() == list(range(len(frame))), "by time, then channel"
        assert frame["seconds"].tolist() == [(t - timeline.start_ns) / 1e9 for t in frame["time_ns"]]
        seen += len(frame)
    assert seen > 500
