"""Requests, which go into a generator, and completions, which come out.

Both in token ids, which are never made from text again.

Legend: P tokens of a prompt, T tokens of an answer.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlinf_lab.errors import ConfigError, shown

FinishReason = Literal["stop", "length", "abort", "error"]
NOT_SAMPLED = -1
"""version of a token that no weights gave"""
_NEVER = int(np.iinfo(np.int64).max)
_NO_INTS, _NO_FLOATS = np.zeros(0, np.int64), np.zeros(0, np.float32)


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one answer are chosen. The names are vLLM's."""

    max_tokens: int = 256
    """budget of the whole answer, also of one that was broken off and goes on"""
    temperature: float = 1.0
    """logits are divided by it; 0: always the likeliest token"""
    top_p: float = 1.0
    """only the likeliest tokens that together reach this probability; 1: all"""
    top_k: int = 0
    """only so many of the likeliest tokens; 0: all"""
    stop_ids: tuple[int, ...] | None = None
    """tokens that end an answer (the one that did is its last token); None: the model's own end-of-text, (): none"""
    seed: int = 0
    """of the noise, together with the request's id and the position of the token"""

    def __post_init__(self) -> None:
        if self.stop_ids is not None:
            object.__setattr__(self, "stop_ids", tuple(int(i) for i in self.stop_ids))
        checks: tuple[tuple[str, type | tuple, Any, str], ...] = (
            ("max_tokens", int, lambda v: v >= 1, "at least 1"),
            ("temperature", (int, float), lambda v: math.isfinite(v) and v >= 0, "0 (greedy) or a positive number"),
            ("top_p", (int, float), lambda v: 0 < v <= 1, "above 0 and at most 1 (1: all tokens)"),
            ("top_k", int, lambda v: v >= 0, "0 (all tokens) or a positive number"),
            ("seed", int, lambda v: True, "an integer"),
        )
        for name, kinds, holds, wanted in checks:
            value = getattr(self, name)
            if isinstance(value, np.generic):
                object.__setattr__(self, name, value := value.item())
            if isinstance(value, bool) or not isinstance(value, kinds) or not holds(value):
                raise ConfigError(f"SamplingParams.{name} is {shown(value)}. Next: {wanted}.")


@dataclass(frozen=True, eq=False)
class Request:
    """One answer that is wanted.

    Its noise is keyed by ``(params.seed, id, position)``: another sample of the same prompt needs another id, and what is asked again
    in a later iteration another seed or id, or it gets the same answer.
    """

    prompt_ids: NDArray[np.int64]
    """(P,)"""
    params: SamplingParams
    id: str
    """names this answer; no two that run at the same time may share it"""
    prefix: Completion | None = None
    """what there is of the answer already: `Completion.resumed` sets it"""
    item: Any = None
    """what the prompt was made from, for whoever judges the answer; carried along untouched"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_ids", _ids(self.prompt_ids))

    @property
    def key(self) -> int:
        """63 bits made from seed and id; the same on every machine."""
        return int.from_bytes(hashlib.blake2b(f"{self.params.seed}:{self.id}".encode(), digest_size=8).digest(), "little") >> 1

    def __repr__(self) -> str:
        resumes = f", goes on after {len(self.prefix)} tokens" if self.prefix is not None else ""
        return f"Request({self.id!r}: {len(self.prompt_ids)} prompt tokens, at most {self.params.max_tokens} more{resumes})"


@dataclass(frozen=True, eq=False)
class Completion:
    """One answer, whole or broken off, token by token."""

    prompt_ids: NDArray[np.int64]
    """(P,)"""
    token_ids: NDArray[np.int64]
    """(T,) as they were sampled, the stop token included"""
    log_probs: NDArray[np.float32]
    """(T,) in nats, of the distribution that the token was drawn from: after temperature and truncation; at temperature 0 the model's own"""
    versions: NDArray[np.int64]
    """(T,) version of the weights that gave each token; -1 (`NOT_SAMPLED`): it was put there, by a tool"""
    finish_reason: FinishReason
    """"stop": a stop token; "length": the budget or the context is used up; "abort": broken off; "error": see `error`"""
    id: str
    """of the request"""
    params: SamplingParams = field(default_factory=SamplingParams)
    item: Any = None
    """of the request"""
    error: str = ""
    """why there is no answer, where the finish reason is "error"; otherwise empty"""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def sampled(self) -> NDArray[np.bool_]:
        """(T,) which tokens the model gave; the others it has only read."""
        return np.asarray(self.versions != NOT_SAMPLED)

    @property
    def oldest(self) -> int:
        """Version that gave its first token; -1: none did."""
        lowest = int(self.versions.min(initial=_NEVER))
        if lowest == NOT_SAMPLED:  # of a tool's tokens: looked at again, which takes longer
            lowest = int(self.versions[self.sampled].min(initial=_NEVER))
        return NOT_SAMPLED if lowest == _NEVER else lowest

    @property
    def newest(self) -> int:
        """Version that gave its last token; -1: none did."""
        return int(self.versions.max(initial=NOT_SAMPLED))

    @property
    def failed(self) -> bool:
        return self.finish_reason == "error"

    def resumed(self) -> Request:
        """The request that goes on where this one was broken off. `SamplingParams.max_tokens` counts what is here already."""
        if self.finish_reason != "abort":
            raise ConfigError(f"{self!r} was not broken off: there is nothing to go on with. Next: resume those whose finish_reason is 'abort'.")
        return Request(self.prompt_ids, self.params, self.id, prefix=self if len(self) else None, item=self.item)

    @classmethod
    def refused(cls, request: Request, message: str) -> Completion:
        """A failure as data: other requests go on."""
        return replace(cls.broken_off(request), finish_reason="error", error=message)

    @classmethod
    def broken_off(cls, request: Request) -> Completion:
        """What there is of a request that has not begun here: its prefix."""
        had = request.prefix
        kept = (had.token_ids, had.log_probs, had.versions) if had is not None else (_NO_INTS, _NO_FLOATS, _NO_INTS)
        return cls(request.prompt_ids, *kept, "abort", request.id, request.params, request.item)

    def __repr__(self) -> str:
        span = f", versions {self.versions.min()}..{self.versions.max()}" if len(self) else ""
        why = f": {self.error}" if self.error else ""
        return f"Completion({self.id!r}: {len(self.prompt_ids)} prompt tokens, {len(self)} tokens{span}, {self.finish_reason}{why})"


def requests_for(
    prompts: Iterable[ArrayLike], params: SamplingParams, *, repeat: int = 1, items: Sequence[Any] | None = None, name: str = ""
) -> list[Request]:
    """Requests for prompts in token ids, each asked ``repeat`` times. The ids read ``NAME3/0`` (prompt 3, sample 0)."""
    listed = [_ids(p) for p in prompts]
    if items is not None and len(items) != len(listed):
        raise ConfigError(f"requests_for: {len(listed)} prompts and {len(items)} items. Next: one item for each prompt, or none.")
    return [
        Request(ids, params, f"{name}{i}/{k}", item=None if items is None else items[i]) for i, ids in enumerate(listed) for k in range(repeat)
    ]


def with_tokens(
    request: Request, token_ids: ArrayLike, log_probs: ArrayLike, versions: ArrayLike, finish_reason: FinishReason
) -> Completion:
    """The completion of ``request``; what its prefix held comes first in all three rows. All are copies."""
    return Completion(
        request.prompt_ids, np.array(token_ids, np.int64), np.array(log_probs, np.float32), np.array(versions, np.int64),
        finish_reason, request.id, request.params, request.item,
    )  # fmt: skip




def _ids(values: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ConfigError(f"A prompt is a row of token ids; this is {shown(values)}. Next: language_model.encode(text).")
    return array.astype(np.int64)
