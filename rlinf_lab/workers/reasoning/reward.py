"""The worker that judges. A verifier that raises or hangs costs one response its reward, and no more."""

from __future__ import annotations

import dataclasses
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from rlinf_lab.errors import shown
from rlinf_lab.tasks import Isolated, Problem, RewardResult, Task, scored
from rlinf_lab.workers.reasoning.records import Response
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker

LONG_SECONDS = 20.0
"""of one verdict in this process, after which a warning says how to bound it"""
LOOK_SECONDS = 5.0


class RewardWorker(Worker):
    """Gives each response its reward, as they come.

    ``reward``: of a problem and a completion's text, instead of the task's own in training; evaluations ask the task.
    ``timeout_s``: in a child process with this limit; None: here, where nothing bounds it.
    ``log_completions``: rewards are in the run's ``samples``. ``group_size``: more than 1: the channel of verdicts puts
    so many of a group together, whoever judges them.
    """

    def __init__(
        self, task: Task, *, reward: Callable[[Problem, str], Any] | None = None, timeout_s: float | None = None,
        log_completions: bool = True, group_size: int = 1,
    ) -> None:  # fmt: skip
        self._group_size = group_size
        self._warned = False
        self._log_completions = log_completions
        self._own: Callable[[Problem, str], Any] = task.reward
        self._reward = reward or self._own
        self._timeout_s = timeout_s
        self._isolated: dict[bool, Isolated] = {}
        self._judging: tuple[Response, float] | None = None

    def score(self, responses: Inbox[Response], judged: Outbox[Response]) -> None:
        """Until the responses end. The weight of one is its tokens."""
        ended = threading.Event()
        if self._timeout_s is None:
            threading.Thread(target=self._tell_of_long, args=(ended,), daemon=True).start()
        try:
            self._score(responses, judged)
        finally:
            ended.set()

    def _score(self, responses: Inbox[Response], judged: Outbox[Response]) -> None:
        failed: list[bool] = []
        for batch in responses:
            told: list[tuple[str, RewardResult]] = []
            try:
                for response in batch:
                    verdict = self._verdict(response)
                    told.append((response.asked.id, verdict))
                    failed.append(verdict.failed and not response.completion.failed)
                    group = {} if self._group_size == 1 else {"key": response.group}
                    judged.put(dataclasses.replace(response, reward=verdict), weight=len(response), **group)
            finally:  # a put may end the call: nobody wants more
                self._tell(told)
        if failed and all(failed) and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.name}: all {len(failed)} rewards of an iteration failed, and nothing is learnt from them; the "
                f"last one: {verdict.error}. Next: mend reward(problem, text), and try it on one answer.",
                stacklevel=2,
            )

    def _tell_of_long(self, ended: threading.Event) -> None:
        """Once: nothing else names the answer that holds a reward up. From which a reward function does not return."""
        while not ended.wait(LOOK_SECONDS):
            judging = self._judging
            if judging is not None and time.monotonic() - judging[1] >= LONG_SECONDS:
                asked = judging[0].asked
                warnings.warn(
                    f"{self.name}: the reward of answer {asked.id} to {shown(asked.problem.prompt)} has taken "
                    f"{time.monotonic() - judging[1]:.0f} s and goes on: {shown(judging[0].text)}. Next: "
                    "reward_timeout_s=5 judges in a process of its own, ends what takes longer, and goes on.",
                    stacklevel=2,
                )
                return

    def evaluate(self, responses: Inbox[Response]) -> dict[str, float]:
        """Judge everything that comes.

        Mean reward and length, shares of what is right (full reward), failed, and was cut off.
        """
        every = [r for batch in responses for r in batch]
        if not every:  # others of several ranks had them all
            return {"samples": 0.0}
        verdicts = [self._verdict(r, trains=False) for r in every]
        return {
            "samples": float(len(every)),
            "reward": float(np.mean([v.value for v in verdicts])),
            "right": float(np.mean([v.value >= 1.0 for v in verdicts])),
            "response_tokens": float(np.mean([len(r) for r in every])),
            "cut_off": float(np.mean([r.completion.finish_reason == "length" for r in every])),
            "failed": float(np.mean([v.failed for v in verdicts])),
        }

    def _tell(self, told: list[tuple[str, RewardResult]]) -> None:
        if not self._log_completions or not told:
            return
        self.sample_log.log(
            *(id for id, _ in told), reward=[v.value for _, v in told], why=[v.detail for _, v in told]
        )
        for id, verdict in told:
            if verdict.error:
                self.sample_log.log(id, error=verdict.error)

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
            self._judging = response, time.monotonic()
            try:
                return scored(reward, response.asked.problem, response.text)
            finally:
                self._judging = None
        if trains not in self._isolated:
            self._isolated[trains] = Isolated(reward, timeout_s=self._timeout_s)
        return self._isolated[trains](response.asked.problem, response.text)

    def close(self) -> None:
        for isolated in self._isolated.values():
            isolated.close()

