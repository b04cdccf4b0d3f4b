"""Simulators as vectorized environments."""

from rlinf_lab.vecenv.base import EnvSpec, Restorable, VecEnv
from rlinf_lab.vecenv.check import check_env
from rlinf_lab.vecenv.loop import LoopVecEnv, Outcome, SingleEnv, checked_actions
from rlinf_lab.vecenv.registry import list_envs, make_vec, register_env

__all__ = [
    "EnvSpec", "LoopVecEnv", "Outcome", "Restorable", "SingleEnv", "VecEnv", "check_env", "checked_actions", "list_envs", "make_vec", "register_env",
]  # fmt: skip
