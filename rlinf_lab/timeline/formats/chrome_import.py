"""Chrome trace JSON of other tools as a timeline. It may come from torch's profiler, ``ray timeline``, RLinf's tracer
or our own export.

Read are the phases X, B and E, b and e (joined by id), i, C and the names in M, of all that `chrome_text` can read. A
thread becomes a track and its process the device that it is on; a stream of a GPU is on that GPU. Categories that say
what kind of time it was are in `_KINDS`; everything else ran. An instant (i) is a label of 0 s on its thread, if it
lies within the time of the others, or there are no others; those of a whole process or recording (`s` is p or g) if
their thread has others, too. An event with a field that the format does not have there is left out, and a warning
counts them and names the first. Arrows (phases s, t, f) are from any span to any other one, ours from a put to a get:
they are counted (``Timeline.foreign_arrows``). What our own export says beside that of its lanes and spans (channels,
iterations, items) is read, too.
"""

from __future__ import annotations

import gc
import json
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_lab.errors import TimelineError, shown
from rlinf_lab.timeline.formats.chrome_text import Event, Loaded, load
from rlinf_lab.timeline.record.batch import COUNTER_DTYPE, SPAN_DTYPE, SpanBatch
from rlinf_lab.timeline.record.span import SpanKind, Track, writable
from rlinf_lab.timeline.record.store import ITERATION

#: Kind of time by category, of torch's profiler and of Ray; a thread's task that has parts of its own is drawn around
#: them.
_KINDS = {
    "gpu_memcpy": SpanKind.TRANSFER, "gpu_memset": SpanKind.TRANSFER, "gpu_user_annotation": SpanKind.LABEL,
    "user_annotation": SpanKind.LABEL,
    "cuda_sync": SpanKind.WAIT,
    "task:deserialize_arguments": SpanKind.TRANSFER, "task:store_outputs": SpanKind.TRANSFER,
    "worker_idle": SpanKind.GET,
    "ray.get": SpanKind.WAIT, "ray.wait": SpanKind.WAIT,
}  # fmt: skip
#: Kind by category, and what the arguments say, of spans of our own export.
_OUR_KINDS = {kind.name.lower(): kind for kind in SpanKind}
_OUR_ARGUMENTS = frozenset(("call", "iteration", "items", "bytes", "channel", "flow"))
_NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d{1,3})?")
_TIMED = frozenset("XBEbeCiI")
_INSTANT = ("i", "I")
_MAX_US = (1 << 62) // 1000
_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync")
_WAITS_FOR_GPU = re.compile(r"cud?a?(Stream|Event|Device|Ctx)Synchronize")  # of a thread, in CUDA's runtime and driver
_STEP = re.compile(r"ProfilerStep#(\d+)")
_TASK = "task::"  # in the categories of Ray's tasks; those of their parts have one colon
_LONG_ID = re.compile(r"([0-9a-f]{8})[0-9a-f]{8,}")  # Ray's worker ids: the beginning is enough


def read_chrome(path: str | Path) -> tuple[list[str], dict[str, Any]]:
    """(devices, arguments of ``SpanStore._restore``). Raises `TimelineError` for a file that holds no trace."""
    with _uncollected():
        found = _load(Path(path))
        reader = _Reader(found.other)
        reader.read(found.events)
        content = reader.content()
        if not _is_ours(found.other):
            return _devices(content["tracks"]), content
        zero = found.other["start_ns"]
        content["spans"]["start"] += zero
        content["spans"]["end"] += zero
        content["counters"]["time"] += zero
        content["dropped"] = _number(found.other.get("dropped_spans", 0))
        content["dropped_samples"] = _number(found.other.get("dropped_samples", 0))
        for key in ("clock_errors", "clock_jumps"):
            content[key] = {_text(host): _number(n) for host, n in dict(found.other.get(key, {})).items()}
        return found.other["devices"], content


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the garbage collector off. Millions of dictionaries and rows come, and none of them goes: to look through
    all of them for cycles, again and again, takes most of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def read_ranks(paths: Sequence[Path]) -> tuple[list[str], list[SpanBatch], int]:
    """Files of a run's processes, one for each, as one timeline. What is of rank 3 is on devices and threads called so.

    Ranks are as the files say (torch's ``distributedInfo``), else in the order of the paths. Clocks are taken as they
    are. (devices, what each says, how many arrows are left out.)
    """
    parts: list[tuple[str, dict[str, Any]]] = []
    with _uncollected():
        for number, path in enumerate(paths):
            found, reader = _load(path), _Reader({})
            if _is_ours(found.other):
                raise TimelineError(
                    f"{str(path)!r} is an export of a whole run, with all its ranks. Next: "
                    f"Timeline.open({str(path)!r})."
                )
            reader.read(found.events)
            parts.append((f"rank{number if found.rank is None else found.rank}", reader.content()))
    if len({name for name, _ in parts}) < len(parts):
        names = ", ".join(f"{path.name!r} of {name}" for path, (name, _) in zip(paths, parts, strict=True))
        raise TimelineError(f"Two of these traces are of the same rank: {names}. Next: name each rank's file once.")
    batches = [batch for name, content in parts for batch in _of_rank(name, content)]
    tracks = [track for batch in batches for track in batch.tracks]
    return _devices(tracks), batches, sum(content["foreign_arrows"] for _, content in parts)


def _is_ours(other: Event) -> bool:
    """Whether `Timeline.to_perfetto` wrote the file."""
    return isinstance(other.get("start_ns"), int) and isinstance(other.get("devices"), list)


def _of_rank(name: str, content: dict[str, Any]) -> list[SpanBatch]:
    """What a rank's file holds, with the rank's name before threads, devices and counters."""
    tracks = [Track(f"{name} {t.worker}", t.rank, tuple(f"{name}/{d}" for d in t.devices)) for t in content["tracks"]]
    names, counters = content["names"], content["counters"].copy()
    counters["name"] += len(names)
    told = tuple(f"{name} {text}" for text in names) if len(counters) else ()
    spans = SpanBatch(name, name, 0, content["spans"], tuple(tracks), tuple(names))
    return [spans, SpanBatch(name, name, 1, content["spans"][:0], (), told, counters)]


def _devices(tracks: Iterable[Track]) -> list[str]:
    """GPUs first."""
    return sorted({device for track in tracks for device in track.devices}, key=lambda d: ("cuda:" not in d, d))


def _load(path: Path) -> Loaded:
    """What the file holds. Warnings say what was left out."""
    found = load(path)
    if found.odd:
        warnings.warn(
            f"{str(path)!r}: {len(found.odd)} events are no JSON and are left out; {len(found.events)} are read. "
            f"The first: {found.odd[0]}.",
            stacklevel=4,
        )
    if found.is_cut:
        warnings.warn(
            f"{str(path)!r} was cut off, or damaged: the {len(found.events)} events before that are read, "
            "the rest is missing.",
            stacklevel=4,
        )
    return found


class _Reader:
    """Collects rows of `SPAN_DTYPE` and the tables that their numbers refer to."""

    def __init__(self, other: Event) -> None:
        self._other, self._is_ours = other, _is_ours(other)
        listed = other.get("tracks")
        self._listed = listed if isinstance(listed, list) else []  # of our exports of earlier versions: its tracks
        self._processes: dict[Any, str] = {}
        self._threads: dict[tuple[Any, Any], str] = {}
        self._tracks: dict[Track, int] = {}
        self._lanes: dict[tuple[Any, ...], int] = {}
        self._ranks: defaultdict[str, int] = defaultdict(int)
        self._names: dict[str, int] = {}
        self._texts: dict[str, str] = {}  # of names as events have them
        # of Ray, by thread: (end, name) of those that may go on
        self._tasks: defaultdict[tuple[Any, Any], list[tuple[int, str]]] = defaultdict(list)
        self._rows: list[tuple] = []
        self._samples: list[tuple[int, int, float]] = []
        self._backwards = 0  # events that end before they begin
        self._arrows = 0
        self._lost = 0  # that begin without an end, or the other way round

    def read(self, events: Iterable[Event]) -> None:
        """Read the events as a timeline. Raises `ValueError`, which names the first event, where none has the fields
        that the format has.
        """
        kept = [event for event in events if "ph" in event]
        try:
            self._read(kept)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            self._leave_out_odd(kept)
        if self._lost:
            warnings.warn(
                f"{self._lost} events of this trace begin without an end or end without a beginning; "
                "they are left out.",
                stacklevel=4,
            )
        if self._backwards:
            warnings.warn(
                f"{self._backwards} events of this trace end before they begin; they are taken to last 0 s.",
                stacklevel=4,
            )

    def _leave_out_odd(self, kept: list[Event]) -> None:
        """Read the others. Events are looked at one by one only here: it takes as long as reading them."""
        kept = [_with_numbers(event) for event in kept]
        told = [_problem(event) for event in kept]
        odd = [problem for problem in told if problem]
        good = [event for event, problem in zip(kept, told, strict=True) if not problem]
        if odd and not any(event["ph"] in _TIMED for event in good):
            raise ValueError(odd[0])
        _Reader.__init__(self, self._other)  # what was read until then
        self._read(good)
        if odd:
            warnings.warn(
                f"{len(odd)} of {len(kept)} events of this trace are left out, for the format has no such fields. "
                f"The first: {odd[0]}.",
                stacklevel=5,
            )

    def _read(self, kept: list[Event]) -> None:
        for event in kept:
            if event["ph"] == "M":
                self._describe(event)
        for event in self._complete(kept):
            if event.get("cat") != "Trace":  # Kineto's own: as long as the whole recording, on a process called Spans
                self._add(event)
        for event in kept:
            if event["ph"] == "C":
                self._sample(event)
            elif event["ph"] in ("t", "f") and event.get("cat") != "channel":  # where it leads to; one may have several
                self._arrows += 1
        first, last = (
            min((row[0] for row in self._rows), default=-_MAX_US * 1000),
            max((row[1] for row in self._rows), default=_MAX_US * 1000),
        )
        for event in kept:
            if event["ph"] in _INSTANT and first <= (at := _ns(event["ts"])) <= last and self._has_place(event):
                self._row(self._track(event), SpanKind.LABEL, _text(event.get("name", "")), at, at)

    # --- names -----------------------------------------------------------------------------------------
    def _describe(self, event: Event) -> None:
        text = _text(_args(event).get("name", ""))
        if event.get("name") == "process_name":
            self._processes[event.get("pid")] = _LONG_ID.sub(r"\1", text)
        elif event.get("name") == "thread_name":
            self._threads[event.get("pid"), event.get("tid")] = _LONG_ID.sub(r"\1", text)
            said = _args(event).get("track")
            if isinstance(said, int) and 0 <= said < len(self._listed):  # of ours of earlier versions: its number
                said = self._listed[said]
            if isinstance(said, list):  # of ours: exactly
                track = Track.from_json(said)
                lane = self._tracks.setdefault(track, len(self._tracks))
                self._lanes[event.get("pid"), event.get("tid"), ""] = lane

    def _name(self, text: str) -> int:
        return self._names.setdefault(text, len(self._names))

    def _track(self, event: Event) -> int:
        """The lane of an event. It is its thread, a stream of a GPU, or what is joined by ids within a category."""
        pid, tid, args, category = event.get("pid"), event.get("tid"), _args(event), _category(event)
        stream, joined = category in _GPU, event["ph"] == "b"
        key: tuple[Any, ...] = (pid, category) if joined else (pid, tid, "")
        if stream:
            # A wait for an event or for the whole device says that its stream is -1: Kineto draws it on one all the
            # same.
            key = ("gpu", args.get("device", pid), tid if category == "cuda_sync" else args.get("stream", tid))
        if key not in self._lanes:
            if stream:
                number = _number(key[2])
                named = ("stream", number) if number < 1 << 63 else (f"stream {number}", 0)  # a rank has 64 bits
                track = Track(*named, (_text(f"cuda:{key[1]}"),))
            else:
                process = self._processes.get(pid) or _text(f"process {pid}")
                thread = _text(f"{category} (async)") if joined else self._threads.get((pid, tid)) or _thread(tid)
                worker = thread if len(self._processes) < 2 else f"{process}: {thread}"
                track = Track(worker, self._ranks[worker], (process,))
                self._ranks[worker] += 1
            self._lanes[key] = self._tracks.setdefault(track, len(self._tracks))
        return self._lanes[key]

    def _has_place(self, event: Event) -> bool:
        """Whether an instant has a place: those of a thread have one. A profiler names threads that are none for those
        of the whole recording.
        """
        return event.get("s", "t") == "t" or (event.get("pid"), event.get("tid"), "") in self._lanes

    # --- rows ------------------------------------------------------------------------------------------
    def _add(self, event: Event) -> None:
        said, category = event.get("name", ""), _category(event)
        name = self._texts.get(said) if type(said) is str else _text(said)  # an odd one may not be hashable
        if name is None:
            name = self._texts[said] = _text(said)
        start = _ns(event["ts"])
        end = start + _ns(event["dur"]) if "dur" in event else start
        if end < start:
            self._backwards, end = self._backwards + 1, start
        args = _args(event)
        if category in _OUR_KINDS and args.keys() >= _OUR_ARGUMENTS:
            call, channel = self._name(args["call"]), self._name(args["channel"]) if args["channel"] else -1
            moved, kind = (args["iteration"], args["items"]), _OUR_KINDS[category]
            track = self._track(event)
            self._rows.append((start, end, args["bytes"], args["flow"], track, call, channel, *moved, kind))
            return
        step = _STEP.fullmatch(name)
        if step:
            if category != "gpu_user_annotation":
                self._row(self._track(event), SpanKind.MARK, ITERATION, start, end, int(step[1]))
            return
        kind = _KINDS.get(category, SpanKind.RUN)
        if category.startswith(_TASK):
            kind = SpanKind.LABEL
            self._tasks[event.get("pid"), event.get("tid")].append((end, _text(category.removeprefix(_TASK))))
        elif category == "task:execute":
            name = self._task(event, start, end) or name
        if category in ("cuda_runtime", "cuda_driver") and _WAITS_FOR_GPU.fullmatch(name):
            kind = SpanKind.WAIT
        self._row(self._track(event), kind, name, start, end)

    def _task(self, event: Event, start: int, end: int) -> str:
        """The task whose execution this is, as Ray draws it around. It is, of those that began before and are not over,
        the last one; "" without one.
        """
        tasks = self._tasks[event.get("pid"), event.get("tid")]
        # events come by their beginnings, so the others are over
        tasks[:] = [task for task in tasks if task[0] > start]
        return next((name for until, name in reversed(tasks) if until >= end), "")

    def _row(self, track: int, kind: int, name: str, start: int, end: int, iteration: int = -1) -> None:
        self._rows.append((start, end, 0, -1, track, self._name(name), -1, iteration, 0, kind))

    def _sample(self, event: Event) -> None:
        gap = float(event.get("not_finite", "nan"))  # of ours: what the null stands for
        said = {k: gap if v is None and self._is_ours else v for k, v in _args(event).items()}
        values = {k: v for k, v in said.items() if isinstance(v, int | float)}
        for key, value in values.items():
            text = _text(event.get("name", ""))
            self._samples.append(
                (self._name(text if len(values) == 1 else f"{text} {_text(key)}"), _ns(event["ts"]), float(value))
            )

    def _complete(self, events: list[Event]) -> Iterator[Event]:
        """Every X event, and begins and ends as such. An E ends the last begin of its name, else the last one."""
        begun: defaultdict[tuple, list[Event]] = defaultdict(list)
        for event in sorted((e for e in events if e["ph"] in "XBEbe"), key=lambda e: (e["ts"], e["ph"] in "Bb")):
            phase = event["ph"]
            if phase == "X":
                yield event
                continue
            asynchronous = phase in "be"
            identity = event.get("id", json.dumps(event.get("id2"))) if asynchronous else event.get("tid")
            stack = begun[phase.lower() == phase, event.get("pid"), event.get("cat") if asynchronous else "", identity]
            if phase in "Bb":
                stack.append(event)
                continue
            same = [i for i, e in enumerate(stack) if e.get("name") == event.get("name")] or range(len(stack))
            if same:
                first = stack.pop(same[-1])
                yield {**event, **first, "dur": event["ts"] - first["ts"], "args": {**_args(event), **_args(first)}}
            else:
                self._lost += 1
        self._lost += sum(map(len, begun.values()))

    # --- the result ------------------------------------------------------------------------------------
    def content(self) -> dict[str, Any]:
        return {
            "spans": np.array(self._rows, SPAN_DTYPE), "tracks": list(self._tracks), "names": list(self._names),
            "counters": np.array(self._samples, COUNTER_DTYPE), "dropped": 0, "foreign_arrows": self._arrows,
        }  # fmt: skip


def _with_numbers(event: Event) -> Event:
    """The event, with its times as numbers where they are texts. Chrome and Perfetto take both. Whole ones keep all
    their digits.
    """
    told = {key: event[key].strip() for key in ("ts", "dur") if isinstance(event.get(key), str)}
    found = {
        key: int(text) if text.lstrip("-").isdecimal() else float(text)
        for key, text in told.items()
        if _NUMBER.fullmatch(text)
    }
    return {**event, **found} if found else event


def _problem(event: Event) -> str:
    """Which field is none that the format has there, with the event. "" where all are."""
    said, phase = f"event {shown(event)}", event["ph"]
    if not isinstance(phase, str):
        return f"{said}: its phase 'ph' is no text"
    if not isinstance(event.get("cat") or "", str):
        return f"{said}: its category 'cat' is no text"
    places = {"pid": event.get("pid"), "tid": event.get("tid"), "id": event.get("id")} | {
        k: _args(event).get(k) for k in ("device", "stream")
    }
    for key, value in places.items():
        if isinstance(value, dict | list):
            return f"{said}: its {key!r} is neither a number nor a text"
    if phase in _TIMED and "ts" not in event:
        return f"{said}: it has no time 'ts'"
    try:
        for key in ("ts", "dur") if phase in _TIMED else ():
            _ns(event.get(key, 0))
        for value in _args(event).values() if phase == "C" else ():
            float(value if isinstance(value, int | float) else 0)
    except (ValueError, OverflowError) as error:
        return f"{said}: {error}"
    return ""


def _args(event: Event) -> Event:
    """Arguments that are no table are none."""
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def _thread(tid: Any) -> str:
    """The name of a thread that the trace does not name. Ray's has one for a number: ``worker:`` or ``driver:`` and its
    id.
    """
    return (
        _LONG_ID.sub(r"\1", _text(tid))
        if isinstance(tid, str) and tid.startswith(("worker:", "driver:"))
        else _text(f"thread {tid}")
    )


def _category(event: Event) -> str:
    """Raises ``TypeError`` for one that is no text."""
    found = event.get("cat") or ""
    if not isinstance(found, str):
        raise TypeError("a category is a text")
    return found


def _ns(us: float) -> int:
    """Microseconds, also large ones with decimals, as whole nanoseconds."""
    try:
        whole = int(us // 1)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the time of an event is {shown(us)}, which is no number of microseconds") from error
    if not -_MAX_US < whole < _MAX_US:
        raise ValueError(f"the time of an event is {shown(us)} microseconds, which no 64 bits of nanoseconds hold")
    return whole * 1000 + round((us - whole) * 1000)


def _text(value: Any) -> str:
    """Half of a character as an escape. JSON can write one, no file of text can hold it."""
    return writable(str(value))


def _number(value: Any) -> int:
    """Of a stream: Kineto writes a number, others a text."""
    return int(found[0]) if (found := re.findall(r"\d+", str(value))) else 0
