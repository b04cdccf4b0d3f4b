"""Packed rows against one text at a time: values and gradients, also of a sharded model."""

from __future__ import annotations

import copy

import pytest
import torch
from language_samples import model, requests

from rlinf_lab.errors import ConfigError
from rlinf_lab.generation import (
    Completion,
    Engine,
    LanguageModel,
    token_batch,
    token_log_probs,
)


@pytest.fixture(scope="module")
def done() -> list[Completion]:
    return list(Engine(model(), slots=64).sample(requests(16, repeat=2)))


def one_by_one(lm: LanguageModel, completions: list[Completion], temperature: float) -> list[torch.Tensor]:
    """The definition: one text, no packing, no padding."""
    rows = []
    for c in completions:
        ids = torch.tensor([[*c.prompt_ids, *c.token_ids]])
        log_prob = (lm.module(input_ids=ids).logits[0] / temperature).log_softmax(-1)
        rows.append(log_prob[len(c.prompt_ids) - 1 : -1].gather(-1, ids[0, len(c.prompt_ids) :, None]).squeeze(-1))
    return rows


@pytest.mark.parametrize("row_tokens", [None, 43, 300])
def test_packed_rows_give_what_one_text_at_a_time_gives(done, row_tokens):
    batch = token_batch(done, row_tokens=row_tokens)
    with torch.no_grad():
        got = token_log_probs(model(), batch, temperature=0.7)
        for b, expected in enumerate(one_by_one(model(), done, 0.7)):
            torch.testing.assert_close(got[b, : len(expected)], expected, atol=1e-5, rtol=0)
            assert not got[b, len(expected) :].any() and batch.mask_BT[b].sum() == len(expected)
    assert batch.tokens == sum(map(len, done))
    assert len(batch.ids_RC) < len(done) and f"{batch.tokens} answer tokens" in repr(batch)


def test_packed_streamed_and_single_gradients_are_equal(done):
    """One batch, the same in three streamed parts, and one text at a time: the same sum of weighted log-probabilities, the same gradients."""
    weight_B = torch.linspace(-1, 1, len(done))

    def gradients(parts: list[list[int]], by_definition: bool = False) -> list[torch.Tensor]:
        lm = copy.deepcopy(model())
        for part in parts:
            chosen = [done[b] for b in part]
            if by_definition:
                loss = sum(weight_B[b] * row.sum() for b, row in zip(part, one_by_one(lm, chosen, 1.0), strict=True))
            else:
                loss = (weight_B[part, None] * token_log_probs(lm, token_batch(chosen))).sum()
            loss.backward()
        return [p.grad for p in lm.module.parameters()]

    every = list(range(len(done)))
    expected = gradients([every], by_definition=True)
    for parts in ([every], [every[:3], every[3:20], every[20:]]):
        for got, wanted in zip(gradients(parts), expected, strict=True):
            assert (got - wanted).norm() <= 1e-5 * wanted.norm() + 1e-6


@pytest.mark.slow
def test_a_sharded_model_gives_the_same_values_and_gradients(done, tmp_path):
    """FSDP2 on Gloo, two processes with different completions, against one model with all of them."""
    model().save(tmp_path / "model")
    parts = [done[:10], done[10:]]
    import sharded_ranks  # not above: it imports torch.distributed.fsdp, and so would each process that collects the tests

    torch.multiprocessing.spawn(sharded_ranks.rank, (2, str(tmp_path), parts), nprocs=2)
    got = torch.load(tmp_path / "out.pt", weights_only=False)
    lm = copy.deepcopy(model())
    expected = one_by_one(lm, done, 1.0)
    sum(row.sum() for row in expected).backward()
    for mine, wanted in zip(got["log_probs"], expected, strict=True):
        torch.testing.assert_close(mine, wanted.detach(), atol=1e-5, rtol=0)
    parameters = dict(lm.module.named_parameters())
    assert got["gradients"].keys() == parameters.keys()
    for name, gradient in got["gradients"].items():
        assert (gradient - parameters[name].grad).norm() <= 1e-5 * parameters[name].grad.norm() + 1e-6, name


def test_batches_that_cannot_be_are_refused(done):
    with pytest.raises(ConfigError, match="no completions"):
        token_batch([])
    with pytest.raises(ConfigError, match="1 of 2 completions have no tokens"):
        token_batch([done[0], Completion.refused(requests(1)[0], "why")])
    with pytest.raises(ConfigError, match="row_tokens=2"):
        token_batch(done, row_tokens=2)
    with pytest.raises(ConfigError, match="temperature=0"):
        token_log_probs(model(), token_batch(done), temperature=0)
