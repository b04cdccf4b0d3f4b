"""Algorithms by name: what a recipe is, and where the known ones live.

A recipe is one readable file with a frozen dataclass of settings and a function that builds a `Workflow` from it. The
front door asks this of it:

    config      fields ``env``, ``max_episode_steps``, ``seed``, ``total_timesteps``, ``iterations``; properties
                ``updates`` (iterations of the whole run), ``env_steps`` (of one iteration), ``factory`` (an
                `EnvFactory`), ``spec``; ``make_policy()`` gives a constructor of the policy, which has
                ``act(obs, None)`` and ``load(weights)``; ``preset(env, **changes)`` where settings are known that learn
                ``staleness``, optional: how many updates the acting weights may be old, for ``plan="auto"``
    build       ``build(config, state=None) -> Workflow``, whose iteration function takes one request:
                "train"       one update; returns its metrics, a dict of numbers
                "checkpoint"  the same; returns {"metrics": ..., "state": ...}; of several ranks the state may be a
                              list; with "standing", what `SimulatorWorker.where_they_stand` returns, a run goes on
                              exactly from there; "rollouts" (answers in the making) becomes one of the state's keys
                "state"       returns the state, nothing is trained; "standing" is one of its keys
                              (`rlinf_lab.workers.standing.stood`)
    shares      ``shares(config)``, optional: for each worker that may have several ranks, in how many equal parts its
                work divides at most, such as ``{"simulator": config.num_envs}``; what ``plan="auto"`` looks at
    fuse        ``fuse(config, plan, state=None)``, optional: the same training as (workflow, plan) with fewer workers,
                for a plan that has some of them together; None for another plan. Used for plans that the run finds by
                itself
    state       a tree (dicts, lists, numbers, arrays, tensors, `PolicyWeights`, `Moments`) from which
                ``build(config, state)`` goes on; ``state["weights"]`` are the policy's

A new algorithm is a file like `rlinf_lab.recipes.ppo` and one line in `HOMES`, or ``lab.train(Recipe("mine", MyConfig,
my_build), ...)``, or, in a package of its own, an entry point of the group ``rlinf_lab.recipes`` that loads a `Recipe`.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rlinf_lab.errors import ConfigError, RlinfLabError, UnknownNameError, shown
from rlinf_lab.experiments.acting import TrainedPolicy
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.policies.weights import PolicyWeights
from rlinf_lab.tasks.registry import is_task
from rlinf_lab.tasks.task import Task
from rlinf_lab.vecenv import environment
from rlinf_lab.vecenv.registry import announced
from rlinf_lab.workflow.workflow import Workflow

GROUP = "rlinf_lab.recipes"
#: By name: the module, its configuration and the function that builds the workflow. Loaded when asked for, torch with
#: them.
HOMES = {
    "clone": ("rlinf_lab.recipes.clone", "CloneConfig", "build"),
    "dagger": ("rlinf_lab.recipes.dagger", "DAggerConfig", "build"),
    "embodied_grpo": ("rlinf_lab.recipes.embodied_grpo", "EmbodiedGRPOConfig", "build"),
    "grpo": ("rlinf_lab.recipes.grpo", "GRPOConfig", "build"),
    "ppo": ("rlinf_lab.recipes.ppo", "PPOConfig", "build"),
    "rlpd": ("rlinf_lab.recipes.rlpd", "RLPDConfig", "build"),
    "sac": ("rlinf_lab.recipes.sac", "SACConfig", "build"),
    "td3": ("rlinf_lab.recipes.td3", "TD3Config", "build"),
    "td3_bc": ("rlinf_lab.recipes.td3_bc", "TD3BCConfig", "build"),
}

#: GRPO of language models with some settings changed, and what `recipes.grpo` calls that.
VARIANTS = {"dapo": "dapo", "dr_grpo": "dr_grpo", "reinforce++": "reinforce++", "rloo": "rloo", "token_ppo": "ppo"}

#: What is learnt is no `TrainedPolicy` there.
POLICIES = {"grpo": ("rlinf_lab.experiments.answering", "TrainedModel")}


def no_shares(_config: Any) -> Mapping[str, int]:
    """No worker may have several ranks."""
    return {}


@dataclass(frozen=True)
class Recipe:
    """An algorithm: its settings and how its workflow is built. See the module's docstring for what is asked of both.
    """

    name: str
    """as `train` takes it"""
    config: type[Any]
    """a frozen dataclass"""
    build: Callable[..., Workflow]
    """``build(config, state=None)``"""
    shares: Callable[[Any], Mapping[str, int]] = no_shares
    """``shares(config)``; none: every worker has one rank"""
    policy: Callable[[Any, PolicyWeights], Any] = TrainedPolicy
    """``policy(config, weights)``: what `load_policy` gives; it has ``version`` and ``evaluate(episodes, seed)``"""
    fuse: Callable[..., tuple[Workflow, ExecutionPlan] | None] | None = None
    """``fuse(config, plan, state=None)``; None: never"""
    preset: Callable[..., Any] | None = None
    """``preset(env, **changes)``; None: that of ``config``, or ``config`` itself"""

    def fused(
        self, config: Any, workflow: Workflow, plan: ExecutionPlan, state: Any = None
    ) -> tuple[Workflow, ExecutionPlan]:
        """As `fuse` has it where there is such a thing, else as given."""
        found = None if self.fuse is None else self.fuse(config, plan, state)
        return (workflow, plan) if found is None else found

    def configured(self, env: Any, **changes: Any) -> Any:
        """The settings for ``env``, some of them changed."""
        preset: Any = self.preset or getattr(self.config, "preset", self.config)
        return preset(env, **changes)

    @property
    def fields(self) -> dict[str, dataclasses.Field[Any]]:
        """The settings by name."""
        return {f.name: f for f in dataclasses.fields(self.config)}


#: What is trained on decides: where it is an environment, and where it is a task of language.
ELSEWHERE = {"grpo": "embodied_grpo"}
OF_LANGUAGE = {"ppo": "token_ppo"}


def find(algorithm: str | Recipe, env: Any = None) -> Recipe:
    """The recipe of that name for what is trained on, ``env``. `UnknownNameError` with the nearest one."""
    if isinstance(env, type) and issubclass(env, Task):
        raise ConfigError(f"train(..., {env.__name__}): a class; a task is an object of it. Next: {env.__name__}().")
    if isinstance(algorithm, str) and algorithm in ELSEWHERE and env is not None and _is_environment(env):
        algorithm = ELSEWHERE[algorithm]
    if isinstance(algorithm, str) and algorithm in OF_LANGUAGE and is_task(env):
        algorithm = OF_LANGUAGE[algorithm]
    if isinstance(algorithm, Recipe):
        return algorithm
    if not isinstance(algorithm, str):
        raise ConfigError(
            f"train({shown(algorithm)}): the name of an algorithm, or a Recipe. Next: lab.train('ppo', 'CartPole-v1')."
        )
    if algorithm in HOMES and algorithm not in POLICIES and is_task(env):
        task = repr(env) if isinstance(env, str) else shown(env)
        raise ConfigError(
            f"train({algorithm!r}, {task}): {algorithm} trains on environments, and this is a task of language. Next: "
            f"lab.train('grpo', {task}); 'ppo', 'dapo', 'dr_grpo', 'rloo' and 'reinforce++' learn it, too."
        )
    if algorithm in HOMES:
        module, config, build = HOMES[algorithm]
        home = importlib.import_module(module)
        policy = TrainedPolicy
        if algorithm in POLICIES:
            module, name = POLICIES[algorithm]
            policy = getattr(importlib.import_module(module), name)
        return Recipe(
            algorithm,
            getattr(home, config),
            getattr(home, build),
            getattr(home, "shares", no_shares),
            policy,
            getattr(home, "fuse", None),
        )
    if algorithm in VARIANTS:
        grpo = find("grpo")
        return replace(grpo, name=algorithm, preset=partial(_of_variant, grpo.config, VARIANTS[algorithm]))
    found = announced(GROUP)
    if algorithm not in found:
        raise UnknownNameError.of("algorithm", algorithm, [*HOMES, *VARIANTS, *found])
    loaded = found[algorithm].load()
    if not isinstance(loaded, Recipe):
        raise ConfigError(
            f"The entry point {algorithm!r} of {GROUP!r} loads {shown(loaded)}, which is no Recipe. Next: let it name "
            "a Recipe(...)."
        )
    return loaded


def _of_variant(config: Any, name: str, env: Any, **changes: Any) -> Any:
    return config.preset(name, **{**changes, "env": env})


def _is_environment(env: Any) -> bool:
    """Whether this is an environment. A task of language, which is a `Task` or has a name of its own, is none."""
    if is_task(env):
        return False
    try:
        environment(env)
    except RlinfLabError:
        return False
    return True


def names() -> list[str]:
    """All algorithms that `train` knows."""
    return sorted({*HOMES, *VARIANTS, *announced(GROUP)})


def name_of(config: Any) -> str:
    """The algorithm that a configuration is of. `ConfigError` for one of a `Recipe` that has no name here."""
    for name, (module, kind, _) in HOMES.items():
        if type(config).__name__ == kind and type(config).__module__ == module:
            return name
    raise ConfigError(
        f"{type(config).__name__} is of no algorithm that is known by name. Next: give the run itself, policy=run."
    )
