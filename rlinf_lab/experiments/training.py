"""A training in the background, and all that can be asked of it."""

from __future__ import annotations

import os
import textwrap
import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_lab.errors import ConfigError, ExecutorError
from rlinf_lab.experiments.autoplan.phases import AutoPlan
from rlinf_lab.experiments.between import Between, Row
from rlinf_lab.experiments.display.progress import Line, first_words
from rlinf_lab.experiments.display.watching import Watched, charts_of
from rlinf_lab.experiments.evaluation import Evaluation
from rlinf_lab.experiments.exits import told, wait_at_exit
from rlinf_lab.experiments.goals import Watch
from rlinf_lab.experiments.loggers import Loggers
from rlinf_lab.experiments.options import Options, checked_metrics
from rlinf_lab.experiments.recipe import Recipe
from rlinf_lab.experiments.storage.folder import Best, RunFolder, env_name, this_process, to_plain, versions
from rlinf_lab.experiments.storage.keeping import Keeper
from rlinf_lab.experiments.storage.snapshot import Snapshot
from rlinf_lab.experiments.storage.source import source_of
from rlinf_lab.experiments.termination import EXIT_STATUS, Termination
from rlinf_lab.notebook import Shown, in_notebook, shown_live
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.run.run import ENDED, Run, run
from rlinf_lab.runtime.run.samples import joined
from rlinf_lab.vecenv import Runner
from rlinf_lab.workers.seeds import Purpose, environment_seed, looks_seed
from rlinf_lab.workflow.workflow import Workflow

if TYPE_CHECKING:
    import pandas as pd

    from rlinf_lab.experiments.film import Film
    from rlinf_lab.timeline.timeline import Timeline

ROOT = Path("runs")
_BEGUN: weakref.WeakSet[TrainingRun] = weakref.WeakSet()  # in this process
STOP_SECONDS = 30.0  # for the iteration that goes on; then it is given up


class TrainingRun:
    """A training that goes on in the background; made by `train` and `resume`.

    Attributes: ``recipe``, ``config`` (every setting), ``runner`` (what steps the environments, and why that),
    ``workflow``, ``plan``, ``folder`` (a path, or None), ``run`` (of the runtime: status, frames, channels), ``reason``
    (why it ended before its last iteration, in words). Of a run that plans itself, ``auto`` says what was measured and
    chosen, ``phases`` are the runs so far, ``phase_firsts`` the iterations before each, and ``workflow``, ``plan``,
    ``run`` and ``timeline`` are those of the latest.
    """

    def __init__(
        self, recipe: Recipe, config: Any, workflow: Workflow, plan: ExecutionPlan, executor: str, options: Options,
        folder: RunFolder | None, start: Snapshot | None = None, rows: dict[int, Row] | None = None,
        auto: AutoPlan | None = None,
        runner: Runner | None = None, begins_anew: str = "",
    ) -> None:  # fmt: skip
        first = 0 if start is None else start.iteration
        self.recipe, self.config, self.workflow, self.options = recipe, config, workflow, options
        self.runner, self._begins_anew = runner, begins_anew
        self._source = source_of(config)
        self.error: BaseException | None = None
        self._folder, self._id = folder, uuid.uuid4().hex if folder is None else folder.run_id()
        best = None if folder is None or start is None else folder.best()
        self._keeper = Keeper(folder, options.checkpoint_minutes, options.keep_checkpoints, best)
        self._watch = Watch(options.goals, options.eval_every is not None)
        self._between = Between(first, config.updates, self._wants_state, self._took)
        self._between.rows |= rows or {}
        self._earlier = None if folder is None or start is None else folder.samples()
        self._between.newest = start
        self._line: Line | None = None
        self._loggers = Loggers(options.loggers, self.name, to_plain(config), self.folder or ROOT)
        self._stopped = self._is_over = False
        self._shown: list[Shown] = []
        self._began = time.monotonic()
        self._termination = Termination(lambda: self.stop(wait=False)) if options.checkpoint_on_sigterm else None
        self._done = threading.Event()
        self._closing = threading.Lock()
        self.auto = auto
        self.phases: list[Run] = []
        self.phase_firsts: list[int] = []
        self._begin(workflow, plan, executor)
        self.run.on_update(self._on_update)
        wait_at_exit(self)
        _BEGUN.add(self)

    # --- controlling ---------------------------------------------------------------------------------------
    def wait(self, timeout: float | None = None) -> TrainingRun:
        """Block until the run has ended and all is written; returns the run. Raises what a worker raised.

        Ctrl+C ends the run cleanly and is raised again. `TimeoutError` after ``timeout`` seconds; the run goes on.
        """
        if self._between.waits_for_me:
            raise ExecutorError(
                "on_iteration waits for the run, which waits for it. Next: run.stop() ends it after this iteration."
            )
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while not self._done.wait(0.1 if deadline is None else max(0.0, min(0.1, deadline - time.monotonic()))):
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"{self!r} has not ended after {timeout} s; it goes on. Next: run.stop() or run.wait()."
                    )
        except KeyboardInterrupt:
            self.stop()
            raise
        ended, self._termination = self._termination, None
        if ended is not None:
            ended.leave()
            if ended.came:
                raise SystemExit(EXIT_STATUS)
        if self.error is not None:
            told(self)
            raise self.error
        return self

    def stop(self, wait: bool = True, at_once: bool = False) -> None:
        """End the run after the iteration that goes on, and keep its weights. ``at_once``: give that iteration up.

        Called in ``on_iteration`` it returns at once: the run ends after this iteration.
        """
        self._stopped = self._stopped or not self._is_over
        self._between.end()
        if self._between.waits_for_me:
            return
        if wait and (at_once or self.run.state == "starting" or not self._done.wait(STOP_SECONDS)):
            self.run.stop()
            self._done.wait(STOP_SECONDS)

    def pause(self) -> None:
        """Begin no more iterations after the one that goes on."""
        self._between.hold(True)

    def unpause(self) -> None:
        """Go on after `pause`."""
        self._between.hold(False)

    # --- looking -----------------------------------------------------------------------------------------
    @property
    def state(self) -> str:
        """starting, running, paused, finished, stopped or failed."""
        if self.error is not None or self.run.state == "failed":
            return "failed"
        if not self._is_over and self.run.state == "finished":  # a phase: the next one begins, or the end is written
            return "running"
        return "stopped" if self._stopped and self.run.state in ENDED else self.run.state

    @property
    def iteration(self) -> int:
        """Updates so far, those of an earlier run that this one goes on from too."""
        return max(self._between.rows, default=0)

    @property
    def metrics(self) -> pd.DataFrame:
        """A row for each iteration: ``iteration``, ``seconds``, ``env_steps``, ``return``, ….

        What evaluations found begins with ``eval_``.
        """
        import pandas as pd

        rows = self._between.rows
        return pd.DataFrame([rows[number] for number in sorted(rows.copy())])

    @property
    def timeline(self) -> Timeline:
        """Every span of every worker; it grows live."""
        return self.run.timeline

    @property
    def samples(self) -> pd.DataFrame:
        """One row for each of the latest ten thousand completions.

        Prompt, text, reward, versions, what was discarded and why, of all phases and of the run that this one goes on
        from. ``attrs["total"]``: how many there were. Kept in the run's folder.
        """
        return joined([self._earlier, *(phase.samples for phase in self.phases)])

    def _tables(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        return self.metrics, self.samples

    @property
    def folder(self) -> Path | None:
        """Where the run is kept."""
        return None if self._folder is None else self._folder.path

    @property
    def name(self) -> str:
        """Of its folder, else of what is trained."""
        return f"{self.recipe.name} {env_name(self.config)}" if self.folder is None else self.folder.name

    @property
    def reason(self) -> str:
        """Why the run ended before its last iteration; "" where it did not."""
        return self._watch.reason or ("stopped by the user" if self._stopped else "")

    def show(self) -> Any:
        """Display the live dashboard. A run that changes its plan goes on in it."""
        self._shown.append(self._displayed(None))
        return self._shown[-1].board

    def _displayed(self, before: Shown | None) -> Shown:
        """The dashboard of this phase, in the place of that of an earlier one."""
        controls = {"pause": self.pause, "resume": self.unpause, "stop": lambda: self.stop(wait=False)}
        return shown_live(
            self.run, Watched(self, self.run, self._between, self._began), charts_of(self.config), controls, before
        )

    def __repr__(self) -> str:
        last = self._between.rows.get(self.iteration, {})
        value = "".join(f", {name} {last[name]:.4g}" for name in ("return", "reward") if name in last)
        why = (
            f" ({self.reason})" if self.reason else f" ({type(self.error).__name__})" if self.error is not None else ""
        )
        anew = textwrap.shorten(self._begins_anew, 120, placeholder=" …")
        how = f"from the start of episodes ({anew})" if anew else "exactly where it was"
        resumed = f"; went on after iteration {self._between.first} {how}" if self._between.first else ""
        auto = "" if self.auto is None or (self.auto.measures and self.state in ENDED) else f"; {self.auto.note}"
        runner = f"; steps by {self.runner.brief}" if self.runner is not None else ""
        return (
            f"TrainingRun({self.recipe.name} {env_name(self.config)}: {self.state}{why}, "
            f"iteration {self.iteration}/{self.config.updates}{value}{resumed}{auto}{runner})"
        )

    # --- the policy ----------------------------------------------------------------------------------------
    def policy(self, best: bool = False) -> Any:
        """The newest policy, or that of the ``best`` evaluation so far. While the run goes on it waits for the
        iteration's end.
        """
        return self.recipe.policy(self.config, self._best().weights if best else self._between.snapshot().weights)

    def evaluate(self, episodes: int = 50, seed: int | None = None, best: bool = False) -> Evaluation:
        """Play whole episodes greedily with the newest weights (or the ``best``). On environments of its own; the run
        goes on.

        ``seed``: of the environments, never one of training; None: the run's own, others than those of ``eval_every``.
        """
        return self.policy(best).evaluate(episodes, seed)

    def film(self, path: str | os.PathLike[str], episodes: int = 2, best: bool = False) -> Film:
        """Greedy episodes of the newest policy as an MP4. Returns what was written, or why nothing was; in a notebook
        it plays.
        """
        return self.policy(best).film(path, episodes)

    def export(self, path: str | os.PathLike[str], best: bool = False) -> Path:
        """The newest policy for other programs: ".pt2" (torch.export) or ".onnx", normalisation inside, equal to 1e-5.
        """
        return self.policy(best).export(path)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the run as it is now into a folder that `resume` and `load_policy` take. Returns its path.

        `ConfigError` where another run is in it.
        """
        folder = RunFolder(path)
        folder.check_saves(self._id, self._folder)
        snapshot = self._between.snapshot()
        folder.make()
        about = {"state": self.state, "iteration": snapshot.iteration, "iterations": self.config.updates}
        with folder.writes():
            self._describe(folder)
            folder.write_tables(*self._tables(), self.timeline)
            if self._keeper.best is not None:
                folder.write_best(self._keeper.best)
            folder.write_state(snapshot)
            folder.about(**about, saved=time.time(), **this_process())
        return folder.path

    def _best(self) -> Best:
        if self._keeper.best is None:
            raise ConfigError(
                "There is no best policy: nothing was evaluated so far. Next: lab.train(..., eval_every=5_000)."
            )
        return self._keeper.best

    # --- the run's thread --------------------------------------------------------------------------------
    def _requests(self, requests: Iterator[str]) -> Iterator[str]:
        wait_at_exit(self)  # again: the executor has registered its own end
        yield from requests

    def _wants_state(self, iteration: int) -> bool:
        return self.options.evaluates_after(iteration, self.config.env_steps) or self._keeper.wants_state()

    def _took(self, row: Row, snapshot: Snapshot | None) -> bool:
        """After each iteration. Returns whether the run shall end."""
        iteration = int(row["iteration"])
        if snapshot is not None and self.options.evaluates_after(iteration, self.config.env_steps):
            began, cpu = time.perf_counter(), time.thread_time()
            seed = looks_seed(self.config.seed) if self.options.eval_seed is None else self.options.eval_seed
            found = self.recipe.policy(self.config, snapshot.weights).evaluate(self.options.eval_episodes, seed)
            row |= {
                **found.row(),
                "eval_seconds": time.perf_counter() - began,
                "eval_cpu_seconds": time.thread_time() - cpu,
            }
            self._keeper.evaluated(found, snapshot)
        if self.options.on_iteration is not None:
            row |= checked_metrics(self.options.on_iteration(dict(row)))
        if snapshot is not None:
            self._keeper.checkpoint(snapshot, self._tables)
        self._loggers.log(row)
        if self._line is not None:
            self._line(row)
        if self.auto is not None and self.auto.ends_phase(self._phase_seconds(), self.config.updates - iteration):
            self._between.cut()
        return self._watch.look(row)

    def _on_update(self, updated: Any) -> None:
        if updated is not self.run or updated.state not in ENDED or not self._closing.acquire(blocking=False):
            return
        try:
            if self._changes_phase():
                self._closing.release()
                self.run.on_update(self._on_update)  # not before: a phase may have ended by now, and is told of once
                return
        except Exception as error:  # of the planner, or of the user's on_iteration
            self.error = error
        self._end()

    def _end(self) -> None:
        """Take in what is left, write all, and let those who wait go on."""
        self.error, self._is_over = self.error or self.run.error, True
        try:
            self._between.harvest()
        except Exception as error:  # of the user's on_iteration, say
            self.error = self.error or error
        try:
            self._close()
        except Exception as error:  # whoever waits is not to wait for ever
            self.error = self.error or error
        finally:
            self._between.close()
            self._done.set()

    def _close(self) -> None:
        newest = self._between.newest
        if self.auto is not None:
            self.auto.close()
        self._keeper.end(
            newest, self._tables, self.timeline, state=self.state, reason=self.reason, iteration=self.iteration,
            error="" if self.error is None else f"{type(self.error).__name__}: {self.error}"[:2000],
        )  # fmt: skip
        self._loggers.close()
        if self._line is not None:
            self._line.close(repr(self) if self.folder is None else f"{self!r}, in {self.folder}")
        for dashboard in self._shown:
            dashboard.tell()  # what became of it is known now

    # --- the beginning -------------------------------------------------------------------------------------
    def _begin(self, workflow: Workflow, plan: ExecutionPlan, executor: str, **options: Any) -> None:
        """Start the run, or its next phase."""
        first = self._between.trained
        requests = self._requests(self._between.requests())
        started = run(workflow, plan, self.config.updates - first, executor, requests, plan.staleness + 2, **options)
        self.workflow, self.run, self.plan = workflow, started, started.plan
        self.phases.append(started)
        self.phase_firsts.append(first)
        self._between.attach(started)
        about = {
            "state": "running", "began": time.time(), "iteration": first, "iterations": self.config.updates,
            "executor": executor, **this_process(),
        }  # fmt: skip
        if len(self.phases) == 1:
            try:
                self._tell_folder(**about)
            except BaseException:  # nobody would have a handle of what goes on
                started.stop()
                told(self)
                raise
        else:  # a disk that is full by now stops nothing
            self._keeper.attempt(lambda _: self._tell_folder(**about))
        self._show()

    def _phase_seconds(self) -> list[float]:
        """Of the iterations of this phase, as far as they are known. Where they overlap, from the end of one to the end
        of the next.
        """
        choice = self.auto.choice if self.auto is not None else None
        if self.plan.staleness and choice is not None and choice.result_s is None:
            ends = self.run.timeline.iterations()["end_ns"].sort_values()
            return [float(ns) / 1e9 for ns in ends.diff().iloc[1:]]
        rows = (self._between.rows.get(i, {}) for i in range(self.phase_firsts[-1] + 1, self.iteration + 1))
        return [row["seconds"] for row in rows if "seconds" in row]

    def _changes_phase(self) -> bool:
        """Whether the run goes on where a phase has ended.

        Also where it has failed on a GPU. It does under the plan that `AutoPlan` says, from the newest state.
        """
        if self.auto is None or self.run.state not in ("finished", "failed"):
            return False
        ended, failed = self.run, self.run.error if self.run.state == "failed" else None
        if failed is None:
            self._between.harvest()
        elif self.auto.survives(failed):
            self._between.rewind()
        if not self._between.goes_on:
            return False
        seconds, remaining = self._phase_seconds(), self.config.updates - self.iteration
        setup_s = max(0.0, ended.elapsed_seconds - sum(seconds))
        state = None if self._between.newest is None else self._between.newest.state
        workflow = self.recipe.build(self.config, state)  # every worker by itself: what plans are made for
        if failed is None:
            phase = self.auto.next(workflow, ended.timeline, remaining, setup_s)
        else:
            phase = self.auto.after_failure(workflow, failed, remaining, setup_s)
        if self.auto.choice is not None and self._line is not None:
            self._line.say(self.auto.note)  # old plan, new plan, predicted, measured, gain
        plan = phase.plan
        if not phase.measures:
            workflow, plan = self.recipe.fused(self.config, workflow, plan, state)
        self._begin(workflow, plan, phase.executor, **phase.options)
        return True

    def _show(self) -> None:
        if len(self.phases) > 1:  # where the dashboards of the last phase are
            self._shown = [self._displayed(dashboard) for dashboard in self._shown]
        if self.options.progress is False or len(self.phases) > 1:
            return
        if in_notebook():
            self.show()
        elif self._line is None:
            steps, first = self.config.env_steps, self._between.first
            self._line = Line(
                f"{self.recipe.name} {env_name(self.config)}", self.config.updates * steps, first * steps,
                first_words(self.config, first, self.folder, self.auto), getattr(self.config, "unit", "steps"),
            )  # fmt: skip

    def _tell_folder(self, **about: Any) -> None:
        if self._folder is not None:
            with self._folder.writes():
                self._describe(self._folder)
                self._folder.about(**about)

    def _describe(self, folder: RunFolder) -> None:
        folder.write_json("config.json", to_plain(self.config))
        self.plan.save(folder.path / "plan.json")
        evaluated_from = environment_seed(self.config.seed, Purpose.EVALUATION)
        seeds = {"training": self.config.seed, "evaluation_from": evaluated_from}
        kept = {"algorithm": self.recipe.name, "env": env_name(self.config), "seeds": seeds, "versions": versions()}
        folder.about(**kept, runner=str(self.runner or ""), run_id=self._id, source=self._source)


def goes_on_in(path: Path) -> bool:
    """Whether a run of this process, one that has not ended, writes into this folder."""
    return any(
        run.folder is not None and not run._done.is_set() and run.folder.resolve() == path.resolve()
        for run in list(_BEGUN)
    )
