"""What gradient steps of actors and critics have in common. Legend: N kinds of noise, B batch, K numbers of noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlinf_lab.policies import Actor, QEnsemble
from rlinf_lab.workers.adam import Adam, copied
from rlinf_lab.workers.computing import autocast, checked
from rlinf_lab.workers.off_policy.flat import FlatParameters
from rlinf_lab.workers.off_policy.minibatches import Minibatch


@dataclass(frozen=True)
class Shared:
    """How ranks share a step. Alone: all of it, and nothing to average."""

    average: Callable[[Tensor], Any] = lambda gradient: None
    """the mean over the ranks, in place"""
    share: float = 1.0
    """this rank's rows relative to a fair share: the mean over the ranks is then the mean over all rows"""


class GradientStep(nn.Module):
    """The nets of an actor-critic algorithm and its optimisers. `step` moves all of them by one minibatch.

    Parameters lie in vectors (`FlatParameters`), so that Adam and the moving average are one call each.
    ``precision``: "bfloat16" computes forward and backward passes under torch's autocast; weights and Adam's moments
    stay in single precision. ``compile``: losses pass through `torch.compile`, which takes a minute at first.
    """

    noises: int = 1
    """N: kinds of noise that a step takes"""
    actor: Actor

    def __init__(self, device: str, precision: str, compile: bool) -> None:
        super().__init__()
        self.device, self.precision, self.compiles = torch.device(device), checked(precision), compile
        self.count = 0
        """steps so far"""

    def prepare(
        self,
        learning_rate: float,
        actors: Sequence[nn.Module],
        critics: Sequence[nn.Module],
        targets: Sequence[nn.Module],
    ) -> None:
        """Called when the nets are there. ``targets`` follow ``critics``, or what stands in front of them."""
        self.actors, self.critics = FlatParameters(*actors), FlatParameters(*critics)
        self.targets = FlatParameters(*targets, gradients=False)
        adam = [Adam([flat.vector], lr=learning_rate, eps=1e-8) for flat in (self.actors, self.critics)]
        self.actor_optimizer, self.critic_optimizer = adam
        if self.compiles:
            self.critic_loss = torch.compile(self.critic_loss)  # type: ignore[method-assign]
            self.actor_loss = torch.compile(self.actor_loss)  # type: ignore[method-assign]

    def critic_loss(self, *given: Any) -> Any:
        """From a minibatch to a scalar, with gradients."""
        raise NotImplementedError

    def actor_loss(self, *given: Any) -> Any:
        """From a minibatch to a scalar, with gradients."""
        raise NotImplementedError

    def step(self, batch: Minibatch, noise_NBK: Tensor, now: dict[str, float], shared: Shared) -> dict[str, Tensor]:
        """One minibatch. ``now``: settings as they are in this update. Returns means over this rank's rows, and
        ``error``, absolute temporal differences (B).
        """
        raise NotImplementedError

    def set_learning_rate(self, value: float) -> None:
        for optimizer in self.optimizers:
            optimizer.param_groups[0]["lr"] = value

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.actor_optimizer, self.critic_optimizer]

    def computing(self) -> AbstractContextManager[Any]:
        """Around forward passes."""
        return autocast(self.precision, self.device)

    def descend(self, flat: FlatParameters, optimizer: torch.optim.Optimizer, loss: Tensor, shared: Shared) -> None:
        """A step of Adam for the parameters in ``flat``. The loss must have gradients for no others."""
        flat.gradient.zero_()
        (loss if shared.share == 1.0 else shared.share * loss).backward()
        shared.average(flat.gradient)
        optimizer.step()

    @contextmanager
    def fixed(self, flat: FlatParameters) -> Iterator[None]:
        """Forward passes within give no gradients to ``flat``, but through it."""
        for view in flat.views:
            view.requires_grad_(False)
        try:
            yield
        finally:
            for view in flat.views:
                view.requires_grad_(True)

    def normalise(self, mean: Any, std: Any) -> None:
        """The observations that all nets see, as `Policy.set_normaliser`."""
        for module in self.children():
            if isinstance(module, (Actor, QEnsemble)):
                module.set_normaliser(mean, std)

    # --- what a step depends on -------------------------------------------------------------------------------
    def own_state(self) -> dict[str, Any]:
        """Everything but random numbers: copies in host memory."""
        nets = {name: copied(net.state_dict()) for name, net in self._nets()}
        return {"count": self.count, "nets": nets, "optimizers": [copied(o.state_dict()) for o in self.optimizers]}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Go on from what `own_state` gave."""
        self.count = int(state["count"])
        for name, net in self._nets():
            net.load_state_dict(state["nets"][name])
        for optimizer, held in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(copied(held))  # torch would go on with the very tensors

    def _nets(self) -> list[tuple[str, nn.Module]]:
        return [(name, net) for name, net in self.named_children() if not isinstance(net, FlatParameters)]
