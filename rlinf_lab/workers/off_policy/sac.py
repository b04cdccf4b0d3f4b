"""One gradient step of soft actor-critic. Legend: N kinds of noise, B batch, K critics or numbers of noise."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from rlinf_lab.algorithms import critic_loss, polyak_update, sac_actor_loss, sac_target, temperature_loss
from rlinf_lab.policies import Actor, QEnsemble
from rlinf_lab.workers.off_policy.minibatches import Minibatch
from rlinf_lab.workers.off_policy.sac_by_hand import Begun, ByHand, works_for
from rlinf_lab.workers.off_policy.stepping import GradientStep, Shared
from rlinf_lab.workers.seeds import Purpose, stream


class Temperature(nn.Module):
    """The weight of the entropy, learnt as its logarithm."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor([math.log(initial)]))


class SACStep(GradientStep):
    """Critics, their moving averages, a squashed actor and the temperature.

    ``ent_coef``: where to begin the temperature; whether it is learnt says ``learns_temperature``, else it is the
    setting ``ent_coef`` of each update. ``target_critics``: over how many critics, drawn anew each step, a target's
    minimum goes, while the actor climbs the mean of all of them (REDQ); None: all, and the actor climbs their minimum.
    ``policy_delay``: critic steps for one of actor and temperature. ``seed``: of what is drawn anew.
    Sources: Haarnoja et al. (arXiv 1812.05905); for more than two critics Ball et al., RLPD (arXiv 2302.02948).
    """

    noises = 2

    def __init__(
        self,
        actor: Callable[[], Actor],
        critic: Callable[[], QEnsemble],
        *,
        learning_rate: float,
        target_entropy: float,
        ent_coef: float = 1.0,
        learns_temperature: bool = True,
        target_critics: int | None = None,
        policy_delay: int = 1,
        seed: int = 0,
        precision: str = "float32",
        compile: bool = False,
        device: str = "cpu",
    ) -> None:
        super().__init__(device, precision, compile)
        self.actor, self.critic = actor().to(device), critic().to(device)
        self.target = copy.deepcopy(self.critic)
        self.temperature = Temperature(ent_coef).to(device)
        self.learns_temperature, self.target_entropy = learns_temperature, target_entropy
        self.target_critics, self.policy_delay, self.seed = target_critics, policy_delay, seed
        # Adam treats each number by itself, so the temperature's step may be one with the actor's.
        self.prepare(learning_rate, (self.actor, self.temperature), (self.critic,), (self.target,))
        self.n_critics = len(next(self.critic.net.parameters()))
        by_hand = precision == "float32" and not compile and works_for(self.actor, self.critic)
        self.by_hand = ByHand(self.actor, self.critic, self.target) if by_hand else None

    def step(self, batch: Minibatch, noise_NBK: Tensor, now: dict[str, float], shared: Shared) -> dict[str, Tensor]:
        if self.learns_temperature:
            alpha = self.temperature.log_alpha.detach().exp()
        else:
            alpha = torch.full((1,), now["ent_coef"], device=self.device)
        acts = (self.count + 1) % self.policy_delay == 0
        with torch.inference_mode():
            begun = None if self.by_hand is None else self.by_hand.begin(batch, noise_NBK, acts)
        loss, q_KB, target_B = self._critic_step(batch, begun, noise_NBK[0], alpha, shared)
        found = {"critic_loss": loss.detach(), "q": q_KB.detach().mean(), "ent_coef": alpha}
        self.count += 1
        if acts:
            loss, log_prob = self._actor_step(batch, begun, noise_NBK[1], alpha, shared)
            found |= {"actor_loss": loss.detach(), "entropy": -log_prob}
        with torch.inference_mode():
            polyak_update([self.targets.vector], [self.critics.vector], now["tau"])
        if batch.weight is not None:
            found["error"] = (q_KB.detach() - target_B).abs().mean(0)
        return found

    def _critic_step(
        self, batch: Minibatch, begun: Begun | None, noise_BK: Tensor, alpha: Tensor, shared: Shared
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self.by_hand is None or begun is None:
            with self.computing():
                found: tuple[Tensor, Tensor, Tensor] = self.critic_loss(batch, noise_BK, alpha)
            self.descend(self.critics, self.critic_optimizer, found[0], shared)
            return found
        with torch.inference_mode():
            subset = self._subset(self.n_critics)
            found = self.by_hand.critic_gradients(batch, begun, alpha, shared.share, subset)
        shared.average(self.critics.gradient)
        self.critic_optimizer.step()
        return found

    def _actor_step(
        self, batch: Minibatch, begun: Begun | None, noise_BK: Tensor, alpha: Tensor, shared: Shared
    ) -> tuple[Tensor, Tensor]:
        """Of the temperature, too. Returns the loss and the mean log-probability."""
        if self.by_hand is None or begun is None:
            with self.computing(), self.fixed(self.critics):
                found: tuple[Tensor, Tensor] = self.actor_loss(batch, noise_BK, alpha)
            self.descend(self.actors, self.actor_optimizer, found[0], shared)
            return found[0], found[1].detach().mean()
        with torch.inference_mode():
            loss, log_prob = self.by_hand.actor_gradients(begun, alpha, shared.share, self._climbs_mean)
            slope = -(log_prob + self.target_entropy) if self.learns_temperature else torch.zeros(())
            assert self.temperature.log_alpha.grad is not None
            self.temperature.log_alpha.grad.fill_(shared.share * slope)
            loss = loss + self.temperature.log_alpha * slope
        shared.average(self.actors.gradient)
        self.actor_optimizer.step()
        return loss, log_prob

    def critic_loss(self, batch: Minibatch, noise_BK: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            next_action, next_log_prob_B = self.actor(batch.next_obs, noise_BK)
            next_q_KB = self.target(batch.next_obs, next_action)
            target_B = sac_target(
                batch.reward, batch.discount, next_q_KB, next_log_prob_B, alpha, subset=self._subset(self.n_critics)
            )
        q_KB = self.critic(batch.obs, batch.action)
        return critic_loss(q_KB, target_B, batch.weight), q_KB, target_B

    def actor_loss(self, batch: Minibatch, noise_BK: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        action, log_prob_B = self.actor(batch.obs, noise_BK)
        loss = sac_actor_loss(self.critic(batch.obs, action), log_prob_B, alpha, average=self._climbs_mean)
        return loss + self._temperature_loss(log_prob_B), log_prob_B

    @property
    def _climbs_mean(self) -> bool:
        return self.target_critics is not None

    def _temperature_loss(self, log_prob_B: Tensor) -> Tensor:
        if not self.learns_temperature:
            return torch.zeros((), device=self.device)
        return temperature_loss(self.temperature.log_alpha, log_prob_B, self.target_entropy)

    def _subset(self, critics: int) -> Tensor | None:
        """Which critics a target is made of: another few each step, by seed and number."""
        if self.target_critics is None or self.target_critics >= critics:
            return None
        (drawn,) = stream(self.seed, Purpose.MINIBATCHES, self.count).generate_state(1)
        generator = torch.Generator().manual_seed(int(drawn))
        return torch.randperm(critics, generator=generator)[: self.target_critics].to(self.device)
