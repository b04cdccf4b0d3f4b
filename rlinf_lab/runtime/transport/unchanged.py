"""Whether tensors and arrays are what they were when they were handed out.

A model's ``state_dict()`` is its live tensors. Who publishes that and goes on learning has others pull what was learnt
since, under the older version: nobody would see it. torch counts the changes of each tensor in place. Not those through
``.data`` and ``.numpy()`` and by fused optimisers; nobody counts those of numpy's arrays, and of tensors that lie on a
part of a larger one's memory torch counts what is done to any of it. So of all that is in host memory samples are kept
as well: the whole of what has up to `MOST` elements, that many of larger ones. An update that touches a few elements of
a large array may be missed. Who learns without torch often keeps one dict and puts new arrays into it: so what dicts,
lists, dataclasses and modules hold is remembered, too.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import pickle
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import WorkflowError

MOST = 256  # elements looked at: each is a line of memory that has to come
_SIMPLE = frozenset({int, float, bool, str, bytes, type(None)})
_SAME_SIZE = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


class Parts(NamedTuple):
    """What a container holds."""

    names: Sequence[Any]
    values: tuple[Any, ...]


class Unchanged:
    """Tensors and arrays with samples of them, and how often each had been changed. Those of nested dicts, lists,
    tuples, dataclasses and torch's modules.

    ``whole``: all of each, and of whatever else can be pickled, instead of samples: as checksums, which takes longer.
    """

    def __init__(self, state: Any, whole: bool = False) -> None:
        self._seen_of = _digest if whole else _sample
        self._counts = list[tuple[Any, Any, int]]()
        self._samples = list[tuple[Any, Any, Any]]()
        self._held = list[tuple[Any, Any, Parts]]()  # what can get other parts, and those that it had
        torch: Any = sys.modules.get("torch")
        if not _is_there(torch):
            self._look(state, None)
        else:
            # subclasses may refuse whatever they do not know, as parameters without a shape do
            with torch._C.DisableTorchFunctionSubclass():
                self._look(state, torch)

    @property
    def knows_any(self) -> bool:
        """Whether there is anything that can change."""
        return bool(self._counts or self._samples or self._held)

    def changed(self) -> str:
        """The first that was changed since, by its name; "" where none was."""
        if self._counts or (self._held and _is_there(sys.modules.get("torch"))):
            with sys.modules["torch"]._C.DisableTorchFunctionSubclass():
                return self._changed()
        return self._changed()

    def refusal(self, version: int, weights: str, owner: str) -> WorkflowError | None:
        """Why this version cannot be handed out any more."""
        return refusal(changed, version, weights, owner) if (changed := self.changed()) else None

    def _changed(self) -> str:
        found = next(
            (way for way, tensor, count in self._counts if tensor._version != count and not _is_a_part(tensor)), None
        )
        if found is None:
            found = next((way for way, part, sample in self._samples if not _same(self._seen_of(part), sample)), None)
        if found is None:
            found = next(
                (
                    other
                    for way, holder, parts in self._held
                    if (other := _other_part(way, _parts(holder), parts)) is not None
                ),
                None,
            )
        return "" if found is None else _named(found)

    def _look(self, state: Any, torch: Any) -> None:
        """Each container once. Whatever can be pickled passes, also what holds itself."""
        seen = set[int]()
        open_: list[tuple[Any, Iterator[tuple[Any, Any]]]] = [(None, iter([(None, state)]))]
        while open_:
            way, parts = open_[-1]
            for key, part in parts:
                if type(part) in _SIMPLE:
                    continue
                if isinstance(part, np.ndarray):
                    self._add_sample((way, key), part)
                elif torch is not None and isinstance(part, torch.Tensor):
                    if not part.is_inference():
                        self._counts.append(((way, key), part, part._version))
                    if type(part) in (torch.Tensor, torch.nn.Parameter):
                        self._add_sample((way, key), part)
                elif id(part) in seen:
                    continue
                elif (held := _parts(part)) is None:
                    self._add_sample((way, key), part)
                else:
                    seen.add(id(part))
                    if not isinstance(part, tuple):
                        self._held.append(((way, key), part, held))
                    open_.append(((way, key), zip(held.names, held.values, strict=True)))
                    break
            else:
                open_.pop()

    def _add_sample(self, way: Any, part: Any) -> None:
        if (sample := self._seen_of(part)) is not None:
            self._samples.append((way, part, sample))


def _is_there(torch: Any) -> bool:
    """It may just be being imported."""
    return getattr(torch, "Tensor", None) is not None and hasattr(torch, "_C")


def _parts(holder: Any) -> Parts | None:
    """What it holds, by name; None for what is no container."""
    if isinstance(holder, dict):
        return Parts(tuple(holder.keys()), tuple(holder.values()))
    if isinstance(holder, (list, tuple)):
        return Parts(range(len(holder)), tuple(holder))
    if isinstance(holder, type):
        return None
    if dataclasses.is_dataclass(holder):
        names = tuple(each.name for each in dataclasses.fields(holder))
        return Parts(names, tuple(getattr(holder, name, None) for name in names))
    if isinstance(holder, getattr(sys.modules.get("torch.nn"), "Module", ())):
        module: Any = holder
        held = (module._parameters, module._buffers, module._modules)
        return Parts(
            tuple(name for each in held for name in each), tuple(part for each in held for part in each.values())
        )
    return None


def _other_part(way: Any, now: Parts | None, before: Parts) -> Any:
    """The way to the first part that is another one now, or to the whole that has more or fewer; None where all are the
    same.
    """
    if now is None or len(now.values) != len(before.values):
        return way
    if now.names == before.names and all(map(operator.is_, now.values, before.values)):  # a million take 50 ms
        return None
    pairs = zip(now.names, before.names, now.values, before.values, strict=True)
    return next(((way, name) for name, was, part, old in pairs if name != was or not _alike(part, old)), None)


def _alike(part: Any, old: Any, deep: int = 8) -> bool:
    """The same, or nobody can tell them apart."""
    if part is old:
        return True
    if type(part) is not type(old):
        return False
    if type(part) in _SIMPLE:
        return bool(part == old)
    if _is_array(part):
        array: Any = part
        return (
            array.shape == old.shape
            and array.dtype == old.dtype
            and (sample := _sample(old)) is not None
            and _same(_sample(part), sample)
        )
    now, before = _parts(part), _parts(old)
    if not deep or now is None or before is None or now.names != before.names:
        return False
    return all(_alike(each, other, deep - 1) for each, other in zip(now.values, before.values, strict=True))


def refusal(changed: str, version: int, weights: str, owner: str) -> WorkflowError:
    """``changed``: the part that was."""
    return WorkflowError(
        f"Version {version} of the weights {weights!r} was changed after {owner!r} published it ({changed} in place): "
        "who pulls it now would get others "
        f"than that version has. Next: publish a copy, as in weights.publish({{k: v.clone() for k, v in "
        f"model.state_dict().items()}})."
    )


def _sample(whole: Any) -> Any:
    """Some of its elements, bit for bit; None where there are none to look at: what is not in host memory, Python's
    objects.
    """
    if not _is_array(whole):
        return None
    if isinstance(whole, (np.ndarray, np.generic)):
        if whole.dtype.hasobject or not whole.size:
            return None
        if whole.size <= MOST:
            return whole.tobytes()
        places = _places(whole.size)
        return np.asarray(whole)[np.unravel_index(places, whole.shape)].tobytes()
    if (bits := _bits(whole)) is None or whole.numel() <= MOST:
        return None if bits is None else bits.clone()
    return sys.modules["torch"].take(bits, sys.modules["torch"].from_numpy(_places(whole.numel())))


def _digest(part: Any) -> int | None:
    """Of all its bytes, or of its pickle; None for a tensor elsewhere than in host memory, and what does not pickle."""
    if isinstance(part, np.ndarray) and not part.dtype.hasobject:
        return zlib.crc32(part.tobytes())
    if _is_array(part) and not isinstance(part, (np.ndarray, np.generic)):
        return None if (bits := _bits(part)) is None else zlib.crc32(bits.numpy().tobytes())
    try:
        return zlib.crc32(pickle.dumps(part))
    except (Exception, SystemExit):
        return None


def _is_array(part: Any) -> bool:
    return isinstance(part, (np.ndarray, np.generic, getattr(sys.modules.get("torch"), "Tensor", np.ndarray)))


def _bits(whole: Any) -> Any:
    """A tensor in host memory as integers; None for what has no such."""
    torch = sys.modules["torch"]
    if (
        whole.device.type != "cpu"
        or whole.layout is not torch.strided
        or whole.is_quantized
        or not whole.numel()
        or whole.is_conj()
        or whole.is_neg()
    ):
        return None
    storage = whole.untyped_storage()
    if storage.nbytes() < (whole.storage_offset() + 1) * whole.element_size():  # its memory was given back
        return None
    kind = _SAME_SIZE.get(whole.element_size())
    if kind is None:
        return None
    return whole.detach().view(getattr(torch, kind))


@functools.lru_cache(maxsize=256)
def _places(size: int) -> NDArray[np.int64]:
    """The first, the last, and between them evenly."""
    return np.linspace(0, size - 1, MOST).astype(np.int64)


def _same(now: Any, before: Any) -> bool:
    """What has no sample any more is not compared."""
    return now is None or (
        now == before if isinstance(before, (bytes, int)) else bool(sys.modules["torch"].equal(now, before))
    )


def _named(way: Any) -> str:
    """The keys on it."""
    keys: list[str] = []
    while way[0] is not None:  # the first key is none: that of the state itself
        way, key = way
        keys.append(f"[{key!r}]")
    return "".join(reversed(keys)) or "the whole of it"


def _is_a_part(tensor: Any) -> bool:
    """Of larger memory; a sparse one has none of its own."""
    return tensor.layout is sys.modules["torch"].strided and bool(tensor.untyped_storage().nbytes() > tensor.nbytes)
