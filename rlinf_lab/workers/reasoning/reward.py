"""The worker that judges. A verifier that raises or hangs costs one response its reward, and no more."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from rlinf_lab.tasks import Isolated, Problem, RewardResult, Task, scored
from rlinf_lab.workers.reasoning.records import Response
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker


class RewardWorker(Worker):
    """Gives each response its reward, as they come.

    ``reward``: of a problem and a completion's text, instead of the task's own in training; evaluations ask the task.
    ``timeout_s``: in a child process with this limit; None: here, where nothing bounds it.
    ``log_completions``: rewards are in the run's ``samples``.
    """

    def __init__(
        self, task: Task, *, reward: Callable[[Problem, str], Any] | None = None, timeout_s: float | None = None,
        log_completions: bool = True,
    ) -> None:  # fmt: skip
        self._log_completions = log_completions
        self._own: Callable[[Problem, str], Any] = task.reward
        self._reward = reward or self._own
        self._timeout_s = timeout_s
        self._isolated: dict[bool, Isolated] = {}

    def score(self, responses: Inbox[Response], judged: Outbox[Response]) -> None:
        """Until the responses end. The weight of one is its tokens."""
        for batch in responses:
            for response in batch:
                verdict = self._verdict(response)
                if self._log_completions:
                    self.sample_log.log(response.asked.id, reward=verdict.value, **_words_of(verdict))
                judged.put(dataclasses.replace(response, reward=verdict), weight=len(response))

    def evaluate(self, responses: Inbox[Response]) -> dict[str, float]:
        """Judge everything: mean reward, mean length, shares of what failed and of what was cut off."""
        every = [r for batch in responses for r in batch]
        if not every:  # others of several ranks had them all
            return {"samples": 0.0}
        verdicts = [self._verdict(r, trains=False) for r in every]
        return {
            "samples": float(len(every)),
            "reward": float(np.mean([v.value for v in verdicts])),
            "response_tokens": float(np.mean([len(r) for r in every])),
            "cut_off": float(np.mean([r.completion.finish_reason == "length" for r in every])),
            "failed": float(np.mean([v.failed for v in verdicts])),
        }

    def _verdict(self, response: Response, trains: bool = True) -> RewardResult:
        verdict = self._judged(response, trains)
        if verdict.failed:
            self.log_failure(verdict.error or "", sample=f"{response.asked.id}: {response.asked.problem.prompt}")
        return verdict

    def _judged(self, response: Response, trains: bool) -> RewardResult:
        if response.completion.failed:
            return RewardResult(0.0, error=response.completion.error)
        reward = self._reward if trains else self._own
        if self._timeout_s is None:
            return scored(reward, response.asked.problem, response.text)
        if trains not in self._isolated:
            self._isolated[trains] = Isolated(reward, timeout_s=self._timeout_s)
        return self._isolated[trains](response.asked.problem, response.text)

    def close(self) -> None:
        for isolated in self._isolated.values():
            isolated.close()


def _words_of(verdict: RewardResult) -> dict[str, str]:
    return {name: text for name, text in (("why", verdict.detail), ("error", verdict.error)) if text}
