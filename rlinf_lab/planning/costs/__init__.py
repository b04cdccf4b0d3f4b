"""Cost models: seconds of a worker's call from a profile, and how sure they are.

>>> models = fit(profile)
>>> models["learner"].estimate(devices=16, items=8192)
292 s (extrapolated, 216 to 394): 16 devices, measured at 64
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.planning.costs.base import ASSUMED, EXTRAPOLATED, INTERPOLATED, MEASURED, CostEstimate, CostModel
from rlinf_lab.planning.costs.batch import BatchModel
from rlinf_lab.planning.costs.cell import CellModel
from rlinf_lab.planning.costs.environment import SimulatorModel
from rlinf_lab.planning.costs.generation import GenerationModel, Stream
from rlinf_lab.planning.costs.rlinf_rule import CapacityCliff, DampedScaling
from rlinf_lab.planning.profile.profile import Profile, WorkerProfile

RULES = ("fitted", "rlinf")
_OUTSIDE = ("memory", "onload_s", "offload_s", "offloadable", "devices", "in_turn", "calls", "starts_on_device")
# no model looks at these
_UNKNOWN: dict[str, Any] = {f.name: f.default for f in fields(WorkerProfile) if f.name in _OUTSIDE}


def fit(profile: Profile, rule: str = "fitted") -> dict[str, CostModel]:
    """One model for each worker of a profile. ``rule="rlinf"``: the public placement tool's formulas instead
    (`rlinf_rule`).
    """
    if rule not in RULES:
        raise UnknownNameError.of("cost rule", rule, RULES)
    return {
        name: fit_worker(w, profile.group_size(name)) if rule == "fitted" else _public(name, w)
        for name, w in profile.workers.items()
    }


def fit_worker(worker: WorkerProfile, group_size: int = 1) -> CostModel:
    """The model that the worker's kind asks for, the same one for an equal worker. It is kept, since most questions
    change one worker or none, or what no model knows. ``group_size``: items come in groups of so many
    (`Profile.group_size`).

    On the host a worker is as fast whatever devices the plan has: its samples are of none.
    """
    return fitted(replace(worker, **_UNKNOWN), group_size)


@lru_cache(maxsize=64)
def fitted(worker: WorkerProfile, group_size: int) -> CostModel:
    """Of a worker without what no model looks at."""
    if worker.resource == "host":
        worker = replace(worker, samples=tuple(replace(s, devices=0) for s in worker.samples))
    if worker.kind == "generation":
        assert worker.lengths is not None  # checked by the profile
        return GenerationModel(
            worker.samples,
            worker.lengths,
            worker.model,
            worker.ranks.devices_per_rank,
            worker.max_running,
            worker.exponent,
            group_size,
        )
    if worker.kind == "simulator":
        return SimulatorModel(worker.samples, worker.ranks.devices_per_rank, group_size)
    return BatchModel(worker.samples, worker.exponent, worker.ranks.devices_per_rank, group_size)


def _public(name: str, worker: WorkerProfile) -> CostModel:
    first = worker.samples[0]
    devices = first.devices if worker.resource == "device" else 0
    if worker.kind == "generation":
        if worker.max_running is None:
            raise ConfigError(
                f"Cost rule 'rlinf' needs profile.workers.{name}.max_running: it decides whether the engines hold all "
                "requests."
                " Next: rule='fitted', or that field."
            )
        return CapacityCliff(first.seconds, devices, first.items, worker.max_running, worker.ranks.devices_per_rank)
    return DampedScaling(first.seconds, devices, first.items)


__all__ = [
    "ASSUMED", "EXTRAPOLATED", "INTERPOLATED", "MEASURED", "RULES", "BatchModel", "CapacityCliff", "CellModel",
    "CostEstimate", "CostModel",
    "DampedScaling", "GenerationModel", "SimulatorModel", "Stream", "fit", "fit_worker", "fitted",
]  # fmt: skip
