"""Answers from language models, token by token.

One protocol for vLLM, transformers and an own engine, and what a trainer needs of them.
"""

from __future__ import annotations

from typing import Any

from rlinf_lab.errors import UnknownNameError
from rlinf_lab.generation.completion import NOT_SAMPLED, Completion, Request, SamplingParams, requests_for
from rlinf_lab.generation.engine import Engine
from rlinf_lab.generation.generator import Generator
from rlinf_lab.generation.hugging_face import LanguageModel, load_model
from rlinf_lab.generation.known_models import KNOWN_MODELS, KnownModel, known_model, known_models
from rlinf_lab.generation.log_probs import TokenBatch, token_batch, token_log_probs
from rlinf_lab.generation.small_model import small_model, warm_up
from rlinf_lab.generation.transformers_generator import TransformersGenerator
from rlinf_lab.generation.vllm_generator import VLLMGenerator

__all__ = [
    "GENERATORS", "KNOWN_MODELS", "NOT_SAMPLED", "Completion", "Engine", "Generator", "KnownModel", "LanguageModel", "Request", "SamplingParams", "TokenBatch", "TransformersGenerator", "VLLMGenerator",
    "generator", "known_model", "known_models", "load_model", "requests_for", "small_model", "token_batch", "token_log_probs", "warm_up",
]  # fmt: skip

GENERATORS: dict[str, type[Generator]] = {"own": Engine, "transformers": TransformersGenerator, "vllm": VLLMGenerator}


def generator(name: str, model: Any, **options: Any) -> Generator:
    """The generator called ``name`` for ``model``: "own" (`Engine`), "transformers" or "vllm"; ``options`` go to it."""
    if name not in GENERATORS:
        raise UnknownNameError.of("generator", name, GENERATORS)
    return GENERATORS[name](model, **options)
