"""The forward pass of a Llama-like decoder on a static cache.

For weights of Llama, Qwen2 and Qwen3 in Hugging Face's names.

It computes what transformers' modules compute, with the projections of one input put together, keys stored transposed and no object made per
step, so that a CUDA graph can hold a step. No gradients, one device.

Legend: R rows (slots from the first on), T tokens of a prompt, L places in the cache, E hidden size, H query heads, K key and value heads,
G = H/K, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlinf_lab.errors import ConfigError, UnknownNameError, shown

FAMILIES = ("llama", "qwen2", "qwen3")


class Decoder:
    """Weights and cache of ``slots`` sequences of at most ``length`` tokens.

    Attributes: ``keys`` and ``values``, for each layer a tensor (slots, K, D, length) and (slots, K, length, D).
    """

    def __init__(
        self, model: nn.Module, state: Mapping[str, Tensor], *, slots: int, length: int, device: torch.device, dtype: torch.dtype
    ) -> None:  # fmt: skip
        config: Any = model.config
        _check(config)
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps: float = config.rms_norm_eps
        self.scale = self.head**-0.5
        self.tied = bool(config.tie_word_embeddings)
        self.vocabulary: int = config.vocab_size
        self.device, self.dtype = device, dtype
        self.fused = {name: t.to(device, dtype, copy=True) for name, t in _fuse(_plain(state), self.layers, self.tied).items()}
        self.places_L = torch.arange(length, device=device)
        self.cos_LD, self.sin_LD = _rotation(model, self.places_L, dtype)
        self.slots, self.length = slots, length
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.clear()

    # --- weights and memory ----------------------------------------------------------------------------------
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Replace the weights in place: CUDA graphs go on with the new ones."""
        fused = _fuse(_plain(state), self.layers, self.tied)
        strange = [name for name, t in fused.items() if name not in self.fused or t.shape != self.fused[name].shape]
        if strange or len(fused) != len(self.fused):
            raise ConfigError(f"These weights are of another model: {shown(strange or sorted(set(self.fused) - set(fused)))}. Next: its own state_dict().")
        for name, tensor in fused.items():
            self.fused[name].copy_(tensor)

    def clear(self, allocate: bool = True) -> None:
        """A new, empty cache, or none."""
        shape = (self.slots, self.kv_heads)
        places = range(self.layers if allocate else 0)
        self.keys = [torch.zeros(*shape, self.head, self.length, device=self.device, dtype=self.dtype) for _ in places]
        self.values = [torch.zeros(*shape, self.length, self.head, device=self.device, dtype=self.dtype) for _ in places]

    def to(self, device: torch.device, *, cache: bool = True) -> None:
        """Move the weights; what the cache held is lost, and without ``cache`` there is none."""
        self.device = device
        self.fused = {name: t.to(device) for name, t in self.fused.items()}
        self.places_L, self.cos_LD, self.sin_LD = self.places_L.to(device), self.cos_LD.to(device), self.sin_LD.to(device)
        self.clear(cache)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` places of one slot to another."""
        for k, v in zip(self.keys, self.values, strict=True):
            k[target, :, :, :length] = k[source, :, :, :length]
            v[target, :, :length] = v[source, :, :length]

    # --- forward ---------------------------------------------------------------------------------------------
    def decode(self, token_R: Tensor, place_R: Tensor, length: int) -> Tensor:
        """Logits (R, V) after one more token in slots 0 to R-1, at ``place_R``. Attention reads the first ``length`` places."""
        rows = len(token_R)
        row_R = self.places_R(rows)
        cos_R1D, sin_R1D = self.cos_LD[place_R, None], self.sin_LD[place_R, None]
        mask_R11L = torch.where(self.places_L[:length] <= place_R[:, None], 0.0, -torch.inf)[:, None, None].to(self.dtype)
        x_RE = F.embedding(token_R, self.fused["embed"])
        for layer in range(self.layers):
            q_RHD, k_RKD, v_RKD = self._project(layer, x_RE, cos_R1D, sin_R1D)
            keys, values = self.keys[layer], self.values[layer]
            keys[row_R, :, :, place_R] = k_RKD
            values[row_R, :, place_R] = v_RKD
            q_RKGD = q_RHD.view(rows, self.kv_heads, -1, self.head) * self.scale
            weight_RKGL = (torch.matmul(q_RKGD, keys[:rows, :, :, :length]) + mask_R11L).softmax(-1, dtype=torch.float32).to(self.dtype)
            mixed_RKGD = torch.matmul(weight_RKGL, values[:rows, :, :length])
            x_RE = self._rest(layer, x_RE, mixed_RKGD.reshape(rows, -1))
        return self._logits(x_RE)

    def prefill(self, token_UT: Tensor, last_U: Tensor, slot_R: Tensor, of_R: Tensor) -> Tensor:
        """Logits (U, V) after each of U texts, padded on the right to T. Their keys and values go to slots: ``slot_R`` gets text ``of_R``.

        Requests that share a text (samples of one prompt) share the work. ``last_U`` is the place of each text's last token.
        """
        texts, length = token_UT.shape
        cos_T1D, sin_T1D = self.cos_LD[:length, None], self.sin_LD[:length, None]
        x = F.embedding(token_UT, self.fused["embed"])
        for layer in range(self.layers):
            q, k, v = (t.transpose(1, 2) for t in self._project(layer, x, cos_T1D, sin_T1D))  # (U, heads, T, D)
            self.keys[layer][slot_R, :, :, :length] = k.transpose(-1, -2)[of_R]
            self.values[layer][slot_R, :, :length] = v[of_R]
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=self.heads != self.kv_heads)
            x = self._rest(layer, x, mixed.transpose(1, 2).reshape(texts, length, -1))
        return self._logits(x[self.places_R(texts), last_U])

    def places_R(self, rows: int) -> Tensor:
        if rows <= len(self.places_L):
            return self.places_L[:rows]
        return torch.arange(rows, device=self.device)

    def _project(self, layer: int, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys (both rotated) and values: (…, heads, D)."""
        fused, at = self.fused, f"{layer}."
        mixed = F.linear(self._norm(x, at + "norm_in"), fused[at + "qkv"], fused.get(at + "qkv_bias"))
        heads = mixed.unflatten(-1, (-1, self.head))
        qk, v = heads[..., : self.heads + self.kv_heads, :], heads[..., self.heads + self.kv_heads :, :]
        if at + "norm_q" in fused:
            q, k = self._norm(qk[..., : self.heads, :], at + "norm_q"), self._norm(qk[..., self.heads :, :], at + "norm_k")
            qk = torch.cat([q, k], -2)
        first, second = qk.chunk(2, -1)
        qk = qk * cos + torch.cat([-second, first], -1) * sin
        return qk[..., : self.heads, :], qk[..., self.heads :, :], v

    def _rest(self, layer: int, x: Tensor, mixed: Tensor) -> Tensor:
        """What follows attention in a layer. Output projection and the gated MLP, both added to ``x``."""
        fused, at = self.fused, f"{layer}."
        x = x + F.linear(mixed, fused[at + "out"], fused.get(at + "out_bias"))
        gate, up = F.linear(self._norm(x, at + "norm_mlp"), fused[at + "gate_up"]).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, fused[at + "down"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.fused[name], self.eps)

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self._norm(x, "norm_out"), self.fused["embed" if self.tied else "head"])


def _check(config: Any) -> None:
    kind = getattr(config, "model_type", None)
    if kind not in FAMILIES:
        raise UnknownNameError.of("model family of the own engine", kind, FAMILIES, "Next: the generator 'transformers' or 'vllm', which know every family.")
    sliding = [t for t in getattr(config, "layer_types", None) or () if t != "full_attention"]
    activation = getattr(config, "hidden_act", "silu")
    if sliding or activation != "silu" or getattr(config, "mlp_bias", False):
        unusual = sliding[:1] or ([f"activation {activation}"] if activation != "silu" else ["biases in the MLP"])
        raise ConfigError(f"The own engine does not know {unusual[0]} (model family {kind!r}). Next: the generator 'transformers' or 'vllm'.")


def _rotation(model: nn.Module, places_L: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines (L, D) of the rotary embedding.

    From the model's own module, which knows about scaled variants.
    """
    rotary: Any = next((m for name, m in model.named_modules() if name.endswith("rotary_emb")), None)
    if rotary is None:
        raise ConfigError(f"{type(model).__name__} has no rotary embedding. Next: the generator 'transformers'.")
    if getattr(rotary, "rope_type", "default") in ("dynamic", "longrope"):
        raise ConfigError(f"The own engine does not know rotary embeddings that change with the length ({rotary.rope_type!r}). Next: 'transformers'.")
    angle_LD = torch.outer(places_L.float(), rotary.inv_freq.to(places_L.device).float()).repeat(1, 2)
    scaling = float(getattr(rotary, "attention_scaling", 1.0))
    return (angle_LD.cos() * scaling).to(dtype), (angle_LD.sin() * scaling).to(dtype)


def _plain(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return {name: tensor.detach() for name, tensor in state.items()}


def _fuse(state: Mapping[str, Tensor], layers: int, tied: bool) -> dict[str, Tensor]:
    """The weights under short names, those that share an input put together."""

    def get(name: str) -> Tensor:
        if name not in state:
            raise ConfigError(f"These weights lack {name!r}. Next: the whole state_dict() of the model, merged where it has LoRA parts.")
        return state[name]

    fused = {"embed": get("model.embed_tokens.weight"), "norm_out": get("model.norm.weight")}
    if not tied:
        fused["head"] = get("lm_head.weight")
    for layer in range(layers):
        at, attention, mlp = f"{layer}.", f"model.layers.{layer}.self_attn.", f"model.layers.{layer}.mlp."
        fused[at + "norm_in"] = get(f"model.layers.{layer}.input_layernorm.weight")
        fused[at + "norm_mlp"] = get(f"model.layers.{layer}.post_attention_layernorm.weight")
        fused[at + "qkv"] = torch.cat([get(f"{attention}{p}_proj.weight") for p in "qkv"])
        fused[at + "out"] = get(attention + "o_proj.weight")
        fused[at + "gate_up"] = torch.cat([get(mlp + "gate_proj.weight"), get(mlp + "up_proj.weight")])
        fused[at + "down"] = get(mlp + "down_proj.weight")
        if attention + "q_proj.bias" in state:
            fused[at + "qkv_bias"] = torch.cat([get(f"{attention}{p}_proj.bias") for p in "qkv"])
        if attention + "o_proj.bias" in state:
            fused[at + "out_bias"] = get(attention + "o_proj.bias")
        if attention + "q_norm.weight" in state:
            fused[at + "norm_q"], fused[at + "norm_k"] = get(attention + "q_norm.weight"), get(attention + "k_norm.weight")
    return fused
