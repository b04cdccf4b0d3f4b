"""The plain generator: transformers' own forward pass and cache, one request at a time. Slow, for every model family, and easy to believe."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlinf_lab.errors import ConfigError
from rlinf_lab.generation.completion import Completion, FinishReason, Request, with_tokens
from rlinf_lab.generation.generator import Generator, module_of, stop_ids_of
from rlinf_lab.generation.sampling import Choice, choose


@dataclass(eq=False)
class _Running:
    request: Request
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    cache: Any = None
    """transformers' own; None before the first pass"""

    def __post_init__(self) -> None:
        had = self.request.prefix
        if had is not None:
            self.token_ids, self.log_probs, self.versions = had.token_ids.tolist(), had.log_probs.tolist(), had.versions.tolist()

    def completion(self, reason: FinishReason) -> Completion:
        return with_tokens(self.request, self.token_ids, self.log_probs, self.versions, reason)


class TransformersGenerator(Generator):
    """Up to ``slots`` requests in turn, each with a cache of its own. ``model``: a `LanguageModel` or a causal language model; it is copied."""

    def __init__(self, model: Any, *, slots: int = 128, max_length: int | None = None, device: str | torch.device | None = None, version: int = 0) -> None:
        super().__init__(version)
        if slots < 1:
            raise ConfigError(f"TransformersGenerator(slots={slots}). Next: at least 1.")
        module = copy.deepcopy(module_of(model))
        if hasattr(module, "merge_and_unload"):
            module = module.merge_and_unload()  # LoRA
        self._module = module.eval()
        self._home = torch.device(device) if device is not None else next(module.parameters()).device
        self._module.to(self._home)
        self.context = min(max_length or 1 << 30, module.config.max_position_embeddings)
        self.vocabulary = module.config.vocab_size
        self._stop_ids = stop_ids_of(module)
        self._slots = slots
        self._queue: deque[Request] = deque()
        self._running: list[_Running] = []

    def _begin(self, request: Request) -> None:
        self._queue.append(request)

    def _advance(self) -> list[Completion]:
        while self._queue and len(self._running) < self._slots:
            self._running.append(_Running(self._queue.popleft()))
            self.on_begin(self._running[-1].request)
        finished: list[Completion] = []
        for running in list(self._running):
            reason = self._next_token(running)
            if reason:
                finished.append(running.completion(reason))
                self._running.remove(running)
        return finished

    @torch.inference_mode()
    def _next_token(self, running: _Running) -> FinishReason | None:
        request, params = running.request, running.request.params
        ids = [*request.prompt_ids.tolist(), *running.token_ids]
        fed = ids if running.cache is None else ids[-1:]
        output = self._module(input_ids=torch.tensor([fed], device=self._home), past_key_values=running.cache, use_cache=True)
        running.cache = output.past_key_values
        choice = Choice(
            self._one(request.key, torch.int64), self._one(params.temperature, torch.float32),
            self._one(params.top_p, torch.float32), self._one(params.top_k, torch.int64), truncated=params.top_p < 1 or params.top_k > 0,
        )  # fmt: skip
        token_1, log_prob_1 = choose(output.logits[:, -1], choice, self._one(len(ids), torch.int64))
        running.token_ids.append(int(token_1))
        running.log_probs.append(float(log_prob_1))
        running.versions.append(self.version)
        stops = self._stop_ids if params.stop_ids is None else params.stop_ids
        if running.token_ids[-1] in stops:
            return "stop"
        return "length" if len(running.token_ids) >= params.max_tokens or len(ids) + 1 >= self.context else None

    def _one(self, value: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor([value], dtype=dtype, device=self._home)

    def _break_off(self, ids: set[str]) -> list[Completion]:
        broken_off = [r.completion("abort") for r in self._running if r.request.id in ids]
        self._running = [r for r in self._running if r.request.id not in ids]
        broken_off += [Completion.broken_off(r) for r in self._queue if r.id in ids]
        self._queue = deque(r for r in self._queue if r.id not in ids)
        return broken_off

    def _so_far(self) -> list[Completion]:
        return [r.completion("abort") for r in self._running] + [Completion.broken_off(r) for r in self._queue]

    def _take(self, state: Mapping[str, Tensor]) -> None:
        self._module.load_state_dict(state)

    def offload(self) -> None:
        """Move the weights to host memory. Raises `ConfigError` while requests run."""
        super().offload()
        self._module.to("cpu")

    def onload(self) -> None:
        """Bring the weights back to the device."""
        self._module.to(self._home)

    def _what(self) -> str:
        return f"{type(self._module).__name__}, context {self.context} on {self._home}"
