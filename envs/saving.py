"""The state of a gymnasium environment as bytes.

What its Python objects hold and, if it has one, MuJoCo's model and data.

What a new environment of the same task has by itself stays out: the objects of the simulator and of its renderer are named where they occur,
and meshes and textures (20 MB of a Meta-World task) are left where they are. Everything else is copied, MuJoCo's derived quantities too: after a
step they are those of the moment before its end, and adapters read them. Arrays that lie in MuJoCo's memory (some tasks keep the live position of a
body, wanted or not) lie there again afterwards.
"""

from __future__ import annotations

import importlib
import io
import pickle
import types
from typing import Any

import numpy as np
from numpy.typing import NDArray

_OF_THE_OBJECT = ("spec", "_cached_spec", "_saved_kwargs", "metadata", "_metadata")  # how it was made
_PARTS = ("model", "data", "mujoco_renderer", "renderer", "viewer")  # of an environment on MuJoCo
_ASSETS = ("bvh", "mesh", "tex_", "skin", "name", "text", "oct_", "paths")  # fields of the model that no step depends on, or that nobody changes
_DRAWING = ("Surface", "Clock", "Font")  # of pygame: environments make them anew when they are None


def save(env: Any) -> dict[str, Any]:
    """Of an environment and the wrappers around it. Raises whatever pickling raises for an attribute that cannot be copied."""
    layers = _layers(env)
    written = io.BytesIO()
    _Writer(written, layers).dump([{n: v for n, v in vars(layer).items() if n not in (*_OF_THE_OBJECT, *_PARTS)} for layer in layers])
    return {"layers": written.getvalue(), "mujoco": _save_mujoco(layers[-1]) if _has_mujoco(layers[-1]) else None}


def restore(env: Any, state: dict[str, Any]) -> None:
    """Into an environment that was made in the same way."""
    layers = _layers(env)
    if state["mujoco"] is not None:
        _restore_mujoco(layers[-1], state["mujoco"])
    found = _Reader(io.BytesIO(state["layers"]), layers).load()
    for layer, attributes in zip(layers, found, strict=True):
        for name in set(vars(layer)) - set(attributes) - {*_OF_THE_OBJECT, *_PARTS}:
            delattr(layer, name)
        vars(layer).update(attributes)


def _layers(env: Any) -> list[Any]:
    """The wrappers from outside, then the environment itself."""
    layers = [env]
    while "env" in vars(layers[-1]):
        layers.append(layers[-1].env)
    return layers


def _known(layers: list[Any]) -> dict[tuple[str, Any], Any]:
    """By what they are called in a state: objects that the new environment has, too."""
    parts = {("part", name): vars(layers[-1])[name] for name in _PARTS if vars(layers[-1]).get(name) is not None}
    return {**{("layer", i): layer for i, layer in enumerate(layers)}, **parts}


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, layers: list[Any]) -> None:
        super().__init__(file, protocol=5)
        self._names = {id(thing): name for name, thing in _known(layers).items()}
        self._memory = _memory(layers[-1])

    def persistent_id(self, thing: Any) -> tuple[str, Any] | None:
        if isinstance(thing, types.ModuleType):
            return "module", thing.__name__
        if type(thing).__module__.partition(".")[0] == "pygame" and type(thing).__name__ in _DRAWING:
            return "nothing", None
        if isinstance(thing, np.ndarray) and thing.size and (place := self._place(thing)) is not None:
            return "view", (*place, thing.shape, thing.strides, thing.dtype.str)
        return self._names.get(id(thing))

    def _place(self, array: NDArray[Any]) -> tuple[str, str, int] | None:
        """In which field of the model or the data an array lies. With the number of bytes behind its beginning."""
        address = array.__array_interface__["data"][0]
        return next(((owner, name, address - first) for owner, name, first, last in self._memory if first <= address < last), None)


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, layers: list[Any]) -> None:
        super().__init__(file)
        self._known, self._env = _known(layers), layers[-1]

    def persistent_load(self, name: Any) -> Any:
        kind, what = name
        if kind == "nothing":
            return None
        if kind == "view":
            owner, field, offset, shape, strides, dtype = what
            return np.ndarray(shape, dtype, getattr(vars(self._env)[owner], field), offset, strides)
        return importlib.import_module(what) if kind == "module" else self._known[kind, what]


def _memory(env: Any) -> list[tuple[str, str, int, int]]:
    """Fields of MuJoCo's model and data, and where they begin and end."""
    owners = {name: vars(env)[name] for name in ("model", "data")} if _has_mujoco(env) else {}
    fields = [(owner, name, array) for owner, structure in owners.items() for name, array in _arrays(structure).items()]
    return [(owner, name, (first := array.__array_interface__["data"][0]), first + array.nbytes) for owner, name, array in fields]


# --- MuJoCo -------------------------------------------------------------------------------------------------------------
def _has_mujoco(env: Any) -> bool:
    return type(vars(env).get("data")).__module__.startswith("mujoco")


def _save_mujoco(env: Any) -> dict[str, Any]:
    import mujoco

    model, data, signature = env.model, env.data, mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(model, signature))
    mujoco.mj_getState(model, data, state, signature)
    blank = _arrays(mujoco.MjData(model))  # what has a size there is no list of this moment's contacts and constraints
    return {
        "state": state,
        "data": {name: array.copy() for name, array in _arrays(data).items() if name in blank and blank[name].size},
        "model": {name: array.copy() for name, array in _arrays(model).items()},
        "option": {name: np.copy(value) for name, value in _fields(model.opt).items()},
    }


def _restore_mujoco(env: Any, saved: dict[str, Any]) -> None:
    import mujoco

    model, data = env.model, env.data
    for name, value in saved["option"].items():
        setattr(model.opt, name, value if value.ndim else value.item())
    for name, array in saved["model"].items():
        getattr(model, name)[...] = array
    mujoco.mj_setState(model, data, saved["state"], mujoco.mjtState.mjSTATE_INTEGRATION)
    mujoco.mj_forward(model, data)  # the contacts
    for name, array in saved["data"].items():
        getattr(data, name)[...] = array


def _arrays(owner: Any) -> dict[str, NDArray[Any]]:
    return {name: value for name, value in _fields(owner).items() if isinstance(value, np.ndarray) and not name.startswith(_ASSETS)}


def _fields(owner: Any) -> dict[str, Any]:
    """Numbers and arrays of one of MuJoCo's structures."""
    found = {name: getattr(owner, name) for name in dir(owner) if not name.startswith("_")}
    return {name: value for name, value in found.items() if isinstance(value, (int, float, np.ndarray))}
