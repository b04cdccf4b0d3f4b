"""A profile from a trace of another tool. A mapping says which names in it are which workers.

A device is known where a lane is a stream of a GPU, or a rank of a timeline of ours. Lanes of other processes (a node
with Ray's workers, a Python process) do not say which device they worked on: then each lane counts as one, and the
profile's notes say so. Where fewer devices are given than there are lanes, the lanes share them: spans of one device
may hop between lanes, as with a pool of threads or tasks that any process of a node takes.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlinf_lab.errors import PlanError, shown
from rlinf_lab.errors import counted as of
from rlinf_lab.planning.plan.device import Device
from rlinf_lab.planning.profile.profile import EdgeProfile, Profile, Sample, WorkerProfile
from rlinf_lab.planning.schema.arguments import MAX_DEVICES, whole
from rlinf_lab.planning.schema.json_schema import known, listing
from rlinf_lab.timeline.account.tables import whole_iterations
from rlinf_lab.timeline.record.span import Span, SpanKind, Track
from rlinf_lab.timeline.timeline import Timeline


def profile_from_trace(
    timeline: Timeline,
    workers: Mapping[str, str],
    items: int,
    edges: Sequence[tuple[str, str]],
    *,
    iterations: int | None = None,
    devices: Mapping[str, int] | None = None,
    name: str = "imported",
) -> Profile:
    """A profile from the timeline of any tool. `Timeline.open` reads Chrome traces of Ray, RLinf, verl, torch's
    profiler.

    ``workers``: for each worker the name of its spans or of the lanes that it works on, or a pattern of these
    (``"generate*"``). Where some of its spans are on a GPU, only those count. ``items`` of an iteration. ``iterations``
    that the trace holds (default: those that it marks, as torch's profiler does with ``step()``, and that came to their
    end: the rest does not count; one where it marks none). ``edges``: (producer, consumer). ``devices``: how many each
    worker has (default: those it was seen on); where it is fewer than the lanes, as many of them are taken to work at a
    time as lanes do, all of them for equally long.

    Raises `PlanError` naming a pattern that nothing matches, with what is there, or two patterns whose time would count
    twice.
    """
    if iterations is not None:
        whole(f"profile_from_trace(iterations={shown(iterations)}): it", iterations, 1, 10**9)
    _check(timeline, workers, edges, devices)
    items = whole("profile_from_trace: items", items, 1, 10**9)
    timeline = timeline.snapshot()
    ended = whole_iterations(timeline)
    if ended is not None and not ended:
        raise PlanError(
            "No iteration of the timeline came to its end: all of them failed or were given up. Next: the timeline of "
            "a run that did not fail."
        )
    marked = len(ended or ())
    counted = iterations or marked or 1
    spans = [s for s in timeline.rows() if s.kind in (SpanKind.RUN, SpanKind.LABEL)]
    reach = _Reach.of(timeline, ended) if ended and iterations in (None, marked) else None
    seen = {worker: _seen(spans, worker, pattern, reach) for worker, pattern in workers.items()}
    _check_apart(seen, workers)
    notes = [
        f"Fitted to a trace of {of(counted, 'iteration')}: one device count, so scaling is assumed. Add samples or "
        "exponents where you know them."
    ]
    notes += [f"{worker}: {own.left_out}." for worker, own in seen.items() if own.left_out]
    if iterations is not None and marked not in (0, iterations):
        notes.append(
            f"The trace marks {marked} iterations, {iterations} were asked for: seconds are its time over {iterations}."
        )
    if not marked:
        notes += _on_iterations(seen, iterations)
    found = {}
    for worker, own in seen.items():
        count = (devices or {}).get(worker, own.seen_on)
        if own.guessed and worker not in (devices or {}):
            at_once = f" (at most {own.at_once} at work at a time)" if own.at_once < count else ""
            lanes = f"{count} lane{'s' * (count != 1)}{at_once} count{'s' * (count == 1)}"
            notes.append(
                f"{worker}: the trace does not name its devices, so its {lanes} as one each. Give "
                f"devices={{{worker!r}: ...}}."
            )
        found[worker] = WorkerProfile(
            (Sample(count, float(items), own.busy_ns(count) / 1e9 / counted),), resource="device" if count else "host"
        )
    return Profile(items, found, tuple(EdgeProfile(p, c) for p, c in edges), name, notes=tuple(notes))


def _on_iterations(seen: Mapping[str, _Seen], iterations: int | None) -> list[str]:
    """Of a trace that marks none: what speaks for others than were counted."""
    lanes = {worker: max(Counter(s.track for s in own.spans).values()) for worker, own in seen.items()}
    if iterations is None:
        said = listing([f"{worker} {of(n, 'span')}" for worker, n in lanes.items()])
        several = (
            f"The trace marks no iterations, so all of it counts as one (on a lane: {said}). Next: iterations=..., "
            "where it is of several."
        )
        return [several] * (max(lanes.values()) > 1)
    fewer = listing([f"{worker} {of(n, 'span')}" for worker, n in lanes.items() if n < iterations])
    return [
        f"{fewer} on a lane, fewer than the {of(iterations, 'iteration')} that were asked for: seconds are its time "
        f"over {iterations}."
    ] * (fewer != "none")


def _check(timeline: object, workers: object, edges: object, devices: object) -> None:
    if not isinstance(timeline, Timeline):
        raise PlanError(f"profile_from_trace({shown(timeline)}, ...): a Timeline is needed. Next: Timeline.open(path).")
    if (
        not isinstance(workers, Mapping)
        or not workers
        or not all(isinstance(w, str) and isinstance(p, str) for w, p in workers.items())
    ):
        raise PlanError(
            f"profile_from_trace: workers is {shown(workers)}; a pattern of span names for each worker. Next: "
            f"workers={{'rollout': 'generate*'}}."
        )
    if (
        isinstance(edges, str)
        or not isinstance(edges, Sequence)
        or not all(isinstance(e, tuple | list) and len(e) == 2 for e in edges)
    ):
        raise PlanError(
            f"profile_from_trace: edges is {shown(edges)}; pairs of producer and consumer. Next: edges=[('rollout', "
            "'learner')]."
        )
    if devices is not None and not isinstance(devices, Mapping):
        raise PlanError(
            f"profile_from_trace: devices is {shown(devices)}; how many each worker has. Next: devices={{'rollout': "
            f"8}}."
        )
    for worker, count in (devices or {}).items():
        known("worker", worker, workers, "devices")
        whole(f"profile_from_trace: devices[{worker!r}]", count, 0, MAX_DEVICES)


@dataclass(frozen=True)
class _Seen:
    """The ``spans`` of one worker, and when each of its places was at work. Times are [start, end) in ns, apart and in
    order. Places are its devices, or its lanes where those are not known (``guessed``) or it has none; ``seen_on`` so
    many devices. ``left_out``: what of it does not count, in words.
    """

    spans: tuple[Span, ...]
    guessed: bool
    seen_on: int
    work: tuple[tuple[tuple[int, int], ...], ...]
    left_out: str

    @property
    def at_once(self) -> int:
        """Most places at work at a time."""
        return max(active for active, _ in self._stretches())

    def busy_ns(self, devices: int) -> float:
        """Nanoseconds for which the busiest of so many devices worked."""
        # The ranks of a worker advance together: the one that was busy longest tells.
        longest = max(sum(end - start for start, end in own) for own in self.work)
        if devices >= len(self.work) or devices == self.seen_on:
            return longest
        shared = max(devices, 1)  # of none, on the host, it is one service
        return max(longest, sum(min(active, shared) * ns for active, ns in self._stretches()) / shared)

    def _stretches(self) -> Iterator[tuple[int, int]]:
        """(places at work, for how many ns), one after another."""
        turns = sorted(
            (at, change) for own in self.work for start, end in own for at, change in ((start, 1), (end, -1))
        )
        active = 0
        for (at, change), (then, _) in itertools.pairwise(turns):
            active += change
            yield active, then - at


@dataclass(frozen=True)
class _Reach:
    """What counts of a trace that marks iterations. It reaches from when the first one that came to its end begins to
    when the last one ends, ns, and has their numbers.
    """

    start_ns: int
    end_ns: int
    ended: Collection[int]

    @classmethod
    def of(cls, timeline: Timeline, ended: Collection[int]) -> _Reach:
        marks = timeline.iterations()
        marks = marks[marks["iteration"].isin(ended)]
        return cls(int(marks["start_ns"].min()), int(marks["end_ns"].max()), ended)

    def holds(self, span: Span) -> bool:
        """Whether a span is of these iterations. A GPU is behind the host that marks them, and may begin what belongs
        to the last one after its end. Spans of ours say which they are of.
        """
        if span.iteration >= 0:
            return span.iteration in self.ended
        return span.start_ns >= self.start_ns and (span.start_ns < self.end_ns or _on_gpu(span.track))


def _seen(spans: Sequence[Span], worker: str, pattern: str, reach: _Reach | None) -> _Seen:
    """``reach``: of the iterations that count; None: everything does."""
    matching = [s for s in spans if _matches(s.name, pattern) or _matches(s.track.worker, pattern)]
    own = [s for s in matching if s.end_ns > s.start_ns]
    if not own:
        raise _nothing(spans, worker, pattern, len(matching))
    # What the host does for a GPU is on both, at different times: the GPU's tell what it takes.
    own = [s for s in own if _on_gpu(s.track)] or own
    inside = [s for s in own if reach is None or reach.holds(s)]
    if not inside:
        raise PlanError(
            f"All {of(len(own), 'span')} that match {pattern!r} (worker {worker!r}) lie outside of the iterations that "
            "came to their end. "
            f"Next: a pattern of what lies in them, or a trace without steps."
        )
    left_out = (
        f"{of(len(own) - len(inside), 'span')} outside of the iterations that came to their end left out, "
        f"{_seconds(own) - _seconds(inside):.3g} s"
    )
    return _placed(inside, left_out if len(inside) < len(own) else "")


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)  # a name may have brackets


def _seconds(spans: Iterable[Span]) -> float:
    return sum(s.end_ns - s.start_ns for s in spans) / 1e9


def _nothing(spans: Sequence[Span], worker: str, pattern: str, matching: int) -> PlanError:
    if matching:
        return PlanError(
            f"All {of(matching, 'span')} that match {pattern!r} (worker {worker!r}) last 0 s. Next: another pattern, "
            "or without this worker."
        )
    names = sorted({s.name for s in spans if s.end_ns > s.start_ns})[:12]
    if not names:
        return PlanError(
            f"The timeline has no span that lasts any time, so nothing for worker {worker!r}. Next: a trace with spans "
            "of what it did."
        )
    return PlanError(
        f"Nothing in the timeline matches {pattern!r} (worker {worker!r}). Spans there: {listing(names)}. Next: one of "
        "these."
    )


def _placed(own: Sequence[Span], left_out: str) -> _Seen:
    guessed = not all(Device.is_name(d) for s in own for d in s.track.devices)
    times: dict[object, list[tuple[int, int]]] = {}
    for s in own:
        for place in [s.track] if guessed or not s.track.devices else [(s.track.host, d) for d in s.track.devices]:
            times.setdefault(place, []).append((s.start_ns, s.end_ns))
    seen_on = len(times) if guessed else sum(not isinstance(p, Track) for p in times)
    return _Seen(tuple(own), guessed, seen_on, tuple(_joined(intervals) for intervals in times.values()), left_out)


def _on_gpu(track: Track) -> bool:
    return any(Device.is_name(d) and Device.parse(d).kind == "cuda" for d in track.devices)


def _check_apart(seen: Mapping[str, _Seen], workers: Mapping[str, str]) -> None:
    """No span of one worker is one of another's, or lies within one. Its time would count for both."""
    lanes: dict[Track, list[tuple[Span, str]]] = {}
    for worker, own in seen.items():
        for s in own.spans:
            lanes.setdefault(s.track, []).append((s, worker))
    for members in lanes.values():
        around: dict[str, Span] = {}  # of each worker, the span that has reached furthest
        for s, worker in sorted(members, key=lambda m: (m[0].start_ns, -m[0].end_ns)):
            _check_outside(s, worker, around, workers)
            if worker not in around or s.end_ns > around[worker].end_ns:
                around[worker] = s


def _check_outside(span: Span, worker: str, around: Mapping[str, Span], workers: Mapping[str, str]) -> None:
    for other, outer in around.items():
        if other != worker and span.end_ns <= outer.end_ns:
            matched = f"Span {span.name!r} matches {workers[worker]!r} (worker {worker!r})"
            also = (
                f"also {workers[other]!r}"
                if span == outer
                else f"lies within {outer.name!r}, which matches {workers[other]!r}"
            )
            raise PlanError(
                f"{matched}, and {also} (worker {other!r}): its time would count twice. Next: patterns that have no "
                "time in common; leave one of them out."
            )


def _joined(times: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """What at least one of the intervals covers."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(times):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return tuple(found)
