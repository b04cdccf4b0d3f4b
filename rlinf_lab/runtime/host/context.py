"""What a worker sees of the runtime, and what it may tell the run. It tells spans, metrics, pictures, and values for
other ranks.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from rlinf_lab.runtime.host.control.instants import Instants
from rlinf_lab.runtime.host.elastic.exchange import Exchange, place_of
from rlinf_lab.runtime.host.pictures import PictureBudget, picture
from rlinf_lab.runtime.host.samples import SamplesInTheMaking
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.quantities import FailedSample, SampleFields
from rlinf_lab.workflow.specs import CallSpec
from rlinf_lab.workflow.worker import Context

Logged = tuple[str, int, int, dict[str, float] | FailedSample | SampleFields]
"""worker, rank, iteration, and what it says"""


class Told:
    """What the workers of a host have logged and drawn, until somebody fetches it. By any thread."""

    def __init__(self) -> None:
        self.metrics: deque[Logged] = deque()
        self.frames: dict[str, Any] = {}  # the latest picture of each source

    def take_metrics(self) -> list[Logged]:
        """What was logged since the last time."""
        return [self.metrics.popleft() for _ in range(len(self.metrics))]


class HostContext(Context):
    """See the module's docstring; `Worker` forwards to it."""

    def __init__(self, state: HostState, process: Process, told: Told, time: Instants, exchange: Exchange) -> None:
        self._state, self._process, self._told = state, process, told
        self._time, self._exchange = time, exchange
        self.name = process.worker
        self.rank = process.rank
        self.ranks = self._all_ranks = state.layout.ranks(process.worker)
        self.iteration = -1  # in no call
        self.device, self.address = process.device, state.address
        self.sub_batches = state.layout.plan.tokens(process.worker)
        self._logs_to = 0  # the iteration of the latest call; what setup logs belongs to the first one
        self._pictures = PictureBudget()
        self._making = SamplesInTheMaking()

    @property
    def together(self) -> int:
        return self._process.together

    @together.setter
    def together(self, blocks: int) -> None:
        self._process.together = blocks

    @contextlib.contextmanager
    def during(self, call: CallSpec) -> Iterator[None]:
        """What the worker sees while it is in a call."""
        self.iteration = self._logs_to = call.iteration
        self.ranks, self.members = len(call.ranks) or self._all_ranks, call.ranks
        yield
        self.iteration, self.ranks, self.members = -1, self._all_ranks, ()

    @contextlib.contextmanager
    def span(self, label: str) -> Iterator[None]:
        clock, recorder = self._state.clock, self._state.recorder
        name, start = recorder.name(label), clock.now_ns()
        try:
            yield
        finally:
            recorder.add(self._process.track, SpanKind.LABEL, name, start, clock.now_ns(), self.iteration)

    def log(self, metrics: dict[str, float]) -> None:
        self._told.metrics.append((self.name, self.rank, self._logs_to, metrics))

    def log_failure(self, failure: FailedSample) -> None:
        self._told.metrics.append((self.name, self.rank, self._logs_to, failure))

    def begin_sample(self, id: str) -> None:
        self._making.begin(id, self._state.clock.now_ns())

    def end_sample(self, sample: SampleFields, label: str) -> None:
        recorder, end = self._state.recorder, self._state.clock.now_ns()
        made = [self._making.end(id, end) for id in sample.ids]
        begun = [i for i, one in enumerate(made) if one is not None]
        if len(begun) < len(made):  # some never began: refused, or given up before
            self.log_sample(sample.part([i for i, one in enumerate(made) if one is None]))
            sample = sample.part(begun)
        starts: list[float | bool | str] = []
        for one in made:
            if one is not None:
                starts.append(one.start)
                if one.has_bar:
                    name = recorder.name(label)
                    recorder.add(self._process.track, SpanKind.LABEL, name, one.start, end, self._logs_to)
        if starts:
            sample.columns["start_ns"] = starts
            sample.fields.update(worker=self.name, rank=self.rank, end_ns=end)
            self.log_sample(sample)

    def log_sample(self, sample: SampleFields) -> None:
        self._told.metrics.append((self.name, self.rank, self._logs_to, sample))

    def frame(self, image: Any) -> None:
        self._pictures.drawn(self._state.clock.now_ns())
        label = self._process.label
        self._told.frames[label] = picture(image, label)

    def wants_frame(self) -> bool:
        return self._pictures.wanted(self._state.clock.now_ns())

    def compute(self, seconds: float) -> None:
        self._time.sleep(self._process, round(seconds * 1e9))

    def exchange(self, value: Any) -> list[Any]:
        return self._exchange.exchange(self._process, value, keeps_device=self._process.together > 0)

    def on_leaving(self, farewell: Callable[[], None]) -> int:
        place = self._process.farewells[farewell] = place_of(self._process)
        return place

    def take_back(self, farewell: Callable[[], None]) -> None:
        self._process.farewells.pop(farewell, None)

    def leave_behind(self, place: int, value: Any) -> None:
        self._exchange.leave_behind(self._process, place, value)

    def discard(self, place: int, rank: int) -> None:
        self._exchange.discard(self._process, place, rank)

    def collect(self, place: int, rank: int) -> Any:
        return self._exchange.collect(self._process, place, rank)

    def cancelled(self) -> bool:
        return self._process.error is not None or self._state.stopping
