"""Simulators as vectorized environments."""

from rlinf_lab.vecenv import catalogue as envs
from rlinf_lab.vecenv.base import EnvSpec, Restorable, Runner, VecEnv, cannot_leave
from rlinf_lab.vecenv.check import check_env
from rlinf_lab.vecenv.loop import LoopVecEnv, Outcome, SingleEnv, checked_actions, other_environments
from rlinf_lab.vecenv.registry import EnvFactory, environment, ids, make_vec, register

__all__ = [
    "EnvFactory", "EnvSpec", "LoopVecEnv", "Outcome", "Restorable", "Runner", "SingleEnv", "VecEnv", "cannot_leave", "check_env", "checked_actions",
    "environment", "envs", "ids", "make_vec", "other_environments", "register",
]  # fmt: skip
