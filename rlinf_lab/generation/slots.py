"""The books of the own engine.

Which request is in which slot and what it has so far: plain numpy, a column per field.

Occupied slots are 0 to ``used`` − 1, always: where one becomes free, the last one moves there. A step then works on the first rows of
everything, and each of its costs follows the number of requests that run.

Legend: S slots, C context (places of prompt and answer).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.generation.completion import Completion, FinishReason, Request, with_tokens


class Slots:
    """What each of S slots holds. ``length_S`` counts prompt and answer; the token to feed next is the last one."""

    def __init__(self, slots: int, context: int) -> None:
        self.used = 0
        self.request: list[Request] = []
        self.stops: list[tuple[int, ...]] = []
        self.token_SC = np.zeros((slots, context), np.int32)
        self.log_prob_SC = np.zeros((slots, context), np.float32)
        self.version_SC = np.zeros((slots, context), np.int32)
        self.length_S = np.zeros(slots, np.int64)
        self.end_S = np.zeros(slots, np.int64)
        self.key_S = np.zeros(slots, np.int64)
        self.temperature_S = np.zeros(slots, np.float32)
        self.top_p_S = np.ones(slots, np.float32)
        self.top_k_S = np.zeros(slots, np.int64)
        self._columns = [value for value in vars(self).values() if isinstance(value, np.ndarray)]

    @property
    def free(self) -> int:
        return len(self.length_S) - self.used

    def occupy(self, request: Request, stops: tuple[int, ...]) -> int:
        """Lay a request, with what there is of its answer, into the next free slot. Returns the slot."""
        slot, prompt, had, params = self.used, request.prompt_ids, request.prefix, request.params
        self.used += 1
        self.request.append(request)
        self.stops.append(stops)
        begin = len(prompt)
        self.token_SC[slot, :begin] = prompt
        self.length_S[slot] = begin + (len(had) if had is not None else 0)
        if had is not None:
            mine = slice(begin, begin + len(had))
            self.token_SC[slot, mine], self.log_prob_SC[slot, mine], self.version_SC[slot, mine] = had.token_ids, had.log_probs, had.versions
        self.end_S[slot] = min(begin + params.max_tokens, self.token_SC.shape[1])
        self.key_S[slot], self.temperature_S[slot] = request.key, params.temperature
        self.top_p_S[slot], self.top_k_S[slot] = params.top_p, params.top_k
        return slot

    def append(self, token_R: NDArray, log_prob_R: NDArray, version: int) -> list[tuple[int, FinishReason]]:
        """One more token in each used slot. Returns (slot, reason) of those that are over by it, last slot first."""
        used = self.used
        row_R, place_R = np.arange(used), self.length_S[:used]
        self.token_SC[row_R, place_R] = token_R
        self.log_prob_SC[row_R, place_R] = log_prob_R
        self.version_SC[row_R, place_R] = version
        self.length_S[:used] += 1
        full_R = self.length_S[:used] >= self.end_S[:used]
        candidate_R = full_R | np.isin(token_R, list(set().union(*self.stops)))
        over: list[tuple[int, FinishReason]] = []
        for slot in np.flatnonzero(candidate_R)[::-1].tolist():
            if token_R[slot] in self.stops[slot]:
                over.append((slot, "stop"))
            elif full_R[slot]:
                over.append((slot, "length"))
        return over

    def completion(self, slot: int, reason: FinishReason) -> Completion:
        request, end = self.request[slot], int(self.length_S[slot])
        mine = slice(len(request.prompt_ids), end)
        return with_tokens(request, self.token_SC[slot, mine], self.log_prob_SC[slot, mine], self.version_SC[slot, mine], reason)

    def release(self, slot: int) -> int | None:
        """Free a slot. Returns the slot whose request moves there, or None where it was the last."""
        last = self.used - 1
        self.used = last
        request, stops = self.request.pop(), self.stops.pop()
        if slot == last:
            return None
        self.request[slot], self.stops[slot] = request, stops
        for column in self._columns:
            column[slot] = column[last]
        return last

    def holding(self, ids: set[str]) -> Iterator[int]:
        """Slots of these requests, last slot first, so that each can be released at once."""
        for slot in range(self.used - 1, -1, -1):
            if self.request[slot].id in ids:
                yield slot
