"""GRPO and its relatives on a task with verifiable rewards.

A workflow of four workers.

    prompts ──asked──▶ generator ──responses──▶ reward ──judged──▶ learner
                           ▲                                          │
                           └───────────────── weights ────────────────┘

One iteration: ``prompts × group_size`` responses, ``minibatches`` gradient steps, new weights. Each response goes on as
soon as it is finished, and the learner goes forward and backward through a group as soon as it is whole, so a plan may
stream; with staleness the generator is some updates ahead, bounded by the plan (metrics ``staleness``,
``staleness_max``). The difference of sampler and trainer is measured (``mismatch_kl``) and corrected (``correction``).
A small model warms up on worked examples first. ``staleness`` lets responses go on from one iteration into the next,
``tools`` lets them call tools in several turns, ``critic`` makes it PPO. Left out: several learner ranks.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from rlinf_lab import tasks
from rlinf_lab.algorithms import advantage, loss
from rlinf_lab.algorithms.aggregation import AGGREGATIONS
from rlinf_lab.algorithms.trial import tried_advantage_of_groups, tried_loss
from rlinf_lab.errors import ConfigError, UnknownNameError, shown
from rlinf_lab.generation import GENERATORS, KNOWN_MODELS, LanguageModel, SamplingParams, load_model, small_model
from rlinf_lab.generation.hugging_face import context_of, counts_tokens
from rlinf_lab.planning.simulator.staleness import StalenessPolicy
from rlinf_lab.recipes.config import trains_only
from rlinf_lab.recipes.described import described
from rlinf_lab.tasks import Problem, Task, Tool
from rlinf_lab.tasks.registry import ROOM, is_task, names
from rlinf_lab.tasks.tools import tools_of
from rlinf_lab.workers.reasoning import (
    AgentGenerator,
    ContinuingGenerator,
    GeneratorWorker,
    GroupLearner,
    ModelWeights,
    PromptWorker,
    RewardWorker,
    ToolWorker,
    UpdateSettings,
    WarmModel,
    WarmUp,
)
from rlinf_lab.workers.reasoning.settings import CORRECTIONS
from rlinf_lab.workflow.workflow import Workflow

DISPATCH = ("even", "shortest_queue")


class TaskName(NamedTuple):
    """A task by its name."""

    id: str

ENVIRONMENTS = (
    "An environment that gymnasium or a simulator knows is trained on by lab.train('ppo', ...), or by GRPO from a policy "
    "that sometimes succeeds: lab.train('grpo', 'metaworld/push-v3', policy=run)."
)


@described
@dataclass(frozen=True)
class GRPOConfig:
    """Every number of the experiment. `preset` knows the published variants by name.

    Raises `ConfigError` naming the field, its value and the limit.
    """

    unit: ClassVar[str] = "answers"
    """what ``env_steps`` and ``total_timesteps`` count"""

    env: str | Task
    """a task by name ("reasoning/remainder", "reasoning_gym/chain_sum", "problems.jsonl"), or a `Task`"""
    model: str = "small"
    """"small": made here and warmed up; else the folder of a model in Hugging Face's format, or a name whose weights are in
    the hub's cache on this machine ("SmolLM2-135M", "Qwen3-0.6B"; `lab.generation.known_models` lists them)"""
    lora: int | None = None
    """of a model from a folder: rank of the low-rank parts that are trained alone; None: all weights are"""
    gradient_checkpointing: bool = False
    """of a model from a folder: compute activations twice instead of keeping them"""
    chat: bool | None = None
    """of a model from a folder: put prompts into its chat template; None: of one by name, which is trained to chat"""
    system_prompt: str = ""
    """that a chat begins with: how to answer, and that the answer comes after "#" """
    total_timesteps: int | None = None
    """responses of the whole run, rounded up to whole iterations; None: as many as ``iterations`` give"""
    iterations: int | None = 200
    """iterations of the run, each with new weights; the learning rate is annealed over so many. None: as
    ``total_timesteps`` says"""
    seed: int = 0
    """of model, problems and sampling"""
    prompts: int = 16
    """problems of an iteration"""
    group_size: int = 16
    """responses to each"""
    level: int | None = None
    """of the problems; None: all levels"""
    max_tokens: int = 160
    """of a response; longer ones are cut off"""
    temperature: float = 1.0
    """of sampling"""
    advantage: str | Callable[..., Any] = dataclasses.field(default="grpo", metadata=trains_only(advantage))
    """by name (``lab.algorithms.advantage``), or a function of rewards prompts × responses"""
    loss: str | Callable[..., Any] = dataclasses.field(default="ppo", metadata=trains_only(loss))
    """by name (``lab.algorithms.loss``), or a function like `algorithms.policy_loss`"""
    clip_range: float | None = 0.2
    """how far the probability ratio may leave 1; None: not clipped"""
    clip_range_high: float | None = None
    """the same above 1, where it differs ("clip-higher")"""
    dual_clip: float | None = None
    """bound for negative advantages, greater than 1; None: none"""
    aggregation: str = "token_mean"
    """what a long response weighs: "token_mean", "sequence_mean" or "constant" (tokens over ``max_tokens``)"""
    critic: bool = False
    """PPO with a critic: a value of each token is learnt, and the advantage is GAE over tokens; ``advantage`` is not
    used"""
    gae_lambda: float = 1.0
    """of that"""
    critic_learning_rate: float = 1e-3
    """of the critic's AdamW"""
    correction: str = "truncated"
    """of tokens that another engine or older weights sampled: "truncated" (importance weights for current weights,
    PPO's clip for older ones), "decoupled" (importance weights for all) or "none" (PPO's clip for all)"""
    weight_cap: float = 2.0
    """largest importance weight of a token"""
    kl_coef: float = 0.0
    """weight of the divergence from the initial model"""
    minibatches: int = 1
    """gradient steps of an iteration, each on an equal share of its prompts"""
    groups_per_pass: int = 1
    """groups that the learner takes forward and backward together"""
    dynamic_sampling: bool = False
    """leave out groups whose rewards are all equal, and take further ones"""
    oversample: float = 1.0
    """prompts that are asked, over ``prompts``; more than 1 with ``dynamic_sampling`` only"""
    overlong_buffer: int | None = None
    """tokens before ``max_tokens`` over which the reward falls by 1; None: it does not"""
    learning_rate: float = 4e-4
    """of AdamW, after its rise"""
    lr_warmup: int = 5
    """iterations over which it rises"""
    anneal: float = 1.0
    """share of it that is gone, linearly, in the last iteration"""
    max_grad_norm: float = 1.0
    """Euclidean norm to which the gradient is cut"""
    in_order: bool = True
    """learn from groups in the order of their prompts: bit for bit the same under every plan; False: as they come"""
    reward: Callable[[Problem, str], Any] | None = dataclasses.field(default=None, metadata=trains_only())
    """of training, from a problem and a completion's text; None: the task's own, which evaluations always use"""
    reward_timeout_s: float | None = None
    """judge in a child process with this limit, in seconds; None: in the reward worker, without one, which is faster"""
    engine: str = "own"
    """what generates: "own", "transformers", ... (`generation.generator`)"""
    slots: int = 256
    """responses that it works on at once"""
    engine_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """of the engine, such as ``{"gpu_memory_utilization": 0.4}`` of vLLM's"""
    staleness: str | StalenessPolicy = dataclasses.field(default="bound", metadata=trains_only())
    """what becomes of stale responses: "bound" leaves it to the plan's ``staleness``, with iterations that finish what
    they begin. With "pace", "block", "drop_oldest", "drop_stale", "recycle" an iteration ends with its groups, and what
    runs goes on in the next (partial rollouts); `StalenessPolicy` has the numbers, and what new weights do to what
    runs"""
    concurrency: float = 2.0
    """groups in the making over ``prompts``, for all but "bound" """
    longest_first: bool = False
    """begin with those whose like had long answers, as a moving mean by level and length of the prompt tells: of a
    generator's share, or with answers that go on of the next groups"""
    tools: tuple[Tool | str, ...] = ()
    """that answers may call, in several turns: "calculator", "python", or a `tasks.Tool`"""
    tool_concurrency: int = 8
    """calls at once"""
    max_calls: int = 4
    """of an answer"""
    patience_s: float = 0.0
    """how long a decode step is put off for calls that are out, in seconds (`planning.ToolCell.best`)"""
    dispatch: str = "even"
    """of several generators: "even" shares, or "shortest_queue": each takes as it has room"""
    log_completions: bool = True
    """each completion of training is a row of the run's ``samples`` (prompt, text, reward, versions, what was discarded
    and why) and, of some at once, a bar of the timeline. About 40 µs of a core each"""
    warm_up_steps: int = 400
    """supervised gradient steps of a small model"""
    warm_up_batch_size: int = 32
    """examples of such a step"""
    warm_up_learning_rate: float = 4e-3
    """of these steps"""
    hidden: int = 64
    """width of the small model"""
    layers: int = 2
    """of the small model"""

    def __post_init__(self) -> None:
        self._require(
            "env", isinstance(self.env, (str, Task)), "a task's name, such as 'reasoning/remainder', or a Task"
        )
        for name in (
            "prompts", "max_tokens", "max_calls", "tool_concurrency", "minibatches", "slots", "hidden", "layers",
            "warm_up_batch_size",
        ):  # fmt: skip
            self._require(name, _whole(getattr(self, name), 1), "a whole number of at least 1")
        self._require(
            "group_size",
            _whole(self.group_size, 1 if self.critic else 2),
            "a whole number of at least 2: responses are compared with each other (at least 1 with a critic)",
        )
        for name in ("seed", "lr_warmup", "warm_up_steps"):
            self._require(name, _whole(getattr(self, name), 0), "a whole number of at least 0")
        self._require("gae_lambda", _real(self.gae_lambda) and 0 <= self.gae_lambda <= 1, "a number between 0 and 1")
        for name in (
            "critic_learning_rate", "temperature", "learning_rate", "max_grad_norm", "weight_cap",
            "warm_up_learning_rate",
        ):  # fmt: skip
            self._require(name, _real(value := getattr(self, name)) and value > 0, "a number greater than 0")
        for name in ("clip_range", "clip_range_high", "reward_timeout_s"):
            value = getattr(self, name)
            self._require(name, value is None or (_real(value) and value > 0), "a number greater than 0, or None")
        self._require("anneal", _real(self.anneal) and 0 <= self.anneal <= 1, "a number between 0 and 1")
        self._require("kl_coef", _real(self.kl_coef) and self.kl_coef >= 0, "a number of at least 0")
        dual = self.dual_clip
        self._require("dual_clip", dual is None or (_real(dual) and dual > 1), "a number greater than 1, or None")
        self._require("minibatches", self.prompts % self.minibatches == 0, f"a divisor of prompts={self.prompts}")
        self._require("aggregation", self.aggregation in AGGREGATIONS, " or ".join(map(repr, AGGREGATIONS)))
        self._require("correction", self.correction in CORRECTIONS, " or ".join(map(repr, CORRECTIONS)))
        self._require("oversample", _real(self.oversample) and self.oversample >= 1, "a number of at least 1")
        policy = self.policy
        spare = self.dynamic_sampling or policy.name == "drop_oldest"
        self._require(
            "oversample", self.oversample == 1 or spare, "1 without dynamic_sampling or staleness='drop_oldest'"
        )
        self._require("concurrency", _real(self.concurrency) and self.concurrency >= 1, "a number of at least 1")
        self._require("dispatch", self.dispatch in DISPATCH, " or ".join(map(repr, DISPATCH)))
        named = isinstance(self.model, (str, os.PathLike)) and bool(os.fspath(self.model))
        self._require("model", named, "'small', the path of a model's folder, or a name, in a text")
        self._require("reward", self.reward is None or callable(self.reward), "a function of a problem and a text, or None")
        self._require("lora", self.lora is None or _whole(self.lora, 1), "a rank of at least 1, or None")
        for name in ("lora", "gradient_checkpointing", "chat", "system_prompt"):
            own = self.model == "small" and getattr(self, name)
            self._require(name, not own, "left out with model='small', which trains whole: give the folder of a model")
        self._require("critic", not (self.critic and self.dynamic_sampling), "False with dynamic_sampling")
        tools_of(self.tools)
        self._require("tools", not (self.tools and policy.name != "bound"), f"empty with staleness={policy.name!r}")
        self._require("patience_s", isinstance(self.patience_s, (int, float)) and self.patience_s >= 0, "0 s or more")
        refuses = self.dispatch == "shortest_queue" or self.tools
        self._require("longest_first", not (self.longest_first and refuses), "False with shortest_queue or tools")
        if policy.name != "bound":
            self._require("dynamic_sampling", not self.dynamic_sampling, f"False with staleness={policy.name!r}")
            self._require("dispatch", self.dispatch == "even", f"'even' with staleness={policy.name!r}")
        self._require("engine_options", isinstance(self.engine_options, Mapping), "names and values, as in a dict")
        self._require("engine", self.engine in GENERATORS, " or ".join(map(repr, GENERATORS)))
        buffer = self.overlong_buffer
        fits = buffer is None or (_whole(buffer, 1) and buffer <= self.max_tokens)
        self._require("overlong_buffer", fits, "between 1 and max_tokens, or None")
        total = self.total_timesteps
        needed = "a whole number of at least 1, or None with total_timesteps"
        self._require(
            "iterations", _whole(self.iterations, 1) or (self.iterations is None and total is not None), needed
        )
        fits = total is None or _whole(total, 1)
        self._require("total_timesteps", fits, "a whole number of at least 1, or None. Next: total_timesteps=10_000")
        advantage.get(self.advantage, of=("group", "batch"))
        loss.get(self.loss)
        task = self.task()
        fits = self.level is None or (_whole(self.level, 1) and self.level <= task.levels)
        self._require("level", fits, f"between 1 and {task.levels}, or None")
        _check_prompts(self.model, task, self.max_tokens)

    def _require(self, field: str, holds: bool, limit: str) -> None:
        if not holds:
            raise ConfigError(f"GRPOConfig.{field} is {shown(getattr(self, field))}; it must be {limit}.")

    @property
    def updates(self) -> int:
        """Iterations of the whole run."""
        if self.total_timesteps is not None:
            return -(-self.total_timesteps // self.env_steps)
        return int(self.iterations or 1)

    @property
    def begins_with(self) -> str:
        """What comes before the first iteration, in words."""
        warms_up = self.model == "small" and self.warm_up_steps
        return f"{self.warm_up_steps} supervised steps of the small model" if warms_up else ""

    @property
    def factory(self) -> TaskName:
        """What the front door calls the task."""
        return TaskName(self.env if isinstance(self.env, str) else ROOM + self.env.name)

    @property
    def env_steps(self) -> int:
        """Responses of one iteration."""
        return self.prompts * self.group_size

    @property
    def policy(self) -> StalenessPolicy:
        """What becomes of stale responses."""
        return self.staleness if isinstance(self.staleness, StalenessPolicy) else StalenessPolicy(self.staleness)

    @property
    def asked(self) -> int:
        """Prompts that are asked in an iteration. With responses that go on, as many as may begin in one."""
        if self.policy.name != "bound":
            return self.prompts * math.ceil(self.concurrency + self.oversample)
        return math.ceil(self.prompts * self.oversample)

    def task(self) -> Task:
        """The task. `UnknownNameError` with the nearest name."""
        return self.env if isinstance(self.env, Task) else tasks.make(self.env)

    def generator_options(self) -> dict[str, Any]:
        """Of its engine, ``engine_options`` last."""
        return {"slots": self.slots, **self.engine_options}

    def language_model(self) -> Callable[[], LanguageModel]:
        """The constructor that generator and learner share: equal initial weights."""
        if self.model != "small":
            chat = self.model in KNOWN_MODELS if self.chat is None else self.chat
            return partial(
                load_model, os.fspath(_folder_of(self.model)), lora=self.lora, gradient_checkpointing=self.gradient_checkpointing,
                chat=chat, system_prompt=self.system_prompt,
            )  # fmt: skip
        return partial(
            small_model,
            self.task().alphabet,
            hidden=self.hidden,
            layers=self.layers,
            seed=self.seed,
            max_length=_small_context(self.max_tokens),
        )

    @classmethod
    def preset(cls, name: str | Task, **overrides: Any) -> GRPOConfig:
        """The settings for a task ("reasoning/sorting"; `PRESETS` has those that were tried), some fields changed.

        ``name`` may be that of a published variant ("dapo"; `VARIANTS`) with ``env=``. Raises `UnknownNameError` for an
        unknown name or field.
        """
        variant = name if isinstance(name, str) and name in VARIANTS else ""
        task = overrides.get("env", name)
        if "env" in overrides and not variant:
            raise UnknownNameError.of("variant of GRPO", name, VARIANTS)
        if variant and task == variant:
            raise ConfigError(f"GRPOConfig.preset({variant!r}) needs a task. Next: env='reasoning/remainder'.")
        known = [f.name for f in dataclasses.fields(cls)]
        for field in overrides:
            if field not in known:
                raise UnknownNameError.of("field", field, known, whose="GRPOConfig")
        return cls(**{**_settings_for(task, variant), **overrides, "env": task})


def _check_prompts(model: str, task: Task, max_tokens: int) -> None:
    """`ConfigError` for a model that is not here, and for prompts longer than its context."""
    context: int | None = _small_context(max_tokens)
    count: Callable[[str], int] = len
    if model != "small":
        folder = _folder_of(model)
        context, count = context_of(folder), counts_tokens(folder)
    if isinstance(task, tasks.Jsonl) and context is not None:
        task.check_fits(context, count)


def _small_context(max_tokens: int) -> int:
    """Tokens that prompt and answer have together in a small model."""
    return 512 if max_tokens <= 384 else 2 * max_tokens


def _settings_for(task: Any, variant: str) -> dict[str, Any]:
    """Those that were tried on a task, changed as the variant has it. `UnknownNameError` for no task's name."""
    named = task if not isinstance(task, str) or is_task(task) else ROOM + task
    if isinstance(named, str) and named.removeprefix(ROOM) not in names() and not is_task(named.removeprefix(ROOM)):
        known = [ROOM + one for one in names() if not one.startswith(("<", "reasoning_gym"))]
        raise UnknownNameError.of("task of language", task, known, ENVIRONMENTS)
    settings, changes = dict(PRESETS.get(named, {}) if isinstance(named, str) else {}), VARIANTS.get(variant, {})
    if changes.get("group_size") == 1:  # each prompt is answered once: as many answers, of as many prompts
        size = settings.get("group_size", GRPOConfig.group_size)
        for name in ("prompts", "groups_per_pass"):
            settings[name] = size * settings.get(name, getattr(GRPOConfig, name))
    return {**settings, **changes}


def _whole(value: object, least: int) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least


def _real(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {"advantage": "grpo", "aggregation": "sequence_mean"},
    "dr_grpo": {"advantage": "dr_grpo", "aggregation": "constant"},
    "dapo": {
        "advantage": "grpo", "aggregation": "token_mean", "clip_range": 0.2, "clip_range_high": 0.28,
        "dynamic_sampling": True, "oversample": 1.5, },
    "rloo": {"advantage": "rloo", "aggregation": "token_mean"},
    "ppo": {"critic": True, "group_size": 1, "aggregation": "token_mean"},
    "reinforce++": {"advantage": "reinforce++", "aggregation": "token_mean"},
}  # fmt: skip
"""what the papers say, as changes of the defaults (sources: `rlinf_lab.algorithms.groups`)"""

PRESETS: dict[str, dict[str, Any]] = {
    "reasoning/remainder": {
        "level": 1,
        "max_tokens": 56,
        "prompts": 32,
        "group_size": 16,
        "minibatches": 4,
        "slots": 512,
        "groups_per_pass": 8,
        "iterations": 200,
        "learning_rate": 6e-4,
        "warm_up_steps": 400,
    },
    "reasoning/products": {
        "level": 1,
        "max_tokens": 40,
        "tools": ("calculator",),
        "prompts": 16,
        "group_size": 16,
        "minibatches": 2,
        "slots": 256,
        "groups_per_pass": 8,
        "iterations": 60,
        "learning_rate": 6e-4,
        "warm_up_steps": 160,
    },
    "reasoning/sorting": {
        "level": 2,
        "max_tokens": 16,
        "prompts": 32,
        "group_size": 16,
        "minibatches": 4,
        "slots": 512,
        "groups_per_pass": 8,
        "iterations": 240,
        "learning_rate": 6e-4,
        "warm_up_steps": 120,
    },
}
"""settings for a task on two cores. Sorting gained 26 to 39 points on seeds 0 to 4 in 77 CPU seconds each
(``benchmarks/grpo_small_model.py``), with a critic 52 on seed 0 in 149. Products gained 4 points over 70 in 30
iterations of half the group (notebook 62). Remainder gained 35 and 37 points of wholly
right answers on seeds 0 and 1, in 154 and 184 CPU seconds"""


def _folder_of(model: str) -> Path:
    """Of the model's files. `ConfigError` where they are not here."""
    given = Path(model).expanduser()
    if given.is_dir():
        if not (given / "config.json").is_file():
            raise ConfigError(
                f"GRPOConfig.model is {shown(model)}, a folder without config.json: it is no model in Hugging Face's "
                "format. Next: the folder that model.save(path) or save_pretrained(path) wrote."
            )
        return given
    if model in KNOWN_MODELS:
        return KNOWN_MODELS[model].folder()
    known = difflib.get_close_matches(model, KNOWN_MODELS, n=1, cutoff=0.5)
    raise ConfigError(
        f"GRPOConfig.model is {shown(model)}, which is neither 'small' nor a folder, nor a name. "
        f"Next: {f'{known[0]!r}, or ' if known else ''}the path of a saved model; lab.generation.known_models() lists "
        "names."
    )


def build(config: GRPOConfig, state: dict[str, Any] | None = None) -> Workflow:
    """The training workflow. ``state``: of a learner (`GroupLearner.state_dict`), to go on where another run stopped.

    An iteration does what its argument says: ``"train"`` (the default) returns metrics, ``"checkpoint"`` metrics and
    state (and ``rollouts``, where answers go on in the next iteration: a part of the state from which `build` goes on), ``"state"`` the learner's state, ``"evaluate"`` mean reward and length on 1,000 problems of the test split.
    """
    task = config.task()
    # What goes on has all weights; the model it began with is needed only to stay near to.
    model = config.language_model() if state is not None and not config.kl_coef else starting_model(config, task)
    flow = Workflow("grpo")
    asked = flow.channel("asked", capacity=None)
    # What dynamic sampling does not need any more is discarded on its way.
    responses = flow.channel("responses", capacity=None, discard_unread=config.dynamic_sampling)
    grouped: dict[str, Any] = {} if config.group_size == 1 else {"group": config.group_size, "gather": "readers"}
    judged = flow.channel("judged", capacity=None, weight=len, discard_unread=config.dynamic_sampling, **grouped)
    weights = flow.weights("policy")

    prompts = flow.worker(
        PromptWorker, task, name="prompts", prompts=config.asked, group_size=config.group_size, level=config.level,
        seed=config.seed, start=0 if state is None else state["version"],
    )  # fmt: skip
    params = SamplingParams(max_tokens=config.max_tokens, temperature=config.temperature, seed=config.seed)
    start = None if state is None else ModelWeights(state["version"], state["weights"].arrays)
    options = config.generator_options()
    kind: type[GeneratorWorker] = GeneratorWorker
    continuing = config.policy.name != "bound"
    if continuing:
        kind = ContinuingGenerator
        options |= {
            "policy": config.policy, "batch": config.prompts, "concurrency": config.concurrency, "oversample":
            config.oversample, "rollouts": (state or {}).get("rollouts"),
        }  # fmt: skip
    if config.tools:
        kind = AgentGenerator
        options |= {"max_calls": config.max_calls, "patience_s": config.patience_s}
    generator = flow.worker(
        kind, model, params, name="generator", engine=config.engine, weights=start, dispatch=config.dispatch,
        longest_first=config.longest_first, log_completions=config.log_completions, **options,
    )  # fmt: skip
    generate: Callable[[], Any] = partial(generator.generate, asked, responses, weights)
    if config.tools:
        generate = _with_tools(flow, config, generator, asked, responses, weights)
    reward = flow.worker(
        RewardWorker, task, name="reward", reward=config.reward, timeout_s=config.reward_timeout_s,
        log_completions=config.log_completions, group_size=config.group_size,
    )  # fmt: skip
    learner = flow.worker(
        GroupLearner, model, update_settings(config), name="learner", prompts=config.prompts,
        group_size=config.group_size, max_tokens=config.max_tokens, temperature=config.temperature, asked=config.asked,
        state=state,
    )  # fmt: skip

    @flow.iteration
    def iteration(request: str = "train") -> Any:
        if request == "state":
            learnt = learner.state_dict()
            return {**learnt.wait(), "rollouts": generator.rollouts().wait()} if continuing else learnt
        if request not in ("train", "checkpoint", "evaluate"):
            raise UnknownNameError.of("request of an iteration", request, ("train", "checkpoint", "evaluate", "state"))
        if request == "evaluate":
            prompts.ask_test(asked, samples=1000)
            generate()
            return pooled(reward.evaluate(responses).wait())
        prompts.ask(asked)
        generate()
        reward.score(responses, judged)
        metrics = learner.train(judged, weights)
        if request == "train":
            return metrics
        rollouts = {"rollouts": generator.rollouts()} if continuing else {}
        return {"metrics": metrics, "state": learner.state_dict(), **rollouts}

    return flow


def _with_tools(
    flow: Workflow, config: GRPOConfig, generator: Any, asked: Any, responses: Any, weights: Any
) -> Callable[[], None]:
    """The cell of generation and tools: turns there, answers back."""
    turns, answers = flow.channel("turns"), flow.channel("answers", may_be_empty=True)
    tools = flow.worker(ToolWorker, config.tools, name="tools", concurrency=config.tool_concurrency)

    def generate() -> None:
        generator.generate_with_tools(asked, answers, turns, responses, weights)
        tools.answer(turns, answers)

    return generate


def shares(config: GRPOConfig) -> dict[str, int]:
    """Generator and reward may have as many ranks as there are responses. The learner has one."""
    if config.tools:
        return {"reward": config.env_steps}
    most = config.env_steps if config.policy.name == "bound" else config.prompts
    return {"generator": most, "reward": config.env_steps}


def pooled(per_rank: dict[str, float] | list[dict[str, float]]) -> dict[str, float]:
    """Join what the reward's ranks found in an evaluation: means weighted by their samples."""
    if not isinstance(per_rank, list):
        return per_rank
    judged = [r for r in per_rank if r["samples"]]
    samples = sum(r["samples"] for r in judged)
    means = {k: sum(r[k] * r["samples"] for r in judged) / samples for k in judged[0] if k != "samples"}
    return {"samples": samples, **means}


def update_settings(config: GRPOConfig) -> UpdateSettings:
    """What the learner needs of the configuration, names looked up."""
    of_policy = tried_loss(config.loss, weight=None, aggregation=config.aggregation, constant=1.0, denominator=1.0).function
    names = {f.name for f in dataclasses.fields(UpdateSettings)} & {f.name for f in dataclasses.fields(config)}
    same = {name: getattr(config, name) for name in names - {"advantage", "loss", "iterations"}}
    if config.critic:
        same["dynamic_sampling"] = False
        return UpdateSettings(_handed_on, False, of_policy, iterations=config.updates, **same)
    by = tried_advantage_of_groups(config.advantage, config.group_size)
    return UpdateSettings(by.function, by.of == "batch", of_policy, iterations=config.updates, **same)


def _handed_on(reward_PG: Any) -> Any:
    """A critic makes advantages of tokens from rewards as they are."""
    return reward_PG


def starting_model(config: GRPOConfig, task: Task) -> Callable[[], LanguageModel]:
    """What generator and learner construct. A model from a folder has had its supervised training."""
    model = config.language_model()
    if config.model != "small" or not config.warm_up_steps:
        return model
    warm_up = WarmUp(
        task, config.warm_up_steps, config.warm_up_batch_size, config.warm_up_learning_rate, config.level, config.seed
    )
    return WarmModel(model, warm_up)
