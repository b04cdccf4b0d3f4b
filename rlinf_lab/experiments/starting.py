"""`train`, `resume` and `load_policy`: from names and folders to runs and policies."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rlinf_lab.errors import ConfigError, counted, shown
from rlinf_lab.experiments.acting import TrainedPolicy
from rlinf_lab.experiments.autoplan.phases import AutoPlan
from rlinf_lab.experiments.autoplan.warming import warm_up
from rlinf_lab.experiments.options import OPTIONS, Options
from rlinf_lab.experiments.recipe import Recipe, find
from rlinf_lab.experiments.settings import check_memory, check_names, configured, configured_again, with_runner
from rlinf_lab.experiments.storage.folder import RunFolder, env_name, new_folder
from rlinf_lab.experiments.storage.source import check_source
from rlinf_lab.experiments.training import ROOT, TrainingRun, goes_on_in
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.machine.devices import devices_here, gpus
from rlinf_lab.runtime.run.run import check_executor
from rlinf_lab.workers import SimulatorWorker, TorchWorker
from rlinf_lab.workflow.worker import Context
from rlinf_lab.workflow.workflow import Workflow


def train(
    algorithm: str | Recipe,
    env: Any = None,
    *,
    total_timesteps: int | None = None,
    plan: ExecutionPlan | Callable[[Workflow], ExecutionPlan] | str | None = "auto",
    devices: Sequence[str] | None = None,
    executor: str | None = None,
    folder: str | os.PathLike[str] | bool | None = None,
    **settings: Any,
) -> TrainingRun:
    """Train a policy; returns at once. A live dashboard in a notebook, a line of progress in a shell.

    ``algorithm``: "ppo", "clone", ... or a `Recipe`. ``env``: an id, a factory, a class, or a task of language for
    "grpo", "ppo", "dapo", "dr_grpo", "rloo" and "reinforce++" ("reasoning/sorting", "problems.jsonl", a `tasks.Task`);
    may be left out where data says it. ``total_timesteps``: environment steps over all environments (answers of a
    language model), rounded up to whole iterations. ``plan``: "auto" measures the first iterations on one core,
    searches all ``devices`` (default: the cores and GPUs of this machine) and changes to the best plan while the run
    goes on, where that pays (`TrainingRun.auto` says what it found; the same seed gives the same curve under one plan
    only, and what is measured differs: None repeats a run bit for bit); or an `ExecutionPlan` of the recipe's
    workflow, or a function that makes one from it; None: all workers on one core. ``executor``: "local" (threads),
    "processes" or "ray"; None: "local" where the plan uses one device.
    ``folder``: where the run is kept; None: a new one in ``runs/``; False: nowhere. ``settings``: fields of the
    recipe's config (``help(run.config)``) and of `Options`: ``eval_every``, ``until``, ``on_iteration``, ``loggers``, …

    Raises `ConfigError`, `UnknownNameError` or `PlanError` before anything starts; what a worker raises comes from
    `TrainingRun.wait`.
    """
    env = os.fspath(env) if isinstance(env, os.PathLike) else env  # of a file with tasks
    recipe = find(algorithm, env)
    if executor is not None:  # also where the plan that is found needs one core, and so none
        check_executor(executor)
    options = Options(**{name: settings.pop(name) for name in OPTIONS if name in settings})
    check_names(recipe, settings, dict.fromkeys(OPTIONS))
    config, runner = with_runner(configured(recipe, env, total_timesteps, settings), executor)
    check_memory(config, executor)
    waits, steps = getattr(config, "learning_starts", 0), config.updates * config.env_steps
    if waits > steps:
        warnings.warn(
            f"learning_starts={waits}: the run has {steps} steps in all, and so takes no gradient step. Next: a larger "
            "total_timesteps, or a smaller learning_starts.",
            stacklevel=2,
        )
    workflow = recipe.build(config)
    home = home_of(config)
    auto = auto_plan(
        plan, devices if devices is not None or plan != "auto" else home, recipe, config, executor, workflow
    )
    first = auto.first(workflow) if auto is not None else None
    finds_itself = plan is None or (first is not None and not first.measures)
    plan = plan if first is None else first.plan
    # perhaps of a run that found its plan itself
    if isinstance(plan, ExecutionPlan) and set(plan.placements) != set(workflow.graph.workers):
        workflow, plan = recipe.fused(config, workflow, plan)
    plan = checked_plan(plan, workflow, home)
    if finds_itself:
        workflow, plan = recipe.fused(config, workflow, plan)
    kept = folder_of(folder, recipe, config)
    return TrainingRun(
        recipe,
        config,
        workflow,
        plan,
        first.executor if first else executor_for(plan, executor),
        options,
        kept,
        auto=auto,
        runner=runner,
    )


def resume(
    folder: str | os.PathLike[str],
    *,
    env: Any = None,
    total_timesteps: int | None = None,
    plan: ExecutionPlan | None = None,
    executor: str | None = None,
    **settings: Any,
) -> TrainingRun:
    """Go on with a run from its folder, which keeps it from then on. Returns at once.

    The learner goes on exactly where it was, and so do environments that save their state, under the plan that the run
    had: on cores the numbers are those of a run that was never interrupted. Other environments begin new episodes. The
    run's repr says which, and why.

    ``total_timesteps``: of both together; None: as the run was begun. ``env``: again, where it was no id but an object,
    or a file of problems that has changed.
    ``settings``: as in `train`.
    """
    if executor is not None:
        check_executor(executor)
    kept = RunFolder(folder)
    about = kept.read_json("run.json")
    check_ended(kept, about)
    kept.forget_parts()
    recipe, start = kept.recipe(), kept.state()
    options = Options(**{name: settings.pop(name) for name in OPTIONS if name in settings})
    check_names(recipe, settings, dict.fromkeys(OPTIONS))
    executor = executor or about.get("executor")
    config, runner = with_runner(configured_again(recipe, kept, env, total_timesteps, settings), executor)
    check_memory(config, executor)
    check_source(kept, config, asked=env is not None)
    if (env is not None or settings) and recipe.policy is TrainedPolicy:
        TrainedPolicy(config, start.weights)  # refuses weights of another network; a language model is not read twice
    if runner is not None and "runner" not in settings:
        runner = replace(runner, why="as the run was begun")
    if config.updates <= start.iteration:
        unit, steps = getattr(config, "unit", "steps"), start.iteration * config.env_steps
        what = f"has done all its {counted(start.iteration, 'iteration')}"
        if total_timesteps is not None:
            what = f"stands at {steps:,} {unit}, and total_timesteps={total_timesteps} in all asks for no more"
        advice = f"lab.resume({str(kept.path)!r}, total_timesteps={2 * steps})"
        raise ConfigError(f"The run in {str(kept.path)!r} {what}. Next: {advice}.")
    workflow, before = recipe.build(config, start.state), kept.plan()
    if plan is None and set(before.placements) != set(workflow.graph.workers):
        workflow, before = recipe.fused(config, workflow, before, start.state)
    plan = checked_plan(before if plan is None else plan, workflow)
    rows = {number: row for number, row in kept.rows().items() if number <= start.iteration}
    return TrainingRun(
        recipe,
        config,
        workflow,
        plan,
        executor_for(plan, executor),
        options,
        kept,
        start,
        rows,
        runner=runner,
        begins_anew=begins_anew(workflow, plan),
    )


def check_ended(kept: RunFolder, about: dict[str, Any]) -> None:
    """`ConfigError` where a run still writes into a folder. In this process or another that lives on this machine."""
    from rlinf_lab.experiments.storage.shelf import GOING_ON, state_of

    goes_on = about.get("host") == socket.gethostname() and state_of(about) in GOING_ON
    # of this process it is known: a disk may have been too full for the last word, or the folder is a copy
    if goes_on_in(kept.path) or (goes_on and about.get("pid") != os.getpid()):
        raise ConfigError(
            f"resume({str(kept.path)!r}): a run is going on in it (process {about.get('pid')}). Next: run.wait() or "
            "run.stop() there."
        )


def begins_anew(workflow: Workflow, plan: ExecutionPlan) -> str:
    """Why a workflow does not go on exactly from its state; "" where it does."""
    for name, declaration in workflow.workers.items():
        if issubclass(declaration.cls, SimulatorWorker):
            context = Context()
            context.name, context.ranks, context.sub_batches = name, plan.ranks(name), plan.tokens(name)
            why: str = declaration.build(context).begins_anew  # type: ignore[attr-defined]
            if why:
                return why
    behind = counted(plan.staleness, "update")
    return f"its plan lets weights be {behind} behind, and they begin anew" if plan.staleness else ""


def load_policy(folder: str | os.PathLike[str], best: bool = False, env: Any = None, **settings: Any) -> Any:
    """The policy of a run's folder: ``load_policy(...).act(obs)``. ``best``: of the best evaluation. ``env`` and other
    ``settings``: again, where they were objects that acting needs, such as ``tools``.
    """
    kept = RunFolder(folder)
    recipe = kept.recipe()
    check_names(recipe, settings)
    config = configured_again(recipe, kept, env, None, settings, only_acts=True)
    check_source(kept, config, asked=env is not None, only_acts=True)
    return recipe.policy(config, kept.weights(best))


def auto_plan(
    plan: Any, devices: Sequence[str] | None, recipe: Recipe, config: Any, executor: str | None, workflow: Workflow
) -> AutoPlan | None:
    """For ``plan="auto"``; None for another plan. `ConfigError` for devices beside a plan that names its own."""
    if plan == "auto":
        found = tuple(all_devices() if devices is None else devices)
        staleness = getattr(config, "staleness", 0)
        behind = staleness if isinstance(staleness, int) else 0  # GRPO's is the name of a rule
        networks = tuple(name for name, worker in workflow.workers.items() if issubclass(worker.cls, TorchWorker))
        return AutoPlan(
            recipe.shares(config), found, executor or "processes", behind, recipe.fuse is not None, networks,
            partial(warm_up, sorted({worker.cls.__module__ for worker in workflow.workers.values()}), env_id(config)),
        )  # fmt: skip
    if devices is not None:
        raise ConfigError(
            f"train(devices={shown(devices)}): for plan='auto' only; a plan names its own. Next: leave one of them out."
        )
    return None


def env_id(config: Any) -> str | None:
    """The id of an environment that is known by name; None for others.

    One of those may be made to see what it imports.
    """
    env = getattr(config, "env", None)
    return env if isinstance(env, str) else None


def all_devices() -> list[str]:
    """The cores of this machine, and then its GPUs: networks may be faster there."""
    return [*devices_here("cpu"), *(f"cuda:{i}" for i in range(gpus().usable))]


def home_of(config: Any) -> list[str] | None:
    """The GPU of a simulator that steps on one.

    All workers stay there, and nothing is copied. None for others: the cores of this machine.
    """
    there = getattr(getattr(config, "spec", None), "device", None)
    return [there] if there is not None and there.startswith("cuda") else None


def checked_plan(plan: Any, workflow: Workflow, home: Sequence[str] | None = None) -> ExecutionPlan:
    """The plan, or one core (of ``home``, the first device) for all. `ConfigError` for what is none, `PlanError` for
    one that does not fit.
    """
    if plan is None:
        return ExecutionPlan.temporal(workflow, (home or devices_here("cpu"))[:1])
    if callable(plan) and not isinstance(plan, type):
        plan = plan(workflow)
    if not isinstance(plan, ExecutionPlan):
        raise ConfigError(
            f"train(plan={shown(plan)}): 'auto', an ExecutionPlan, a function of the workflow that makes one, or None. "
            "Next: plan='auto', or plan=lambda flow: lab.ExecutionPlan.temporal(flow, lab.devices())."
        )
    plan.validate(workflow)
    return plan


def executor_for(plan: ExecutionPlan, asked: str | None) -> str:
    """Threads share one interpreter: as soon as a plan has several devices, processes use them."""
    return asked or ("local" if len(plan.devices) == 1 else "processes")


def folder_of(folder: Any, recipe: Recipe, config: Any) -> RunFolder | None:
    """Where a new run is kept."""
    if folder is False:
        return None
    if folder is None or folder is True:
        return new_folder(ROOT, recipe.name, env_name(config))
    kept = RunFolder(folder)
    if (kept.path / "run.json").exists():
        raise ConfigError(
            f"train(folder={str(kept.path)!r}): there is a run in it. Next: lab.resume({str(kept.path)!r}), another "
            "folder, or delete this one."
        )
    kept.make()
    return kept
