"""One's own advantage and loss, found by name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import pytest

import rlinf_lab.algorithms
from rlinf_lab.algorithms import Registry, advantage, grpo, loss, policy_loss
from rlinf_lab.errors import ConfigError, UnknownNameError


def test_registered_in_a_cell_and_used_by_name():
    registry: Registry = Registry("advantage", {"group": "f(reward_PG)", "batch": "f(reward_PG)"})

    @registry("centred")
    def centred(reward_PG):
        return reward_PG - 1

    @registry("whole", of="batch")
    def whole(reward_PG):
        return reward_PG

    assert registry.get("centred").function is centred and list(registry) == ["centred", "whole"]
    assert registry.get(whole, of="batch").function is whole  # a function is its own name
    assert registry.get("whole").of == "batch" and "whole" in repr(registry)
    with pytest.raises(UnknownNameError, match="Did you mean 'centred'"):
        registry.get("centered")
    with pytest.raises(UnknownNameError, match="'whole' is of batch; here one of group is needed"):
        registry.get("whole", of="group")

    @registry("centred")  # the cell runs again
    def again(reward_PG):
        return reward_PG

    assert registry.get("centred").function is again
    with pytest.raises(ConfigError, match="not a function"):
        registry("three")(3)
    with pytest.raises(ConfigError, match="needs a name"):
        registry(again)


def test_what_comes_with_the_package():
    assert advantage.get("grpo").function is grpo and advantage.get("gae").of == "steps"
    assert {"dr_grpo", "rloo", "reinforce++"} <= set(advantage)
    assert loss.get("ppo").function is policy_loss and "decoupled_ppo" in loss


def test_every_function_names_its_source():
    """In its docstring, or its module's."""
    modules = [importlib.import_module(f"rlinf_lab.algorithms.{found.name}") for found in pkgutil.iter_modules(rlinf_lab.algorithms.__path__) if found.name != "trial"]
    functions = [(module, f) for module in modules for f in vars(module).values() if inspect.isfunction(f) and f.__module__ == module.__name__]
    public = [(module, f) for module, f in functions if not f.__name__.startswith("_")]
    assert len(public) > 30
    without = {f.__name__ for module, f in public if not re.search(r"arXiv|\(\d{4}\)|Source:", f"{f.__doc__} {module.__doc__}")}
    assert without == {"log_prob", "entropy"}  # of a Gaussian
