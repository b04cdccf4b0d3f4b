"""How the search found a plan, kept beside what an executor is told (`ExecutionPlan.origin`).

A saved plan then takes exactly what it took.

An executor's fields do not tell all that a simulation goes by: in how many parts a source hands over what others take
from its own devices, and so how much memory it needs; whose turns lie within whose; up to how many devices others may
keep something on. Names instead of numbers of stages, JSON throughout.
Read from their fields alone, 9 of 440 plans of random flows take other seconds, one of them 36 % more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlinf_lab.planning.placement.free_memory import SINGLE, Forms, Window
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.placement.search_space import Arrangement, Setting
from rlinf_lab.planning.search.plan_tree import SPATIAL, TEMPORAL, Composed, Leaf, Tree, nodes

SIGNS = {TEMPORAL: ">", SPATIAL: "|"}  # as in a plan's shape
KINDS = {sign: kind for kind, sign in SIGNS.items()}


def origin_of(placement: Placement) -> dict[str, Any]:
    """What `found_by` reads. It is the most micro-batches that were looked at, the tree, and the arrangement as far as
    it says anything.
    """
    setting, arrangement, forms = placement.setting, placement.arrangement, placement.arrangement.forms
    heads = [stage.members[0] for stage in setting.stages]
    more: dict[str, Any] = {
        "stay": [head for i, head in enumerate(heads) if arrangement.staying >> i & 1],
        "cells": {head: form for head, form in zip(heads, forms.of, strict=True) if form != SINGLE},
        "careful": forms.careful,
        "windows": {
            name: [w.fewest, w.most, None if w.kinds is None else sorted(w.kinds)] for name, w in forms.windows
        },
        "meeting": None if forms.meeting is None else _listed(forms.meeting),
        "apart": _listed(forms.apart),
        "seating": list(arrangement.seating),
    }
    said = {key: value for key, value in more.items() if value or (key == "meeting" and value is not None)}
    return {"micro_batches": setting.micro_batches, "tree": _written(placement.tree, heads), **said}


def found_by(origin: Mapping[str, Any], setting: Setting) -> Placement | None:
    """The plan that `origin_of` described, under another setting. None where that has other stages or fewer devices.

    What `origin_of` does not write raises whatever Python raises for it, here or when the plan is looked at; or it is
    another plan than the one that it came with.
    """
    heads = [stage.members[0] for stage in setting.stages]
    cells, stay, tree = dict(origin.get("cells", {})), set(origin.get("stay", ())), _read(origin["tree"], heads)
    if tree is None or not _is_possible(tree, setting) or not stay <= set(heads):
        return None
    if set(cells) != {stage.members[0] for stage in setting.stages if len(stage.members) > 1}:
        return None
    meeting = origin.get("meeting")
    windows = {
        name: Window(fewest, most, None if kinds is None else frozenset(kinds))
        for name, (fewest, most, kinds) in origin.get("windows", {}).items()
    }
    forms = Forms(
        tuple(cells.get(head, SINGLE) for head in heads), bool(origin.get("careful", False)),
        tuple(sorted(windows.items(), key=lambda w: w[0])),
        None if meeting is None else _sets(meeting), _sets(origin.get("apart", ())),
    )  # fmt: skip
    staying = sum(1 << i for i, head in enumerate(heads) if head in stay)
    made = Placement(setting, Arrangement(staying, forms, tuple(origin.get("seating", ()))), tree)
    return made if all(0 <= n.option < _options(made, n.worker) for n in nodes(tree) if isinstance(n, Leaf)) else None


def _listed(sets: Iterable[frozenset[str]]) -> list[list[str]]:
    return sorted(sorted(names) for names in sets)


def _sets(lists: Iterable[Iterable[str]]) -> frozenset[frozenset[str]]:
    return frozenset(map(frozenset, lists))


def _written(tree: Tree, heads: Sequence[str]) -> list[Any]:
    """[worker, devices, grain, option], or [sign, before, after, devices, grain]."""
    if isinstance(tree, Leaf):
        return [heads[tree.worker], list(tree.devices), tree.grain, tree.option]
    return [SIGNS[tree.kind], _written(tree.before, heads), _written(tree.after, heads), list(tree.devices), tree.grain]


def _read(written: Sequence[Any], heads: Sequence[str]) -> Tree | None:
    """None where it names a worker that heads no stage."""
    if len(written) == 4:
        head, devices, grain, option = written
        return Leaf(heads.index(head), tuple(map(int, devices)), int(grain), int(option)) if head in heads else None
    sign, *parts, devices, grain = written
    before, after = (_read(part, heads) for part in parts)
    if before is None or after is None:
        return None
    return Composed(KINDS[sign], before, after, tuple(map(int, devices)), int(grain))


def _is_possible(tree: Tree, setting: Setting) -> bool:
    """Whether an origin can be a plan of these devices. It seats every stage once, within the devices that there are,
    in micro-batches that are looked at.
    """
    leaves = [n.worker for n in nodes(tree) if isinstance(n, Leaf)]
    if sorted(leaves) != list(range(len(setting.stages))):
        return False
    for node in nodes(tree):
        inside = [part.devices for part in node.parts()]
        used = [
            (max if isinstance(node, Composed) and node.kind == TEMPORAL else sum)(n) for n in zip(*inside, strict=True)
        ] or [0] * len(setting.counts)
        if len(node.devices) != len(setting.counts) or not all(
            0 <= a <= n <= b for a, n, b in zip(used, node.devices, setting.counts, strict=True)
        ):
            return False
        if not 0 <= node.grain < setting.granularities:
            return False
    return True


def _options(placement: Placement, stage: int) -> int:
    """Bounds of a stage's stream."""
    return len(placement.setting.problem(placement.arrangement).numbers(stage, placement.beside[stage])[0])
