"""One gradient step of TD3. Legend: N kinds of noise, B batch, K critics or numbers of noise."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from rlinf_lab.algorithms import critic_loss, polyak_update, smoothed_action, td3_actor_loss, td3_target
from rlinf_lab.policies import Actor, QEnsemble
from rlinf_lab.policies.leaves import in_rows
from rlinf_lab.workers.off_policy.flat import FlatParameters
from rlinf_lab.workers.off_policy.minibatches import Minibatch
from rlinf_lab.workers.off_policy.stepping import GradientStep, Shared


class TD3Step(GradientStep):
    """Twin critics and a deterministic actor, with moving averages of both.

    ``policy_delay``: critic steps for one of the actor and of the averages.
    Settings ``target_policy_noise`` and ``target_noise_clip`` are in units of half the action's range.
    Source: Fujimoto et al. (arXiv 1802.09477), algorithm 1.
    """

    def __init__(
        self,
        actor: Callable[[], Actor],
        critic: Callable[[], QEnsemble],
        *,
        learning_rate: float,
        policy_delay: int = 2,
        precision: str = "float32",
        compile: bool = False,
        device: str = "cpu",
    ) -> None:
        super().__init__(device, precision, compile)
        self.actor, self.critic = actor().to(device), critic().to(device)
        self.target, self.target_actor = copy.deepcopy(self.critic), copy.deepcopy(self.actor)
        self.policy_delay = policy_delay
        self.prepare(learning_rate, (self.actor,), (self.critic,), (self.target,))
        self.actor_targets = FlatParameters(self.target_actor, gradients=False)

    def step(self, batch: Minibatch, noise_NBK: Tensor, now: dict[str, float], shared: Shared) -> dict[str, Tensor]:
        noise_BK = now["target_policy_noise"] * noise_NBK[0]
        with self.computing():
            loss, q_KB, target_B = self.critic_loss(batch, noise_BK, now["target_noise_clip"])
        self.descend(self.critics, self.critic_optimizer, loss, shared)
        found = {"critic_loss": loss.detach(), "q": q_KB.detach().mean()}
        self.count += 1
        if self.count % self.policy_delay == 0:
            with self.computing(), self.fixed(self.critics):
                loss = self.actor_loss(batch, shared)
            self.descend(self.actors, self.actor_optimizer, loss, shared)
            found["actor_loss"] = loss.detach()
            targets = [self.targets.vector, self.actor_targets.vector]
            polyak_update(targets, [self.critics.vector, self.actors.vector], now["tau"])
        if batch.weight is not None:
            found["error"] = (q_KB.detach() - target_B).abs().mean(0)
        return found

    def critic_loss(self, batch: Minibatch, noise_BK: Tensor, noise_clip: float) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            centre, reach = self.critic.centre, self.critic.reach
            greedy_BA = (in_rows(self.target_actor.greedy(batch.next_obs)) - centre) / reach
            next_action = centre + reach * smoothed_action(greedy_BA, noise_BK, noise_clip=noise_clip)
            target_B = td3_target(batch.reward, batch.discount, self.target(batch.next_obs, next_action))
        q_KB = self.critic(batch.obs, batch.action)
        return critic_loss(q_KB, target_B, batch.weight), q_KB, target_B

    def actor_loss(self, batch: Minibatch, shared: Shared) -> Tensor:
        return td3_actor_loss(self.critic(batch.obs, self.actor.greedy(batch.obs)))
