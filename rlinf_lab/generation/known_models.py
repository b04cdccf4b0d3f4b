"""Real models by name: where they are, how they look, what they take.

Memory is told for weights and for training. Nothing is downloaded.

>>> known_model("SmolLM2-135M")
KnownModel(HuggingFaceTB/SmolLM2-135M-Instruct: llama, 135 M parameters; GiB: weights 0.25, training 1, with LoRA 0.32)

Shapes are those of the models' own ``config.json`` (SmolLM2: arXiv 2502.02737, Qwen2.5: 2412.15115, Qwen3: 2505.09388).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_lab.errors import ConfigError, MissingDependencyError, UnknownNameError

if TYPE_CHECKING:
    import pandas as pd

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""the projections that get low-rank parts: all of these families have them, and no others"""
_BF16, _FLOAT32 = 2, 4  # bytes
_GIB = 2.0**30


@dataclass(frozen=True)
class KnownModel:
    """A model in Hugging Face's hub. Sizes as in its configuration."""

    hub: str
    """its id there"""
    family: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    """its context in tokens"""
    head_dim: int
    tied: bool = True
    """input and output share an embedding"""

    @property
    def _projections(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of those of a layer, in the order of `LORA_TARGETS`."""
        hidden, heads, shared = self.hidden_size, self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        wide = self.intermediate_size
        return (hidden, heads), (hidden, shared), (hidden, shared), (heads, hidden), (hidden, wide), (hidden, wide), (wide, hidden)

    @property
    def parameters(self) -> int:
        """How many numbers it has; tied ones count once."""
        layer = sum(a * b for a, b in self._projections) + 2 * self.hidden_size  # and two norms
        if self.family == "qwen2":
            layer += sum(out for _, out in self._projections[:3])  # biases
        if self.family == "qwen3":
            layer += 2 * self.head_dim  # norms of queries and keys
        return self.num_hidden_layers * layer + self.hidden_size + self.vocab_size * self.hidden_size * (1 if self.tied else 2)

    def lora_parameters(self, rank: int) -> int:
        """Numbers that are trained with low-rank parts of this rank on each of `LORA_TARGETS`."""
        return self.num_hidden_layers * sum(rank * (a + b) for a, b in self._projections)

    def memory_gib(self, *, lora: int | None = None, answers: int = 0, tokens: int = 1024) -> dict[str, float]:
        """GiB of a device, in bfloat16, by what takes them.

        ``generator``: weights, and keys and values of ``answers`` at once, each of so many ``tokens`` with its prompt. ``learner``: weights, and of what
        is trained gradients and AdamW's two moments, of the weights' own type; low-rank parts are in float32. Activations come on top.
        """
        cache = 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * _BF16 * answers * tokens
        weights = self.parameters * _BF16
        trained = 3 * weights if lora is None else 4 * _FLOAT32 * self.lora_parameters(lora)
        return {"generator": (weights + cache) / _GIB, "learner": (weights + trained) / _GIB}

    def config(self, **changes: Any) -> dict[str, Any]:
        """Fields of its transformers configuration; ``changes`` make it smaller, say, of the same architecture."""
        names = (
            "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size", "max_position_embeddings",
            "head_dim",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names} | {"tie_word_embeddings": self.tied} | changes

    def folder(self) -> Path:
        """Where its weights are on this machine: in the hub's cache. `ConfigError` with what to download where they are not there."""
        try:
            from huggingface_hub import snapshot_download
        except ImportError:
            raise MissingDependencyError.of("huggingface_hub", "reasoning", f"{self.hub} by name") from None
        try:
            return Path(snapshot_download(self.hub, local_files_only=True))
        except FileNotFoundError:
            weights = self.parameters * _BF16 / _GIB
            raise ConfigError(
                f"The weights of {self.hub} ({weights:.2g} GiB) are not on this machine, and nothing is downloaded by itself. Next: "
                f"hf download {self.hub}, where there is a network; elsewhere model='path' of a folder with its files."
            ) from None

    def __repr__(self) -> str:
        whole, parts = self.memory_gib(), self.memory_gib(lora=16)
        gib = f"weights {whole['generator']:.2g}, training {whole['learner']:.2g}, with LoRA {parts['learner']:.2g}"
        return f"KnownModel({self.hub}: {self.family}, {self.parameters / 1e6:,.0f} M parameters; GiB: {gib})"


KNOWN_MODELS = {
    "SmolLM2-135M": KnownModel("HuggingFaceTB/SmolLM2-135M-Instruct", "llama", 576, 30, 9, 3, 1536, 49152, 8192, 64),
    "SmolLM2-360M": KnownModel("HuggingFaceTB/SmolLM2-360M-Instruct", "llama", 960, 32, 15, 5, 2560, 49152, 8192, 64),
    "SmolLM2-1.7B": KnownModel("HuggingFaceTB/SmolLM2-1.7B-Instruct", "llama", 2048, 24, 32, 32, 8192, 49152, 8192, 64),
    "Qwen2.5-0.5B": KnownModel("Qwen/Qwen2.5-0.5B-Instruct", "qwen2", 896, 24, 14, 2, 4864, 151936, 32768, 64),
    "Qwen2.5-1.5B": KnownModel("Qwen/Qwen2.5-1.5B-Instruct", "qwen2", 1536, 28, 12, 2, 8960, 151936, 32768, 128),
    "Qwen2.5-3B": KnownModel("Qwen/Qwen2.5-3B-Instruct", "qwen2", 2048, 36, 16, 2, 11008, 151936, 32768, 128),
    "Qwen3-0.6B": KnownModel("Qwen/Qwen3-0.6B", "qwen3", 1024, 28, 16, 8, 3072, 151936, 40960, 128),
    "Qwen3-1.7B": KnownModel("Qwen/Qwen3-1.7B", "qwen3", 2048, 28, 16, 8, 6144, 151936, 40960, 128),
    "Qwen3-4B": KnownModel("Qwen/Qwen3-4B", "qwen3", 2560, 36, 32, 8, 9728, 151936, 40960, 128),
}
"""by the name that `GRPOConfig.model` takes; all of them are trained to chat"""


def known_model(name: str) -> KnownModel:
    """By its name. `UnknownNameError` with the nearest."""
    if name not in KNOWN_MODELS:
        raise UnknownNameError.of("model", name, KNOWN_MODELS, "Next: one of those, or the path of a folder in Hugging Face's format.")
    return KNOWN_MODELS[name]


def known_models(lora: int = 16) -> pd.DataFrame:
    """A row for each known model.

    Hub, family, parameters, context in tokens, GiB of weights, of training all, and of training low-rank parts.
    """
    import pandas as pd

    rows = {
        name: {
            "hub": m.hub, "family": m.family, "parameters": m.parameters, "context": m.max_position_embeddings,
            "weights_gib": m.memory_gib()["generator"], "training_gib": m.memory_gib()["learner"], "lora_gib": m.memory_gib(lora=lora)["learner"],
        }
        for name, m in KNOWN_MODELS.items()
    }  # fmt: skip
    return pd.DataFrame.from_dict(rows, orient="index")
