"""The model that is made here, and models from folders: what is written can be read by transformers; training counts steps; errors name the folder."""

from __future__ import annotations

import random

import pytest
import torch
from language_samples import ALPHABET, by_id, model, requests, same

from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.generation import (
    Engine,
    SamplingParams,
    load_model,
    requests_for,
    small_model,
    token_batch,
    token_log_probs,
    warm_up,
)


def test_characters_survive_the_tokenizer_and_strange_ones_are_named():
    lm = small_model("ab \n<>é", layers=1)
    text = "a  b\n<a>é "
    assert lm.decode([*lm.encode(text), *lm.stop_ids, lm.pad_id]) == text and len(lm.encode(text)) == len(text)
    with pytest.raises(ConfigError, match=r"\['x', 'z'\]"):
        lm.encode("zabx")
    with pytest.raises(ConfigError, match="heads=2, kv_heads=3"):
        small_model("ab", kv_heads=3)
    for bad in ("", "aa", ["ab"]):
        with pytest.raises(ConfigError, match="alphabet"):
            small_model(bad)


def test_the_seed_alone_fixes_the_weights():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one, two, other = (small_model(ALPHABET, seed=s).state_dict() for s in (3, 3, 4))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(one[k], two[k]) for k in one) and any(not torch.equal(one[k], other[k]) for k in one)
    made = small_model(ALPHABET)
    assert 100_000 < made.parameters < 115_000 and repr(made) == f"LanguageModel(qwen2, {made.parameters:,} parameters in float32, 24 tokens)"
    with pytest.raises(UnknownNameError, match="qwen2"):
        small_model(ALPHABET, kind="qwen")


def test_a_saved_model_is_the_same_for_us_and_for_transformers(tmp_path):
    import transformers

    for kind, tied in (("qwen2", True), ("qwen3", False)):
        folder = model(kind, tied).save(tmp_path / kind)
        back, theirs = load_model(folder), transformers.AutoModelForCausalLM.from_pretrained(folder)
        assert back.state_dict().keys() == model(kind, tied).state_dict().keys()
        for name, tensor in model(kind, tied).state_dict().items():
            assert torch.equal(tensor, back.state_dict()[name]) and torch.equal(tensor, theirs.state_dict()[name])
        assert transformers.AutoTokenizer.from_pretrained(folder)("1+2 =")["input_ids"] == back.encode("1+2 =").tolist()
        assert back.stop_ids == model().stop_ids and back.pad_id == model().pad_id


def test_a_model_is_saved_over_an_earlier_one_and_over_nobody_elses_files(tmp_path):
    one, other = (small_model(ALPHABET, layers=1, seed=seed) for seed in (1, 2))
    folder = one.save(tmp_path / "model")
    (folder / "notes.txt").write_text("mine")
    weights = (other.save(folder) / "model.safetensors").read_bytes()
    assert torch.equal(load_model(folder).state_dict()["lm_head.weight"], other.state_dict()["lm_head.weight"])
    assert (folder / "notes.txt").read_text() == "mine" and {file.name for file in tmp_path.iterdir()} == {"model"}
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "model.safetensors").write_bytes(b"of somebody else")
    (tmp_path / "file").write_text("x")
    for name, why in (
        ("foreign", r"no model was saved with: 'model\.safetensors'\. Next: a new folder"), ("file", "a file is there"), ("model.onnx", "ends as a file's name.*Next: .*model'"),
        ("a" * 300, "too long"), ("a\0", "null"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            one.save(tmp_path / name)
    assert (foreign / "model.safetensors").read_bytes() == b"of somebody else" and (folder / "model.safetensors").read_bytes() == weights
    assert {file.name for file in tmp_path.iterdir()} == {"model", "foreign", "file"}
    (folder / "notes.txt").unlink()
    (folder / "rlinf_lab.json").unlink()  # as earlier versions left it
    assert one.save(folder) == folder and (folder / "rlinf_lab.json").exists()


def test_warm_up_learns_and_repeats_itself():
    rng = random.Random(0)
    examples = [(f"{(a := rng.randrange(10))}+{(b := rng.randrange(10))}=", str(max(a, b))) for _ in range(500)]

    def trained(steps: int):
        lm = small_model("0123456789+=", layers=1)
        return lm, warm_up(lm, examples, steps=steps, batch_size=32, learning_rate=5e-3)

    lm, losses = trained(100)
    assert len(losses) == 100 and trained(3)[1] == pytest.approx(trained(3)[1], abs=0)
    asked = requests_for([lm.encode(f"{a}+{b}=") for a in range(10) for b in range(10)], SamplingParams(max_tokens=4, temperature=0))
    right = sum(lm.decode(c.token_ids) == max(f"{int(c.id[:-2]):02}") for c in Engine(lm).sample(asked))
    assert right >= 80 and sum(losses[-10:]) < 0.3 * sum(losses[:10])
    for bad in ({"steps": 0}, {"steps": 1, "batch_size": 0}):
        with pytest.raises(ConfigError, match="warm_up"):
            warm_up(lm, examples, **bad)
    with pytest.raises(ConfigError, match="run out"):
        warm_up(lm, iter(examples[:3]), steps=1)


def test_folders_that_hold_no_model_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no folder .*nothing is downloaded"):
        load_model(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no config.json"):
        load_model(tmp_path / "empty")
    lm = small_model(ALPHABET, layers=1)
    lm.tokenizer.pad_token = None
    folder = lm.save(tmp_path / "unpadded")
    with pytest.raises(ConfigError, match=r"no padding token.*tokenizer.pad_token = '<end>'"):
        load_model(folder)


def test_lora_trains_its_parts_only_and_travels_merged(tmp_path):
    folder = model().save(tmp_path / "base")
    lm = load_model(folder, lora=4, gradient_checkpointing=True)
    assert "with LoRA" in repr(lm)
    batch = token_batch(list(Engine(lm, slots=8).sample(requests(8))))
    frozen = model().state_dict()
    assert lm.state_dict().keys() == frozen.keys()
    passes = []
    next(m for n, m in lm.module.named_modules() if n.endswith("layers.0.mlp")).register_forward_pre_hook(lambda *_: passes.append(1))
    optimizer = torch.optim.SGD([p for p in lm.module.parameters() if p.requires_grad], lr=0.5)
    for _ in range(2):  # the first step leaves A: B begins at zero
        optimizer.zero_grad()
        token_log_probs(lm, batch).mean().neg().backward()
        optimizer.step()
    assert len(passes) == 4  # each layer twice a step: its activations were not kept
    engine = Engine(model(), slots=8)
    engine.load_weights(lm.state_dict(), 1)
    done = list(engine.sample(requests(8)))
    fresh = token_batch(done)
    with torch.no_grad():
        torch.testing.assert_close(token_log_probs(lm, fresh), fresh.log_prob_BT, atol=1e-4, rtol=0)
        assert (token_log_probs(model(), fresh) - fresh.log_prob_BT).abs().max() > 0.01
    merged = load_model(lm.save(tmp_path / "merged"))
    same(by_id(done), by_id(Engine(merged, slots=8).sample(requests(8))))
    assert torch.equal(lm.state_dict()["model.norm.weight"], frozen["model.norm.weight"])
    with pytest.raises(ConfigError, match="lora=0"):
        load_model(folder, lora=0)
