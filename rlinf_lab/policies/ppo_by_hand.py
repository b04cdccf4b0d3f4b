"""The gradients of proximal policy optimisation written out, for perceptrons on a core.

At their usual sizes that takes half of the time of autograd. They are those of `algorithms.ppo_loss` with its default
policy loss, into the memory of the parameters' gradients; a test holds both against each other.
Legend: B batch, X features, P parameters of the distribution, A components of an action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlinf_lab.policies.actor_critic import ActorCritic
from rlinf_lab.policies.encoders import CombinedEncoder
from rlinf_lab.policies.fused import Perceptron
from rlinf_lab.policies.heads import LOG_SQRT_2PI, CategoricalHead, GaussianHead


class Minibatch(NamedTuple):
    """What a gradient step learns from. Advantages are taken as they come."""

    features_BX: Tensor
    action_B: Tensor
    log_prob_B: Tensor
    """when they were chosen"""
    advantage_B: Tensor
    return_B: Tensor
    carried_BK: Tensor | None = None
    """of chunks: 1 for each action that an environment got, else 0"""


class PPOByHand:
    """Of one policy with its value net. `works_for` says for which."""

    def __init__(self, policy: ActorCritic) -> None:
        self.policy, self.head = policy, policy.head
        for parameter in policy.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.actor, self.critic = _perceptron(policy.policy), _perceptron(policy.critic)

    @staticmethod
    def works_for(policy: Any) -> bool:
        """Whether only affine layers are learnt, with tanh or relu between them.

        A deviation may be learnt besides.

        Actor and critic share nothing.
        """
        if type(policy) is not ActorCritic or policy.shares_encoder:
            return False
        fixed = all(type(e) is CombinedEncoder and not len(e.images) for e in (policy.encoder, policy.value_encoder))
        head: Any = policy.head
        gaussian = type(head) is GaussianHead and not head.state_std
        plain = _is_plain(policy.policy) and _is_plain(policy.critic)
        plain = plain and all(parameter.requires_grad for parameter in policy.parameters())
        return fixed and plain and (gaussian or type(head) is CategoricalHead) and policy.preprocess.obs_mean.is_cpu

    def features(self, obs: Any) -> Tensor:
        """What both nets read, (B, X), of a tree of tensors."""
        with torch.no_grad():
            features_BX: Tensor = self.policy.encoder(self.policy.preprocess(obs))
        return features_BX

    def of_rows(
        self, trees: list[Any], numbers: Mapping[str, Tensor], prepared: Callable[[Tensor], Tensor], **factors: float
    ) -> Callable[[Tensor], dict[str, Tensor]]:
        """`step` of some rows of all samples.

        ``trees`` of observations and actions, ``numbers`` by their names in `Minibatch`.

        ``prepared``: what becomes of the rows' advantages.
        """
        features_BX, action_B = self.features(trees[0]), trees[1]

        def step(rows_B: Tensor) -> dict[str, Tensor]:
            mine = {name: column[rows_B] for name, column in numbers.items()}
            mine["advantage_B"] = prepared(mine["advantage_B"])
            return self.step(Minibatch(features_BX[rows_B], action_B[rows_B], **mine), **factors)

        return step

    @torch.no_grad()
    def step(
        self, batch: Minibatch, *, clip: float, value_coefficient: float, entropy_coefficient: float
    ) -> dict[str, Tensor]:
        """Write the gradients. Returns what `LearnerWorker` logs."""
        params_BP, of_actor = self.actor.forward(batch.features_BX)
        value_B1, of_critic = self.critic.forward(batch.features_BX)
        drawn: Any
        if type(self.head) is GaussianHead:
            drawn = _Gaussian(self.head, params_BP, batch.action_B, batch.carried_BK)
        else:
            drawn = _Categorical(self.head, params_BP, batch.action_B)
        rows = len(params_BP)
        old_B = batch.log_prob_B if batch.carried_BK is None else (batch.log_prob_B * batch.carried_BK).sum(1)
        log_ratio_B = drawn.log_prob_B - old_B
        ratio_B = log_ratio_B.exp()
        inside_B = ratio_B.clamp(1.0 - clip, 1.0 + clip)
        objective_B, clipped_B = ratio_B * batch.advantage_B, inside_B * batch.advantage_B
        pull_B = (objective_B * (objective_B <= clipped_B)).mul_(-1.0 / rows)
        self.actor.backward(drawn.backward(pull_B, entropy_coefficient), of_actor)
        error_B = value_B1.squeeze(1) - batch.return_B
        self.critic.backward((error_B * (value_coefficient / rows)).unsqueeze(1), of_critic)
        return {
            "policy_loss": -torch.minimum(objective_B, clipped_B).mean(),
            "value_loss": 0.5 * torch.dot(error_B, error_B) / rows,
            "entropy": drawn.entropy_B.mean(),
            "kl": (ratio_B - 1.0 - log_ratio_B).mean(),
            "clip_fraction": (ratio_B != inside_B).float().mean(),
        }


class _Gaussian:
    def __init__(self, head: Any, mean_BA: Tensor, action_B: Tensor, carried_BK: Tensor | None) -> None:
        self.log_std = head.log_std
        self.inverse = (-self.log_std).exp()
        self.z_BA = (action_B.reshape(mean_BA.shape) - mean_BA) * self.inverse
        each_BA = -0.5 * self.z_BA.square() - self.log_std - LOG_SQRT_2PI
        self.carried_BA: Any = 1.0
        if carried_BK is not None:
            self.carried_BA = carried_BK.repeat_interleave(mean_BA.shape[1] // carried_BK.shape[1], dim=1)
        self.log_prob_B = (each_BA * self.carried_BA).sum(-1)
        self.entropy_B = (self.log_std + 0.5 + LOG_SQRT_2PI).sum()

    def backward(self, pull_B: Tensor, entropy_coefficient: float) -> Tensor:
        """From log-probabilities to the net's outputs; that of the deviation is written."""
        on_each_BA = pull_B.unsqueeze(1) * self.carried_BA
        pulled_BA = on_each_BA * self.z_BA
        self.log_std.grad.copy_((pulled_BA * self.z_BA).sum(0) - on_each_BA.sum(0) - entropy_coefficient)
        return pulled_BA * self.inverse


class _Categorical:
    def __init__(self, head: Any, logits_BP: Tensor, action_B: Tensor) -> None:
        index_BA = action_B.reshape(len(logits_BP), -1).long() - head.start
        self.logs = [torch.log_softmax(logits, 1) for logits in logits_BP.split(head.counts, 1)]
        self.chosen = [index_BA[:, i : i + 1] for i in range(len(head.counts))]
        self.probs = [log.exp() for log in self.logs]
        self.entropies = [-(p * log).sum(1, keepdim=True) for p, log in zip(self.probs, self.logs, strict=True)]
        each = [log.gather(1, index) for log, index in zip(self.logs, self.chosen, strict=True)]
        self.log_prob_B = torch.cat(each, 1).sum(1)
        self.entropy_B = torch.cat(self.entropies, 1).sum(1)

    def backward(self, pull_B: Tensor, entropy_coefficient: float) -> Tensor:
        """From log-probabilities, and from the mean entropy, to the logits."""
        pull_B1, parts = pull_B.unsqueeze(1), []
        for log, p, index, entropy in zip(self.logs, self.probs, self.chosen, self.entropies, strict=True):
            part = (-pull_B1 * p).scatter_add_(1, index, pull_B1)
            if entropy_coefficient:
                part.addcmul_(p, log + entropy, value=entropy_coefficient / len(p))
            parts.append(part)
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def _is_plain(net: nn.Module) -> bool:
    """Affine layers with one kind of activation between them."""
    kinds = [type(part) for part in net.children()] if type(net) is nn.Sequential else []
    between = set(kinds[1::2])
    affine = len(kinds) % 2 == 1 and set(kinds[::2]) == {nn.Linear}
    return affine and len(between) <= 1 and between <= {nn.Tanh, nn.ReLU}


def _perceptron(net: nn.Module) -> Perceptron:
    layers: list[Any] = [part for part in net.children() if isinstance(part, nn.Linear)]
    activation = "tanh" if any(isinstance(part, nn.Tanh) for part in net.children()) else "relu"
    values, gradients = [(n.weight, n.bias) for n in layers], [(n.weight.grad, n.bias.grad) for n in layers]
    return Perceptron(values, gradients, activation=activation)
