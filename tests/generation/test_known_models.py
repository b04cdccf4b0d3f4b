"""Real models by name, on models of the same architecture that are made here: sizes, the hub's cache, chat, low-rank parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.generation import KNOWN_MODELS, LanguageModel, known_model, known_models, load_model
from rlinf_lab.generation.hugging_face import character_tokenizer, new_model
from rlinf_lab.generation.known_models import LORA_TARGETS
from rlinf_lab.recipes.grpo import GRPOConfig, build

TEMPLATE = "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
ONE_OF_EACH = ("SmolLM2-135M", "Qwen2.5-0.5B", "Qwen3-0.6B")


def tiny(name: str) -> LanguageModel:
    """The architecture of a known model, its ratio of heads too, in small."""
    known = KNOWN_MODELS[name]
    tokenizer = character_tokenizer("0123456789%=,#<>usa\n ")
    tokenizer.chat_template = TEMPLATE
    shared = known.num_attention_heads // known.num_key_value_heads
    small = {
        "hidden_size": 16 * shared, "num_hidden_layers": 2, "num_attention_heads": shared, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 48,
        "vocab_size": len(tokenizer), "max_position_embeddings": 128, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None,
    }  # fmt: skip
    return LanguageModel(new_model(known.family, seed=0, **known.config(**small)), tokenizer)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache, empty: no network, and no model of this machine."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def put_into(cache: Path, name: str) -> None:
    folder = cache / ("models--" + KNOWN_MODELS[name].hub.replace("/", "--"))
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0123abcd")
    tiny(name).save(folder / "snapshots" / "0123abcd")


@pytest.mark.parametrize("name", KNOWN_MODELS)
def test_sizes_are_those_of_the_architecture(name: str) -> None:
    known = known_model(name)
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(known.family, **known.config()))
    module.tie_weights()
    assert known.parameters == sum(p.numel() for p in module.parameters())
    layers = [m for n, m in module.named_modules() if n.endswith(LORA_TARGETS)]
    assert known.lora_parameters(8) == sum(8 * (m.in_features + m.out_features) for m in layers)
    cache = known.memory_gib(answers=3, tokens=100)["generator"] - known.memory_gib()["generator"]
    assert cache * 2**30 == pytest.approx(2 * len(module.model.layers) * known.num_key_value_heads * known.head_dim * 2 * 300)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_model_by_name_trains_in_low_rank_and_chats(name: str, cache: Path) -> None:
    put_into(cache, name)
    config = GRPOConfig(
        "reasoning/remainder", model=name, lora=4, system_prompt="#", prompts=2, group_size=3, max_tokens=8, slots=8, iterations=1, reward=lambda p, t: len(t)
    )  # fmt: skip
    assert config.language_model()().decode(config.language_model()().encode_prompt("7%2=")) == "<s>#<u>7%2=<a>"
    flow = build(config)
    with lab.session(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"])) as session:
        told = session.step("checkpoint")
    assert told["metrics"]["mismatch_max"] < 1e-4 and told["metrics"]["grad_norm"] > 0
    assert {part for part in LORA_TARGETS for n in told["state"]["trained"] if f".{part}." in n} == set(LORA_TARGETS)
    trained = load_model(KNOWN_MODELS[name].folder(), lora=4)
    assert sum(p.numel() for p in trained.module.parameters() if p.requires_grad) == sum(p.numel() for p in told["state"]["trained"].values())


def test_what_is_not_here_is_said_with_what_to_download(cache: Path) -> None:
    with pytest.raises(ConfigError, match=r"HuggingFaceTB/SmolLM2-135M-Instruct \(0.25 GiB\) are not on this machine.*Next: hf download Hugging"):
        GRPOConfig("reasoning/remainder", model="SmolLM2-135M")
    with pytest.raises(ConfigError, match=r"nor a name. Next: 'Qwen3-0.6B', or the path"):
        GRPOConfig("reasoning/remainder", model="Qwen3-0.5B")
    with pytest.raises(UnknownNameError, match="Did you mean 'SmolLM2-135M'"):
        known_model("SmolLM-135M")
    with pytest.raises(ConfigError, match=r"GRPOConfig\.chat is True; it must be left out with model='small'"):
        GRPOConfig("reasoning/remainder", chat=True)
    table = known_models()
    assert set(table.index) == set(KNOWN_MODELS) and (table["lora_gib"] < table["training_gib"]).all()


def test_a_tokenizer_without_a_template_does_not_chat(tmp_path: Path) -> None:
    model = tiny("SmolLM2-135M")
    model.tokenizer.chat_template = None
    model.save(tmp_path / "plain")
    assert load_model(tmp_path / "plain").encode_prompt("7%2=").tolist() == model.encode("7%2=").tolist()
    with pytest.raises(ConfigError, match="has no chat template. Next: chat=False"):
        load_model(tmp_path / "plain", chat=True)
