"""The worker that learns from groups of responses: weighs, steps, publishes.

    groups (of the channel) ──advantage──> forward, backward (each group as it is whole) ──step──> weights

Legend: P prompts, G responses of each.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from rlinf_lab.algorithms import informative, overlong_penalty
from rlinf_lab.errors import WorkflowError
from rlinf_lab.generation import LanguageModel
from rlinf_lab.policies import PolicyWeights
from rlinf_lab.workers.reasoning.critic import CriticAccumulator
from rlinf_lab.workers.reasoning.groups import Group, InTurn
from rlinf_lab.workers.reasoning.records import ModelWeights, Response
from rlinf_lab.workers.reasoning.settings import UpdateSettings
from rlinf_lab.workers.reasoning.start import made
from rlinf_lab.workers.reasoning.update import GradientAccumulator
from rlinf_lab.workers.residence import TorchWorker
from rlinf_lab.workflow.weights import Weights
from rlinf_lab.workflow.worker import Inbox

MOST_STALE = 4
"""updates from which on the histogram tells staleness together"""


class GroupLearner(TorchWorker):
    """Group-relative policy optimisation and its relatives, on one rank.

    ``model`` constructs the language model. ``prompts``: groups of an iteration that are learnt from, ``asked``: that
    are asked for (None: as many). ``state``: of another learner (`state_dict`), to go on from.
    """

    def __init__(
        self,
        model: Callable[[], LanguageModel],
        settings: UpdateSettings,
        *,
        prompts: int,
        group_size: int,
        max_tokens: int,
        temperature: float = 1.0,
        asked: int | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        self._make, self.settings, self._state = model, settings, state
        self.prompts, self.group_size, self.asked = prompts, group_size, prompts if asked is None else asked
        self.max_tokens, self.temperature = max_tokens, temperature
        self.version = 0

    def preflight(self) -> None:
        if self.ranks > 1:
            raise WorkflowError(
                f"{self!r} has {self.ranks} ranks; GroupLearner learns on one. Next: one device for the learner."
            )

    def setup(self) -> None:
        if self.device == "cpu":
            torch.set_num_threads(1)  # a CPU device of a plan is one core
        self.model = made(self._make, self)
        self.module = self.model.module.to(
            self.device
        )  # an attribute of its own, so that it is found when it has to leave
        kind = CriticAccumulator if self.settings.critic else GradientAccumulator
        self._accumulator = kind(self.model, self.settings, max_tokens=self.max_tokens, temperature=self.temperature)
        self.optimizer = self._accumulator.optimizer
        if self._state is not None:
            self.load_state_dict(self._state)

    # --- the workflow's methods -----------------------------------------------------------------------------
    def train(self, judged: Inbox[list[Response]], weights: Weights) -> dict[str, float]:
        """One iteration: learn from its groups, publish; the metrics. Raises `WorkflowError` when groups are missing.

        A group is an item of the channel; of groups of one, the response itself.
        """
        learnt = _Iteration(self)
        for batch in judged:
            if learnt.take([Group.of(one if isinstance(one, list) else [one]) for one in batch]):
                break  # dynamic sampling has enough; what is left is discarded by the channel
        metrics = learnt.end()
        self.version += 1
        weights.publish(self._weights())
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs, in host memory; training on does not change it."""
        return {
            "weights": PolicyWeights({k: _as_array(v) for k, v in self._weights().state.items()}, self.version),
            "optimizer": _to_host(copy.deepcopy(self.optimizer.state_dict())),
            "version": self.version,
            "more": _to_host(copy.deepcopy(self._accumulator.more_state())),
            "trained": {
                k: v.detach().to("cpu", copy=True) for k, v in self.module.named_parameters() if v.requires_grad
            }
            if self._in_parts
            else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; ``state`` stays as it is."""
        if self._in_parts:
            self.module.load_state_dict(state["trained"], strict=False)
        else:
            self.module.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in state["weights"].arrays.items()})
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self._accumulator.load_more(state.get("more", {}))
        self.version = state["version"]

    # --- parts ----------------------------------------------------------------------------------------------
    def _weights(self) -> ModelWeights:
        return ModelWeights(
            self.version, {k: v.detach().to("cpu", copy=True) for k, v in self.model.state_dict().items()}
        )

    @property
    def _in_parts(self) -> bool:
        """Whether only some parameters are trained (LoRA). The rest are as in the model's folder."""
        return not all(p.requires_grad for p in self.module.parameters())

    def learning_rate(self) -> float:
        """Of this iteration: it rises, then falls, by the count of iterations."""
        s = self.settings
        rise = min(1.0, (self.version + 1) / max(1, s.lr_warmup))
        return s.learning_rate * rise * (1.0 - s.anneal * min(1.0, self.version / s.iterations))


class _Iteration:
    """What `GroupLearner.train` knows within one iteration."""

    def __init__(self, learner: GroupLearner) -> None:
        self.learner, self.settings = learner, learner.settings
        self._in_turn = InTurn()
        self._told_of: set[str] = set()
        self._seen: list[Group] = []
        self._waiting: list[Group] = []
        self._used = 0
        self._told: list[dict[str, float]] = []
        self._uninformative = 0

    def take(self, batch: list[Group]) -> bool:
        """Learn from those whose turn it is; whether that is enough for this iteration."""
        for came in batch:
            for group in self._in_turn.add(came) if self.settings.in_order else [came]:
                if self._used + len(self._waiting) < self.learner.prompts:
                    self._group(group)
                if self.settings.dynamic_sampling and self._used + len(self._waiting) >= self.learner.prompts:
                    return True
        return False

    def _group(self, group: Group) -> None:
        self._seen.append(group)
        if len(group) > 1 and not informative(group.reward_G[None])[0]:
            self._uninformative += 1
            if self.settings.dynamic_sampling:
                self._tell_discarded(group.responses, "all rewards of its group are equal")
                return
        self._waiting.append(group)
        if not self.settings.needs_batch and len(self._waiting) == self._next_pass():
            waiting, self._waiting = self._waiting, []
            self._learn(waiting)

    def _next_pass(self) -> int:
        """Groups that go forward and backward together next: a pass ends with its update."""
        each = self.learner.prompts // self.settings.minibatches
        return min(self.settings.groups_per_pass, each - self._used % each)

    def _learn(self, groups: list[Group]) -> None:
        reward_PG = np.stack([group.reward_G for group in groups])
        if self.settings.overlong_buffer is not None:
            length_PG = np.stack([group.length_G for group in groups])
            reward_PG = reward_PG + overlong_penalty(
                length_PG, max_length=self.learner.max_tokens, buffer=self.settings.overlong_buffer
            )
        advantage_PG = np.asarray(self.settings.advantage(reward_PG))
        if advantage_PG.shape != reward_PG.shape or not np.isfinite(advantage_PG).all():
            raise WorkflowError(
                f"the advantage gave {advantage_PG.shape} for rewards {reward_PG.shape}"
                f"{'' if np.isfinite(advantage_PG).all() else ', some not finite'}. Next: one finite number a response."
            )
        self._tell_learnt(groups)
        first = 0
        while first < len(groups):
            part = slice(first, first + self._next_pass())
            responses = [r for group in groups[part] for r in group.responses]
            with self.learner.span("forward, backward"):
                self.learner._accumulator.add(responses, advantage_PG[part].ravel(), self.learner.version)
            self._used += len(groups[part])
            first = part.stop
            if self._used % (self.learner.prompts // self.settings.minibatches) == 0:
                self._step()

    def _step(self) -> None:
        with self.learner.span("step"):
            learner = self.learner
            self._told.append(learner._accumulator.step(learner.learning_rate(), learner.version))

    def end(self) -> dict[str, float]:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._learn(waiting)
        missing = self.learner.prompts - self._used
        if missing and not (self.settings.dynamic_sampling and self._seen):
            self.learner._accumulator.forget()
            raise WorkflowError(
                f"{self.learner!r}: {missing} of {self.learner.prompts} groups did not come. "
                "Next: does every response reach the learner?"
            )
        self._tell_discarded(self._in_turn.left(), "enough groups were there")
        self._tell_not_needed()
        if missing:
            self._step()  # dynamic sampling found fewer than it wanted, perhaps none
        return self._metrics()

    def _tell_learnt(self, groups: list[Group]) -> None:
        self._tell([r for group in groups for r in group.responses], learnt_in=self.learner.version)

    def _tell_discarded(self, responses: Sequence[Response], why: str) -> None:
        self._tell(responses, discarded=why)

    def _tell(self, responses: Sequence[Response], **fields: int | str) -> None:
        if self.settings.log_completions and responses:
            ids = [r.asked.id for r in responses]
            self._told_of.update(ids)
            self.learner.sample_log.log(*ids, **fields)

    def _tell_not_needed(self) -> None:
        """What this iteration asked for and did not come is discarded.

        It goes with its channel, wherever it is by now.
        """
        if not (self.settings.log_completions and self.settings.dynamic_sampling and self._seen):
            return
        one = self._seen[0].responses[0].asked
        every = (
            dataclasses.replace(one, prompt=p, sample=k).id
            for p in range(self.learner.asked)
            for k in range(self.learner.group_size)
        )
        unread = [id for id in every if id not in self._told_of]
        if unread:
            self.learner.sample_log.amend(*unread, discarded="enough groups were there")

    def _metrics(self) -> dict[str, float]:
        responses = [r for group in self._seen for r in group.responses]
        length = np.array([len(r) for r in responses])
        value = np.array([r.value for r in responses])
        told = {name: float(np.mean([t[name] for t in self._told])) for name in (self._told[0] if self._told else {})}
        return {
            **_staleness_shares(responses, self.learner.version),
            "env_steps": float((self.learner.version + 1) * len(responses)),
            "reward": float(value.mean()),
            "groups": float(self._used),
            "informative": 1.0 - self._uninformative / len(self._seen),
            "response_tokens": float(length.mean()),
            "response_tokens_min": float(length.min()),
            "response_tokens_p50": float(np.median(length)),
            "response_tokens_p95": float(np.quantile(length, 0.95)),
            "response_tokens_max": float(length.max()),
            "cut_off": float(np.mean([r.completion.finish_reason == "length" for r in responses])),
            "failed": float(np.mean([r.reward is None or r.reward.failed for r in responses])),
            "learning_rate": self.learner.learning_rate(),
            **told,
        }


def _staleness_shares(responses: list[Response], version: int) -> dict[str, float]:
    """The histogram of an iteration. Shares of responses whose first token is so many updates old."""
    behind = [version - r.completion.oldest for r in responses if len(r)]
    told = np.bincount(np.minimum(behind, MOST_STALE), minlength=MOST_STALE + 1) / max(1, len(behind))
    return {f"staleness_{k}{'_or_more' * (k == MOST_STALE)}": float(share) for k, share in enumerate(told)}


def _to_host(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _to_host(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_to_host(value) for value in state]
    return state.to("cpu") if isinstance(state, torch.Tensor) else state


def _as_array(tensor: torch.Tensor) -> np.ndarray:
    """numpy has no bfloat16; float32 holds all of its values."""
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
