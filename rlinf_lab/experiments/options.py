"""What `train` is told besides the algorithm's own settings, checked before anything starts."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.experiments.goals import Until
from rlinf_lab.recipes.described import described
from rlinf_lab.workflow.quantities import logged


@described
@dataclass(frozen=True)
class Options:
    """How a run is watched, evaluated, ended and kept. `ConfigError` names what cannot work."""

    eval_every: int | Mapping[str, int] | None = None
    """evaluate so often: environment steps, or {"iterations": n}; rounded up to whole iterations. None: never"""
    eval_episodes: int = 20
    """episodes of such an evaluation, on the same unseen seeds each time"""
    eval_seed: int | None = None
    """of these environments; None: one of the run's own, apart from that of ``run.evaluate()``: what chose the best
    policy cannot judge it. Never one of training
    """
    until: Until | Mapping[str, float] | None = None
    """end as soon as one is reached: {"return": 475}, "success_rate" (0 to 1), "hours", "patience" (looks in a row
    without a better return). Of evaluations where there are any, else of training, over five iterations
    """
    on_iteration: Callable[[Mapping[str, float]], Mapping[str, float] | None] | None = None
    """called after each iteration with its metrics; numbers that it returns become metrics, too. What it raises fails
    the run
    """
    checkpoint_minutes: float | None = 10.0
    """write the learner's state at least so often, each minute where that costs 1 % of the time; None: at the end"""
    keep_checkpoints: int = 3
    """how many of these stay, the newest ones"""
    checkpoint_on_sigterm: bool = False
    """write the state and end when the process is told to (a cluster's time limit); in scripts, for it installs a
    signal handler
    """
    loggers: Sequence[str] = ()
    """"tensorboard", "wandb" (offline where WANDB_MODE says so), "mlflow\""""
    progress: bool | None = None
    """a live dashboard in a notebook, a line in a shell: None shows it, False nothing"""

    def __post_init__(self) -> None:
        every = self.eval_every
        if isinstance(every, Mapping):
            fits = set(every) == {"iterations"} and _whole(every["iterations"], 1)
        else:
            fits = every is None or _whole(every, 1)
        self._require("eval_every", fits, "environment steps, or {'iterations': n}. Next: eval_every=5_000")
        self._require("eval_episodes", _whole(self.eval_episodes, 1), "a whole number of at least 1")
        self._require(
            "eval_seed", self.eval_seed is None or _whole(self.eval_seed, 0), "a whole number of at least 0, or None"
        )
        self._require(
            "on_iteration", self.on_iteration is None or callable(self.on_iteration), "a function of a dict of metrics"
        )
        minutes = self.checkpoint_minutes
        real = (
            isinstance(minutes, numbers.Real)
            and not isinstance(minutes, bool)
            and math.isfinite(minutes)
            and minutes > 0
        )
        self._require("checkpoint_minutes", minutes is None or real, "minutes, greater than 0, or None")
        self._require("keep_checkpoints", _whole(self.keep_checkpoints, 0), "a whole number of at least 0")
        names = [self.loggers] if isinstance(self.loggers, str) else self.loggers
        self._require(
            "loggers",
            isinstance(names, Sequence) and all(isinstance(n, str) for n in names),
            "names. Next: loggers=['tensorboard']",
        )
        object.__setattr__(self, "loggers", tuple(names))
        object.__setattr__(self, "until", Until.of(self.until))

    def _require(self, name: str, holds: bool, limit: str) -> None:
        if not holds:
            raise ConfigError(f"train({name}={shown(getattr(self, name))}): {limit}.")

    @property
    def goals(self) -> Until:
        """`until`, checked."""
        return Until.of(self.until)

    def evaluates_after(self, iteration: int, env_steps: int) -> bool:
        """Whether an evaluation is due after that iteration; ``env_steps``: of one iteration."""
        every = self.eval_every
        if every is None:
            return False
        if isinstance(every, Mapping):
            return iteration % int(every["iterations"]) == 0
        return iteration * env_steps // every > (iteration - 1) * env_steps // every


OPTIONS = tuple(f.name for f in fields(Options))


def _whole(value: object, least: int) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least


def checked_metrics(given: Any) -> dict[str, float]:
    """What ``on_iteration`` returned, as metrics. `ConfigError` for anything but numbers by name."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"on_iteration returned {shown(given)}: numbers by name, or None. Next: return {{'my_metric': 1.0}}; "
            "run.stop() ends a run."
        )
    return logged("on_iteration", given)
