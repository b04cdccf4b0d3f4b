"""The gradients of soft actor-critic written out.

For perceptrons with relu: a third of the time of autograd at their usual sizes.

The gradients are those of `SACStep.critic_loss` and `SACStep.actor_loss`, into the same memory; a test holds both
against plain torch. Critics may normalise their layers, as RLPD's do. Legend: K critics, B batch, I inputs of the
critics, A components of an action, X features, P parameters of the distribution.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlinf_lab.algorithms import sac_target
from rlinf_lab.policies import Actor, QEnsemble
from rlinf_lab.policies.encoders import CombinedEncoder
from rlinf_lab.policies.fused import Layer, Perceptron, Room, Squashed
from rlinf_lab.policies.heads import STATE_LOG_STD, SquashedGaussianHead
from rlinf_lab.policies.leaves import in_rows
from rlinf_lab.policies.off_policy import LinearEnsemble, NormEnsemble
from rlinf_lab.trees import map_tree
from rlinf_lab.workers.off_policy.minibatches import Minibatch


def works_for(actor: Actor, critic: QEnsemble) -> bool:
    """Whether all that is learnt are affine layers with relu between them. The critics' are perhaps normalised, and
    the actor is a squashed Gaussian.
    """
    plain = isinstance(actor.policy, nn.Sequential) and {type(net) for net in actor.policy} <= {nn.Linear, nn.ReLU}
    kinds = [type(net) for net in critic.net]
    hidden = [LinearEnsemble, NormEnsemble, nn.ReLU] if NormEnsemble in kinds else [LinearEnsemble, nn.ReLU]
    plain = plain and kinds == hidden * (len(kinds) // len(hidden)) + [LinearEnsemble]
    plain = plain and all(net.kind == "layer" for net in critic.net if isinstance(net, NormEnsemble))
    fixed = all(isinstance(net.encoder, CombinedEncoder) and not len(net.encoder.images) for net in (actor, critic))
    head = actor.head
    return plain and fixed and isinstance(head, SquashedGaussianHead) and head.state_std and head.reach.is_cpu


class Begun(NamedTuple):
    """What a gradient step begins with. What critics read of observations, and actions of the actor as it is."""

    obs_BX: Tensor
    next_obs_BX: Tensor
    drawn: Squashed
    """for the next observations and, where the actor learns, for these: rows (B, A) or (2 B, A)"""
    hidden: list[Tensor]
    """of the actor, for its gradients"""

    def part(self, which: int) -> tuple[Squashed, list[Tensor]]:
        """0: for the next observations; 1: for these, whose hidden layers gradients need."""
        rows = slice(which * len(self.obs_BX), (which + 1) * len(self.obs_BX))
        return Squashed(*(each[rows] for each in self.drawn)), [each[rows] for each in self.hidden] if which else []


class ByHand:
    """Of one actor, its critics and their targets. Called in torch's inference mode, or without gradients."""

    def __init__(self, actor: Actor, critic: QEnsemble, target: QEnsemble) -> None:
        self.actor, self.critic, self.head = actor, critic, actor.head
        room = Room()  # targets are done before values begin
        self.policy = Perceptron(*_layers(actor.policy), room=Room())
        self.values = Perceptron(*_layers(critic.net), room=room)
        layers, _, norms, _ = _layers(target.net)
        self.target_values = Perceptron(layers, norms=norms, room=room)
        self.log_reach = float(torch.as_tensor(self.head.reach).log().sum())
        prepared = actor.preprocess, critic.preprocess
        self._is_alike = prepared[0].space == prepared[1].space and not any(each.normalise for each in prepared)

    def begin(self, batch: Minibatch, noise_NBA: Tensor, acts: bool) -> Begun:
        """Draw the actions of a gradient step. The actor learns in it if it ``acts``: its weights move last."""
        seen = map_tree(lambda *leaves: torch.cat(leaves), batch.next_obs, batch.obs) if acts else batch.next_obs
        of_actor, of_critic = self._features(seen)
        params, hidden = self.policy.forward(of_actor)
        mean, log_std = params.chunk(2, dim=1)
        drawn = Squashed.of(mean, log_std, noise_NBA[: 1 + acts].flatten(0, 1), STATE_LOG_STD)
        rows = len(batch.reward)
        obs_BX = of_critic[rows:] if acts else self._features(batch.obs)[1]
        return Begun(obs_BX, of_critic[:rows], drawn, hidden)

    def critic_gradients(
        self, batch: Minibatch, begun: Begun, alpha: Tensor, share: float, subset: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Write the critics' gradients, of ``share`` times the loss. Returns the loss, the values (K, B) and the
        targets (B).
        """
        drawn, _ = begun.part(0)
        next_q_KB = self.target_values.forward(torch.cat([begun.next_obs_BX, drawn.action_BA], 1))[0].squeeze(-1)
        log_prob_B = drawn.log_prob_BA.sum(1) - self.log_reach
        target_B = sac_target(batch.reward, batch.discount, next_q_KB, log_prob_B, alpha, subset=subset)
        action_BA = (in_rows(batch.action) - self.critic.centre) / self.critic.reach
        q_KB1, inputs = self.values.forward(torch.cat([begun.obs_BX, action_BA], 1))
        q_KB = q_KB1.squeeze(-1)
        error_KB = q_KB - target_B
        weighted_KB = error_KB if batch.weight is None else error_KB * batch.weight
        rows = len(target_B)
        self.values.backward((weighted_KB * (share / rows)).unsqueeze(-1), inputs)
        return torch.dot(error_KB.flatten(), weighted_KB.flatten()).mul_(0.5 / rows), q_KB, target_B

    def actor_gradients(self, begun: Begun, alpha: Tensor, share: float, average: bool) -> tuple[Tensor, Tensor]:
        """Write the actor's gradients, of ``share`` times the loss (`sac_actor_loss`). Returns the loss and the
        mean log-probability.
        """
        drawn, hidden = begun.part(1)
        q_KB1, inputs = self.values.forward(torch.cat([begun.obs_BX, drawn.action_BA], 1))
        rows = len(drawn.action_BA)
        if average:
            value, pull_KB1 = q_KB1.mean(), torch.full_like(q_KB1, -share / (rows * len(q_KB1)))
        else:
            least = q_KB1.min(0, keepdim=True)
            value, pull_KB1 = least.values.mean(), torch.zeros_like(q_KB1).scatter_(0, least.indices, -share / rows)
        log_prob = drawn.log_prob_BA.sum().div_(rows).sub_(self.log_reach)
        of_input_KBI = self.values.backward(pull_KB1, inputs, of_weights=False, of_input=True)
        assert of_input_KBI is not None
        of_action_BA = of_input_KBI[:, :, -drawn.action_BA.shape[1] :].sum(0)
        self.policy.backward(torch.cat(drawn.backward(of_action_BA, float(alpha) * share / rows), 1), hidden)
        return alpha * log_prob - value, log_prob

    def _features(self, obs: object) -> tuple[Tensor, Tensor]:
        """What actor and critics read of a tree of tensors (B, ...), (B, X). Without statistics it is the same."""
        of_actor_BX: Tensor = self.actor.encoder(self.actor.preprocess(obs))
        return of_actor_BX, of_actor_BX if self._is_alike else self.critic.encoder(self.critic.preprocess(obs))


def _layers(nets: nn.Module) -> tuple[list[Layer], list[Layer], list[Layer], list[Layer]]:
    """Weights and biases of affine layers and of norms, with their gradients.

    Where these are, if there are some: the very tensors, which a switch moves in place.
    """
    layers, of_layers, norms, of_norms = list[Layer](), list[Layer](), list[Layer](), list[Layer]()
    for net in nets.children():
        if isinstance(net, (nn.Linear, LinearEnsemble, NormEnsemble)):
            values, gradients = (norms, of_norms) if isinstance(net, NormEnsemble) else (layers, of_layers)
            values.append((net.weight, net.bias))
            if net.weight.grad is not None and net.bias.grad is not None:
                gradients.append((net.weight.grad, net.bias.grad))
    return layers, of_layers, norms, of_norms
