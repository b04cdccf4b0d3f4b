"""The workers that learn from recorded episodes: one draws minibatches, one takes gradient steps.

    data ──draw──> minibatches of an iteration ──learn──> Adam ──> Update(weights, metrics)

Legend: leading axes; R rows of all minibatches of an iteration, B rows of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from rlinf_lab.algorithms import Moments
from rlinf_lab.datasets import ChunkSampler, EpisodeSource
from rlinf_lab.policies import ActorCritic, PolicyWeights
from rlinf_lab.trees import Tree, length, map_tree, rows
from rlinf_lab.workers.learner import LearnerWorker, Number, Update
from rlinf_lab.workers.seeds import Purpose, stream
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker


@dataclass(frozen=True, eq=False)
class Demonstrated:
    """What experts saw and did: the minibatches of an iteration, one after another."""

    obs_R: Tree
    action_R: Tree
    """actions, or chunks of them"""

    def __repr__(self) -> str:
        return f"Demonstrated({length(self.obs_R)} rows)"


class DataWorker(Worker):
    """Draws rows of recorded episodes, see `ChunkSampler`. ``taken``: draws of an earlier run that this one goes on
    from.
    """

    def __init__(
        self, source: EpisodeSource, *, rows: int, chunk_size: int | None, memory: int, seed: int = 0, taken: int = 0
    ) -> None:
        self.source, self.rows, self.chunk_size, self.memory, self.seed, self.taken = (
            source,
            rows,
            chunk_size,
            memory,
            seed,
            taken,
        )
        self._sampler: ChunkSampler | None = None

    def draw(self, minibatches: Outbox[Demonstrated]) -> None:
        """The rows of one iteration."""
        if self._sampler is None:
            drawn = self.taken * self.rows
            self._sampler = ChunkSampler(self.source, self.chunk_size, self.seed, self.memory, drawn)
        rng = np.random.default_rng(stream(self.seed, Purpose.MINIBATCHES, self.taken))
        minibatches.put(Demonstrated(*self._sampler.draw(self.rows, rng)))
        self.taken += 1


class CloneLearner(LearnerWorker):
    """Behaviour cloning: gradient steps on what an expert did, see `policies.heads.Head.clone_loss`.

    A Gaussian's own standard deviation stays as it is: likelihood would shrink it to the error on the demonstrations,
    and reinforcement learning that goes on from there would not explore. Observations are normalised by the first rows
    that come, once; to a deviation ``std_floor`` is added, for numbers that hardly vary in a few demonstrations do so
    elsewhere. Other arguments as in `LearnerWorker`.
    """

    def __init__(
        self,
        policy: Callable[[], ActorCritic],
        *,
        learning_rate: Number,
        batch_size: int,
        max_grad_norm: float | None,
        std_floor: float,
        updates: int,
        seed: int = 0,
        save_to: str | None = None,
        state: dict[str, Any] | None = None,
        parallel: str = "ddp",
        moves_normaliser: bool = True,
        precision: str = "float32",
        compile: bool = False,
    ) -> None:
        super().__init__(
            partial(_as_cloned, policy), gamma=1.0, gae_lambda=1.0, learning_rate=learning_rate, n_epochs=1,
            batch_size=batch_size,
            max_grad_norm=float("inf") if max_grad_norm is None else max_grad_norm, updates=updates, seed=seed,
            save_to=save_to, state=state,
            parallel=parallel, moves_normaliser=moves_normaliser, precision=precision, compile=compile,
        )  # fmt: skip
        self.std_floor = std_floor

    def learn(self, minibatches: Inbox[Demonstrated]) -> Update:
        """One gradient step for each minibatch of ``batch_size`` rows.

        Metrics: ``loss``, ``action_error`` (root mean square), ``gradient_steps``.
        """
        received = [d for part in self.exchange(minibatches.get_all()) for d in part]
        if not received:
            raise ValueError(
                "CloneLearner.learn got no minibatch. Next: does the data worker put one before its call returns?"
            )
        with self._together():
            for demonstrated in received:
                self._normalise(demonstrated.obs_R)
                with self.span("update"):
                    losses = self._clone(demonstrated)
            self.policy.version += 1
            self._made = self.weights()
        return Update(
            self._made, {**losses, "gradient_steps": float(self.env_steps), "env_steps": float(self.env_steps)}
        )

    def _normalise(self, obs_R: Tree) -> None:
        if self.policy.version or not self.policy.normalised_size or not self.moves_normaliser:
            return
        self.moments = Moments.empty(self.policy.normalised_size).update(self.policy.numbers(obs_R))
        self.policy.set_normaliser(self.moments.mean, self.moments.std + self.std_floor)

    def _clone(self, demonstrated: Demonstrated) -> dict[str, float]:
        for group in self.optimizer.param_groups:
            group["lr"] = self.now("learning_rate")
        device = next(self.policy.parameters()).device
        model = self.computing(self.group.parallel(self.policy, self.optimizer), device)
        trees = [
            map_tree(lambda leaf: torch.from_numpy(np.array(leaf)).to(device), tree)
            for tree in (demonstrated.obs_R, demonstrated.action_R)
        ]
        size = round(self.now("batch_size"))
        count = length(demonstrated.obs_R)
        losses = []
        for start in range(0, count, size):
            part = torch.arange(start, min(start + size, count), device=device)
            noise = torch.from_numpy(self.policy.draw_clone_noise(self._rng, len(part))).to(device)
            losses.append(self._gradient_step(model, part, trees, noise))
            self.env_steps += 1
        mean = float(torch.stack(losses).mean())
        if not np.isfinite(mean):
            raise FloatingPointError(
                f"the loss of cloning is {mean} after {self.env_steps} gradient steps. Next: a smaller learning_rate, "
                "or max_grad_norm=1."
            )
        last = [
            map_tree(lambda leaf: np.asarray(leaf)[-size:], tree)
            for tree in (demonstrated.obs_R, demonstrated.action_R)
        ]
        return self.group.mean({"loss": mean, "action_error": self._error(*last)})

    def _gradient_step(
        self, model: Callable[..., Any], part: torch.Tensor, trees: list[Tree], noise: torch.Tensor
    ) -> torch.Tensor:
        (mine,) = self._part(part)
        (my_noise,) = self._part(noise)
        share = self.ranks * len(mine) / len(part)
        loss = share * model(*(rows(tree, mine) for tree in trees), my_noise)[0].mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.clip(self.now("max_grad_norm"))
        self.optimizer.step()
        return loss.detach()

    def _error(self, obs_B: Tree, action_B: Tree) -> float:
        """Of greedy actions, root mean square; the share of wrong ones where actions are categories."""
        # In tensors: numpy's views of gathered parameters would keep the memory that goes back.
        there = map_tree(lambda leaf: torch.from_numpy(np.array(leaf)).to(self.policy.device), obs_B)
        with self.group.gathered(self.policy):
            chosen_B = map_tree(lambda leaf: leaf.cpu().numpy(), self.policy.act(there, None)[0])
        greedy_B = self.policy.executed(chosen_B)
        errors = []

        def compare(mine: np.ndarray, wanted: np.ndarray) -> None:
            is_number = np.asarray(wanted).dtype.kind == "f"
            errors.append(np.sqrt(np.mean((mine - wanted) ** 2)) if is_number else np.mean(np.asarray(mine) != wanted))

        map_tree(compare, greedy_B, action_B)
        return float(np.mean(errors))


def _as_cloned(make: Callable[[], Any]) -> Any:
    """A cloned policy as another run may go on from it.

    Its standard deviation stays as it is, and its value net, which is not taught here, says 0: what goes on begins
    without a wrong opinion. Neither has a gradient, which would be half of a step's work.
    """
    module = make()
    log_std = getattr(getattr(module, "head", None), "log_std", None)
    if isinstance(log_std, nn.Parameter):
        log_std.requires_grad_(False)
    for name in ("critic", "value_encoder"):
        if isinstance(part := getattr(module, name, None), nn.Module):
            part.requires_grad_(False)
    layers = [layer for layer in getattr(module, "critic", nn.Module()).modules() if isinstance(layer, nn.Linear)]
    if layers:
        nn.init.zeros_(layers[-1].weight)
        nn.init.zeros_(layers[-1].bias)
    return module


def first_weights(state: dict[str, Any] | None) -> tuple[PolicyWeights | None, int]:
    """Of a learner's state the weights, and how many updates went into them."""
    return (None, 0) if state is None else (state["weights"], state["weights"].version)
