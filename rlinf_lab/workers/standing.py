"""Where environments stand between two iterations, so that another run goes on exactly there.

    slots ──EnvGroup.standing──> {"of": ..., "groups": [...]} of a rank ──joined──> of all
        ──fitting──> of the slot that begins with that environment

States consist of numbers, texts, arrays, lists and dicts: they go into files without pickle. One that cannot be had is
{"why": ...}: who goes on from it begins new episodes, and says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Standing = Mapping[str, Any]
"""{"of": what the environments are, "groups": [a dict for each slot, by its first environment]} or {"why": in words}"""


def of(env: str, num_envs: int, max_episode_steps: int | None, seed: int, chunk_size: int | None) -> dict[str, Any]:
    """What has to be the same for the environments to go on."""
    return {
        "env": env,
        "num_envs": num_envs,
        "max_episode_steps": max_episode_steps,
        "seed": seed,
        "chunk_size": chunk_size,
    }


def joined(per_rank: Standing | Sequence[Standing]) -> Standing:
    """Of all ranks of the simulator together."""
    parts = [per_rank] if isinstance(per_rank, Mapping) else list(per_rank)
    without = next((part for part in parts if "why" in part), None)
    if without is not None:
        return without
    groups = [group for part in parts for group in part["groups"]]
    return {"of": parts[0]["of"], "groups": sorted(groups, key=lambda group: int(group["first_env"]))}


def stood(state: Mapping[str, Any], per_rank: Standing | Sequence[Standing]) -> dict[str, Any]:
    """A learner's state with where its environments stood."""
    return {**state, "standing": joined(per_rank)}


def why_not(standing: Standing | None, kind: Mapping[str, Any], slots: int) -> str:
    """Why environments of this ``kind`` (`of`), in so many slots, begin new episodes. "" where they go on exactly from
    ``standing``.
    """
    if standing is None:
        return "where its environments stood was not kept"
    if "why" in standing:
        return str(standing["why"])
    other = [name for name, value in kind.items() if standing["of"].get(name) != value]
    if other:
        return f"another {' and '.join(other)}"
    if len(standing["groups"]) != slots:
        return f"its plan had {len(standing['groups'])} groups of environments, this one has {slots}"
    return ""


def fitting(standing: Standing | None, kind: Mapping[str, Any], slots: int, first_env: int) -> Mapping[str, Any] | None:
    """What the slot with this first environment goes on from; None: from new episodes."""
    if why_not(standing, kind, slots) or standing is None:
        return None
    found: Mapping[str, Any] | None = next(
        (group for group in standing["groups"] if group["first_env"] == first_env), None
    )
    return found


# --- plain states ------------------------------------------------------------------------------------------
_GENERATOR = "numpy's generator"
_KINDS = ("PCG64", "PCG64DXSM", "Philox", "SFC64", "MT19937")


def plain(value: Any, where: str = "its state") -> Any:
    """The same in numbers, texts, arrays, lists, tuples and dicts. Generators of numpy as their numbers. `TypeError`
    names what cannot be said so.
    """
    if isinstance(value, np.random.Generator) and type(value.bit_generator).__name__ in _KINDS:
        return {_GENERATOR: value.bit_generator.state}
    if value is None or isinstance(value, (bool, int, float, str, np.number, np.bool_)):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return value
    if isinstance(value, (list, tuple)):
        parts = [plain(part, f"{where}[{i}]") for i, part in enumerate(value)]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, dict) and all(isinstance(key, (str, int)) for key in value):
        return {key: plain(part, f"{where}[{key!r}]") for key, part in value.items()}
    raise TypeError(f"{where} is of type {type(value).__name__}, which no file holds without pickle")


def live(value: Any) -> Any:
    """What `plain` was given."""
    if isinstance(value, (list, tuple)):
        return type(value)(live(part) for part in value)
    if not isinstance(value, dict):
        return value
    if value.keys() != {_GENERATOR}:
        return {key: live(part) for key, part in value.items()}
    state = value[_GENERATOR]
    if state["bit_generator"] not in _KINDS:
        raise ValueError(f"numpy has no generator {state['bit_generator']!r}")
    bits = getattr(np.random, state["bit_generator"])()
    bits.state = state
    return np.random.Generator(bits)
