"""``lab.envs``: environments by name.

Made, checked, registered, listed with their sizes, needs and whether they run here.
"""

from __future__ import annotations

import builtins
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlinf_lab.errors import MissingDependencyError, said
from rlinf_lab.vecenv.base import EnvSpec, VecEnv
from rlinf_lab.vecenv.check import check_env
from rlinf_lab.vecenv.registry import adapters, environment, ids, make_vec, register

if TYPE_CHECKING:
    import pandas

__all__ = ["EnvSpec", "VecEnv", "check_env", "ids", "list", "make_vec", "register"]


def list(simulator: str | None = None) -> pandas.DataFrame:
    """A row for each simulator; with ``simulator``, a row for each of its tasks.

    Simulators: how many tasks there are, whether they run here, and what to install. Tasks: spaces, limit of steps, runners, and why one does not run
    here. Spaces that are not known otherwise are read from an environment that is made for it: some seconds for a simulator with many tasks. Raises as
    `ids`.
    """
    import pandas

    rows = [_simulator(name) for name in sorted(adapters())] if simulator is None else [_task(id) for id in ids(simulator)]
    return pandas.DataFrame(rows).set_index("simulator" if simulator is None else "id")


def _simulator(name: str) -> dict[str, Any]:
    try:
        module = adapters()[name].load()
        tasks = module.tasks()
        return {"simulator": name, "tasks": len(tasks), "runs": True, "needs": getattr(module, "NEEDS", ""), "why not": ""}
    except ImportError as error:
        return {"simulator": name, "tasks": 0, "runs": False, "needs": _needs(name), "why not": said(error)}


def _needs(name: str) -> str:
    try:
        return str(getattr(import_module(adapters()[name].module), "NEEDS", ""))
    except ImportError:
        return ""


def _task(id: str) -> dict[str, Any]:
    factory, why = environment(id), ""
    spec: EnvSpec | None = None
    runners: builtins.list[str] = []
    try:
        spec, runners = factory.spec(), [*factory.runners()]
    except MissingDependencyError as error:
        why = said(error)
    except Exception as error:  # of a simulator: one that cannot be made does not keep the others from being listed
        why = f"{type(error).__name__}: {said(error)}"
    known = {} if spec is None else {"observation": spec.observation_space, "action": spec.action_space, "max_episode_steps": spec.max_episode_steps}
    return {"id": id, "observation": None, "action": None, "max_episode_steps": None, **known, "runners": ", ".join(runners), "runs": not why, "why not": why}
