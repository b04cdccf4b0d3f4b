"""What every generator does, whatever runs the model.

Take requests, give completions as they finish, stop, go on, change weights.

A generator moves by `Generator.step`: one more token for everything that runs. Whoever drives it does between two steps what it likes: takes
new requests, breaks some off, loads weights. `Generator.sample` is the loop for who has nothing else to do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.generation.completion import Completion, Request


class Generator(ABC):
    """One protocol for vLLM, transformers and the own engine. Weights carry a version, and each token the version that gave it.

    Attributes: ``context`` (tokens that prompt and answer may have together), ``vocabulary`` (number of token ids), ``on_begin`` (called with each
    request as it leaves the queue and begins; yours to assign).
    """

    context: int
    vocabulary: int

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self._at_work: set[str] = set()
        self._refused: list[Completion] = []
        self.on_begin: Callable[[Request], None] = _nobody_asks

    # --- what each backend does ------------------------------------------------------------------------------
    @abstractmethod
    def _begin(self, request: Request) -> None:
        """Take a request that has been checked."""

    @abstractmethod
    def _advance(self) -> list[Completion]:
        """One more token for what runs; those that are over."""

    @abstractmethod
    def _break_off(self, ids: set[str]) -> list[Completion]:
        """Forget these; what there was of them."""

    @abstractmethod
    def _so_far(self) -> list[Completion]:
        """What there is of everything that has been taken and is not over."""

    @abstractmethod
    def _take(self, state: Mapping[str, Tensor]) -> None:
        """Replace the weights, in place."""

    def offload(self) -> None:
        """Leave the device: nothing is on its way there any more. What ran must be aborted before."""
        self._must_be_idle("offload")

    def onload(self) -> None:  # noqa: B027  (nothing to do where nothing was moved)
        """Come back to the device."""

    # --- what all do alike -----------------------------------------------------------------------------------
    @property
    def pending(self) -> int:
        """Requests that have been added and not been returned yet."""
        return len(self._at_work) + len(self._refused)

    def add(self, request: Request) -> None:
        """Take a request. One that cannot work comes back from the next `step` with the finish reason "error" and does not disturb others."""
        problem = self._problem(request)
        if problem:
            self._refused.append(Completion.refused(request, problem))
            return
        self._at_work.add(request.id)
        self._begin(request)

    def step(self) -> list[Completion]:
        """One more token for everything that runs; returns those that finished by it."""
        refused, self._refused = self._refused, []
        finished = self._advance() if self._at_work else []
        self._at_work.difference_update(c.id for c in finished)
        return refused + finished

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Add ``requests`` and give each completion as it finishes, shortest first. One that is left early aborts what still runs."""
        mine = set()
        for request in requests:
            self.add(request)
            mine.add(request.id)
        try:
            while self.pending:
                yield from self.step()
        finally:
            self.abort(mine & self._at_work)

    def abort(self, ids: Iterable[str] | None = None) -> list[Completion]:
        """Break off these requests (None: all) and return what there is.

        To go on with later, see `Completion.resumed`.

        Ids of requests that have finished meanwhile are left out without a word: nobody can know that in time.
        """
        if isinstance(ids, str):
            raise ConfigError(f"abort takes a collection of ids, and this is one text: {shown(ids)}. Next: abort([{shown(ids)}]).")
        wanted = set(self._at_work) if ids is None else self._at_work & set(ids)
        broken_off = self._break_off(wanted) if wanted else []
        self._at_work -= wanted
        return broken_off

    def partials(self) -> list[Completion]:
        """What `abort` would return of all requests, which go on: for a checkpoint."""
        return self._so_far()

    def load_weights(self, state: Mapping[str, Any], version: int) -> None:
        """Replace the weights by a whole ``state_dict()``, ``lm_head.weight`` of tied models included. Tokens from here on carry ``version``.

        Its values are tensors or numpy arrays. Answers that run go on: what has been computed for their tokens so far stays as the old weights gave it.
        """
        self._take({name: _tensor(value) for name, value in state.items()})
        self.version = version

    def _problem(self, request: Request) -> str:
        prompt = request.prompt_ids
        if request.id in self._at_work:
            return f"Request {request.id!r} is being answered already. Next: give every sample an id of its own."
        if not len(prompt):
            return f"Request {request.id!r} has an empty prompt. Next: give it one token at least, as the beginning of a text."
        if len(prompt) >= self.context:
            return (
                f"Request {request.id!r} has a prompt of {len(prompt)} tokens, and prompt and answer may have {self.context} together. "
                "Next: shorten it, or give the generator a larger max_length."
            )
        had = request.prefix
        if had is not None and len(prompt) + len(had) >= min(self.context, len(prompt) + request.params.max_tokens):
            return f"Request {request.id!r} goes on after {len(had)} tokens, which is all it may have. Next: a larger max_tokens or max_length."
        low, high = int(prompt.min()), int(prompt.max())
        if low < 0 or high >= self.vocabulary:
            return f"Request {request.id!r} has token {low if low < 0 else high}; the vocabulary has 0 to {self.vocabulary - 1}. Next: its own tokenizer."
        return ""

    def _must_be_idle(self, what: str) -> None:
        if self._at_work:
            raise ConfigError(f"{what}() while {len(self._at_work)} requests run. Next: abort() first; their partials can be resumed.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._what()}, version {self.version}, {self.pending} pending)"

    def _what(self) -> str:
        return f"context {self.context}"


def _nobody_asks(request: Request) -> None:
    """Of requests that begin."""


def _tensor(value: Any) -> Tensor:
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        value = value.copy()  # a transport may hand out read-only memory, which torch warns about
    return torch.as_tensor(value)


def module_of(model: Any) -> Any:
    """The torch module of a `LanguageModel`, or the module itself."""
    return model.module if hasattr(model, "tokenizer") else model


def stop_ids_of(model: Any) -> tuple[int, ...]:
    """The tokens that end a text, as the model's configuration says. None where it says nothing."""
    ids = getattr(module_of(model).config, "eos_token_id", None)
    return () if ids is None else tuple(ids) if isinstance(ids, (list, tuple)) else (int(ids),)
