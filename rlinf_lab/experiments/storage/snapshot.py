"""What a learner knew after an iteration, and how it becomes one file.

safetensors, the tree around the arrays as JSON in its header. No pickle.

    {"weights": PolicyWeights, "rng": {...}, "optimizer": {0: {"exp_avg": Tensor}}}
        ⇄  arrays "0", "1", … + '{"weights": {"~": "Weights", …}}'
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_lab.algorithms.moments import Moments
from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.experiments.storage import segments
from rlinf_lab.policies.weights import PolicyWeights
from rlinf_lab.replay.history import History
from rlinf_lab.timeline.record.files import whole
from rlinf_lab.workers.returns import DiscountedReturns

#: Dataclasses that a state may hold, by name: a file cannot name any other.
RECORDS: dict[str, Any] = {"Weights": PolicyWeights, "Moments": Moments, "DiscountedReturns": DiscountedReturns}
_NAMES = {record: name for name, record in RECORDS.items()}
_MARK = "~"  # a dict with this key stands for something that JSON has no word for
FORMAT = "rlinf_lab state 1"


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A state of the learner."""

    iteration: int
    """updates that went into it, those of an earlier run that this one goes on from too"""
    state: dict[str, Any]
    """as the recipe's "state" request gives it"""

    @property
    def weights(self) -> PolicyWeights:
        """The policy's."""
        found: PolicyWeights = self.state["weights"]
        return found

    def save(self, path: Path, rows: Path | None = None) -> None:
        """Write one file, whole or not at all. `ConfigError` for what cannot be written without pickle; `OSError`.

        ``rows``: folder for the rows of a replay buffer, see `segments`; None: they are in the file, too.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        arrays: dict[str, np.ndarray] = {}
        tree = json.dumps(_packed(self.state, arrays, "state", rows))
        with whole(path) as part:
            try:
                save_file(arrays, part, {"format": FORMAT, "iteration": str(self.iteration), "tree": tree})
            except SafetensorError as error:  # a full disk, in words of its own
                raise OSError(f"{str(path)!r}: {error}") from error

    @classmethod
    def load(cls, path: Path, rows: Path | None = None) -> Snapshot:
        """Read what `save` wrote, ``rows`` to where it wrote them. `ConfigError` where the file is not of that kind, or
        damaged.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="numpy") as file:
                about = file.metadata() or {}
                if about.get("format") != FORMAT:
                    raise ConfigError(
                        f"{str(path)!r} is no learner's state. Next: lab.resume() takes the folder of a run."
                    )
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a mapping)
            state = _unpacked(json.loads(about["tree"]), arrays, rows)
            if not isinstance(state, dict) or not isinstance(state.get("weights"), PolicyWeights):
                raise ValueError("it has no weights")
            return cls(int(about["iteration"]), state)
        except ConfigError:
            raise
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
            text = f"{type(error).__name__}: {error}".split("\n", 1)[0][:200]
            raise ConfigError(
                f"{str(path)!r} cannot be read: {text}. Next: an earlier one, in the run's folder checkpoints/."
            ) from error


def segments_of(path: Path) -> list[str]:
    """Files with rows that a state names; none of one that cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as file:
            tree = json.loads((file.metadata() or {}).get("tree", "null"))
    except (OSError, SafetensorError, ValueError):
        return []
    found: list[str] = []
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict) and value.get(_MARK) == "rows":
            found += value["about"]["names"]
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return found


def is_tensor(value: object) -> bool:
    """A torch tensor; torch is not imported for it."""
    return type(value).__module__ == "torch" and hasattr(value, "detach")


def _packed(value: Any, arrays: dict[str, np.ndarray], where: str, rows: Path | None) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, np.generic):
        return {_MARK: "scalar", "array": _put(np.asarray(value), arrays)}
    if isinstance(value, float):
        return value if np.isfinite(value) else {_MARK: "float", "text": repr(value)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {_MARK: "array", "array": _put(value, arrays)}
    if is_tensor(value):
        return {_MARK: "tensor", "array": _put(value.detach().cpu().numpy(), arrays)}
    if isinstance(value, (list, tuple)):
        parts = [_packed(part, arrays, f"{where}[{i}]", rows) for i, part in enumerate(value)]
        return parts if isinstance(value, list) else {_MARK: "tuple", "parts": parts}
    if isinstance(value, History):
        about, rest = (
            segments.write(value, rows)
            if rows is not None
            else ({"first": value.first, "before": value.count, "names": []}, value)
        )
        return {_MARK: "rows", "about": about, "rest": {name: _put(column, arrays) for name, column in rest.items()}}
    if isinstance(value, dict):
        items = [(key, _packed(part, arrays, f"{where}[{key!r}]", rows)) for key, part in value.items()]
        if all(isinstance(key, str) for key in value) and _MARK not in value:
            return dict(items)
        if all(isinstance(key, (str, int)) for key in value):
            return {_MARK: "dict", "items": [[key, part] for key, part in items]}
    if type(value) in _NAMES:
        fields = {
            f.name: _packed(getattr(value, f.name), arrays, f"{where}.{f.name}", rows)
            for f in dataclasses.fields(value)
        }
        return {_MARK: "record", "type": _NAMES[type(value)], "fields": fields}
    raise ConfigError(
        f"{where} is {shown(value)}: a state holds numbers, texts, arrays, tensors, {', '.join(RECORDS)}, and lists "
        "and dicts of them."
    )


def _put(array: Any, arrays: dict[str, np.ndarray]) -> str:
    name = str(len(arrays))
    arrays[name] = np.array(array, order="C")  # a copy: two names of one memory are refused by safetensors
    return name


def _unpacked(value: Any, arrays: dict[str, np.ndarray], rows: Path | None) -> Any:
    if isinstance(value, list):
        return [_unpacked(part, arrays, rows) for part in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_MARK)
    if kind is None:
        return {key: _unpacked(part, arrays, rows) for key, part in value.items()}
    if kind == "array":
        return arrays[value["array"]]
    if kind == "rows":
        rest = {name: arrays[array] for name, array in value["rest"].items()}
        return segments.read(value["about"], rest, Path() if rows is None else rows)
    if kind == "scalar":
        return arrays[value["array"]][()]
    if kind == "tensor":
        import torch

        return torch.from_numpy(arrays[value["array"]])
    if kind == "float":
        return float(value["text"])
    if kind == "tuple":
        return tuple(_unpacked(part, arrays, rows) for part in value["parts"])
    if kind == "dict":
        return {key: _unpacked(part, arrays, rows) for key, part in value["items"]}
    if kind == "record":
        return RECORDS[value["type"]](**{name: _unpacked(part, arrays, rows) for name, part in value["fields"].items()})
    raise ValueError(f"a part of kind {kind!r}")
