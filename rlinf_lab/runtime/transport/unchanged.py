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

import contextlib
import dataclasses
import functools
import pickle
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import WorkflowError

MOST = 256  # elements looked at: each is a line of memory that has to come
_SIMPLE = frozenset({int, float, bool, str, bytes, type(None)})
_SAME_SIZE = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
_PART, _AGAIN = "a part of its own", "seen already"  # what stands for parts in what is looked at of their holder


class Unchanged:
    """What was handed out, and what it looked like. These are tensors, arrays, and what holds them (dicts, lists,
    tuples, dataclasses, torch's modules). A part that another one took the place of is the same if it looks the same.

    ``whole``: all of each, and of whatever else can be pickled, instead of samples: as checksums, which takes longer.
    """

    def __init__(self, state: Any, whole: bool = False) -> None:
        self._state, self._whole = state, whole
        with _as_plain_tensors():
            self._before = list(self._look())

    @property
    def knows_any(self) -> bool:
        """Whether there is anything that can change."""
        return any(not isinstance(part, tuple) and looks != (None, None) for _, part, looks in self._before)

    def changed(self) -> str:
        """The first that was changed since, by its name; "" where none was."""
        with _as_plain_tensors():
            # of the same length as long as whatever holds something looks the same
            for now, before in zip(self._look(), self._before, strict=False):
                way, (count, looks), (counted, looked) = now[0], now[2], before[2]
                if now[1] is before[1]:
                    same = count == counted and (looks == looked or None in (looks, looked))
                else:
                    same = looks == looked is not None
                if not same:
                    return _named(_part_of(way, looks, looked))
        return ""

    def refusal(self, version: int, weights: str, owner: str) -> WorkflowError | None:
        """Why this version cannot be handed out any more."""
        return refusal(changed, version, weights, owner) if (changed := self.changed()) else None

    def _look(self) -> Iterator[tuple[Any, Any, tuple[int | None, Any]]]:
        """Each part, in order, and each holder once. Yields (the way to it, it, (how often torch has seen it changed,
        what it looks like)). Whatever can be pickled passes, also what holds itself.
        """
        seen = set[int]()
        open_: list[tuple[Any, Any]] = [(None, self._state)]
        while open_:
            way, part = open_.pop()
            held = None if isinstance(part, np.ndarray) else _held(part)
            if held is None or id(part) in seen:
                yield way, part, (None, _AGAIN) if held is not None else (_count(part), self._looks(part))
                continue
            seen.add(id(part))
            names, values = held
            simple = tuple(value if type(value) in _SIMPLE else _PART for value in values)
            yield way, part, (None, (type(part), names, simple))
            parts = [((way, n), v) for n, v in zip(names, values, strict=True) if type(v) not in _SIMPLE]
            open_ += reversed(parts)

    def _looks(self, part: Any) -> Any:
        """Some of its elements, or a checksum of all that it is, bit for bit. It is None where there is nothing to look
        at: what is not in host memory, Python's objects.
        """
        if (some := _bytes_of(part, self._whole)) is not None:
            kind = getattr(part.dtype, "str", part.dtype)  # numpy's text of it takes ten times as long
            return tuple(part.shape), kind, zlib.crc32(some) if self._whole else some
        if not self._whole or isinstance(part, _tensor_class()):
            return None
        try:
            return zlib.crc32(pickle.dumps(part))
        except (Exception, SystemExit):
            return None


def _tensor_class() -> Any:
    """torch's; nothing's where it is not there, or is just being imported."""
    return getattr(sys.modules.get("torch"), "Tensor", ())


def _as_plain_tensors() -> contextlib.AbstractContextManager[Any]:
    """Subclasses may refuse whatever they do not know, as parameters without a shape do."""
    disabled = getattr(getattr(sys.modules.get("torch"), "_C", None), "DisableTorchFunctionSubclass", None)
    return contextlib.nullcontext() if disabled is None else disabled()


def _held(holder: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """What it holds: names, and parts; None for what is no container."""
    if isinstance(holder, dict):
        return tuple(holder.keys()), tuple(holder.values())
    if isinstance(holder, (list, tuple)):
        return range(len(holder)), tuple(holder)
    if dataclasses.is_dataclass(holder) and not isinstance(holder, type):
        names = tuple(each.name for each in dataclasses.fields(holder))
        return names, tuple(getattr(holder, name, None) for name in names)
    if isinstance(holder, getattr(sys.modules.get("torch.nn"), "Module", ())):
        module: Any = holder
        held = {**module._parameters, **module._buffers, **module._modules}
        return tuple(held.keys()), tuple(held.values())
    return None


def _count(part: Any) -> int | None:
    """How often torch has seen a tensor changed. None for anything else, and for a part of larger memory, whose count
    is that of all of it.
    """
    if not isinstance(part, _tensor_class()) or part.is_inference():
        return None
    is_part = part.layout is sys.modules["torch"].strided and part.untyped_storage().nbytes() > part.nbytes
    return None if is_part else int(part._version)


def _bytes_of(part: Any, whole: bool) -> bytes | None:
    """Of an array, or a tensor in host memory: all, or some elements'. None for what has no such."""
    if isinstance(part, (np.ndarray, np.generic)):
        if part.dtype.hasobject or not part.size or (type(part.base) is bytes and not whole):  # those cannot be changed
            return None
        if whole or part.size <= MOST:
            return part.tobytes()
        places = _places(part.size)
        if part.flags.c_contiguous:  # else numpy would copy all of it first
            return part.take(places).tobytes()
        return np.asarray(part)[np.unravel_index(places, part.shape)].tobytes()
    torch: Any = sys.modules.get("torch")
    if not isinstance(part, _tensor_class()) or type(part) not in (torch.Tensor, torch.nn.Parameter):
        return None
    is_plain = part.device.type == "cpu" and part.layout is torch.strided and not part.is_quantized
    if not is_plain or not part.numel() or part.is_conj() or part.is_neg() or part.element_size() not in _SAME_SIZE:
        return None
    if part.untyped_storage().nbytes() < (part.storage_offset() + 1) * part.element_size():  # was given back
        return None
    bits = part.detach().view(getattr(torch, _SAME_SIZE[part.element_size()]))
    few = whole or part.numel() <= MOST
    # a copy: the storage of what numpy has seen cannot be resized any more
    copy = bits.clone() if few else torch.take(bits, torch.from_numpy(_places(part.numel())))
    return bytes(copy.numpy().tobytes())


@functools.lru_cache(maxsize=256)
def _places(size: int) -> NDArray[np.int64]:
    """The first, the last, and between them evenly."""
    return np.linspace(0, size - 1, MOST).astype(np.int64)


def _part_of(way: Any, looks: Any, looked: Any) -> Any:
    """The way to the first number or text that is another one. Holders on it have the same names as before."""
    if not isinstance(looked, tuple) or looks[:2] != looked[:2] or not isinstance(looked[2], tuple):
        return way
    return next((way, n) for n, now, was in zip(*looked[1:2], looks[2], looked[2], strict=True) if now != was)


def _named(way: Any) -> str:
    """The keys on it."""
    keys: list[str] = []
    while way is not None:
        way, key = way
        keys.append(f"[{key!r}]")
    return "".join(reversed(keys)) or "the whole of it"


def refusal(changed: str, version: int, weights: str, owner: str) -> WorkflowError:
    """``changed``: the part that was."""
    return WorkflowError(
        f"Version {version} of the weights {weights!r} was changed after {owner!r} published it ({changed} in place): "
        "who pulls it now would get others "
        f"than that version has. Next: publish a copy, as in weights.publish({{k: v.clone() for k, v in "
        f"model.state_dict().items()}})."
    )
