"""What a policy will do to given lengths: iterations of a `ContinuingGenerator` without a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from rlinf_lab.errors import WorkflowError
from rlinf_lab.generation import Completion, SamplingParams
from rlinf_lab.planning.simulator.staleness import StalenessPolicy
from rlinf_lab.tasks import Problem
from rlinf_lab.workers.reasoning.making import GroupsInTheMaking
from rlinf_lab.workers.reasoning.records import Asked, Response

if TYPE_CHECKING:
    import pandas as pd

REFILL_SHARE = 16
"""an own engine begins requests as soon as this part of its slots is free"""


def predicted_rollouts(
    policy: StalenessPolicy,
    tokens: Callable[[Asked], int],
    *,
    prompts: int,
    group_size: int,
    asked: int,
    slots: int,
    iterations: int,
    concurrency: float = 2.0,
    oversample: float = 1.0,
    longest_first: bool = False,
    refill_share: int = REFILL_SHARE,
    problem: Callable[[int, int], Problem] = lambda round_, prompt: Problem("", ""),
) -> pd.DataFrame:
    """A row for each response that is learnt from.

    Iteration, id, tokens, staleness, decode_steps of its iteration.

    ``tokens``: how long each answer is. ``refill_share``: an engine begins requests as soon as this part of its slots
    is free; 16 is that of the own one. One update after each iteration (a plan of staleness 0), one generator. The
    fields are those of `GRPOConfig`; ``asked`` prompts come in each iteration.
    """
    import pandas as pd

    groups = GroupsInTheMaking(
        policy, batch=prompts, whole=int(np.ceil(prompts * oversample)), concurrency=int(np.ceil(prompts *
        concurrency)), longest_first=longest_first,
    )  # fmt: skip
    engine, rows = _Slots(slots, tokens, refill_share), []
    for iteration in range(iterations):
        new = [Asked(problem(iteration, p), iteration, p, k) for p in range(asked) for k in range(group_size)]
        engine.give_up(groups.enter(new, iteration))
        engine.renew(iteration, groups, policy.while_generating)
        steps, handed = 0, groups.take() if groups.streams else []
        while not groups.satisfied:
            engine.waiting.extend(groups.begin(iteration))
            if not engine.waiting and not engine.running:
                raise WorkflowError(
                    f"predicted_rollouts: nothing is left to answer in {groups!r}. Next: more prompts in asked=."
                )
            steps += 1
            for response in engine.step(iteration):
                handed += groups.finished(response)
        handed += groups.take()
        rows += [(iteration, r, steps) for group in handed for r in group]
    return pd.DataFrame({
        "iteration": [i for i, _, _ in rows], "id": [r.asked.id for _, r, _ in rows], "tokens": [len(r) for _, r, _ in
        rows], "staleness": [i - int(r.completion.versions.min()) for i, r, _ in rows], "decode_steps": [s for _, _, s
        in rows], })  # fmt: skip


class _Slots:
    """The own engine, of which only lengths and versions are known."""

    def __init__(self, slots: int, tokens: Callable[[Asked], int], refill_share: int) -> None:
        self.slots, self._tokens, self._refill = slots, tokens, max(1, slots // refill_share)
        self.waiting: deque[Asked] = deque()
        self.running: list[Asked] = []  # by slot
        self._versions: dict[str, list[int]] = {}  # of the tokens so far

    def give_up(self, asked: list[Asked]) -> None:
        gone = {one.id for one in asked}
        self.waiting = deque(one for one in self.waiting if one.id not in gone)
        for slot in range(len(self.running) - 1, -1, -1):
            if self.running[slot].id in gone:
                self._release(slot)

    def renew(self, version: int, groups: GroupsInTheMaking, how: str) -> None:
        if how == "in_place" or version == 0:
            return
        self.waiting = deque([*self.running, *self.waiting])  # as an engine returns what it breaks off
        self.running = []
        if how == "retract":
            self._versions.clear()
            groups.renewed(version)

    def step(self, version: int) -> list[Response]:
        free = self.slots - len(self.running)
        if free >= min(len(self.waiting), self._refill):
            for _ in range(min(free, len(self.waiting))):
                self.running.append(self.waiting.popleft())
        over: list[Response] = []
        for slot in range(len(self.running) - 1, -1, -1):
            one = self.running[slot]
            self._versions.setdefault(one.id, []).append(version)
        for slot in range(len(self.running) - 1, -1, -1):
            one = self.running[slot]
            if len(self._versions[one.id]) == self._tokens(one):
                over.append(self._response(one, self._versions.pop(one.id)))
                self._release(slot)
        return over[::-1]

    def _release(self, slot: int) -> None:
        """The last one moves to where one becomes free."""
        last = self.running.pop()
        if slot < len(self.running):
            self.running[slot] = last

    def _response(self, one: Asked, versions: list[int]) -> Response:
        n = len(versions)
        row = Completion(
            np.zeros(1, np.int64), np.zeros(n, np.int64), np.zeros(n, np.float32), np.array(versions), "stop", one.id,
            SamplingParams(), one )  # fmt: skip
        return Response(one, row, "")
