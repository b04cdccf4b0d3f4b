"""What can be seen of a run or a session while it works. A thread in the background collects it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_lab.errors import ConfigError, DeadlockError, UnknownNameError, shown
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.host.liveness.wait_graph import Standstill, Wait, WaitGraph
from rlinf_lab.runtime.run.metrics import MetricTable
from rlinf_lab.runtime.run.samples import SampleTable
from rlinf_lab.runtime.run.stall_report import Stillness, who_does_what
from rlinf_lab.runtime.run.turns import quick_turns
from rlinf_lab.runtime.session.session import Executor
from rlinf_lab.timeline.record.batch import FEW_SPANS, SpanBatch
from rlinf_lab.timeline.record.sampler import UtilisationSampler
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.quantities import FailedSample, SampleFields, returned
from rlinf_lab.workflow.weights import Published
from rlinf_lab.workflow.workflow import Workflow

if TYPE_CHECKING:
    import pandas as pd

LOOK_SECONDS = 0.12  # from one look to the next: eight a second
RELIEVED_SECONDS = 0.5  # the same, while somebody else glances at the spans
SELDOM_SECONDS = 1.0  # and at most that, where each of them takes long
_REST = 1500  # they take a 1500th of a core, unless that would mean longer ones
SENT_SECONDS = 0.006  # after a look, until what it tells has left the process
AFTER_SECONDS = 0.5  # between times for what is not urgent
LEAST_REST = 0.02  # between the end of one and the next, where the others leave the interpreter's lock to nobody
IDLE_SECONDS = 0.5  # between looks when no iteration is open and the last look found nothing
STILL_SECONDS = 3
WEIGHTS_SECONDS = 20.0  # in which the newest version of weights comes here before the hosts end
HURRIED_SECONDS = 3.0  # the same, where a run has failed or is stopped: a process may not answer any more
DEPTH_SECONDS = 0.5  # between looks at how full the channels are


class Observer:
    """Collects, eight times a second, what an executor has recorded and logged. Each time costs what is new, not what
    there is.

    ``update`` is called after each time, and ``afterwards`` when what it tells has left the process. When something
    cannot be collected (a full disk, say), that is the ``problem``: nothing is collected any more and ``broken`` is
    called.
    """

    def __init__(
        self,
        executor: Executor,
        update: Callable[[], None],
        broken: Callable[[], None] = lambda: None,
        afterwards: Callable[[], None] = lambda: None,
    ) -> None:
        self.timeline = Timeline(executor.layout.plan.devices)
        self.table = MetricTable()
        self.samples = SampleTable()
        self.problem: BaseException | None = None
        self.is_relieved: Callable[[], bool] = lambda: False  # somebody else glances at the spans for all who are told
        self.moved_at = time.monotonic()
        self.stillness = Stillness()
        self._news = executor.news
        self._executor, self._update, self._broken, self._afterwards = executor, update, broken, afterwards
        self._loop_name = f"The iteration function of workflow {executor.flow.name!r}"
        self._stopped = False
        self._depths_due = 0.0
        self._counters: dict[str, float] = {}
        self._samples = 0  # counter samples that are in it
        self._counting = threading.Lock()
        # rounds of news when an iteration ended, it, and who is told when no more of it can come
        self._unsettled: deque[tuple[int, int, Callable[[int], None]]] = deque()
        self._lock = threading.Lock()  # one at a time collects; the loop never waits for it
        host = executor.driver_host
        # else each host samples its own GPUs, by the plan's names for them
        self._alone = alone = set(host.place.values()) == {host.name}
        self._sampler = UtilisationSampler(
            host.recorder,
            gpus=None if alone else (),
            tell=partial(host.curves_missing, executor.layout.plan.devices),
        )
        self._over = False
        # held until it is over: waiting for it is one call into C, an Event's wait fifty lines of Python
        self._rest = threading.Lock()
        self._rest.acquire()
        self._wake = threading.Event()  # an iteration has begun, or it is over
        self._pump = threading.Thread(target=self._pumping, name=f"pump {executor.flow.name}", daemon=True)

    # --- life -------------------------------------------------------------------------------------------
    def start(self) -> None:
        self._pump.start()

    def running(self) -> None:
        """The workers are set up."""
        self.moved_at = time.monotonic()
        self._sampler.start()

    def stop(self) -> tuple[list[str], BaseException | None]:
        """Stop the executor and take what is left. Returns the ranks that compute on, and the first thing that went
        wrong.
        """
        problems: list[BaseException | None] = [self.problem]
        late: list[str] = []
        self._sampler.stop()
        host = self._executor.driver_host
        broken_off = host.state.failure is not None or (host.loop is not None and host.loop.waiting.ending)
        host.weights.fetch_all(HURRIED_SECONDS if broken_off else WEIGHTS_SECONDS)
        try:
            ended = self._executor.stop()
            late, problems = ended.late, [*problems, *ended.errors]
        except BaseException as error:
            problems.append(error)
        self._stopped = True
        try:
            self.collect()
        except Exception as error:
            problems += [self.problem, error]  # a glance meanwhile may have failed: what it took is what is missing
        problems.append(self.problem)
        return late, next((p for p in problems if p is not None), None)

    def end(self) -> None:
        """No more news, but for a last `update`."""
        self._over = True
        if self._rest.locked():
            self._rest.release()
        self._wake.set()
        if self._pump.is_alive() and self._pump is not threading.current_thread():
            with contextlib.suppress(RuntimeError):
                self._pump.join(1.0)
        self._update()

    # --- iterations -------------------------------------------------------------------------------------
    def began(self) -> None:
        """An iteration begins. Raises what could not be collected."""
        if self.problem is not None:
            raise self.problem
        self.moved_at = time.monotonic()
        self._wake.set()

    def finished(self, iteration: int, seconds: float, result: Any) -> None:
        """Raises `WorkflowError` when the loop returns a number under a reserved name."""
        numbers = returned(self._loop_name, result)
        self.table.finished(iteration, seconds, numbers)
        self._note(numbers)
        self._unsettled.append((self._news.rounds(), iteration, self.table.settle))

    # --- collecting -------------------------------------------------------------------------------------
    def _pumping(self) -> None:
        due = time.monotonic() + LOOK_SECONDS
        after_due, relieved = 0.0, RELIEVED_SECONDS
        while not self._rest.acquire(timeout=max(LEAST_REST, due - time.monotonic())):
            if self._is_idle():
                self._wake.wait(IDLE_SECONDS - LOOK_SECONDS)
            self._wake.clear()
            if self._over:
                return
            # Counted from when it was due: a loop of Python's own lets this thread wait five ms for the interpreter
            # each time.
            is_relieved = self.is_relieved()
            between = relieved if is_relieved and not self._is_idle() else LOOK_SECONDS
            due = max(due, time.monotonic() - between) + between
            began = time.thread_time()
            with quick_turns():
                try:
                    self.collect()
                except Exception as error:  # what was not collected is gone
                    self.problem = error
                if self.problem is not None:
                    self._broken()
                    return
                self._update()
                if is_relieved:
                    relieved = min(max(_REST * (time.thread_time() - began), RELIEVED_SECONDS), SELDOM_SECONDS)
                if time.monotonic() >= after_due:
                    # every fourth look, or every relieved one
                    after_due = time.monotonic() + AFTER_SECONDS - LOOK_SECONDS / 2
                    if not is_relieved:  # else another thread sends it, with the next spans
                        time.sleep(SENT_SECONDS)
                    # quickly too: accounting lets go of the interpreter a hundred times, and the next look waits for it
                    self._afterwards()

    def _is_idle(self, seconds: float = IDLE_SECONDS) -> bool:
        """Whether no iteration is open, and nothing came of late. What other processes recorded comes a little later.
        """
        if time.monotonic() - self.moved_at <= seconds:
            return False
        loop = self._executor.driver_host.loop
        return loop is not None and not loop.is_open()

    def glance(self) -> bool:
        """Take the spans that are new, and nothing else, and wait for nobody. It is for a thread of somebody else's,
        eight times a second.

        The own thread then looks once or twice a second, at all the rest (`is_relieved`). False when there is nothing
        to come for: no iteration is open, or all is over.
        """
        # Longer than the own thread is away: who glances until then sees what begins meanwhile.
        if self._over or self.problem is not None or self._is_idle(IDLE_SECONDS + SELDOM_SECONDS + LOOK_SECONDS):
            return False
        if self._lock.acquire(blocking=False):  # else they are being taken
            try:
                rows = self._news.rows(FEW_SPANS)
                if rows is None:
                    if self._news.undrained() <= FEW_SPANS:  # else the own thread takes them
                        self._take_spans(self._news.rounds())
                elif rows[2]:
                    self.moved_at = time.monotonic()
                    self.timeline.extend_by_rows(*rows)
            except Exception as error:  # the own thread tells it
                self.problem = error
            finally:
                self._lock.release()
        return True

    def collect(self) -> None:
        """Take what was recorded and logged since the last time."""
        with self._lock:
            rounds = self._news.rounds()
            for worker, rank, iteration, values in self._news.metrics():
                self.moved_at = time.monotonic()
                if isinstance(values, FailedSample):
                    self.table.failed(worker, rank, iteration, values)
                elif isinstance(values, SampleFields):
                    self.samples.tell(iteration, values)
                else:
                    self.table.logged(worker, rank, iteration, values)
                    self._note({f"{worker}[{rank}].{name}": value for name, value in values.items()})
            if not self._stopped and time.monotonic() >= self._depths_due:
                self._depths_due = time.monotonic() + DEPTH_SECONDS
                self._note(depths(self._news.channels()))
            self._take_spans(rounds)
            # The news under way when it ended may lack what was logged last; those after them do not.
            while self._unsettled and (self._unsettled[0][0] + 2 <= rounds or self._stopped):
                _, iteration, settle = self._unsettled.popleft()
                settle(iteration)

    def _take_spans(self, rounds: int) -> None:
        """The caller holds the lock, and has asked for ``rounds`` before."""
        for batch in self._news.drain():
            if len(batch):
                self.moved_at = time.monotonic()
            self._mark(batch, rounds)
            self.timeline.extend(batch, checked=True)

    def _mark(self, batch: SpanBatch, rounds: int) -> None:
        """Note which iterations end with these spans. What other hosts recorded of them comes later than their mark."""
        if self._alone or SpanKind.MARK not in batch.spans["kind"].tobytes():
            return
        numbers = batch.spans["iteration"][batch.spans["kind"] == SpanKind.MARK].tolist()
        self.timeline.expect(numbers)
        self._unsettled.extend((rounds, number, self.timeline.settle) for number in numbers)

    def _note(self, values: Mapping[str, float]) -> None:
        """Beside the spans: what was said or seen just now."""
        recorder = self._executor.driver_host.recorder
        now = recorder.clock.now_ns()
        for name, value in values.items():
            recorder.counter(name, now, value)

    def counters(self) -> dict[str, float]:
        """The latest sample of each counter, and the loads of the devices. Costs what is new."""
        with self._counting:
            fresh = self.timeline.counter_samples[self._samples :]
            self._samples += len(fresh)
            names, numbers = self.timeline.names, fresh["name"].tolist()
            self._counters |= {names[n]: value for n, value in zip(numbers, fresh["value"].tolist(), strict=True)}
            devices = loaded_devices(self._counters)
            return self._counters | {device: self._counters[name] / 100 for name, device in devices.items()}


class Observed:
    """What runs and sessions show of themselves, live and after their end."""

    flow: Workflow
    plan: ExecutionPlan
    error: BaseException | None
    _executor: Executor
    _observer: Observer

    def _show(self, executor: Executor, observer: Observer) -> None:
        """To begin with."""
        self.flow, self.plan, self.error = executor.flow, executor.layout.plan, None
        self._executor, self._observer = executor, observer
        self._listeners = list[Callable[[Any], None]]()
        self._unhurried = list[Callable[[Any], None]]()
        self._glancing = dict[int, Callable[[], bool]]()

    def _is_over(self) -> bool:
        raise NotImplementedError

    @property
    def timeline(self) -> Timeline:
        """Every span of every rank; it grows live."""
        return self._observer.timeline

    @property
    def metrics(self) -> pd.DataFrame:
        """One row for each finished iteration. Columns: ``iteration``, ``seconds``, the numbers the loop returned, what
        workers logged.

        Of several ranks of a worker the mean. A name that several workers log, or a worker and the loop, is
        ``worker.name`` for each worker.
        """
        return self._observer.table.frame()

    @property
    def failures(self) -> pd.DataFrame:
        """Samples that failed while the run went on, as workers told (`Worker.log_failure`): the first thousand.

        ``worker``, ``rank``, ``iteration``, ``error``, ``sample``; ``attrs["total"]``: how many there were.
        """
        return self._observer.table.failures()

    @property
    def samples(self) -> pd.DataFrame:
        """The latest ten thousand samples that workers told of (`Worker.sample_log`), one row each.

        ``id``, ``iteration``, what was said; ``worker``, ``rank``, ``start_ns`` and ``end_ns`` of who made it.
        ``attrs["total"]``: how many there were.
        """
        return self._observer.samples.frame()

    def sample_of_bar(self, worker: str, rank: int, start_ns: int) -> dict[str, Any] | None:
        """The row of `samples` that a bar of the timeline shows, or None."""
        return self._observer.samples.of_bar(worker, rank, start_ns)

    def metrics_since(self, version: int = 0) -> tuple[list[dict[str, float]], int]:
        """Rows of `metrics` that are new or changed since ``version``, and the version now. For loggers; it costs what
        has changed.

        A row that comes again replaces the one of the same ``iteration``: what ranks of other processes log arrives a
        little later.
        """
        return self._observer.table.since(version)

    def weights(self, name: str) -> Published:
        """The newest version of published weights and its state, live and after the end. (0, None): none yet.

        ``version, state = run.weights("policy")``. The state comes from the process of the worker that has published
        it, and once more when the run ends; where both are one process it is the very object. `ExecutorError` when
        that process was gone before.
        """
        if name not in self.flow.weight_names:
            raise UnknownNameError.of("weights", name, self.flow.weight_names, "Declared with flow.weights(name).")
        return self._executor.driver_host.weights.newest(name, WEIGHTS_SECONDS)

    @property
    def frames(self) -> dict[str, Any]:
        """The latest picture of each source, uint8, H×W×3."""
        return self._executor.news.frames()

    @property
    def counters(self) -> dict[str, float]:
        """The latest load of each device, 0 to 1, and other samples, by name."""
        return self._observer.counters()

    @property
    def now_ns(self) -> int:
        """Now, by the clock of the `timeline`, ns."""
        return self._executor.driver_host.recorder.clock.now_ns()

    @property
    def missing_curves(self) -> dict[str, str]:
        """Why GPUs of the plan have no curves of their load, by host. Empty when they have, or when there are none."""
        loop = self._executor.driver_host.loop
        return {} if loop is None else loop.remarks.missing_curves()

    def channels(self) -> pd.DataFrame:
        """Depth, capacity, puts, gets and waiting ranks at either end, of every live queue."""
        import pandas as pd

        return pd.DataFrame(self._executor.news.channels())

    def transports(self) -> pd.DataFrame:
        """How items of each channel have come from host to host, so far. Columns: transport, messages, items and bytes.

        ``reference``: handed over within a process; ``shared memory``: large arrays in slots, the rest in the stream;
        ``unix``, ``tcp``: all of it in the stream. Ranks that read a queue of another host are not in it: what they get
        is counted where it was put.
        """
        import pandas as pd

        return pd.DataFrame(
            self._executor.news.transports(),
            columns=["channel", "from", "to", "transport", "messages", "items", "bytes"],
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write metrics, timeline and plan into a new folder, which `compare` takes. Returns its path.

        `FileExistsError` where the folder is there. Weights are the workflow's own business: ``run.weights(name)``.
        """
        folder = Path(path)
        folder.mkdir(parents=True)
        self.metrics.to_parquet(folder / "metrics.parquet")
        self.timeline.to_parquet(folder / "timeline.parquet")
        self.plan.save(folder / "plan.json")
        return folder

    def on_update(
        self,
        listener: Callable[[Any], None],
        afterwards: Callable[[Any], None] | None = None,
        glances: Callable[[], bool] = lambda: False,
    ) -> None:
        """Call ``listener(this)`` from the background, eight times a second at most. Two times while no iteration is
        open, and once after the end (at once when it has ended).

        ``afterwards(this)`` is called twice a second, a little later, when what the listeners tell has left the
        process: for what is not urgent. One that raises is logged (logger ``rlinf_lab``) and not called again; the work
        goes on. ``glances()`` says whether the listener comes by itself for the spans (`Observer.glance`); while all
        do, they are called twice a second, or once where that takes long.
        """
        for given in (listener, glances, *([] if afterwards is None else [afterwards])):
            if not callable(given):
                raise ConfigError(
                    f"on_update({shown(given)}): a function that takes the run or the session. Next: on_update(lambda "
                    "run: print(run.status()))."
                )
        if afterwards is not None:
            self._unhurried.append(afterwards)
        self._glancing[id(listener)] = glances
        self._listeners.append(listener)
        self._observer.is_relieved = self._all_glance
        if self._is_over():
            self._tell_one(listener, self._listeners)

    def glance(self) -> bool:
        """Take the spans that are new into the `timeline`, and wait for nobody; see `Observer.glance`."""
        return self._observer.glance()

    def _all_glance(self) -> bool:
        # one that another thread removes just now has none
        glancing = [self._glancing.get(id(listener)) for listener in list(self._listeners)]
        try:
            return bool(glancing) and all(glances is not None and glances() for glances in glancing)
        except Exception:  # it would end the background without a word
            logging.getLogger("rlinf_lab").exception(
                "on_update(glances=...) raised; nobody is asked any more whether the listeners come for the spans."
            )
            self._observer.is_relieved = lambda: False
            return False

    def _tell(self) -> None:
        self._tell_of_stillness()
        for listener in list(self._listeners):
            self._tell_one(listener, self._listeners)

    def _tell_of_stillness(self) -> None:
        """To the log, for no iteration may end before it is mended."""
        now, moved_at, stillness = time.monotonic(), self._observer.moved_at, self._observer.stillness
        if now - moved_at < 1 and not stillness.told:  # eight times a second
            return
        loop, still = self._executor.driver_host.loop, self.still_seconds
        if stillness.is_news(moved_at, now, goes_on=still > 0) and loop is not None:
            logging.getLogger("rlinf_lab").warning(
                "%r: nothing has moved for %.0f s: %s. Next: nothing, if that is work that takes long; else status() "
                "says at any time who waits for whom, and "
                "stop() ends a run (a method that looks at self.cancelled now and then ends by it).",
                self, still, who_does_what(loop.under_way.labels(), self.waits()),
            )  # fmt: skip

    def _tell_afterwards(self) -> None:
        for listener in list(self._unhurried):
            self._tell_one(listener, self._unhurried)

    def _tell_one(self, listener: Callable[[Any], None], among: list[Callable[[Any], None]]) -> None:
        try:
            listener(self)
        except BaseException:  # also SystemExit, which would end the background without a word
            among.remove(listener)
            if among is self._listeners and listener not in among:
                self._glancing.pop(id(listener), None)
            logging.getLogger("rlinf_lab").exception("%r raised; it is not called any more.", listener)

    # --- who waits for whom -----------------------------------------------------------------------------
    def waits(self) -> list[Wait]:
        """Which ranks wait now, for what and for whom."""
        return [] if self._is_over() else self._executor.news.waits()

    def status(self) -> str:
        """The state in words: who waits for what, and who computes. It also tells the cycle if they wait for each
        other, how long nothing moved, and what was remarked.
        """
        still = self.still_seconds
        note = [f"nothing has moved for {still:.0f} s:"] if still >= STILL_SECONDS else []
        loop = self._executor.driver_host.loop
        remarks = [] if loop is None else loop.remarks.all()
        return "\n".join(
            [repr(self), *(f"  {line}" for line in [*note, *self.wait_graph().lines(), *remarks])]
        )

    @property
    def still_seconds(self) -> float:
        """For how long nothing was recorded: no call or wait has ended. 0 before the start, between iterations and
        after the end; one that has ended is no iteration that goes on, though nobody has waited for it yet.
        """
        loop = self._executor.driver_host.loop
        return (
            time.monotonic() - self._observer.moved_at
            if loop is not None and loop.iterations.goes_on() and not self._is_over()
            else 0.0
        )

    def standstill(self) -> Standstill | None:
        """Why nothing moves. None while something has moved within the last `STILL_SECONDS`, and after any end but a
        deadlock.
        """
        if isinstance(self.error, DeadlockError):
            return Standstill("Nothing can move any more", self.wait_graph())
        # asked twice a second: nothing else is looked at
        if time.monotonic() - self._observer.moved_at < STILL_SECONDS:
            return None
        still = self.still_seconds
        return Standstill(f"Nothing has moved for {still:.0f} s", self.wait_graph()) if still >= STILL_SECONDS else None

    def wait_graph(self) -> WaitGraph:
        """Who waits for whom and who computes. It is as of now, or of when nothing could move any more, if that was the
        end.
        """
        if isinstance(self.error, DeadlockError):
            return WaitGraph(self.error.waits)
        waits, loop = self.waits(), self._executor.driver_host.loop
        waiting = {wait.who for wait in waits}
        calls = loop.under_way.labels() if loop is not None and not self._is_over() else []
        return WaitGraph(tuple(waits), tuple(call for call in sorted(calls) if call.split(".")[0] not in waiting))


def depths(queues: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """How many items wait in each channel, by the name of its counter. Over its keys and hosts."""
    found: dict[str, float] = {}
    for row in queues:
        name = f"{row['channel']} items"
        found[name] = found.get(name, 0.0) + row["depth"]
    return found


def loaded_devices(counters: Iterable[str]) -> dict[str, str]:
    """By the name of a counter the device of which it is the load. In %, as `UtilisationSampler` names them:
    ``cpu:i`` of a node is its i-th core there.
    """
    devices: dict[str, str] = {}
    cores: dict[str, list[tuple[int, str]]] = {}
    for name in counters:
        if match := re.fullmatch(r"(node\d+/)?(?:core (\d+)|(cuda:\d+)) %", name):
            node, core, gpu = match[1] or "", match[2], match[3]
            if gpu:
                devices[name] = node + gpu
            else:
                cores.setdefault(node, []).append((int(core), name))
    for node, found in cores.items():
        devices |= {name: f"{node}cpu:{i}" for i, (_, name) in enumerate(sorted(found))}
    return devices
