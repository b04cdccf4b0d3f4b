"""The worker that learns from a replay buffer.

    trajectories ──get_all──> transitions ──> replay ──minibatches──> gradient steps ──> Update(weights, metrics)

Invariants: the rows of a buffer are in the order of steps and environments, whatever the plan; what is drawn depends
on the seed and on how much was drawn before. Legend: N kinds of noise, B batch, K numbers of noise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlinf_lab.algorithms import Moments
from rlinf_lab.policies import PolicyWeights
from rlinf_lab.policies.views import StateViews
from rlinf_lab.records import Trajectory
from rlinf_lab.replay import NStep, PrioritisedReplayBuffer, ReplayBuffer
from rlinf_lab.trees import rows
from rlinf_lab.workers.computing import without_denormals
from rlinf_lab.workers.group import RankGroup
from rlinf_lab.workers.learner import Number, Update, episode_metrics
from rlinf_lab.workers.off_policy.minibatches import Minibatch, Minibatches
from rlinf_lab.workers.off_policy.stepping import GradientStep, Shared
from rlinf_lab.workers.off_policy.transitions import transitions
from rlinf_lab.workers.residence import Owner, TorchWorker
from rlinf_lab.workers.seeds import Purpose, stream
from rlinf_lab.workflow.weights import Weights
from rlinf_lab.workflow.worker import Inbox

# Of prioritised replay, as its paper has them for proportional priorities; beta goes from there to 1 over the run.
ALPHA, BETA = 0.6, 0.4
BLOCK = 1024  # rows of demonstrations that are looked at together


class OffPolicyLearner(TorchWorker):
    """Keeps transitions and learns from random minibatches of them. Several ranks share the rows of each minibatch.

    ``step``: makes the `GradientStep`, ``step(learning_rate=..., device=...)``. ``settings``: numbers or schedules over
    the ``updates`` (`Number`): "learning_rate", "gamma", and what the step asks for. ``gradient_steps``: of an update;
    -1: as many as environment steps came, -20: twenty for each. Before ``learning_starts`` environment steps there are
    none. ``std_floor``: added to the deviations by which observations are divided. ``prioritised``: transitions are
    drawn by their temporal difference; weights correct for that, over the updates ever more. ``offline``: a buffer of
    demonstrations, of which an ``offline_share`` of each minibatch is. ``n_steps``: over how many rewards are summed
    before a value follows; with more than 1 "gamma" is a number, and ``offline`` has discounts. ``state``: of another
    learner (`state_dict`), to go on from. ``save_to``: safetensors file of the actor, written when the run ends.
    """

    def __init__(
        self,
        step: Callable[..., GradientStep],
        *,
        settings: Mapping[str, Number],
        buffer_size: int,
        batch_size: int,
        gradient_steps: int = -1,
        learning_starts: int = 0,
        reward_scale: float = 1.0,
        std_floor: float = 0.0,
        prioritised: bool = False,
        offline: ReplayBuffer | None = None,
        offline_share: float = 0.5,
        n_steps: int = 1,
        updates: int = 1,
        seed: int = 0,
        save_to: str | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        self._make, self._state, self._save_to = step, state, save_to
        self.settings, self.updates, self.seed = dict(settings), updates, seed
        self.batch_size, self.gradient_steps, self.learning_starts = batch_size, gradient_steps, learning_starts
        self.reward_scale, self.std_floor, self.prioritised = reward_scale, std_floor, prioritised
        self.buffer_size, self.offline, self.offline_share = buffer_size, offline, offline_share
        gamma: Any = self.settings["gamma"]
        self.n_step = None if n_steps == 1 else NStep(n_steps, gamma)
        self.env_steps = 0
        self._made: PolicyWeights | None = None

    def now(self) -> dict[str, float]:
        """The settings as they are in the next update."""
        return {name: value(self._done) if callable(value) else value for name, value in self.settings.items()}

    @property
    def _done(self) -> float:
        """The share of the run's updates."""
        return min(1.0, self.learnt.actor.version / self.updates) if hasattr(self, "learnt") else 0.0

    def setup(self) -> None:
        if self.device == "cpu":
            torch.set_num_threads(1)  # a CPU device of a plan is one core
        self.group = RankGroup(self)
        self.learnt = self._make(learning_rate=self.now()["learning_rate"], device=self.device)
        if self.offline is not None:  # ranks of one process were given one buffer, and each draws what all draw
            self.offline = self.offline.with_own_draws()
        self.moments = self._first_moments()
        draws, noise = (int(n) for n in stream(self.seed, Purpose.MINIBATCHES).generate_state(2))
        if self.prioritised:
            self.replay: ReplayBuffer = PrioritisedReplayBuffer(self.buffer_size, alpha=ALPHA, seed=draws)
        else:
            self.replay = ReplayBuffer(self.buffer_size, seed=draws)
        self.minibatches = Minibatches(self.replay, self.batch_size, self.device, self.offline, self.offline_share)
        self.noise = torch.Generator().manual_seed(noise)
        if self._state is not None:
            self.load_state_dict(self._state)
            self._state = None  # it holds a whole buffer

    def _first_moments(self) -> Moments:
        """Of the demonstrations' observations: what is learnt from them is normalised as they are spread."""
        actor = self.learnt.actor
        moments = Moments.empty(actor.normalised_size)
        if self.offline is None or not self.offline_share or not actor.normalised_size:
            return moments
        parts = np.array_split(self.offline.order, -(-len(self.offline) // BLOCK))  # pictures may lie beside
        for part in parts:
            moments = moments.update(actor.numbers(self.offline.rows(part)["obs"]))
        return moments

    def residents(self) -> list[Owner]:
        return [self.learnt, *self.learnt.optimizers] if hasattr(self, "learnt") else []

    # --- an update --------------------------------------------------------------------------------------
    def train(self, trajectories: Inbox[Trajectory], weights: Weights | None = None) -> Update:
        """Keep everything of this iteration, take the gradient steps, publish the actor to ``weights``.

        Raises `ValueError` if nothing came, `FloatingPointError` where weights are not finite any more.
        """
        # Order of arrival is the plan's; nothing may depend on it, sums of returns neither.
        mine = trajectories.get_all()
        all_ranks = [mine] if self.ranks == 1 else self.exchange(mine)
        received = sorted((t for part in all_ranks for t in part), key=lambda t: t.first_env)
        if not received:
            raise ValueError(
                "OffPolicyLearner.train got no trajectory. Next: does the simulator put one before its call returns?"
            )
        with self._together():
            count = self._keep(received)
            actor = self.learnt.actor
            staleness = actor.version - min(int(t.version_T.min()) for t in received)
            with self.span("update"), without_denormals():
                losses = self._learn(-self.gradient_steps * count if self.gradient_steps < 0 else self.gradient_steps)
            actor.version += 1
            self._made = self._finite(self._weights(), losses)
        if weights is not None and self.rank == 0:
            weights.publish(self._made)
        metrics = {
            "env_steps": float(self.env_steps),
            "staleness": float(staleness),
            **episode_metrics(received),
            **losses,
        }
        return Update(self._made, metrics)

    def _keep(self, received: list[Trajectory]) -> int:
        """Put the transitions into the buffer. Returns how many steps came."""
        found = transitions(received, self.n_step)
        count = sum(t.rows for t in received)
        self.env_steps += count
        if len(found["reward"]):
            self.replay.add(found)
        if self.learnt.actor.normalised_size:
            self.moments = self.moments.update(self.learnt.actor.numbers(found["obs"]))
            self.learnt.normalise(self.moments.mean, self.moments.std + self.std_floor)
        return count

    def _learn(self, steps: int) -> dict[str, float]:
        """So many gradient steps; means of what they found."""
        nothing = not len(self.replay) and self.offline is None  # what came may wait for what follows
        if self.env_steps < self.learning_starts or not steps or nothing:
            return {"gradient_steps": float(self.learnt.count)}
        now = self.now()
        self.learnt.set_learning_rate(now["learning_rate"])
        # tensors: reading a number would wait for the GPU after every step
        seen: dict[str, list[Tensor]] = defaultdict(list)
        beta = BETA + (1.0 - BETA) * self._done
        for batch, index_R in self.minibatches.draw(steps, now["gamma"], self.reward_scale, beta):
            batch, noise_NBK, shared = self._part(batch, self._noise(len(batch.reward)))
            found = self.learnt.step(batch, noise_NBK, now, shared)
            error_B = found.pop("error", None)
            if error_B is not None and isinstance(self.replay, PrioritisedReplayBuffer):
                self.replay.update(index_R, self._whole(error_B)[: len(index_R)])
            for name, value in found.items():
                seen[name].append(value if shared.share == 1.0 else value * shared.share)
        means = self.group.mean({name: _mean(values) for name, values in seen.items()})
        return {**means, "gradient_steps": float(self.learnt.count)}

    def _noise(self, rows: int) -> Tensor:
        shape = (self.learnt.noises, rows, self.learnt.actor.head.noise_size)
        return torch.randn(shape, generator=self.noise).to(self.device)

    def _part(self, batch: Minibatch, noise_NBK: Tensor) -> tuple[Minibatch, Tensor, Shared]:
        """This rank's rows."""
        if self.ranks == 1:
            return batch, noise_NBK, ALONE
        mine = torch.arange(len(batch.reward)).tensor_split(self.ranks)[self.group.position]
        here = slice(int(mine[0]), int(mine[-1]) + 1)
        share = self.ranks * len(mine) / len(batch.reward)
        weight_B = None if batch.weight is None else batch.weight[here]
        part = Minibatch(
            rows(batch.obs, here),
            batch.action[here],
            batch.reward[here],
            batch.discount[here],
            rows(batch.next_obs, here),
            weight_B,
        )
        return part, noise_NBK[:, here], Shared(self.group.mean, share)

    def _whole(self, error_B: Tensor) -> np.ndarray:
        """Of all ranks' rows."""
        mine = error_B.float().cpu().numpy()
        return mine if self.ranks == 1 else np.concatenate(self.exchange(mine))

    def _weights(self) -> PolicyWeights:
        """A copy of the actor's. They go out after every update, so this shall be quick."""
        actor, arrays = self.learnt.actor, self._memory()
        return actor.weights() if arrays is None else PolicyWeights.fixed(arrays, actor.version)

    @cached_property
    def _memory(self) -> StateViews:
        return StateViews(self.learnt.actor)

    def _finite(self, weights: PolicyWeights, losses: dict[str, float]) -> PolicyWeights:
        bad = None
        if not math.isfinite(self.learnt.actors.vector.detach().sum()):  # else each of them is
            bad = next((name for name, array in weights.arrays.items() if not np.isfinite(array).all()), None)
        if bad is None and all(math.isfinite(value) for value in losses.values()):
            return weights
        told = ", ".join(f"{name} {value:.3g}" for name, value in losses.items())
        raise FloatingPointError(
            f"update {weights.version} made {f'weights ({bad})' if bad else 'losses'} that are not finite; the last "
            f"good weights are kept. {told}. "
            f"Next: a smaller learning_rate, or a reward_scale below 1."
        )

    # --- several ranks --------------------------------------------------------------------------------------
    @contextmanager
    def _together(self) -> Iterator[None]:
        """All ranks know the same, newcomers too."""
        with self.group:
            if self.group.formed_now:
                known = self.group.handed_over(self._everything())
                if known is not None:
                    self._load(known)
            yield

    # --- checkpoints ----------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs to go on exactly here, the replay buffer too. Training on does not
        change it.
        """
        with self._together():
            return self._everything()

    def _everything(self) -> dict[str, Any]:
        return {
            "weights": self.learnt.actor.weights(), "step": self.learnt.own_state(), "replay": self.replay.state_dict(),
            "moments": self.moments,
            "noise": self.noise.get_state(), "env_steps": self.env_steps,
            "offline_draws": None if self.offline is None else self.offline.draws,
            "n_step": None if self.n_step is None else self.n_step.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; ``state`` stays as it is."""
        self.group.forget()
        self._load(state)

    def _load(self, state: dict[str, Any]) -> None:
        self.learnt.load_own_state(state["step"])
        self.learnt.actor.load(state["weights"])
        self.replay.load_state_dict(state["replay"])
        self.moments, self.env_steps, self._made = state["moments"], state["env_steps"], state["weights"]
        self.noise.set_state(state["noise"])
        if self.offline is not None and state["offline_draws"] is not None:
            self.offline.draws = state["offline_draws"]
        if self.n_step is not None:
            self.n_step.load_state_dict(state["n_step"])

    def close(self) -> None:
        if hasattr(self, "group"):
            self.group.leave()
        if self._save_to and self.rank == 0 and self._made is not None:
            self._made.save(self._save_to)


def _mean(values: list[Tensor]) -> float:
    """Of tensors of one number each."""
    if len(values) == 1:
        return float(values[0])
    return float(torch.stack([value.reshape(()) for value in values]).mean())


ALONE = Shared()
