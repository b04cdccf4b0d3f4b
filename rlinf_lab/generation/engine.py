"""The own engine: continuous batching on a static cache.

A step gives each running request its next token. Requests wait until slots are free and then begin together; slots of requests that are over are
filled again at once, or, where none waits, the rows that are left move together, so that a long tail costs what it holds. Tokens are chosen
with noise keyed by (request, position): in float32 an answer is the same whatever ran beside it, in whichever slot, and wherever it was begun
(up to ties of two sums that differ by rounding: about one token in a million). On a GPU each (rows, length) bucket is a CUDA graph.

Legend: R running requests, U different texts, T tokens of the longest, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.generation.completion import Completion, Request
from rlinf_lab.generation.decoder import Decoder
from rlinf_lab.generation.generator import Generator, module_of, stop_ids_of
from rlinf_lab.generation.graphs import Graphs
from rlinf_lab.generation.sampling import Choice, choose
from rlinf_lab.generation.slots import Slots

_LENGTH_STEP = 32
"""attention reads a multiple of so many places on a CPU; on a GPU the next power of two, for there are few graphs then"""
_REFILL_SHARE = 16
"""requests begin as soon as this part of the slots is free: a pass for one alone costs as much as for several"""


class Engine(Generator):
    """Continuous batching in ``slots`` slots of ``max_length`` tokens.

    Prompt and answer together; None: the model's own context, at most 4,096.

    ``model`` is a `LanguageModel` or a transformers module of the Llama, Qwen2 or Qwen3 family; its weights are copied. Raises
    `UnknownNameError` for another family and `ConfigError` for numbers that cannot work.
    """

    def __init__(
        self, model: Any, *, slots: int = 128, max_length: int | None = None, device: str | torch.device | None = None,
        dtype: torch.dtype | None = None, version: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(version)
        module: nn.Module = module_of(model)
        config: Any = module.config
        positions: int = config.max_position_embeddings
        if slots < 1:
            raise ConfigError(f"Engine(slots={slots}). Next: at least 1; 128 is usual.")
        if max_length is not None and not 2 <= max_length <= positions:
            raise ConfigError(f"Engine(max_length={shown(max_length)}). Next: from 2 to the model's own context, {positions}.")
        first = next(module.parameters())
        self.context = max_length or min(positions, 4096)
        self.vocabulary = config.vocab_size
        self._stop_ids = stop_ids_of(model)
        self._home = torch.device(device) if device is not None else first.device
        with torch.inference_mode():
            self._decoder = Decoder(module, model.state_dict(), slots=slots, length=self.context, device=self._home, dtype=dtype or first.dtype)
        self._graphs = Graphs(self._decoder)
        self._slots = Slots(slots, self.context)
        self._queue: deque[Request] = deque()
        self._away = False

    # --- the protocol --------------------------------------------------------------------------------------------
    def _begin(self, request: Request) -> None:
        self._queue.append(request)

    def _advance(self) -> list[Completion]:
        if self._away:
            raise ConfigError("Engine.step() while its weights are away. Next: onload() first.")
        with torch.inference_mode():
            rows = self._slots.used
            logits = [self._decode(rows)] if rows else []
            new = self._begins()
            if new:
                logits.append(self._prefill(new))
            position_R, choice = self._choice()
            token_R, log_prob_R = choose(torch.cat(logits) if len(logits) > 1 else logits[0], choice, position_R)
            over = self._slots.append(token_R.cpu().numpy(), log_prob_R.cpu().numpy(), self.version)
            finished = [self._slots.completion(slot, reason) for slot, reason in over]
            for slot, _ in over:
                self._release(slot)
        return finished[::-1]

    def _break_off(self, ids: set[str]) -> list[Completion]:
        broken_off = []
        with torch.inference_mode():
            for slot in self._slots.holding(ids):
                broken_off.append(self._slots.completion(slot, "abort"))
                self._release(slot)
        waiting = [r for r in self._queue if r.id in ids]
        self._queue = deque(r for r in self._queue if r.id not in ids)
        return broken_off[::-1] + [Completion.broken_off(r) for r in waiting]

    def _so_far(self) -> list[Completion]:
        slots = self._slots
        return [slots.completion(slot, "abort") for slot in range(slots.used)] + [Completion.broken_off(r) for r in self._queue]

    def _take(self, state: Mapping[str, Tensor]) -> None:
        with torch.inference_mode():
            self._decoder.load(state)

    def offload(self) -> None:
        """Move the weights to host memory and give the cache back. Raises `ConfigError` while requests run."""
        super().offload()
        self._graphs.forget()
        self._decoder.to(torch.device("cpu"), cache=False)
        self._away = True

    def onload(self) -> None:
        """Bring the weights back to the device, with an empty cache."""
        if self._away:
            self._decoder.to(self._home)
            self._away = False

    def _what(self) -> str:
        decoder = self._decoder
        return f"{decoder.slots} slots of {self.context} tokens, {str(decoder.dtype).removeprefix('torch.')} on {decoder.device}"

    # --- a step --------------------------------------------------------------------------------------------------
    def _decode(self, rows: int) -> Tensor:
        slots = self._slots
        place_R = slots.length_S[:rows] - 1
        token_R = slots.token_SC[np.arange(rows), place_R].astype(np.int64)
        return self._graphs.decode(torch.from_numpy(token_R), torch.from_numpy(place_R), self._bucket(int(place_R.max()) + 1))

    def _bucket(self, length: int) -> int:
        if self._home.type == "cpu":
            return min(-(-length // _LENGTH_STEP) * _LENGTH_STEP, self.context)
        return min(1 << max(length - 1, 127).bit_length(), self.context)

    def _begins(self) -> range:
        """Slots of requests that begin now."""
        slots, waiting = self._slots, len(self._queue)
        first = slots.used
        if slots.free >= min(waiting, max(1, self._decoder.slots // _REFILL_SHARE)):
            for _ in range(min(slots.free, waiting)):
                request = self._queue.popleft()
                stops = request.params.stop_ids
                slots.occupy(request, self._stop_ids if stops is None else stops)
                self.on_begin(request)
        return range(first, slots.used)

    def _prefill(self, new: range) -> Tensor:
        """Logits (rows of ``new``, V); texts that several requests share are computed once."""
        slots = self._slots
        texts: dict[bytes, int] = {}
        of_R = [texts.setdefault(slots.token_SC[s, : slots.length_S[s]].tobytes(), len(texts)) for s in new]
        first = dict(zip(of_R, new, strict=True))  # any slot that holds the text
        chosen_U = np.array([first[u] for u in range(len(texts))])
        length_U = slots.length_S[chosen_U]
        token_UT = slots.token_SC[chosen_U, : length_U.max()].astype(np.int64)
        of = self._tensor(np.array(of_R))
        logits_UV = self._decoder.prefill(self._tensor(token_UT), self._tensor(length_U - 1), self._tensor(np.array(new)), of)
        return logits_UV[of]

    def _choice(self) -> tuple[Tensor, Choice]:
        s, used = self._slots, self._slots.used
        top_p_R, top_k_R = s.top_p_S[:used], s.top_k_S[:used]
        truncated = bool((top_p_R < 1).any() or top_k_R.any())
        key_R, temperature_R = self._tensor(s.key_S[:used]), self._tensor(s.temperature_S[:used])
        return self._tensor(s.length_S[:used]), Choice(key_R, temperature_R, self._tensor(top_p_R), self._tensor(top_k_R), truncated)

    def _release(self, slot: int) -> None:
        source = self._slots.release(slot)
        if source is not None:
            self._decoder.move(source, slot, int(self._slots.length_S[slot]))

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._home)
