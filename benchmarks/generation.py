"""The own engine against transformers' ``generate``, its log-probabilities against the trainer's, and how fast partials come back.

Tokens per second of this process's processor time, one thread: the machine may be shared. ``generate`` gets 128 rows at a time, in the order given or
sorted by answer length as if that were known, runs each batch as long as its longest answer, and keeps no log-probabilities, which the engine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from harness import Case
from language_load import SLOTS, model, requests

from rlinf_lab.generation import Engine, Request, token_batch, token_log_probs


def cases(smoke: bool) -> list[Case]:
    torch.set_num_threads(1)
    count, slots = (24, 8) if smoke else (512, SLOTS)
    lm, asked = model(), requests(count)
    by_length = sorted(asked, key=lambda r: r.params.max_tokens)
    tokens = sum(r.params.max_tokens for r in asked)
    note = f"{count} answers of {tokens / count:.0f} tokens on average in {slots} slots, float32, 109 k parameters, tokens per CPU second; the machine was shared"

    def per_cpu_second(work: Callable[[], int]) -> float:
        begin = time.process_time()
        done = work()
        assert done == tokens
        return done / (time.process_time() - begin)

    def ours() -> float:
        return per_cpu_second(lambda: sum(len(c) for c in Engine(lm, slots=slots, max_length=320).sample(asked)))

    def generate(order: list[Request]) -> Callable[[], float]:
        return lambda: per_cpu_second(lambda: sum(_generate(lm.module, order[i : i + slots]) for i in range(0, count, slots)))

    peer = f"transformers {_version()} generate"
    return [
        Case("engine_vs_generate", "tokens/CPU s", ours, {peer: generate(asked)}, ">= 4", note=note),
        Case("engine_vs_generate_sorted", "tokens/CPU s", ours, {f"{peer}, sorted by length": generate(by_length)}, ">= 1.4", note=note),
        Case(
            "log_probabilities", "largest gap in nats", lambda: _gap(lm, asked, slots), target="<= 1e-4", target_of="value", runs=1,
            note=f"{tokens} tokens of the engine against the trainer's packed forward pass, float32",
        ),
        Case(
            "abort", "s", lambda: _abort(lm, asked, slots), target="<= 0.1", target_of="value",
            note=f"wall time until the partials of {slots} running and {count - slots} waiting requests are there",
        ),
        Case(
            "same_tokens_elsewhere", "share of answers", lambda: _same_elsewhere(lm, asked, slots), target=">= 1", target_of="value", runs=1,
            note=f"float32: {slots} slots against {slots // 4}, every token of {count} answers the same",
        ),
        Case(
            "same_tokens_elsewhere_bf16", "share of answers", lambda: _same_elsewhere(lm, asked, slots, torch.bfloat16), runs=1,
            note="the same in bfloat16, where nothing is promised",
        ),
    ]  # fmt: skip


def _version() -> str:
    import importlib.metadata

    return importlib.metadata.version("transformers")


def _generate(module: Any, asked: list[Request]) -> int:
    """Tokens that were asked for; ``generate`` makes as many for each row as for the longest."""
    widest = max(len(r.prompt_ids) for r in asked)
    ids, mask = np.zeros((2, len(asked), widest), np.int64)
    for row, request in enumerate(asked):
        ids[row, widest - len(request.prompt_ids) :], mask[row, widest - len(request.prompt_ids) :] = request.prompt_ids, 1
    longest = max(r.params.max_tokens for r in asked)
    made = module.generate(
        torch.from_numpy(ids), attention_mask=torch.from_numpy(mask), do_sample=True, temperature=1.0, top_k=0, max_new_tokens=longest,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    assert made.shape[1] == widest + longest
    return sum(r.params.max_tokens for r in asked)


def _gap(lm: Any, asked: list[Request], slots: int) -> float:
    batch = token_batch(list(Engine(lm, slots=slots, max_length=320).sample(asked)))
    with torch.no_grad():
        return float((token_log_probs(lm, batch) - batch.log_prob_BT).abs().max())


def _abort(lm: Any, asked: list[Request], slots: int) -> float:
    engine = Engine(lm, slots=slots, max_length=320)
    for request in asked:
        engine.add(request)
    for _ in range(4):
        engine.step()
    waiting = engine.pending
    begin = time.perf_counter()
    partials = engine.abort()
    seconds = time.perf_counter() - begin
    assert len(partials) == waiting
    return seconds


def _same_elsewhere(lm: Any, asked: list[Request], slots: int, dtype: torch.dtype = torch.float32) -> float:
    one, other = (
        {c.id: c.token_ids.tolist() for c in Engine(lm, slots=s, max_length=320, dtype=dtype).sample(asked)} for s in (slots, max(1, slots // 4))
    )
    return sum(one[i] == other[i] for i in one) / len(one)
