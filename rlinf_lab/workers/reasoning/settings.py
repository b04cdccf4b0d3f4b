"""The numbers of an update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlinf_lab.algorithms import policy_loss

CORRECTIONS = ("truncated", "decoupled", "none")


@dataclass(frozen=True)
class UpdateSettings:
    """How responses become gradient steps. Functions are what their names stood for when the workflow was built."""

    advantage: Callable[..., Any]
    """of rewards P×G"""
    needs_batch: bool = False
    """whether the advantage needs all groups of the iteration, so that nothing can be learnt before the last"""
    loss: Callable[..., Any] = policy_loss
    clip_range: float | None = 0.2
    """how far the probability ratio may leave 1; None: not clipped"""
    clip_range_high: float | None = None
    """the same above 1, where it differs"""
    dual_clip: float | None = None
    """bound of the objective for negative advantages"""
    aggregation: str = "token_mean"
    """what a long response weighs: "token_mean", "sequence_mean" or "constant" """
    correction: str = "truncated"
    """of tokens that other weights or another engine sampled: "truncated", "decoupled" or "none" """
    critic: bool = False
    """a value of each token is learnt, and the advantage is GAE of the rewards (``advantage`` hands those on)"""
    gae_lambda: float = 1.0
    """of GAE over tokens, which does not discount"""
    critic_learning_rate: float = 1e-3
    """of the critic's AdamW"""
    weight_cap: float = 2.0
    """largest importance weight of a token"""
    kl_coef: float = 0.0
    """weight of KL(current || initial model), estimator k3"""
    minibatches: int = 1
    """gradient steps of an iteration, each on an equal share of its prompts"""
    groups_per_pass: int = 1
    """groups that go forward and backward together: fewer passes, but a pass waits for all of them"""
    dynamic_sampling: bool = False
    """groups of equal rewards are left out, and replaced by further ones"""
    overlong_buffer: int | None = None
    """tokens before ``max_tokens`` over which the reward falls by 1; None: it does not"""
    learning_rate: float = 4e-4
    """of AdamW, after its rise"""
    lr_warmup: int = 5
    """iterations over which the learning rate rises"""
    anneal: float = 1.0
    """share of the learning rate that is gone, linearly, in the last iteration"""
    iterations: int = 100
    """over which it is annealed"""
    max_grad_norm: float = 1.0
    """Euclidean norm to which the gradient is cut"""
    in_order: bool = True
    """groups are learnt from in the order of their prompts: the same to the last bit under every plan. False: as they
    come, the same up to rounding"""
    log_completions: bool = True
    """the run's ``samples`` say what was learnt from which completion, and what was discarded"""
