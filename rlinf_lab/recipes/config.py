"""What the settings of all recipes have in common. Fields, checks, and what an iteration's request may be."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import os
from collections.abc import Callable, Container, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

from rlinf_lab.datasets import EpisodeSource
from rlinf_lab.datasets.given import recorded
from rlinf_lab.datasets.presenting import presented
from rlinf_lab.errors import ConfigError, UnknownNameError, shown
from rlinf_lab.records import Episodes
from rlinf_lab.vecenv import EnvFactory, EnvSpec, environment
from rlinf_lab.vecenv.spaces import presented_action, presented_observation
from rlinf_lab.vecenv.stepping import rewarded_for_success
from rlinf_lab.workers.computing import PRECISIONS
from rlinf_lab.workers.learner import GROUPS
from rlinf_lab.workers.standing import stood
from rlinf_lab.workflow.workflow import WorkerHandle

REWARDS = ("environment", "success")
RECORDED = (
    "recorded episodes, such as lab.collect(env, 'expert', episodes=10), lab.datasets.from_arrays(obs, action, ...) of arrays of yours, the folder of a "
    "LeRobotDataset or an HDF5 file"
)


def trains_only(known: Container[str] | None = None) -> dict[str, Any]:
    """Metadata of a field that a loaded policy does without.

    An object in it, which no file holds, or a name that is not in ``known`` need not be given again.
    """
    return {"needed_to_act": False, **({} if known is None else {"known": known})}


@dataclass(frozen=True)
class RecipeConfig:
    """Settings of every recipe; names are gymnasium's, PyTorch's and Stable-Baselines3's.

    Where `Number` stands a schedule may stand, too: ``lab.linear(3e-4)``, or a function of the share of the run that is done.
    Raises `ConfigError` naming the field, its value and the limit.
    """

    env: Any
    """an id ("CartPole-v1", "simulator/task"), a gymnasium.Env class, a function that makes one or a vector, a gymnasium VectorEnv"""
    max_episode_steps: int | None = None
    """environment steps after which an episode is cut; None: the environment's own limit"""
    _: KW_ONLY
    total_timesteps: int | None = None
    """environment steps of the run, over all environments, rounded up to whole iterations; None: as `iterations` says, else the recipe's usual number"""
    iterations: int | None = None
    """iterations of the run, instead of `total_timesteps`"""
    seed: int = 0
    """of environments, weights, exploration and minibatches"""
    learners: int = 1
    """ranks of the learner at most, which share the rows of each minibatch"""
    precision: str = "float32"
    """of forward and backward passes: "float32" or "bfloat16"; weights and Adam's moments stay in single precision"""
    compile: bool = False
    """pass what is differentiated through torch.compile: up to a minute at the beginning, then faster steps on a GPU"""
    save_to: str | None = None
    """safetensors file that the learner writes when the run ends"""

    unit: ClassVar[str] = "steps"
    """what `env_steps` and a line of progress count"""
    elsewhere: ClassVar[tuple[str, ...]] = ()
    """names that `preset` lets pass, since constructing says more about them"""

    def __post_init__(self) -> None:
        if isinstance(self.total_timesteps, float) and self.total_timesteps.is_integer():  # 1e6
            object.__setattr__(self, "total_timesteps", int(self.total_timesteps))
        for name, usual in (("max_episode_steps", "1_000"), ("total_timesteps", "100_000"), ("iterations", "100")):
            fits = (value := getattr(self, name)) is None or whole(value, 1)
            self._require(name, fits, f"a whole number of at least 1, or None. Next: {name}={usual}")
        self._require("iterations", self.iterations is None or self.total_timesteps is None, "None where total_timesteps is given: one of both")
        self._require("seed", whole(self.seed, 0) and self.seed < 2**63, "a whole number of at least 0 and less than 2**63")
        self._require("learners", whole(self.learners, 1), "a whole number of at least 1")
        size: Any = getattr(self, "batch_size", None)
        self._require("learners", not whole(size, 1) or self.learners <= size, f"at most batch_size = {size}")
        self._require("precision", self.precision in PRECISIONS, " or ".join(map(repr, PRECISIONS)))
        self._require("compile", isinstance(self.compile, bool), "True or False")
        self._require("save_to", self.save_to is None or isinstance(self.save_to, (str, os.PathLike)), "a path, or None")
        self._require("parallel", getattr(self, "parallel", "ddp") in GROUPS, " or ".join(map(repr, GROUPS)))

    def _require(self, field: str, holds: bool, limit: str) -> None:
        if not holds:
            raise ConfigError(f"{type(self).__name__}.{field} is {shown(getattr(self, field))}; it must be {limit}.")

    def _require_whole(self, *names: str, least: int = 1) -> None:
        for name in names:
            self._require(name, whole(getattr(self, name), least), f"a whole number of at least {least}")

    def _require_number(self, field: str, holds: Callable[[float], bool], limit: str, last: Callable[[float], bool] | None = None) -> None:
        """``last``: what a schedule must fulfil at its end, where that is less."""
        value = getattr(self, field)
        if not callable(value):
            return self._require(field, real(value) and holds(value), f"{limit}, or a schedule such as lab.linear(3e-4)")
        for progress in (0.0, 0.5, 1.0):
            there, test = value(progress), holds if progress < 1 or last is None else last
            self._require(field, real(there) and test(there), f"{limit} everywhere, and gives {shown(there)} at {progress}")

    def _require_flags(self, *names: str) -> None:
        for name in names:
            self._require(name, isinstance(getattr(self, name), bool), "True or False")

    def _require_units(self, example: str) -> None:
        units: Any = getattr(self, "net_arch")  # noqa: B009
        fits = isinstance(units, (tuple, list)) and all(whole(n, 1) for n in units)
        self._require("net_arch", fits, f"a tuple of whole numbers of at least 1, such as {example}")

    @classmethod
    def check_names(cls, names: Any) -> None:
        """`UnknownNameError` for one that is no field."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in names:
            if name not in known and name not in cls.elsewhere:
                raise UnknownNameError.of("field", name, known, whose=cls.__name__)

    @classmethod
    def preset(cls, env: Any, **overrides: Any) -> Self:
        """The settings for ``env``, with some fields changed. `UnknownNameError` for an unknown field."""
        cls.check_names(overrides)
        return cls(env=env, **overrides)

    def learning(self) -> dict[str, Any]:
        """What every learner takes: of these settings those that say how it computes."""
        return {"precision": self.precision, "compile": self.compile}


@dataclass(frozen=True)
class RecordedConfig(RecipeConfig):
    """Settings of recipes that learn from recorded episodes alone, besides those of `RecipeConfig`."""

    env: Any = None
    """where the policy is to act, for evaluations; None: the environment of the data, where it says one"""
    data: Any = dataclasses.field(default=None, metadata=trains_only())
    """recorded episodes: of `collect`, of `teleoperate`, of `datasets`, the folder of a LeRobotDataset or an HDF5 file"""
    max_episode_steps: int | None = None
    """of evaluations; None: as the data was recorded, else the environment's own limit"""
    gradient_steps: int = 2000
    """of the whole run"""
    steps_per_iteration: int = 100
    """gradient steps between two looks at the run, at most `gradient_steps`, which are rounded up to whole iterations"""
    batch_size: int = 256
    """rows of a gradient step"""
    unit: ClassVar[str] = "gradient steps"
    total_timesteps: int | None = None
    """None: nothing is simulated here; see `gradient_steps`"""
    iterations: int | None = None
    """None: see `gradient_steps`"""

    def __post_init__(self) -> None:
        for name in ("total_timesteps", "iterations"):
            self._require(name, getattr(self, name) is None, "None: what learns from data is counted in gradient_steps, such as gradient_steps=2000")
        super().__post_init__()
        object.__setattr__(self, "data", recorded(self.data))
        fits = self.data is None or isinstance(self.data, EpisodeSource)
        self._require("data", fits, RECORDED)
        self._require("data", self.data is None or len(self.data) > 0, "at least one episode: nothing was recorded, or kept, so far")
        if self.data is not None and self.env is None:
            object.__setattr__(self, "env", self.data.spec.env)
        if self.data is not None and self.max_episode_steps is None:
            object.__setattr__(self, "max_episode_steps", self.data.spec.max_episode_steps)
        self._require_whole("gradient_steps", "steps_per_iteration", "batch_size")
        object.__setattr__(self, "steps_per_iteration", min(self.steps_per_iteration, self.gradient_steps))

    @property
    def env_steps(self) -> int:
        """Of one iteration, in gradient steps: nothing is simulated."""
        return self.steps_per_iteration

    @property
    def updates(self) -> int:
        """Iterations of the whole run."""
        return -(-self.gradient_steps // self.steps_per_iteration)

    @functools.cached_property
    def factory(self) -> EnvFactory:
        """What makes the environments of evaluations."""
        return EnvFactory("data/no-environment", _no_environment) if self.env is None else environment(self.env)

    @functools.cached_property
    def spec(self) -> EnvSpec:
        """Of the environment, else of the data."""
        if self.env is not None:
            return self.factory.spec(self.max_episode_steps)
        if self.data is None:
            raise ConfigError(f"{type(self).__name__}: neither env nor data is given, so nothing says what is observed. Next: data=lab.collect(env, 'expert').")
        id, observation, action = "data/no-environment", self.data.spec.observation_space, self.data.spec.action_space
        return EnvSpec(id, presented_observation(observation, id), presented_action(action, id), native_action_space=action)

    def episodes(self, algorithm: str) -> EpisodeSource:
        """The data as a policy sees it. `ConfigError` where there is none, or where it is of another environment."""
        if self.data is None:
            raise ConfigError(f"{algorithm!r} needs recorded episodes. Next: lab.train({algorithm!r}, data=lab.collect('metaworld/push-v3', 'expert', episodes=10)).")
        return presented(self.data, self.spec)


def _no_environment(**_: Any) -> Any:
    raise ConfigError("The data says no environment, so the policy cannot be evaluated here. Next: lab.train('clone', 'metaworld/push-v3', data=...).")


@dataclass(frozen=True)
class SimulatedConfig(RecipeConfig):
    """Settings of every recipe that acts in environments while it learns."""

    _: KW_ONLY
    num_envs: int = 8
    """environments, over all ranks and sub-batches together"""
    runner: str = "auto"
    """what steps the environments, the same everywhere in the run: "auto" measures those that the simulator has, see `make_vec`; `train` writes down which"""
    reward: str = "environment"
    """"environment": its own; "success": 1 in the step in which the task first succeeds, which ends the episode, and 0 before"""
    render: bool = True
    """whether the simulator draws a picture now and then, for a dashboard; `train` wants them in a notebook only"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_whole("num_envs")
        self._require("runner", isinstance(self.runner, str), "'auto', or the name of a runner")
        self._require("reward", self.reward in REWARDS, " or ".join(map(repr, REWARDS)))
        self._require_flags("render")

    @property
    def env_steps(self) -> int:
        """Environment steps of one iteration."""
        raise NotImplementedError

    def _updates(self, usual: int) -> int:
        """Iterations of the whole run; ``usual`` where neither they nor steps are given."""
        return self.iterations or (usual if self.total_timesteps is None else -(-self.total_timesteps // self.env_steps))

    @functools.cached_property
    def factory(self) -> EnvFactory:
        """What makes the environments, in any process."""
        factory = environment(self.env)
        factory = factory if self.runner == "auto" else factory.for_run(self.num_envs, self.max_episode_steps, runner=self.runner)
        return rewarded_for_success(factory) if self.reward == "success" else factory

    @functools.cached_property
    def spec(self) -> EnvSpec:
        """Read from the environment; one is made for it, once."""
        return self.factory.spec(self.max_episode_steps)

    def simulating(self, n_steps: int, taken: int, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Arguments of a worker that steps the environments ``n_steps`` times an iteration.

        It begins ``taken`` steps after the run's beginning.

        ``state``: of an earlier run; they go on where they stood in it.
        """
        spec = self.spec
        return {
            "env": self.factory.for_run(self.num_envs, self.max_episode_steps), "num_envs": self.num_envs, "n_steps": n_steps,
            "max_episode_steps": self.max_episode_steps, "seed": self.seed, "taken": taken, "render": self.render,
            "spaces": (spec.observation_space, spec.action_space), "standing": None if state is None else state.get("standing"),
        }  # fmt: skip

    def shares(self) -> dict[str, int]:
        """As many ranks of the simulator as environments; learners as set. A VectorEnv is not divided."""
        return {"learner": self.learners} | ({"simulator": self.num_envs} if self.factory.size is None else {})


def answering(
    learner: WorkerHandle, evaluate: Callable[[], Any] | None = None, simulator: WorkerHandle | None = None
) -> Callable[[Callable[[], Any]], Callable[..., Any]]:
    """Decorator of what one iteration of training does, a function that returns its metrics. The iteration then does what its request says.

    ``"train"`` (the default), ``"checkpoint"`` (the same; returns ``metrics`` and ``state``), ``"state"`` (returns the learner's state), and ``"evaluate"``
    where there is such a function. With the ``simulator`` a state says where its environments stood. `UnknownNameError` for another request.
    """
    known = ("train", "checkpoint", "state", *(() if evaluate is None else ("evaluate",)))

    def answers(train: Callable[[], Any]) -> Callable[..., Any]:
        def iteration(request: str = "train") -> Any:
            if request not in known:
                raise UnknownNameError.of("request of an iteration", request, known)
            if request == "state":
                state = first(learner.state_dict().wait())
                return state if simulator is None else stood(state, simulator.where_they_stand().wait())
            if request == "evaluate" and evaluate is not None:
                return evaluate()
            metrics = train()
            if request == "train":
                return metrics
            standing = {} if simulator is None else {"standing": simulator.where_they_stand()}
            return {"metrics": metrics, "state": learner.state_dict(), **standing}

        return iteration

    return answers


def greedily(simulator: WorkerHandle, policy: WorkerHandle, act: Any, obs: Any, published: Any) -> Callable[[], dict[str, Any]]:
    """An evaluation for `answering`: the greedy policy on fresh seeds."""

    def evaluate() -> dict[str, Any]:
        result = simulator.evaluate(act, obs)
        policy.act(obs, act, published, deterministic=True)
        return pooled(result.wait())

    return evaluate


def first(per_rank: Any) -> Any:
    """What rank 0 returned; learner ranks are equal."""
    return per_rank[0] if isinstance(per_rank, list) else per_rank


def pooled(per_rank: Episodes | list[Episodes]) -> dict[str, Any]:
    """What the simulator's ranks found in an evaluation, together: see `Episodes.summary`."""
    return Episodes.joined(per_rank if isinstance(per_rank, list) else [per_rank]).summary()


def whole(value: object, least: int) -> bool:
    """Whether it is a whole number of at least ``least``."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least


def real(value: object) -> bool:
    """Whether it is a finite number."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
