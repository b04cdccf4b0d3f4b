"""vLLM behind the protocol of all generators, on CPU (``make env-vllm``) and CUDA. The only module that imports it, and only when one is made.

The engine runs in this process and moves by its own ``step``. Requests wait here and not in its queue, so that all it has are being worked on: what it
may take from its prefix cache is then keyed by the version of the weights (``cache_salt``), and nothing computed by older ones serves a new request.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from rlinf_lab.errors import ConfigError, MissingDependencyError, shown
from rlinf_lab.generation.completion import Completion, FinishReason, Request, with_tokens
from rlinf_lab.generation.generator import Generator

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process: weights are handed over, not sent
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}
_ON_CPU = {
    "TORCHDYNAMO_DISABLE": "1",  # otherwise it compiles for 20 s at the first request
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise it binds its threads to cores that others use, and waits for them
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; otherwise half the machine's memory
}


@dataclass(eq=False)
class _Running:
    request: Request
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def completion(self, reason: FinishReason) -> Completion:
        return with_tokens(self.request, self.token_ids, self.log_probs, self.versions, reason)


class VLLMGenerator(Generator):
    """vLLM's engine for a `LanguageModel` or a folder in Hugging Face's format.

    ``slots`` requests at a time.

    ``engine`` goes to ``vllm.EngineArgs``. Seeded by (request, position of its beginning): the same tokens come again in the same batches, which is
    less than what `Engine` promises. Raises `MissingDependencyError` where vLLM is not installed. Makes vLLM run without compilation on a CPU, by
    environment variables of this process that are set where they are not set yet.
    """

    def __init__(self, model: Any, *, slots: int = 128, max_length: int | None = None, version: int = 0, **engine: Any) -> None:
        super().__init__(version)
        self._vllm = _import()
        self._on_cpu = not torch.cuda.is_available()
        if isinstance(model, (str, Path)):
            self._start(Path(model), slots, max_length, engine)
        else:
            with tempfile.TemporaryDirectory(prefix="rlinf-lab-vllm-") as folder:
                self._start(model.save(folder), slots, max_length, engine)
        self._slots = slots
        self._queue: deque[Request] = deque()
        self._running: dict[str, _Running] = {}

    def _start(self, folder: Path, slots: int, max_length: int | None, engine: dict[str, Any]) -> None:
        names = _names(folder)
        options: dict[str, Any] = {
            "model": str(folder), "skip_tokenizer_init": True, "max_num_seqs": slots, "max_model_len": max_length, "dtype": _dtype(folder),
            "logprobs_mode": "processed_logprobs", "disable_log_stats": True, "enforce_eager": self._on_cpu, "enable_sleep_mode": not self._on_cpu,
            "async_scheduling": False,
            # On a CPU a prompt that is computed in two parts takes the seeded noise back, which torch's generators cannot there.
            **({"enable_chunked_prefill": False} if self._on_cpu else {}),
        }  # fmt: skip
        self._engine = self._vllm.LLMEngine.from_engine_args(self._vllm.EngineArgs(**(options | engine)))
        config = self._engine.model_config
        text: Any = config.hf_text_config
        self.context, self.vocabulary = config.max_model_len, text.vocab_size
        self._tied = bool(getattr(text, "tie_word_embeddings", False))
        self._names = names | {_HEAD}
        ids = getattr(text, "eos_token_id", None)
        self._stop_ids: tuple[int, ...] = () if ids is None else tuple(ids) if isinstance(ids, (list, tuple)) else (int(ids),)

    # --- the protocol --------------------------------------------------------------------------------------------
    def _begin(self, request: Request) -> None:
        self._queue.append(request)

    def _advance(self) -> list[Completion]:
        while self._queue and len(self._running) < self._slots:
            self.on_begin(self._queue[0])
            self._submit(self._queue.popleft())
        finished = []
        for output in self._engine.step():
            running, new = self._running[output.request_id], output.outputs[0]
            for token, at_token in zip(new.token_ids, new.logprobs or (), strict=True):
                running.token_ids.append(token)
                running.log_probs.append(at_token[token].logprob)
                running.versions.append(self.version)
            if output.finished:
                del self._running[output.request_id]
                finished.append(running.completion("stop" if new.finish_reason == "stop" else "length"))
        return finished

    def _submit(self, request: Request) -> None:
        running = self._running[request.id] = _Running(request)
        had, params = request.prefix, request.params
        if had is not None:
            running.token_ids, running.log_probs, running.versions = had.token_ids.tolist(), had.log_probs.tolist(), had.versions.tolist()
        done = len(running.token_ids)
        sampling = self._vllm.SamplingParams(
            max_tokens=min(params.max_tokens, self.context - len(request.prompt_ids)) - done, temperature=params.temperature, top_p=params.top_p,
            top_k=params.top_k, seed=(request.key + done) % 2**63, stop_token_ids=list(self._stop_ids if params.stop_ids is None else params.stop_ids),
            ignore_eos=True, detokenize=False, logprobs=0, output_kind=_delta(),
        )  # fmt: skip
        prompt = {"prompt_token_ids": [*request.prompt_ids.tolist(), *running.token_ids], "cache_salt": str(self.version)}
        self._engine.add_request(request.id, prompt, sampling)

    def _break_off(self, ids: set[str]) -> list[Completion]:
        known = [i for i in self._running if i in ids]
        if known:
            self._engine.abort_request(known)
        broken_off = [self._running.pop(i).completion("abort") for i in known]
        broken_off += [Completion.broken_off(r) for r in self._queue if r.id in ids]
        self._queue = deque(r for r in self._queue if r.id not in ids)
        return broken_off

    def _so_far(self) -> list[Completion]:
        return [r.completion("abort") for r in self._running.values()] + [Completion.broken_off(r) for r in self._queue]

    def _take(self, state: Mapping[str, Tensor]) -> None:
        whole = dict(state)
        if self._tied and _HEAD not in whole and _EMBEDDING in whole:
            whole[_HEAD] = whole[_EMBEDDING]  # without it vLLM keeps the old head, with nothing but a line in its log
        missing, strange = sorted(self._names - set(whole)), sorted(set(whole) - self._names)
        if missing or strange:
            raise ConfigError(f"These weights do not fit vLLM's model: missing {shown(missing)}, unknown {shown(strange)}. Next: the whole state_dict().")
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": list(whole.items())})
        if not self._running:
            self._engine.reset_prefix_cache()

    def offload(self) -> None:
        """Give the device's memory back (vLLM's sleep, level 1). On a CPU nothing is moved. Raises `ConfigError` while requests run."""
        super().offload()
        if not self._on_cpu:
            self._engine.sleep(level=1)

    def onload(self) -> None:
        """Come back to the device."""
        if not self._on_cpu and self._engine.is_sleeping():
            self._engine.wake_up()

    def _what(self) -> str:
        return f"vLLM {self._vllm.__version__} on {'cpu' if self._on_cpu else 'cuda'}, {self._slots} slots, context {self.context}"


def _import() -> Any:
    on_cpu = not torch.cuda.is_available()
    for name, value in (_SETTINGS | (_ON_CPU if on_cpu else {})).items():
        os.environ.setdefault(name, value)
    try:
        import vllm
    except ImportError:
        message = MissingDependencyError.of("vllm", "vllm", "VLLMGenerator")
        raise type(message)(f"{message}; on a CPU: make env-vllm, and then .venv-vllm/bin/python") from None
    if on_cpu and os.environ["TORCHDYNAMO_DISABLE"] == "1":
        torch._dynamo.config.disable = True  # it may have been imported before the variable was set
    return vllm


def _delta() -> Any:
    from vllm.sampling_params import RequestOutputKind

    return RequestOutputKind.DELTA


def _dtype(folder: Path) -> str:
    """The type that the weights have: left to itself vLLM makes bfloat16 of float32."""
    config = json.loads((folder / "config.json").read_text())
    return config.get("dtype") or config.get("torch_dtype") or "auto"


def _names(folder: Path) -> set[str]:
    """Names of the weights in a folder; `ConfigError` where it is no model."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"There is no model in {str(folder)!r}. Next: a folder in Hugging Face's format, as LanguageModel.save writes it.")
    names: set[str] = set()
    files: Iterable[Path] = folder.glob("*.safetensors")
    for path in files:
        with safe_open(str(path), framework="pt") as file:
            names |= set(file.keys())
    if not names:
        raise ConfigError(f"Folder {str(folder)!r} has no *.safetensors. Next: a folder in Hugging Face's format, as LanguageModel.save writes it.")
    return names
