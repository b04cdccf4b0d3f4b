"""Learning from recorded transitions alone. Legend: B batch, A numbers of an action."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rlinf_lab.algorithms import td3_bc_actor_loss
from rlinf_lab.policies.leaves import in_rows
from rlinf_lab.workers.learner import Update
from rlinf_lab.workers.off_policy.learner import OffPolicyLearner
from rlinf_lab.workers.off_policy.minibatches import Minibatch
from rlinf_lab.workers.off_policy.stepping import Shared
from rlinf_lab.workers.off_policy.td3 import TD3Step


class TD3BCStep(TD3Step):
    """TD3 whose actor stays near what was recorded. ``alpha``: how much the critics count against that.

    Source: Fujimoto and Gu (arXiv 2106.06860).
    """

    def __init__(self, *args: Any, alpha: float, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.alpha = alpha

    def actor_loss(self, batch: Minibatch, shared: Shared) -> Tensor:
        action = self.actor.greedy(batch.obs)
        mine_BA, recorded_BA = (
            (in_rows(each) - self.critic.centre) / self.critic.reach for each in (action, batch.action)
        )
        q_KB = self.critic(batch.obs, action)
        size = shared.share * q_KB[0].detach().abs().mean()
        shared.average(size)  # of all ranks' rows
        return td3_bc_actor_loss(q_KB, mine_BA, recorded_BA, self.alpha, size=size)


class OfflineLearner(OffPolicyLearner):
    """Takes gradient steps on a buffer that is given. Arguments as in `OffPolicyLearner`."""

    def setup(self) -> None:
        super().setup()
        if self.learnt.actor.normalised_size:
            self.learnt.normalise(self.moments.mean, self.moments.std + self.std_floor)

    def learn(self) -> Update:
        """The gradient steps of an iteration."""
        with self._together():
            with self.span("update"):
                losses = self._learn(self.gradient_steps)
            self.learnt.actor.version += 1
            self._made = self._finite(self._weights(), losses)
        return Update(self._made, {**losses, "env_steps": losses["gradient_steps"]})
