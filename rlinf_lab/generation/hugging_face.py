"""Models and tokenizers from and to files.

The only module that imports transformers, tokenizers and peft, and only when it is used.

Everything here is offline: a path is a folder on this machine.
"""

from __future__ import annotations

import functools
import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlinf_lab.errors import ConfigError, MissingDependencyError, UnknownNameError, shown
from rlinf_lab.generation.decoder import FAMILIES

PAD, END = "<pad>", "<end>"
MARK = "rlinf_lab.json"
"""in a folder that `LanguageModel.save` wrote: the names of its files, which the next one may replace"""
OF_A_MODEL = re.compile(r"(config|generation_config|tokenizer\w*|special_tokens_map|added_tokens|vocab|model\.safetensors\.index)\.json|merges\.txt|chat_template\.jinja|model[-\w]*\.safetensors")
"""names of the files that transformers writes for a model and its tokenizer"""
OF_FILES = (".onnx", ".pt2", ".pt", ".pth", ".bin", ".safetensors", ".gguf", ".zip")


@dataclass(eq=False)
class LanguageModel:
    """A causal language model with its tokenizer; both are transformers' own objects.

    Attributes: ``module`` (a ``PreTrainedModel``, or a ``PeftModel`` around one) and ``tokenizer`` (with a padding token). ``chat``: prompts are put
    into the tokenizer's chat template, after ``system_prompt``.
    """

    module: Any
    tokenizer: Any
    chat: bool = False
    system_prompt: str = ""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokens that end a text."""
        ids = self.module.config.eos_token_id
        return () if ids is None else tuple(ids) if isinstance(ids, (list, tuple)) else (int(ids),)

    @property
    def pad_id(self) -> int:
        return int(self.tokenizer.pad_token_id)

    @property
    def parameters(self) -> int:
        """How many numbers it has; tied ones count once."""
        return sum(p.numel() for p in self.module.parameters())

    def encode(self, text: str) -> NDArray[np.int64]:
        """Token ids of a text, nothing added. Raises `ConfigError` for characters that the vocabulary does not have."""
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        unknown = self.tokenizer.unk_token_id
        if None in ids or (unknown is not None and unknown in ids):
            known = set("".join(self.tokenizer.get_vocab()))
            raise ConfigError(f"{shown(text)} has characters that this tokenizer does not know: {sorted(set(text) - known)}. Next: an alphabet with them.")
        return np.asarray(ids, np.int64)

    def encode_prompt(self, text: str) -> NDArray[np.int64]:
        """Token ids of what the model is to go on from.

        `encode`, or with ``chat`` the user's turn and the beginning of the answer.
        """
        if not self.chat or not text:
            return self.encode(text)
        turns = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        turns.append({"role": "user", "content": text})
        return self.encode(self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))

    def decode(self, ids: Any) -> str:
        """The text of token ids, padding and end left out."""
        return self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    def state_dict(self) -> dict[str, Tensor]:
        """Every weight under the plain model's names, ``lm_head.weight`` of tied models included. LoRA parts are added into their matrices.

        This is what `Generator.load_weights` takes. Tensors are the model's own memory where nothing had to be added.
        """
        if not hasattr(self.module, "peft_config"):
            return dict(self.module.state_dict())
        return _merged(self.module)

    def save(self, path: str | Path) -> Path:
        """Write a folder in Hugging Face's format, LoRA parts merged. Returns it.

        transformers and vLLM load it by its path. The folder is new or empty, or one that `save` wrote before, whose
        files are replaced when the new ones are there. Raises `ConfigError` for any other: nothing in it is touched.
        """
        folder = _folder_for(path)
        before = _saved_before(folder)
        plain = self.module.get_base_model() if hasattr(self.module, "peft_config") else self.module
        with tempfile.TemporaryDirectory(prefix=f".{folder.name[:40]}.", dir=folder.parent) as beside:
            part = Path(beside)
            with _quietly(_transformers(f"Saving {shown(str(path))}")):
                plain.save_pretrained(part, state_dict=self.state_dict() if plain is not self.module else None)
            self.tokenizer.save_pretrained(part)
            names = sorted(file.name for file in part.iterdir())
            (part / MARK).write_text(json.dumps({"files": names}, indent=1) + "\n", encoding="utf-8")
            for file in sorted(part.iterdir()):
                os.replace(file, folder / file.name)  # noqa: PTH105  (Path.replace is the same)
        for name in set(before) - set(names):
            (folder / name).unlink(missing_ok=True)
        return folder

    def __repr__(self) -> str:
        config = self.module.config
        lora = " with LoRA" if hasattr(self.module, "peft_config") else ""
        dtype = str(next(self.module.parameters()).dtype).removeprefix("torch.")
        return f"LanguageModel({config.model_type}{lora}, {self.parameters:,} parameters in {dtype}, {config.vocab_size} tokens)"


def _folder_for(path: str | Path) -> Path:
    """The folder at ``path``, made where there is none. `ConfigError` where there cannot be one."""
    folder = Path(path)
    if folder.suffix.lower() in OF_FILES:
        raise ConfigError(
            f"{shown(str(path))} ends as a file's name, and a language model is saved as a folder in Hugging Face's format. "
            f"Next: {shown(str(folder.with_suffix('')))}."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a null character
        why = "a file is there" if isinstance(error, FileExistsError) else getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"The folder {shown(str(path))} cannot be made: {why}. Next: another path.") from error
    return folder


def _saved_before(folder: Path) -> list[str]:
    """Names of the files that `save` wrote into a folder. `ConfigError` where somebody else's are in it."""
    if not any(folder.iterdir()):
        return []
    try:
        names = json.loads((folder / MARK).read_text(encoding="utf-8"))["files"]
        return [str(name) for name in names if Path(name).name == name]
    except (OSError, ValueError, LookupError, TypeError) as error:
        held = sorted(file.name for file in folder.iterdir())
        if "config.json" in held and all(OF_A_MODEL.fullmatch(name) for name in held):
            return held  # of an earlier version, which left no mark
        raise ConfigError(
            f"{shown(str(folder))} has files that no model was saved with: {', '.join(map(repr, held[:3]))}{', …' * (len(held) > 3)}. "
            f"Next: a new folder, such as {shown(str(folder / 'model'))}."
        ) from error


def new_model(kind: str, *, seed: int, **config: Any) -> nn.Module:
    """A model of family ``kind`` with random weights, in float32, in evaluation mode. ``config``: fields of its transformers configuration."""
    transformers = _transformers("A new language model")
    if kind not in FAMILIES:
        raise UnknownNameError.of("model family", kind, FAMILIES)
    made = transformers.AutoConfig.for_model(kind, **config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.AutoModelForCausalLM.from_config(made, dtype=torch.float32).eval()


def context_of(folder: Path) -> int | None:
    """Tokens that prompt and answer have together in a folder's model. None where its config.json does not say."""
    try:
        length = json.loads((folder / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"]
    except (OSError, ValueError, LookupError, TypeError):  # whoever loads the model says what is wrong with it
        return None
    return length if isinstance(length, int) else None


def counts_tokens(folder: Path) -> Callable[[str], int]:
    """A function that counts a text's tokens, by a folder's tokenizer.

    The tokenizer is loaded when it is first asked.
    """

    @functools.cache
    def tokenizer() -> Any:
        return _transformers("Counting tokens").AutoTokenizer.from_pretrained(folder, local_files_only=True)

    return lambda text: len(tokenizer().encode(text, add_special_tokens=False))


def character_tokenizer(alphabet: Sequence[str]) -> Any:
    """A tokenizer with one token for each character.

    Before them come padding (0) and the end of a text (1). Raises `ConfigError` for a bad alphabet.
    """
    transformers = _transformers("A tokenizer")
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    letters = list(alphabet)
    if not letters or len(set(letters)) < len(letters) or any(len(c) != 1 for c in letters):
        raise ConfigError(f"An alphabet is a text of different characters; this is {shown(alphabet)}. Next: ''.join(sorted(set(texts))).")
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate([PAD, END, *letters])}, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, unk_token=PAD, padding_side="left", clean_up_tokenization_spaces=False
    )


def load_model(
    path: str | Path, *, lora: int | None = None, gradient_checkpointing: bool = False, dtype: torch.dtype | None = None,
    device: str | torch.device | None = None, chat: bool = False, system_prompt: str = "",
) -> LanguageModel:  # fmt: skip
    """Load a model and its tokenizer from a folder in Hugging Face's format.

    ``chat``: put prompts into the tokenizer's chat template, after ``system_prompt``.

    ``lora``: rank of low-rank parts (Hu et al., arXiv 2106.09685) on every projection; only they are trained then. ``gradient_checkpointing``:
    compute activations twice instead of keeping them; the module is left in training mode then. ``dtype``: None takes the file's. Raises
    `ConfigError` for a path that does not exist or holds no model, and for a tokenizer without padding.
    """
    transformers = _transformers(f"Loading {shown(str(path))}")
    folder = Path(path)
    if not folder.is_dir():
        near = f" {folder.parent} has: {', '.join(sorted(p.name for p in folder.parent.iterdir() if p.is_dir())[:8])}." if folder.parent.is_dir() else ""
        raise ConfigError(f"There is no folder {str(folder)!r}.{near} Next: a folder with config.json and weights; nothing is downloaded.")
    if not (folder / "config.json").is_file():
        raise ConfigError(f"Folder {str(folder)!r} has no config.json: it is no model in Hugging Face's format. Next: model.save(path), or save_pretrained.")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if tokenizer.pad_token_id is None:
        raise ConfigError(
            f"The tokenizer in {str(folder)!r} has no padding token. Next: set one, as in tokenizer.pad_token = {shown(tokenizer.eos_token)}, "
            "and tokenizer.save_pretrained() it there."
        )
    if chat and tokenizer.chat_template is None:
        raise ConfigError(f"The tokenizer in {str(folder)!r} has no chat template. Next: chat=False, or a model that was trained to chat.")
    with _quietly(transformers):
        module = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=dtype or "auto").eval()
    if device is not None:
        module = module.to(device)
    if gradient_checkpointing:
        module.train()  # transformers recomputes in training mode only
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the new name exists from 5.20 on
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if lora is not None:
        module = _with_lora(module, lora)
    return LanguageModel(module, tokenizer, chat, system_prompt)


@contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """Without a bar of progress. Each evaluation of a run loads the model, and the run has a line of its own."""
    logging = transformers.utils.logging
    shown_before = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown_before:
            logging.enable_progress_bar()


def _with_lora(module: Any, rank: int) -> Any:
    if rank < 1:
        raise ConfigError(f"load_model(lora={rank}). Next: a rank of at least 1 (8 to 64 are usual), or None for all weights.")
    try:
        import peft
    except ImportError:
        raise MissingDependencyError.of("peft", "reasoning", "LoRA") from None
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(module, config)


def _merged(module: Any) -> dict[str, Tensor]:
    """The plain state of a model with LoRA, W + scale · B A. The model is not touched."""
    state: dict[str, Tensor] = {}
    layers = {name: layer for name, layer in module.get_base_model().named_modules() if hasattr(layer, "lora_A") and hasattr(layer, "base_layer")}
    for name, tensor in module.get_base_model().state_dict().items():
        if ".lora_" in name:
            continue
        plain = name.replace(".base_layer.", ".")
        owner = plain.removesuffix(".weight")
        if plain.endswith(".weight") and owner in layers:
            layer = layers[owner]
            tensor = tensor + sum(layer.get_delta_weight(adapter) for adapter in layer.active_adapters)
        state[plain] = tensor
    return state


def _transformers(why: str) -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingDependencyError.of("transformers", "reasoning", why) from None
    return transformers
