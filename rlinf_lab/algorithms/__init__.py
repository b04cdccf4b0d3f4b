"""Pure mathematics: arrays in, arrays out. No devices, no channels, no state but what is passed in.

Advantages and losses are also found by name (`advantage`, `loss`), where one's own are registered. PPO, GRPO, SAC, TD3
and cloning have recipes; what is called experimental is tested against its closed form only.
"""

from rlinf_lab.algorithms import statistics
from rlinf_lab.algorithms.advantages import gae, vtrace
from rlinf_lab.algorithms.aggregation import aggregate, count_of
from rlinf_lab.algorithms.gaussian import entropy, log_prob
from rlinf_lab.algorithms.groups import (
    dr_grpo,
    grpo,
    informative,
    overlong_penalty,
    reinforce_pp,
    reinforce_pp_baseline,
    rloo,
)
from rlinf_lab.algorithms.imitation import clone_loss, dagger_beta, dagger_mix
from rlinf_lab.algorithms.importance import mismatch, truncated_importance
from rlinf_lab.algorithms.kl import adapted_kl_coefficient, exceeds_target_kl, kl_estimate, kl_penalised_returns
from rlinf_lab.algorithms.moments import Moments
from rlinf_lab.algorithms.off_policy import (
    critic_loss,
    crossq_values,
    polyak_update,
    sac_actor_loss,
    sac_target,
    smoothed_action,
    td3_actor_loss,
    td3_bc_actor_loss,
    td3_target,
    temperature_loss,
)
from rlinf_lab.algorithms.ppo import (
    PolicyLoss,
    PPOLoss,
    asks_for_proximal,
    decoupled_policy_loss,
    policy_loss,
    ppo_loss,
    reinforce_loss,
    value_loss,
)
from rlinf_lab.algorithms.registry import Registry, advantage, loss

__all__ = [
    "Moments",
    "PPOLoss",
    "PolicyLoss",
    "Registry",
    "adapted_kl_coefficient",
    "advantage",
    "aggregate",
    "asks_for_proximal",
    "clone_loss",
    "count_of",
    "critic_loss",
    "crossq_values",
    "dagger_beta",
    "dagger_mix",
    "decoupled_policy_loss",
    "dr_grpo",
    "entropy",
    "exceeds_target_kl",
    "gae",
    "grpo",
    "informative",
    "kl_estimate",
    "kl_penalised_returns",
    "log_prob",
    "loss",
    "mismatch",
    "overlong_penalty",
    "policy_loss",
    "polyak_update",
    "ppo_loss",
    "reinforce_loss",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "rloo",
    "sac_actor_loss",
    "sac_target",
    "smoothed_action",
    "statistics",
    "td3_actor_loss",
    "td3_bc_actor_loss",
    "td3_target",
    "temperature_loss",
    "truncated_importance",
    "value_loss",
    "vtrace",
]
