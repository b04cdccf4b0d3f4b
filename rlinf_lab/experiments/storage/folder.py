"""A run on disk.

    run.json             what it is: algorithm, environment, seeds, versions, state, process, iteration, the best
                         evaluation
    config.json          every setting
    plan.json            the plan
    metrics.parquet      a row for each iteration
    samples.parquet      the latest ten thousand completions, if it is about any (`TrainingRun.samples`)
    timeline.parquet     every span
    policy.safetensors   the newest weights, normalisation inside
    best.safetensors     those of the best evaluation
    learner.safetensors  what the learner needs to go on
    checkpoints/         earlier states of the learner, learner-<iteration>.safetensors
    replay/              rows of a replay buffer that the newest and earlier states share, each written once

Each file is there whole or as it was before. ``learner.safetensors`` is complete in itself but for rows in ``replay/``,
which are there before it, so a process that dies between two files leaves a folder that can be resumed. Nothing in it
is pickled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from rlinf_lab.datasets import EpisodeSource
from rlinf_lab.errors import ConfigError, RlinfLabError, shown
from rlinf_lab.experiments.recipe import Recipe, find
from rlinf_lab.experiments.storage import segments
from rlinf_lab.experiments.storage.snapshot import Snapshot, segments_of
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.policies import Flow
from rlinf_lab.policies.weights import PolicyWeights
from rlinf_lab.recipes.schedules import Schedule, linear
from rlinf_lab.recipes.starting_policy import StartingPolicy
from rlinf_lab.timeline.record.files import whole

if TYPE_CHECKING:
    import pandas as pd

    from rlinf_lab.timeline.timeline import Timeline

FORMAT = 1
ENDED = ("finished", "failed", "stopped")


@dataclasses.dataclass(frozen=True, eq=False)
class Best:
    """The best evaluation of a run: ``about`` for JSON, and the weights."""

    about: dict[str, Any]
    weights: PolicyWeights


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, (str, os.PathLike)) or not str(path):
            raise ConfigError(f"{shown(path)} is no folder's path. Next: 'runs/cartpole'.")
        self.path = Path(path)

    # --- writing ----------------------------------------------------------------------------------------
    def make(self) -> None:
        """The folder, with those above it. `ConfigError` where something else is there."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"The folder {str(self.path)!r} cannot be made: {error.strerror}. Next: another path."
            ) from error

    @contextlib.contextmanager
    def writes(self) -> Iterator[None]:
        """`ConfigError` with the next step for what cannot be written within."""
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"The folder {str(self.path)!r} cannot be written: {error.strerror or error}. Next: make room there, "
                "or another folder."
            ) from error

    def forget_parts(self) -> None:
        """Take away what a process that was killed has left half written."""
        for folder in (self.path, self.path / "checkpoints", self.rows_folder):
            for part in (*folder.glob(".*.part"), *folder.glob(".tmp??????")):  # the latter are safetensors' own
                part.unlink(missing_ok=True)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(content, indent=1)
        with whole(self.path / name) as part:
            part.write_text(text + "\n", encoding="utf-8")

    def about(self, **changes: Any) -> None:
        """Change some of run.json."""
        self.write_json(
            "run.json",
            (self.read_json("run.json") if (self.path / "run.json").exists() else {"format": FORMAT}) | changes,
        )

    def write_state(self, snapshot: Snapshot, keep: int = 0) -> None:
        """The newest state, and its weights; of those before ``keep`` stay as checkpoints."""
        # the smallest first: a disk may have room for it alone
        snapshot.weights.save(self.path / "policy.safetensors")
        newest = self.path / "learner.safetensors"
        if keep:
            kept = self.path / "checkpoints"
            kept.mkdir(exist_ok=True)
            snapshot.save(kept / f"learner-{snapshot.iteration:06d}.safetensors", self.rows_folder)
            for old in self.checkpoints()[:-keep]:
                old.unlink(missing_ok=True)
        snapshot.save(newest, self.rows_folder)
        if self.rows_folder.exists():
            segments.forget_others(
                self.rows_folder, [name for path in (newest, *self.checkpoints()) for name in segments_of(path)]
            )

    def write_best(self, best: Best) -> None:
        best.weights.save(self.path / "best.safetensors")
        self.about(best=best.about)

    @property
    def rows_folder(self) -> Path:
        """Where rows of a replay buffer lie."""
        return self.path / "replay"

    def checkpoints(self) -> list[Path]:
        """States of the learner that were kept, oldest first."""
        return sorted((self.path / "checkpoints").glob("learner-*.safetensors"))

    def write_tables(
        self, metrics: pd.DataFrame, samples: pd.DataFrame | None = None, timeline: Timeline | None = None
    ) -> None:
        with whole(self.path / "metrics.parquet") as part:
            metrics.to_parquet(part)
        if samples is not None and len(samples):
            with whole(self.path / "samples.parquet") as part:
                samples.to_parquet(part)
        if timeline is not None:
            timeline.to_parquet(self.path / "timeline.parquet")

    # --- whose it is --------------------------------------------------------------------------------------
    def run_id(self) -> str:
        """The id of the run in it; a new one where there is none. Whoever resumes the run goes on with it."""
        about = self.read_json("run.json") if (self.path / "run.json").exists() else {}
        return str(about.get("run_id") or uuid.uuid4().hex)

    def check_saves(self, run_id: str, own: RunFolder | None) -> None:
        """`ConfigError` where another run is in it.

        Neither a copy that the run of this id saved, nor its ``own`` folder.
        """
        if not (self.path / "run.json").exists() or (own is not None and own.path.resolve() == self.path.resolve()):
            return
        about = self.read_json("run.json")
        if about.get("run_id") != run_id or "began" in about:
            raise ConfigError(
                f"run.save({str(self.path)!r}): there is another run in it. Next: another folder, or delete that one."
            )

    # --- reading ----------------------------------------------------------------------------------------
    def is_of_a_workflow(self) -> bool:
        """Whether `Run.save` wrote it: what was not trained has no settings."""
        return (self.path / "metrics.parquet").exists() and not (self.path / "run.json").exists()

    def read_json(self, name: str) -> dict[str, Any]:
        """`ConfigError` where it is missing or damaged."""
        path = self.path / name
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ConfigError(
                f"{str(self.path)!r} is no folder of a run: it has no {name}. Next: lab.runs() lists those that are "
                "here."
            ) from error
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{str(path)!r} cannot be read: {error}. Next: lab.runs() lists runs; delete this one, or mend the "
                "file."
            ) from error
        if not isinstance(found, dict) or (name == "run.json" and found.get("format") != FORMAT):
            raise ConfigError(
                f"{str(path)!r} is not of a run that this version can read. Next: the version of rlinf_lab that wrote "
                "it."
            )
        return found

    def recipe(self) -> Recipe:
        """The algorithm, by its name."""
        return find(str(self.read_json("run.json").get("algorithm")))

    def best_return(self) -> float | None:
        """Of the best evaluation, where there was one. `ConfigError` where that was changed by hand."""
        best = self.read_json("run.json").get("best")
        value = best.get("return") if isinstance(best, dict) else best
        if value is None or (isinstance(value, (int, float)) and isinstance(best, dict)):
            return value
        raise ConfigError(
            f"{str(self.path / 'run.json')!r} says that the best evaluation is {shown(best)}; it must be a mapping "
            "with its return. Next: take 'best' out of the file."
        )

    def best(self) -> Best | None:
        """What `write_best` wrote. `ConfigError` where its weights cannot be read."""
        if self.best_return() is None or not (self.path / "best.safetensors").exists():
            return None
        return Best(self.read_json("run.json")["best"], self.weights(best=True))

    def plan(self) -> ExecutionPlan:
        return ExecutionPlan.load(self.path / "plan.json")

    def state(self) -> Snapshot:
        """The newest state of the learner that can be read. `ConfigError` where there is none."""
        tried: RlinfLabError | None = None
        for path in [self.path / "learner.safetensors", *reversed(self.checkpoints())]:
            if path.exists():
                try:
                    return Snapshot.load(path, self.rows_folder)
                except ConfigError as error:
                    tried = tried or error
        raise tried or ConfigError(
            f"{str(self.path)!r} has no state of a learner: {self._why_nothing()}. Next: lab.load_policy(folder) where "
            "there are weights, else lab.train(...) anew."
        )

    def _why_nothing(self) -> str:
        """Why weights or state are not there."""
        about = self.read_json("run.json")
        if about.get("unwritten"):
            return f"it could not be written ({about['unwritten']})"
        what = "the run ended before its first" if about.get("state") in ENDED else "it goes on, before its first"
        return f"{what} checkpoint (there is one after a minute, and then every checkpoint_minutes=)"

    def weights(self, best: bool = False) -> PolicyWeights:
        """Of the policy."""
        path = self.path / ("best.safetensors" if best else "policy.safetensors")
        if not path.exists():
            why = "no evaluation was asked for (eval_every=)" if best else self._why_nothing()
            raise ConfigError(f"{str(self.path)!r} has no {path.name}: {why}. Next: lab.runs() says what there is.")
        try:
            return PolicyWeights.load(path)
        except Exception as error:  # safetensors' own are of several kinds
            then = "delete it, and the next evaluation keeps its own" if best else "lab.resume(folder) and save it anew"
            raise ConfigError(
                f"{str(path)!r} cannot be read: {type(error).__name__}: {error}. Next: {then}."
            ) from error

    def rows(self) -> dict[int, dict[str, float]]:
        """The metrics by iteration; what is not known of one is left out."""
        table = self.metrics()
        return {
            int(row["iteration"]): {str(k): float(v) for k, v in row.items() if v == v}
            for row in table.to_dict("records")
        }

    def metrics(self) -> pd.DataFrame:
        """A row for each iteration; empty where none was written. `ConfigError` for what is no such table."""
        import pandas as pd

        found = self._table("metrics.parquet")
        if found is None:
            return pd.DataFrame({"iteration": []})
        texts = [str(name) for name in found if not pd.api.types.is_numeric_dtype(found[name])]
        if "iteration" not in found or texts:
            fault = f"{', '.join(texts)}: no numbers" if texts else "no column 'iteration'"
            mend = f"write it without {'that column' if len(texts) == 1 else 'those'}" if texts else "write one into it"
            raise ConfigError(
                f"{str(self.path / 'metrics.parquet')!r} is no table of a run's metrics ({fault}). Next: {mend}, or "
                "delete the file, and the curves with it; weights are in files of their own."
            )
        return found

    def samples(self) -> pd.DataFrame:
        """A row for each of the latest completions; empty where none was written."""
        import pandas as pd

        found = self._table("samples.parquet")
        return pd.DataFrame({"id": []}) if found is None else found

    def _table(self, name: str) -> pd.DataFrame | None:
        """`ConfigError` where it is damaged; None where it is not there."""
        import pandas as pd

        path = self.path / name
        if not path.exists():
            return None
        try:
            return pd.read_parquet(path)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{str(path)!r} cannot be read: {error}. Next: delete it; the weights are in files of their own."
            ) from error


def new_folder(root: Path, algorithm: str, env: str) -> RunFolder:
    """One that is not there yet, named after what is run and when."""
    stem = f"{algorithm}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', env)}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1000):
        path = root / (stem if not number else f"{stem}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(
                f"The folder {str(path)!r} cannot be made: {error.strerror}. Next: folder='...' of your own, or "
                "folder=False."
            ) from error
        return RunFolder(path)
    raise ConfigError(f"There are a thousand runs {stem!r} in {str(root)!r}. Next: folder='...' of your own.")


def this_process() -> dict[str, Any]:
    """Who executes a run: enough to say later whether it still does."""
    import psutil

    return {"host": socket.gethostname(), "pid": os.getpid(), "process_began": psutil.Process().create_time()}


def versions() -> dict[str, str]:
    """Of Python and of the packages that results depend on. Those that are not installed are left out."""
    found = {"python": platform.python_version()}
    for package in ("rlinf-lab", "torch", "numpy", "gymnasium", "ray", "mujoco", "metaworld", "mani-skill", "envpool"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


# --- settings as JSON -----------------------------------------------------------------------------------------
def to_plain(config: Any) -> dict[str, Any]:
    """A configuration as JSON can hold it.

    What it cannot hold (a class, a function) as {"object": its name, "again": how a program may say it}.
    """
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Schedule):
        return {"linear": [value.start, value.end]}
    if isinstance(value, Flow):
        return {"flow": dataclasses.asdict(value)}
    if isinstance(value, StartingPolicy):
        return {"policy_of": {"algorithm": value.algorithm, "config": to_plain(value.config)}}
    if isinstance(value, gymnasium.Env) and (id := registered_as(value)):
        return id
    return {"object": repr(value) if isinstance(value, EpisodeSource) else named(value), "again": expression(value)}


def registered_as(env: gymnasium.Env) -> str | None:
    """The id from which `gymnasium.make` makes the same environment, however drawn. None where arguments or wrappers
    were given besides.
    """
    if env.spec is None or env.spec.id not in gymnasium.registry:
        return None
    drawn = {name: value for name, value in env.spec.kwargs.items() if name != "render_mode"}
    if dataclasses.replace(env.spec, kwargs=drawn) != gymnasium.spec(env.spec.id):
        return None
    return f"gymnasium/{env.spec.id}" if "/" in env.spec.id else env.spec.id


def named(value: Any) -> str:
    """What a class or a function is called, for people."""
    return getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or type(value).__name__


def expression(value: Any) -> str:
    """How a program may say it again; "" where that is not known."""
    spec = getattr(value, "spec", None)
    if isinstance(value, gymnasium.vector.VectorEnv):
        return "" if spec is None else f"gymnasium.make_vec({spec.id!r}, num_envs={value.num_envs})"
    if isinstance(value, gymnasium.Env) and spec is not None:
        return f"gymnasium.make({spec.id!r}, ...)"
    name = named(value).rpartition(".")[2]
    return "" if not name.isidentifier() else name if name == getattr(value, "__name__", None) else f"{name}(...)"


def env_name(config: Any) -> str:
    """What the environment of a run is called."""
    return str(config.factory.id)


def from_plain(value: Any) -> Any:
    """A setting from JSON: lists as tuples, schedules as they were. `ConfigError` for one that was changed by hand."""
    try:
        if isinstance(value, dict) and set(value) == {"linear"}:
            return linear(*value["linear"])
        if isinstance(value, dict) and set(value) == {"flow"}:
            flow = value["flow"]  # of before ``noisy_steps``: all steps had noise
            return Flow(**({"noisy_steps": flow["steps"]} if "steps" in flow else {}) | flow)
    except TypeError as error:
        raise ConfigError(f"A setting in config.json is {shown(value)}: {error}. Next: give it by name.") from error
    return tuple(from_plain(v) for v in value) if isinstance(value, list) else value
