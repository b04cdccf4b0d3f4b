"""vLLM behind the protocol, for real: make test-vllm. The own engine and transformers are what it is compared with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from language_samples import by_id, model, requests, same

from rlinf_lab.errors import ConfigError
from rlinf_lab.generation import Engine, Request, SamplingParams, generator, token_batch, token_log_probs

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def tied(request) -> bool:
    return request.param


@pytest.fixture(scope="module")
def shared(tied):
    """An engine takes seconds to start: one for each kind of model."""
    return generator("vllm", model(tied=tied), slots=16)


@pytest.fixture
def vllm(shared, tied) -> Iterator:
    yield shared
    shared.abort()
    shared.load_weights(model(tied=tied).state_dict(), 0)


def test_greedy_answers_are_those_of_the_own_engine(vllm, tied):
    asked = requests(24, temperature=0, max_tokens=30)
    same(by_id(vllm.sample(asked)), by_id(Engine(model(tied=tied)).sample(asked)))


@pytest.mark.parametrize("whole", [True, False])
def test_new_weights_are_right_in_the_very_next_token(vllm, tied, whole):
    """Idle and in the middle of answers; where the head is tied also without it in the state."""
    new = model(tied=tied, seed=1)
    state = {k: v for k, v in new.state_dict().items() if whole or not tied or k != "lm_head.weight"}
    running = requests(6, max_tokens=8, stop_ids=(), temperature=0)
    for request in running:
        vllm.add(request)
    for _ in range(3):
        vllm.step()
    vllm.load_weights(state, version=4)
    vllm.add(Request(np.array([5]), SamplingParams(max_tokens=1, temperature=0), "fresh"))
    first = {c.id: c for c in vllm.step()}["fresh"]
    with torch.no_grad():
        row = new.module(input_ids=torch.tensor([[5]])).logits[0, -1].log_softmax(-1)
    assert first.token_ids.tolist() == [int(row.argmax())] and first.versions.tolist() == [4]
    assert first.log_probs[0] == pytest.approx(float(row.max()), abs=1e-5)
    rest = []
    while vllm.pending:
        rest += vllm.step()
    assert len(rest) == 6 and all(c.versions.tolist() == [0] * 3 + [4] * 5 for c in rest)
    same(by_id(vllm.sample(running)), by_id(Engine(new).sample(running)))


@pytest.mark.parametrize("params", [{"temperature": 1.0}, {"temperature": 0.6}])
def test_log_probabilities_are_the_trainers(vllm, tied, params):
    batch = token_batch(list(vllm.sample(requests(12, repeat=2, **params))))
    with torch.no_grad():
        expected = token_log_probs(model(tied=tied), batch, temperature=params["temperature"])
    torch.testing.assert_close(batch.log_prob_BT, expected, atol=1e-5, rtol=0)


def test_truncated_log_probabilities_are_of_what_was_sampled_from(vllm, tied):
    """The own engine's, for the same tokens, are the oracle: it is handed the answers token by token as prefixes."""
    done = list(vllm.sample(requests(4, temperature=0.8, top_k=4, top_p=0.9, max_tokens=6, stop_ids=())))
    for c in done:
        for t in range(len(c)):
            text = [*c.prompt_ids, *c.token_ids[:t]]
            with torch.no_grad():
                row = model(tied=tied).module(input_ids=torch.tensor([text])).logits[0, -1] / 0.8
            top = row.topk(4)
            prob = top.values.softmax(-1)
            kept = (prob.cumsum(-1) - prob) < 0.9
            renormalised = dict(zip(top.indices[kept].tolist(), (prob[kept] / prob[kept].sum()).log().tolist(), strict=True))
            assert c.log_probs[t] == pytest.approx(renormalised[int(c.token_ids[t])], abs=1e-4)


def test_partials_come_back_and_go_on_with_one_budget(vllm):
    asked = requests(20, max_tokens=10, stop_ids=())  # more than slots
    for request in asked:
        vllm.add(request)
    for _ in range(4):
        vllm.step()
    so_far = by_id(vllm.partials())
    partials = by_id(vllm.abort())
    same(so_far, partials)
    assert sorted(map(len, partials.values())) == [0] * 4 + [4] * 16 and vllm.pending == 0
    whole = by_id(vllm.sample([c.resumed() for c in partials.values()]))
    for key, c in whole.items():
        had = partials[key]
        assert len(c) == 10 and c.finish_reason == "length"
        assert c.token_ids[: len(had)].tolist() == had.token_ids.tolist() and c.log_probs[: len(had)].tolist() == had.log_probs.tolist()


def test_stops_are_the_last_tokens_and_seeds_repeat(vllm):
    asked = requests(16, max_tokens=24)
    done = by_id(vllm.sample(asked))
    assert {c.finish_reason for c in done.values()} == {"stop", "length"}
    assert all((c.token_ids[-1] == 1) == (c.finish_reason == "stop") and 1 not in c.token_ids[:-1] for c in done.values())
    same(done, by_id(vllm.sample(asked)))
    other = by_id(vllm.sample(requests(16, max_tokens=24, seed=1)))
    assert any(done[k].token_ids.tolist() != other[k].token_ids.tolist() for k in done)


def test_bad_requests_and_bad_weights_disturb_nobody(vllm, tied):
    params = SamplingParams(max_tokens=3, stop_ids=())
    bad = [Request(np.zeros(0, np.int64), params, "empty"), Request(np.full(96, 3), params, "long"), Request(np.array([99]), params, "strange")]
    done = by_id(vllm.sample([*bad, *requests(2, max_tokens=3, stop_ids=())]))
    assert {k for k, c in done.items() if c.failed} == {"empty", "long", "strange"} and len(done["0/0"]) == 3
    state = model(tied=tied).state_dict()
    state.pop("model.norm.weight")
    with pytest.raises(ConfigError, match=r"missing \['model.norm.weight'\]"):
        vllm.load_weights(state, 9)
    vllm.add(requests(1)[0])
    with pytest.raises(ConfigError, match="abort"):
        vllm.offload()
    vllm.abort()
    vllm.offload()
    vllm.onload()
    assert vllm.version == 0 and repr(vllm).startswith("VLLMGenerator(vLLM ")


def test_a_prefix_that_older_weights_computed_serves_no_new_request(tmp_path):
    """The prompt is longer than a block of the cache, and another request runs, so that the cache cannot be emptied."""
    old, new = model(max_length=512), model(max_length=512, seed=1)
    engine = generator("vllm", old.save(tmp_path / "old"), slots=4)
    prompt = np.random.default_rng(0).integers(2, 24, 300)
    params = SamplingParams(max_tokens=4, temperature=0, stop_ids=())
    engine.add(Request(prompt[:7], SamplingParams(max_tokens=200, stop_ids=()), "long"))
    engine.add(Request(prompt, params, "before"))
    assert [c.id for _ in range(6) for c in engine.step()] == ["before"]
    engine.load_weights(new.state_dict(), 1)
    engine.add(Request(prompt, params, "after"))
    after = [c for _ in range(6) for c in engine.step()]
    same(by_id(after), by_id(Engine(new).sample([Request(prompt, params, "after")])))
    engine.abort()


def test_sampled_prompts_may_be_longer_together_than_a_batch():
    """A prompt that was computed in two parts took the seeded noise back, which torch cannot on a CPU."""
    engine = generator("vllm", model(max_length=512), slots=48)
    prompts = np.random.default_rng(0).integers(2, 24, (48, 300))
    asked = [Request(prompt, SamplingParams(max_tokens=3, stop_ids=()), str(i)) for i, prompt in enumerate(prompts)]
    done = by_id(engine.sample(asked))
    assert sorted(done) == sorted(r.id for r in asked) and {len(c) for c in done.values()} == {3}


def test_folders_without_a_model_are_named(tmp_path):
    with pytest.raises(ConfigError, match="no model in"):
        generator("vllm", tmp_path)
