"""The own engine against transformers, and against itself with other slots, other instances, moves in the middle and new weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from language_samples import by_id, model, prompts, requests, same

from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.generation import (
    Engine,
    Request,
    SamplingParams,
    TransformersGenerator,
    generator,
    token_batch,
    token_log_probs,
)


@pytest.mark.parametrize(("kind", "tied"), [("qwen2", True), ("qwen3", False), ("llama", True)])
def test_greedy_answers_are_those_of_generate(kind, tied):
    lm = model(kind, tied)
    asked = requests(12, temperature=0, max_tokens=30, stop_ids=())
    got = by_id(Engine(lm, slots=5).sample(asked))
    for request in asked:
        row = torch.from_numpy(request.prompt_ids)[None]
        whole = lm.module.generate(row, do_sample=False, max_new_tokens=30, eos_token_id=None, pad_token_id=0, attention_mask=torch.ones_like(row))
        assert got[request.id].token_ids.tolist() == whole[0, row.shape[1] :].tolist()
    assert len({t for c in got.values() for t in c.token_ids.tolist()}) > 8  # the model says something


def test_sampled_answers_are_those_of_one_request_at_a_time():
    asked = requests(10, repeat=2, temperature=0.8, top_p=0.9, top_k=12, max_tokens=20)
    same(by_id(Engine(model(), slots=6).sample(asked)), by_id(TransformersGenerator(model()).sample(asked)))


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_log_probabilities_are_the_trainers(temperature):
    done = list(Engine(model("qwen3"), slots=16).sample(requests(20, repeat=2, temperature=temperature)))
    batch = token_batch(done)
    with torch.no_grad():
        torch.testing.assert_close(token_log_probs(model("qwen3"), batch, temperature=temperature), batch.log_prob_BT, atol=1e-4, rtol=0)


def test_answers_do_not_depend_on_slots_order_or_company():
    asked = requests(40, repeat=2)
    whole = by_id(Engine(model(), slots=128).sample(asked))
    assert {c.finish_reason for c in whole.values()} == {"stop", "length"}
    same(whole, by_id(Engine(model(), slots=7).sample(asked[::-1])))
    alone = asked[33]
    same({alone.id: whole[alone.id]}, by_id(Engine(model(), slots=1).sample([alone])))


def test_requests_that_are_killed_and_moved_end_the_same():
    """Three instances; at chance moments some requests are broken off and begin again where they were on another instance."""
    asked = requests(40, repeat=2)
    expected = by_id(Engine(model(), slots=128).sample(asked))
    rng = np.random.default_rng(0)
    engines = [Engine(model(), slots=9), Engine(model(), slots=16), Engine(model(), slots=4)]
    for i, request in enumerate(asked):
        engines[i % 3].add(request)
    done, moved = {}, 0
    while any(e.pending for e in engines):
        source = engines[rng.integers(3)]
        done |= by_id(source.step())
        if rng.random() < 0.3:
            victims = rng.choice([r.id for r in asked], 20)
            for partial in source.abort(set(victims.tolist())):
                assert partial.finish_reason == "abort"
                moved += len(partial) > 0
                engines[rng.integers(3)].add(partial.resumed())
    assert moved > 30
    same(expected, done)


def test_the_budget_of_a_resumed_answer_is_counted_once():
    engine = Engine(model(), slots=4)
    request = requests(1, max_tokens=10, stop_ids=())[0]
    engine.add(request)
    for _ in range(4):
        engine.step()
    partial = engine.abort()[0]
    assert len(partial) == 4 and engine.pending == 0
    (whole,) = Engine(model(), slots=4, version=5).sample([partial.resumed()])
    assert len(whole) == 10 and whole.finish_reason == "length"
    assert whole.versions.tolist() == [0] * 4 + [5] * 6
    assert whole.token_ids[:4].tolist() == partial.token_ids.tolist() and whole.log_probs[:4].tolist() == partial.log_probs.tolist()


@pytest.mark.parametrize("kind", ["own", "transformers"])
@pytest.mark.parametrize("tied", [True, False])
def test_new_weights_count_from_the_next_token_on(kind, tied):
    """In the middle of an answer; the token after a load is the one that the new model gives to this text (nothing cached has a say where all is one token)."""
    old, new = model(tied=tied), model(tied=tied, seed=1)
    running = generator(kind, old, slots=4)
    request = requests(1, max_tokens=12, stop_ids=(), temperature=0)[0]
    running.add(request)
    running.step()
    running.step()
    running.load_weights({k: v.numpy() for k, v in new.state_dict().items()}, version=3)
    fresh = Request(np.array([5]), SamplingParams(max_tokens=1, temperature=0), "fresh")
    running.add(fresh)
    (first,) = running.step()
    with torch.no_grad():
        row = new.module(input_ids=torch.tensor([[5]])).logits[0, -1].log_softmax(-1)
    assert first.token_ids.tolist() == [int(row.argmax())] and first.versions.tolist() == [3]
    assert first.log_probs[0] == pytest.approx(float(row.max()), abs=1e-4)
    while running.pending:
        (last, *_) = running.step() or [None]
    assert last.versions.tolist() == [0, 0] + [3] * 10
    assert old.module.state_dict()["model.norm.weight"].tolist() != new.module.state_dict()["model.norm.weight"].tolist()  # the generator has a copy


def test_weights_of_another_model_are_refused():
    engine = Engine(model(tied=False))
    with pytest.raises(ConfigError, match="lack 'lm_head.weight'"):
        engine.load_weights({k: v for k, v in model(tied=False).state_dict().items() if k != "lm_head.weight"}, 1)
    with pytest.raises(ConfigError, match="of another model"):
        engine.load_weights(model("qwen3", tied=False).state_dict(), 1)
    assert engine.version == 0


@pytest.mark.parametrize("kind", ["own", "transformers"])
def test_bad_requests_are_answered_with_reasons_and_others_go_on(kind):
    fine = requests(2, max_tokens=3, stop_ids=())
    params = SamplingParams(max_tokens=3)
    bad = [
        Request(np.zeros(0, np.int64), params, "empty"), Request(np.full(96, 3), params, "long"),
        Request(np.array([3, 99]), params, "strange"), Request(np.array([3]), params, fine[0].id),
    ]  # fmt: skip
    done = list(generator(kind, model(), slots=4).sample([*fine, *bad]))
    errors = {c.id: c.error for c in done if c.failed}
    assert [c.id for c in done if not c.failed] == [r.id for r in fine]
    assert "empty prompt" in errors["empty"] and "96 tokens" in errors["long"] and "token 99" in errors["strange"]
    assert "answered already" in errors[fine[0].id]


def test_an_answer_ends_where_the_context_ends():
    (done,) = Engine(model(), slots=2, max_length=16).sample([Request(prompts(1)[0][:5], SamplingParams(stop_ids=()), "a")])
    assert len(done) == 11 and done.finish_reason == "length"


def test_each_request_has_stops_of_its_own():
    asked = requests(12, max_tokens=30, stop_ids=())
    free = by_id(Engine(model(), slots=8).sample(asked))
    stops = {r.id: int(free[r.id].token_ids[6 + i]) for i, r in enumerate(asked)}
    stopped = [Request(r.prompt_ids, SamplingParams(max_tokens=30, stop_ids=(stops[r.id],)), r.id) for r in asked]
    for c in Engine(model(), slots=8).sample(stopped):
        expected = free[c.id].token_ids.tolist()
        assert c.token_ids.tolist() == expected[: expected.index(stops[c.id]) + 1] and c.finish_reason == "stop"


def test_what_is_left_early_does_not_run_on():
    engine = Engine(model(), slots=4)
    for _ in engine.sample(requests(20, max_tokens=5)):
        break
    assert engine.pending == 0 and engine.step() == []
    assert engine.abort(["nobody"]) == []


@pytest.mark.gpu
def test_recorded_steps_on_a_gpu_give_what_plain_ones_give():
    """CUDA graphs: other lengths, rows that end, new weights in place, away and back."""
    engine, asked = Engine(model(), slots=16, device="cuda"), requests(40, temperature=0, max_tokens=40, stop_ids=())
    same(by_id(engine.sample(asked)), by_id(Engine(model()).sample(asked)), atol=1e-3)
    engine.load_weights(model(seed=1).state_dict(), 1)
    same(by_id(engine.sample(asked)), by_id(Engine(model(seed=1)).sample(asked)), atol=1e-3)
    engine.offload()
    engine.onload()
    same(by_id(engine.sample(asked)), by_id(Engine(model(seed=1)).sample(asked)), atol=1e-3)


def test_an_engine_that_was_away_answers_as_before():
    engine, asked = Engine(model(), slots=4), requests(6)
    before = by_id(engine.sample(asked))
    engine.add(asked[0])
    with pytest.raises(ConfigError, match="abort"):
        engine.offload()
    engine.abort()
    engine.offload()
    engine.load_weights(model(seed=1).state_dict(), 1)
    engine.add(asked[0])
    with pytest.raises(ConfigError, match="onload"):
        engine.step()
    engine.abort()
    engine.load_weights(model().state_dict(), 2)
    engine.onload()
    same(before, by_id(engine.sample(asked)))


def test_what_the_engine_cannot_do_is_said_at_once():
    with pytest.raises(ConfigError, match="slots=0"):
        Engine(model(), slots=0)
    with pytest.raises(ConfigError, match="own context, 96"):
        Engine(model(), max_length=97)
    with pytest.raises(UnknownNameError, match="did you mean|Did you mean"):
        generator("transformer", model())
    with pytest.raises(ConfigError, match="one text"):
        Engine(model()).abort("0/0")
    assert repr(Engine(model(), slots=3)) == "Engine(3 slots of 96 tokens, float32 on cpu, version 0, 0 pending)"


@pytest.mark.parametrize("backend", [Engine, TransformersGenerator])
def test_what_there_is_so_far_is_what_abort_would_return(backend):
    asked = requests(6, max_tokens=20)
    here = backend(model(), slots=4)
    for request in asked:
        here.add(request)
    over = [c for _ in range(5) for c in here.step()]
    so_far = by_id(here.partials())
    assert set(so_far) == {r.id for r in asked} - {c.id for c in over} and here.pending == len(so_far)
    same(so_far, by_id(here.abort()))
    assert here.partials() == []
