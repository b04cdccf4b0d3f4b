"""What several loaders do alike."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlinf_lab.errors import ConfigError, MissingDependencyError


def saved_policy(folder: Path, module: str, name: str, loader: str) -> Any:
    """lerobot's policy ``module.name`` from a folder that ``save_pretrained`` wrote.

    ``loader``: who asks, for the errors. `MissingDependencyError` without lerobot, `ConfigError` for what it cannot read.
    """
    try:
        kind = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise MissingDependencyError(f"lerobot is not installed here, which {loader} needs. Next: make env-lerobot, or pip install lerobot.") from error
    try:
        return kind.from_pretrained(folder)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(f"{loader}({str(folder)!r}): lerobot cannot read it: {type(error).__name__}: {str(error)[:200]}") from error


@contextmanager
def without_bars(transformers: Any) -> Iterator[None]:
    """Without bars of progress while weights are loaded.

    Each worker loads them, and a bar of each would be drawn over the run's own.
    """
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
