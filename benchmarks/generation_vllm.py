"""vLLM on cores: new weights, log-probabilities, partials. Run where it is: .venv-vllm/bin/python benchmarks/harness.py generation_vllm"""

from __future__ import annotations

import time
from typing import Any

import torch
from harness import Case
from language_load import SLOTS, model, requests

from rlinf_lab.generation import Engine, Generator, generator, token_batch, token_log_probs


def cases(smoke: bool) -> list[Case]:
    torch.set_num_threads(1)
    count = 24 if smoke else 256
    rows: list[Case] = []
    for tied in (True, False):
        kind = "tied" if tied else "untied"
        vllm = generator("vllm", model(tied=tied), slots=8 if smoke else SLOTS)
        rows += [
            Case(
                f"weight_push_vllm_{kind}", "s", lambda v=vllm, t=tied: _push(v, t), target="<= 0.05", target_of="value", runs=1 if smoke else 15,
                note="wall time of load_weights, 109 k parameters in one process; the greedy tokens after it are those of the new model; the machine was shared",
            ),
            Case(
                f"log_probabilities_vllm_{kind}", "largest gap in nats", lambda v=vllm, t=tied: _gap(v, t, count), target="<= 1e-5", target_of="value", runs=1,
                note=f"{count} answers against the trainer's packed forward pass, float32",
            ),
            Case(
                f"abort_vllm_{kind}", "s", lambda v=vllm: _abort(v, count), target="<= 0.1", target_of="value",
                note=f"wall time until the partials of {count} requests, running and waiting, are there; the machine was shared",
            ),
        ]  # fmt: skip
    return rows


_PUSHED = 0


def _push(vllm: Generator, tied: bool) -> float:
    """Two models in turn; what is measured counts only if the very next tokens are the new model's."""
    global _PUSHED
    _PUSHED += 1
    new = model(tied=tied, seed=_PUSHED % 2 + 1)
    state = new.state_dict()
    begin = time.perf_counter()
    vllm.load_weights(state, _PUSHED)
    seconds = time.perf_counter() - begin
    asked = requests(8, temperature=0.0)
    got, expected = ({c.id: c.token_ids[:1].tolist() for c in g.sample(asked)} for g in (vllm, Engine(new)))
    assert got == expected
    return seconds


def _gap(vllm: Generator, tied: bool, count: int) -> float:
    lm: Any = model(tied=tied)
    vllm.load_weights(lm.state_dict(), 0)
    batch = token_batch(list(vllm.sample(requests(count))))
    with torch.no_grad():
        return float((token_log_probs(lm, batch) - batch.log_prob_BT).abs().max())


def _abort(vllm: Generator, count: int) -> float:
    for request in requests(count):
        vllm.add(request)
    for _ in range(4):
        vllm.step()
    waiting = vllm.pending
    begin = time.perf_counter()
    partials = vllm.abort()
    seconds = time.perf_counter() - begin
    assert len(partials) == waiting
    return seconds
