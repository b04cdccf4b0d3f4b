"""A small language model made here.

A character tokenizer, two layers in Qwen2's shape, and supervised training on worked examples.

Legend: B examples, L tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rlinf_lab.errors import ConfigError
from rlinf_lab.generation.hugging_face import LanguageModel, character_tokenizer, new_model

_IGNORE = -100  # cross entropy's own mark of what does not count


def small_model(
    alphabet: str, *, hidden: int = 64, layers: int = 2, heads: int = 2, kv_heads: int | None = None, seed: int = 0, max_length: int = 512,
    tied: bool = True, kind: str = "qwen2",
) -> LanguageModel:  # fmt: skip
    """A language model over the characters of ``alphabet`` with random weights.

    About 109,000 parameters as it stands, in float32.

    ``kv_heads`` (None: as many as ``heads``) share keys and values between heads, ``max_length`` is its context in tokens, ``kind`` its family
    ("llama", "qwen2", "qwen3"), ``tied`` whether input and output share an embedding. The seed alone fixes the weights. Heads of 32 are the
    smallest that vLLM runs on a CPU. Raises `ConfigError` for a bad alphabet.
    """
    tokenizer, shared = character_tokenizer(alphabet), heads if kv_heads is None else kv_heads
    if min(hidden, layers, heads, shared) < 1 or hidden % (2 * heads) or heads % shared:
        raise ConfigError(
            f"small_model(hidden={hidden}, layers={layers}, heads={heads}, kv_heads={kv_heads}). "
            "Next: positive numbers, hidden a multiple of 2 · heads, heads a multiple of kv_heads."
        )
    module = new_model(
        kind, seed=seed, vocab_size=len(tokenizer), hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=shared, head_dim=hidden // heads, intermediate_size=3 * hidden, max_position_embeddings=max_length,
        tie_word_embeddings=tied, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    return LanguageModel(module, tokenizer)


def warm_up(
    model: LanguageModel, examples: Iterable[tuple[str, str]], *, steps: int, batch_size: int = 64, learning_rate: float = 2e-3
) -> list[float]:
    """Supervised training on (prompt, answer) texts, in place. Returns the loss of each step in nats per token.

    Only the answers and the end token after them count. The learning rate rises over the first tenth of the steps and falls to zero by a
    cosine: both count steps, not seconds. ``examples`` may be endless; a finite list that is too short is gone through again.
    """
    if steps < 1 or batch_size < 1:
        raise ConfigError(f"warm_up(steps={steps}, batch_size={batch_size}). Next: at least 1 of each.")
    module, stream = model.module, _again_and_again(examples)
    optimizer = torch.optim.AdamW(module.parameters(), lr=learning_rate, weight_decay=0.0)
    rising = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min(1.0, (i + 1) / rising) * 0.5 * (1 + np.cos(np.pi * max(0, i - rising) / max(1, steps - rising)))
    )
    losses = []
    for _ in range(steps):
        ids_BL, target_BL = _batch(model, [next(stream) for _ in range(batch_size)])
        logits_BLV = module(input_ids=ids_BL, use_cache=False).logits
        loss = F.cross_entropy(logits_BLV[:, :-1].flatten(0, 1), target_BL[:, 1:].flatten(), ignore_index=_IGNORE)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return losses


def _batch(model: LanguageModel, pairs: list[tuple[str, str]]) -> tuple[Tensor, Tensor]:
    """Padded on the right, without a mask. Under a causal mask nothing real looks at padding."""
    rows = [(model.encode(prompt), model.encode(answer)) for prompt, answer in pairs]
    longest = max(len(p) + len(a) + 1 for p, a in rows)
    ids_BL = np.full((len(rows), longest), model.pad_id, np.int64)
    target_BL = np.full((len(rows), longest), _IGNORE, np.int64)
    for b, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids_BL[b, : end + 1] = [*prompt, *answer, model.stop_ids[0]]
        target_BL[b, len(prompt) : end + 1] = ids_BL[b, len(prompt) : end + 1]
    device = next(model.module.parameters()).device
    return torch.from_numpy(ids_BL).to(device), torch.from_numpy(target_BL).to(device)


def _again_and_again(examples: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    kept = list(examples) if isinstance(examples, (list, tuple)) else examples
    while True:
        empty = True
        for example in kept:
            empty = False
            yield example
        if empty:
            raise ConfigError("warm_up has run out of examples. Next: a list of (prompt, answer) texts, or a generator that goes on for steps · batch_size.")
