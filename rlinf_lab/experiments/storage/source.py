"""The file of problems that a run learns from. Which it was, and whether it is still the same."""

from __future__ import annotations

import warnings
from typing import Any

from rlinf_lab.errors import ConfigError, counted
from rlinf_lab.experiments.storage.folder import RunFolder
from rlinf_lab.tasks import Jsonl, make
from rlinf_lab.tasks.registry import FILE


def source_of(config: Any) -> dict[str, Any]:
    """`Jsonl.source` of what a run is configured for; empty where that is no file."""
    env = getattr(config, "env", None)
    task = make(env) if isinstance(env, str) and env.endswith(FILE) else env
    return task.source if isinstance(task, Jsonl) else {}


def check_source(kept: RunFolder, config: Any, asked: bool, only_acts: bool = False) -> None:
    """Say it where a run's file is another than the run was begun with.

    ``asked``: somebody has named the file anew, so a warning is enough, as it is for who ``only_acts``. Else
    `ConfigError`, and always where a small model lacks a token for a character.
    """
    before, now = kept.read_json("run.json").get("source"), source_of(config)
    if not isinstance(before, dict) or not before or not now or before.get("blake2b") == now["blake2b"]:
        return
    path, folder = now["path"], str(kept.path)
    told = (
        f"The run in {folder!r} was begun with another {path!r}: {counted(before.get('problems', 0), 'problem')} then, "
        f"{now['problems']} now"
    )
    if getattr(config, "model", None) == "small" and before.get("alphabet") != now["alphabet"]:
        raise ConfigError(
            f"{told}, and not with the same characters, which are the tokens of its small model. "
            "Next: put that file back, or lab.train(...) anew."
        )
    if not asked and not only_acts:
        raise ConfigError(
            f"{told}. Next: put that file back, or go on with this one: lab.resume({folder!r}, env={path!r})."
        )
    warnings.warn(f"{told}, and this one is used.", stacklevel=3)
