"""A ring of transitions in arrays that are allocated once. Legend: B rows of a sample."""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.replay.flat import Tree, flat, nested
from rlinf_lab.replay.history import History

FORMAT = "rlinf_lab replay 1"


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows drawn from a buffer; ``sample["obs"]`` is a part of ``data``."""

    data: Tree
    """copies of the rows, a tree as it was added, every leaf of leading axis B"""
    index_B: NDArray[np.int64]
    """where they lie in the buffer, for `PrioritisedReplayBuffer.update`"""
    weight_B: NDArray[np.float32]
    """importance weights of a prioritised sample; ones of a uniform one"""

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __len__(self) -> int:
        return len(self.index_B)

    def __repr__(self) -> str:
        return f"Sample({len(self)} rows: {', '.join(flat(self.data))})"


class ReplayBuffer:
    """The last ``capacity`` transitions, drawn uniformly with replacement.

    The first `add` fixes the tree, its shapes and types, and allocates everything. ``seed`` is of the draws; a buffer
    that was saved and loaded draws what the original would have drawn. Raises `ConfigError` for a capacity below 1.
    """

    def __init__(self, capacity: int, *, seed: int = 0) -> None:
        if not isinstance(capacity, (int, np.integer)) or isinstance(capacity, bool) or capacity < 1:
            raise ConfigError(
                f"{type(self).__name__}(capacity={shown(capacity)}): a whole number of transitions, at least 1."
            )
        self.capacity = int(capacity)
        self._rng = np.random.default_rng(seed)
        self._columns: dict[str, NDArray] = {}
        self._next = 0
        self._size = 0
        self._came = 0
        """rows since the beginning, those of the buffer that this one goes on from too"""

    # --- in -------------------------------------------------------------------------------------------------
    def add(self, transitions: Tree) -> NDArray[np.int64]:
        """Store rows: a tree whose leaves have one leading axis. The oldest make place. Returns where they lie.

        Raises `ConfigError` when a leaf is missing or new, has another shape, or a type that does not fit.
        """
        rows = flat(transitions)
        count = self._rows_of(rows)
        if not self._columns:
            self._allocate({name: (leaf.shape[1:], leaf.dtype) for name, leaf in rows.items()})
        self._check(rows)
        if count > self.capacity:  # the first would be overwritten at once
            rows = {name: leaf[count - self.capacity :] for name, leaf in rows.items()}
        kept = min(count, self.capacity)
        index = (self._next + np.arange(kept)) % self.capacity
        for name, leaf in rows.items():
            self._columns[name][index] = leaf
        self._next = int((self._next + kept) % self.capacity)
        self._size = min(self.capacity, self._size + kept)
        self._came += count
        return index

    def clear(self) -> None:
        """Forget all transitions; the arrays stay."""
        self._next = self._size = self._came = 0

    # --- out ------------------------------------------------------------------------------------------------
    def sample(self, size: int) -> Sample:
        """``size`` rows, with replacement. Raises `ConfigError` while the buffer is empty."""
        self._require_rows(size)
        index_B = self._rng.integers(self._size, size=size)
        return Sample(self.rows(index_B), index_B, np.ones(size, np.float32))

    def rows(self, index: NDArray[np.integer]) -> Tree:
        """Copies of these rows, oldest first where ``index`` is `order`."""
        return nested({name: column.take(index, axis=0) for name, column in self._columns.items()})

    @property
    def order(self) -> NDArray[np.int64]:
        """Where the transitions lie, oldest first."""
        return (self._next - self._size + np.arange(self._size)) % self.capacity

    @property
    def draws(self) -> dict[str, Any]:
        """The state of the random numbers that `sample` draws with."""
        return dict(self._rng.bit_generator.state)

    @draws.setter
    def draws(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state

    def with_own_draws(self) -> ReplayBuffer:
        """The same rows, shared, drawn by random numbers of its own. These begin where those of this buffer are now."""
        other = copy.copy(self)
        other._rng = copy.deepcopy(self._rng)
        return other

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, whether filled or not."""
        return sum(column.nbytes for column in self._columns.values())

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        parts = ", ".join(f"{n}: {c.dtype}{list(c.shape[1:])}" for n, c in self._columns.items()) or "nothing added yet"
        return f"{type(self).__name__}({self._size} of {self.capacity}, {self.nbytes / 2**20:.3g} MiB; {parts})"

    # --- state ----------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """All rows, oldest first, and what the next draws depend on.

        Arrays and plain values, copies of what is here.
        """
        order = self.order
        rows = History({name: column[order] for name, column in self._columns.items()}, self._came - self._size)
        return {
            "kind": type(self).__name__, "rows": rows,
            "own": self._arrays(), "state": self._state(),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what `state_dict` gave, and draw what that buffer would have drawn. Of more rows than fit the newest.

        Raises `ConfigError` for the state of another kind of buffer.
        """
        if state.get("kind") != type(self).__name__:
            raise ConfigError(f"{type(self).__name__}.load_state_dict: this is of a {shown(state.get('kind'))}.")
        self.clear()
        if state["rows"]:
            count, about = len(next(iter(state["rows"].values()))), state["state"]
            if about["capacity"] == self.capacity:  # each row where it was: draws are of places
                self._next = (about.get("next", count) - count) % self.capacity
            self.add(nested(dict(state["rows"])))
            self._came = getattr(state["rows"], "first", 0) + count
        self._restore({name: array[-len(self) :] for name, array in state["own"].items()}, state["state"])

    def _restore(self, own: Mapping[str, NDArray], state: Mapping[str, Any]) -> None:
        """What a subclass keeps of each row, and the random numbers."""
        self.draws = state["rng"]

    # --- files ----------------------------------------------------------------------------------------------
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a safetensors file, atomically. A file that is there is replaced when all is written."""
        target = Path(path)
        held = self.state_dict()
        tensors = {f"row:{name}": column for name, column in held["rows"].items()}
        tensors |= {f"own:{name}": array for name, array in held["own"].items()}
        meta = {"format": FORMAT, "kind": held["kind"], "state": json.dumps(held["state"])}
        file, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        os.close(file)
        try:
            save_file(tensors, temporary, metadata=meta)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The buffer that `save` wrote. Raises `ConfigError` for another file, `FileNotFoundError` for none."""
        if not Path(path).exists():
            raise FileNotFoundError(f"No replay buffer at {os.fspath(path)!r}. Next: ReplayBuffer.save writes one.")
        try:
            with safe_open(path, framework="np") as file:
                meta = file.metadata() or {}
                if meta.get("format") != FORMAT or meta.get("kind") != cls.__name__:
                    found = f"{meta.get('kind', 'no replay buffer')}, {meta.get('format', 'without a format')}"
                    raise ConfigError(f"{os.fspath(path)!r} holds {found}; wanted: {cls.__name__}, {FORMAT}.")
                state = json.loads(meta["state"])
                parts: dict[str, dict[str, NDArray]] = {"row": {}, "own": {}}
                for name in sorted(file.keys()):
                    part, _, leaf = name.partition(":")
                    parts[part][leaf] = file.get_tensor(name)
                buffer = cls._made(state)
                buffer.load_state_dict({"kind": cls.__name__, "rows": parts["row"], "own": parts["own"], "state": state})
        except SafetensorError as error:
            raise ConfigError(f"{os.fspath(path)!r} is not a whole safetensors file: {error}.") from error
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, MemoryError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"{os.fspath(path)!r} does not hold the state of a {cls.__name__}: {type(error).__name__}: {error}. Next: "
                "another file, as save() writes it."
            ) from error
        return buffer

    @classmethod
    def _made(cls, state: Mapping[str, Any]) -> Self:
        return cls(state["capacity"])

    def _state(self) -> dict[str, Any]:
        return {"capacity": self.capacity, "next": self._next, "rng": self.draws}

    def _arrays(self) -> dict[str, NDArray]:
        """What a subclass keeps of each row, oldest first."""
        return {}

    # --- checks ---------------------------------------------------------------------------------------------
    def _allocate(self, leaves: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> None:
        for name, (_, dtype) in leaves.items():
            if dtype.hasobject or dtype.kind not in "biuf":
                raise ConfigError(f"leaf {name!r} of the transitions has the type {dtype}: numbers only.")
        self._columns = {name: np.zeros((self.capacity, *shape), dtype) for name, (shape, dtype) in leaves.items()}

    def _rows_of(self, rows: Mapping[str, NDArray]) -> int:
        counts = {name: leaf.shape[0] if leaf.ndim else None for name, leaf in rows.items()}
        if None in counts.values() or len(set(counts.values())) != 1:
            raise ConfigError(
                f"leaves of transitions need one leading axis, not {counts}. Next: a row for each transition."
            )
        return next(iter(counts.values())) or 0

    def _check(self, rows: Mapping[str, NDArray]) -> None:
        if rows.keys() != self._columns.keys():
            other = sorted(rows.keys() ^ self._columns.keys())
            raise ConfigError(f"transitions differ from the buffer's in {other}. Next: the same tree in every add().")
        for name, leaf in rows.items():
            column = self._columns[name]
            if leaf.shape[1:] != column.shape[1:] or not np.can_cast(leaf.dtype, column.dtype, "same_kind"):
                raise ConfigError(
                    f"leaf {name!r} is {leaf.dtype}{list(leaf.shape[1:])} a row; the buffer holds "
                    f"{column.dtype}{list(column.shape[1:])} since its first add()."
                )

    def _require_rows(self, size: int) -> None:
        if size < 1:
            raise ConfigError(f"sample({shown(size)}): at least 1 row.")
        if not self._size:
            raise ConfigError(f"{self!r}: nothing to sample from. Next: add() transitions first.")
