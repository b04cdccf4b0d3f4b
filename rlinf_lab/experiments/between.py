"""What happens between the iterations of a run.

Who asks for the newest weights gets them; evaluations, checkpoints and goals have their turn.

    requests() ──"train" | "checkpoint" | "state"──▶ iteration function ──metrics, state──▶ harvest() ──▶ row, snapshot

`requests` is the generator of the run's inputs; all of this is executed in the run's own thread, so that a training of
the same seed is the same however often somebody looks at it. Invariants: an iteration of training is repeated only
where a phase has failed (`Between.rewind`), and "state" trains nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from rlinf_lab.errors import ExecutorError
from rlinf_lab.experiments.storage.snapshot import Snapshot
from rlinf_lab.runtime.run.run import Run
from rlinf_lab.workers.standing import stood
from rlinf_lab.workflow.quantities import returned

Row = dict[str, float]


class Between:
    """Hands out requests and takes in what came of them. ``first``: iterations that an earlier run has done.

    ``wants_state(iteration)`` says before an iteration whether its state is wanted; ``took(row, snapshot)`` hears what
    each gave and says whether to end.
    """

    def __init__(
        self, first: int, last: int, wants_state: Callable[[int], bool], took: Callable[[Row, Snapshot | None], bool]
    ) -> None:
        self.first, self.last = first, last
        self.run: Run | None = None
        self.rows: dict[int, Row] = {}
        self._changes: dict[int, int] = {}  # iteration -> the number of the latest change of its row
        self._change = 0
        self.newest: Snapshot | None = None
        self.is_over = False
        self._wants_state, self._took = wants_state, took
        self._changed = threading.Condition()
        self._asked: deque[str] = deque()  # requests whose results have not been seen
        self._submitted = self._trained = first
        self._number_of: dict[int, int] = {}  # by the runtime's number of an iteration: ours
        # by the runtime's number: what its table says of iterations whose results have not been seen
        self._told: dict[int, Row] = {}
        self._seen = 0  # results that were taken in
        self._version = 0
        self._thread: threading.Thread | None = None
        self._taking: int | None = None  # the thread in which `took` hears of an iteration now
        self._wishes = 0
        self.is_holding = self._ending = self._cut = False
        self._attached = threading.Event()  # the run's thread may ask before `attach` has been told which run that is

    # --- asked by others, from any thread -----------------------------------------------------------------
    def snapshot(self, timeout: float | None = None) -> Snapshot:
        """The newest state of the learner.

        At once when nothing has been trained since, else at the end of the iteration that begins next.
        """
        with self._changed:
            if threading.current_thread() is self._thread and not self.is_over:
                raise ExecutorError(
                    "on_iteration asked for the newest weights, while the run waits for it. Next: eval_every=..., "
                    "checkpoint_minutes=..., or ask from outside."
                )
            if self.is_over or (self.newest is not None and self.newest.iteration == self._submitted):
                return self._have()
            before = self.newest
            self._wishes += 1
            self._changed.notify_all()
            # No count of iterations: a phase that fails takes some back.
            fresh = lambda: self.newest is not before and not self._wishes  # noqa: E731
            done = self._changed.wait_for(lambda: self.is_over or fresh(), timeout)
            if not done:
                raise TimeoutError(
                    f"The iteration that goes on has not ended after {timeout} s. Next: wait, or ask again."
                )
            return self._have()

    def _have(self) -> Snapshot:
        if self.newest is None:
            if self.run is not None and self.run.error is not None:
                raise self.run.error
            raise ExecutorError("No iteration has ended, so there are no weights. Next: look at run.error.")
        return self.newest

    def hold(self, on: bool) -> None:
        """Begin no more iterations, or go on."""
        with self._changed:
            self.is_holding = on
            self._changed.notify_all()

    def end(self) -> None:
        """The iteration that goes on is the last."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def cut(self) -> None:
        """The iteration that goes on is the last of this phase. The run goes on in another one (`attach`)."""
        with self._changed:
            self._cut = True

    @property
    def waits_for_me(self) -> bool:
        """Whether who asks was called by `took`: nothing goes on before it returns."""
        return self._taking == threading.get_ident()

    @property
    def trained(self) -> int:
        """Iterations whose results have been taken in."""
        return self._trained

    @property
    def goes_on(self) -> bool:
        """Whether the phase has ended and the run has not."""
        return self._cut and not self._ending and self._trained < self.last

    def attach(self, run: Run) -> None:
        """``run`` is the next phase: it goes on from the `newest` state. Its number of iterations begins at zero."""
        with self._changed:
            self.run, self._cut = run, False
            self._asked.clear()
            self._number_of.clear()
            self._told.clear()
            self._seen = self._version = 0
            self._submitted = self._trained
        self._attached.set()

    def rewind(self) -> None:
        """The phase has failed: back to the newest state. What was trained after it is forgotten, and trained again in
        the next phase.
        """
        with self._changed:
            self._trained, self._cut = self.first if self.newest is None else self.newest.iteration, True
            for number in [number for number in self.rows if number > self._trained]:
                del self.rows[number]
                self._changes.pop(number, None)

    def close(self) -> None:
        """The run has ended: nothing comes any more."""
        with self._changed:
            self.is_over, self._wishes = True, 0
            self._changed.notify_all()

    # --- the run's thread -------------------------------------------------------------------------------
    def requests(self) -> Iterator[str]:
        """Argument after argument of the iteration function, for the run that is attached next."""
        self._attached.clear()
        return self._requests()

    def _requests(self) -> Iterator[str]:
        self._attached.wait()
        self._thread = threading.current_thread()
        while True:
            self.harvest()
            request = self._next()
            if request is None:
                return
            self._asked.append(request)
            yield request

    def _next(self) -> str | None:
        with self._changed:
            while self.is_holding and not self._ending and not self._wishes:
                self._tell("paused", "running")
                self._changed.wait()
            self._tell("running", "paused")
            if self._ending or self._cut or self._submitted >= self.last:
                known = self.newest is not None and self.newest.iteration == self._submitted
                return (
                    None
                    if known or "state" in self._asked or "checkpoint" in list(self._asked)[-1:]
                    else self._one_more()
                )
            if self.is_holding:
                return self._one_more()
            self._submitted += 1
            wanted = self._wishes or self._submitted == self.last or self._wants_state(self._submitted)
            return "checkpoint" if wanted else "train"

    def _tell(self, state: str, before: str) -> None:
        """To those who look at the run."""
        if self.run is not None and self.run.state == before:
            self.run.state = state

    def _one_more(self) -> str:
        """An iteration that trains nothing does not count."""
        assert self.run is not None and self.run.iterations is not None
        self.run.iterations += 1
        return "state"

    def harvest(self) -> None:
        """Take in what has ended since the last time."""
        run = self.run
        assert run is not None
        ended, results = run.iteration, run.results
        fresh = results[len(results) - (ended - self._seen) :] if ended > self._seen else []
        for result in fresh:
            request = self._asked.popleft()
            number = self._seen
            self._seen += 1
            self._take_in(number, request, result)
        self._take_rows(run)

    def _take_in(self, number: int, request: str, result: Any) -> None:
        snapshot = None
        if request != "train":
            state = result["state"] if request == "checkpoint" else result
            state = state[0] if isinstance(state, list) else state  # of several ranks, which are equal
            if request == "checkpoint" and "standing" in result:
                state = stood(state, result["standing"])
            if request == "checkpoint" and "rollouts" in result:
                state = {**state, "rollouts": result["rollouts"]}
            snapshot = Snapshot(self._trained + (request == "checkpoint"), state)
        if request != "state":
            self._trained += 1
            self._number_of[number] = self._trained
            metrics = result["metrics"] if request == "checkpoint" else result
            self.rows[self._trained] = {"iteration": self._trained, **returned("The iteration function", metrics)}
        if snapshot is not None:
            with self._changed:
                self.newest = snapshot
                self._wishes = 0
                self._changed.notify_all()
        if request != "state":
            assert self.run is not None
            self._take_rows(self.run)
            self._taking = threading.get_ident()
            try:
                ends = self._took(self.rows[self._trained], snapshot)
            finally:
                self._taking = None
            self._changed_row(self._trained)
            if ends:
                self.end()

    def _take_rows(self, run: Run) -> None:
        """Seconds, and what workers logged. That may come a little later, and before the results of its iteration."""
        fresh, self._version = run.metrics_since(self._version)
        self._told |= {int(row["iteration"]): row for row in fresh}
        for number in list(self._told):
            ours = self._number_of.get(number)
            if ours is not None:
                self.rows[ours] |= {
                    name: value for name, value in self._told.pop(number).items() if name != "iteration"
                }
                self._changed_row(ours)

    def _changed_row(self, iteration: int) -> None:
        self._change += 1
        self._changes[iteration] = self._change

    # --- looking, from any thread -----------------------------------------------------------------------------
    def rows_since(self, version: int) -> tuple[list[Row], int]:
        """Rows that are new or have changed, and the version of now. Since ``version``; 0: all of them."""
        now = self._change
        fresh = (
            sorted(i for i, change in self._changes.copy().items() if version < change <= now)
            if version
            else sorted(self.rows.copy())
        )
        return [dict(self.rows[i]) for i in fresh], now
