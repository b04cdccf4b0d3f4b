"""What travels between the stations.

Asked -> response -> response with its reward, and weights back.

`plain_asked` and `plain_completion` say one in numbers, texts, arrays and dicts, for a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlinf_lab.generation import Completion, SamplingParams
from rlinf_lab.tasks import Problem, RewardResult
from rlinf_lab.workers.standing import plain


@dataclass(frozen=True)
class Asked:
    """One response that is wanted."""

    problem: Problem
    round: int
    """number of the training iteration; -1: an evaluation"""
    prompt: int
    """number of the prompt within the round"""
    sample: int
    """number of the response within the prompt's group"""
    attempt: int = 0
    """how often its group has been given up before"""

    @property
    def id(self) -> str:
        """Names the response: its sampling noise is keyed by it, wherever it is generated."""
        return f"{self.round}.{self.prompt}/{self.sample}" + (f"~{self.attempt}" if self.attempt else "")


@dataclass(frozen=True, eq=False)
class Response:
    """A completion, its text, and its reward as soon as it has one."""

    asked: Asked
    completion: Completion
    """prompt and tokens as they were sampled, never made from text again"""
    text: str
    """the completion's, for whoever judges it"""
    reward: RewardResult | None = None
    """None: not judged yet"""
    place: int | None = None
    """number of its group among those that are learnt from together; None: that of its prompt"""

    @property
    def group(self) -> int:
        """Number of its group in the iteration that learns from it."""
        return self.asked.prompt if self.place is None else self.place

    @property
    def value(self) -> float:
        """The reward; 0 before the verdict."""
        return 0.0 if self.reward is None else self.reward.value

    def __len__(self) -> int:
        return len(self.completion)

    def __repr__(self) -> str:
        verdict = "no reward yet" if self.reward is None else repr(self.reward)
        return f"Response({self.asked.problem.prompt!r} -> {self.text!r}, {len(self)} tokens, {verdict})"


@dataclass(frozen=True, eq=False)
class ModelWeights:
    """A state of the model, as the learner publishes it."""

    version: int
    """updates that it has been through; 0: as training began"""
    state: Mapping[str, Any]
    """a whole ``state_dict()``"""

    def __repr__(self) -> str:
        return f"ModelWeights(version {self.version}, {len(self.state)} tensors)"


def plain_asked(asked: Asked) -> dict[str, Any]:
    """`TypeError` for a problem whose ``detail`` no file holds."""
    problem = asked.problem
    detail = plain(dict(problem.detail), f"the detail of problem {problem.prompt!r}")
    return {
        "problem": {"prompt": problem.prompt, "answer": problem.answer, "level": problem.level, "detail": detail},
        "place": [asked.round, asked.prompt, asked.sample, asked.attempt],
    }


def live_asked(state: Mapping[str, Any]) -> Asked:
    """What `plain_asked` was given."""
    return Asked(Problem(**state["problem"]), *map(int, state["place"]))


def plain_completion(completion: Completion) -> dict[str, Any]:
    """Without its parameters, which are those of its generator."""
    names = ("prompt_ids", "token_ids", "log_probs", "versions", "finish_reason", "error")
    return {"asked": plain_asked(completion.item), **{name: getattr(completion, name) for name in names}}


def live_completion(state: Mapping[str, Any], params: SamplingParams) -> Completion:
    """What `plain_completion` was given."""
    asked = live_asked(state["asked"])
    prompt, tokens, log_probs, versions = (
        np.asarray(state[name]) for name in ("prompt_ids", "token_ids", "log_probs", "versions")
    )
    reason, error = state["finish_reason"], state["error"]
    return Completion(prompt, tokens, log_probs, versions, reason, asked.id, params, asked, error)
