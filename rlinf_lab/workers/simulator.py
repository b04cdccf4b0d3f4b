"""The worker that owns the environments.

    observation (slot) ──> policy ──> action (slot) ──> environments of the slot ──> row of the slot's Trajectory

The simulator's environments are split into ``sub_batches`` groups, each a *slot* with its own token: while the policy answers one, the
simulator steps another. Invariants: a slot has at most one token in flight; a slot's environments are the same in every iteration and
are not reset between iterations; which environments there are, and their seeds, depend on the configuration only, never on the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rlinf_lab.errors import ConfigError, WorkflowError
from rlinf_lab.records import Action, Observation, Trajectory
from rlinf_lab.workers.environments import EnvGroup
from rlinf_lab.workers.seeds import Purpose, environment_seed
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker

if TYPE_CHECKING:
    from rlinf_lab.vecenv import EnvSpec, Restorable, VecEnv


class SimulatorWorker(Worker):
    """Steps ``num_envs`` environments (over all ranks and slots together) for ``steps`` steps per call of `collect`.

    ``env``: an id ("simulator/task"), or what constructs a `VecEnv` from ``num_envs`` and ``horizon``, such as a class of
    your own. ``horizon``: steps after which an episode is cut (None: the environment's own limit). ``taken``: training steps of each
    environment in an earlier run that this one goes on from; its episodes and its noise are not repeated.
    ``sizes``: the (observation, action) sizes that the policy was built for, checked in `setup`. ``options`` go to the environment's
    constructor.
    """

    def __init__(
        self,
        env: str | Callable[..., VecEnv],
        *,
        num_envs: int,
        steps: int,
        horizon: int | None = None,
        seed: int = 0,
        taken: int = 0,
        sizes: tuple[int, int] | None = None,
        **options: Any,
    ) -> None:
        self.env, self.num_envs, self.steps = env, num_envs, steps
        self.horizon, self.seed, self.taken, self.sizes, self.options = horizon, seed, taken, sizes, options
        self.groups: list[EnvGroup] = []
        self._states: list[Any] = []

    def preflight(self) -> None:
        slots = self.ranks * self.sub_batches
        if self.num_envs % slots:
            raise ConfigError(
                f"{self.name}: num_envs={self.num_envs} cannot be shared by {self.ranks} ranks × {self.sub_batches} sub-batches. "
                f"Next: a multiple of {slots}."
            )

    def setup(self) -> None:
        self.preflight()
        size = self.num_envs // (self.ranks * self.sub_batches)
        for slot in range(self.rank * self.sub_batches, (self.rank + 1) * self.sub_batches):
            env = self._made(size)
            self._check_sizes(env.spec)
            self.groups.append(EnvGroup(env, slot, slot * size, self.seed, self.taken))

    def _made(self, size: int) -> VecEnv:
        make = self.env if callable(self.env) else _registered(self.env)
        return make(num_envs=size, horizon=self.horizon, **self.options)

    # --- leaving the device ---------------------------------------------------------------------------------
    def can_leave(self) -> bool:
        """Whether all environments are `Restorable`, and say nothing else (`vecenv.cannot_leave`)."""
        return not self._why_it_stays()

    def _why_it_stays(self) -> str:
        """Before `setup` as far as the environment's class, or the adapter of its simulator, can tell."""
        from rlinf_lab.vecenv import cannot_leave, cannot_leave_by_id

        if not self.groups:
            return cannot_leave_by_id(self.env) if isinstance(self.env, str) else cannot_leave(self.env) if isinstance(self.env, type) else ""
        if self._states:
            return ""
        env = self.groups[0].env
        why = cannot_leave(env)
        return f"{env.spec.id} cannot be saved: {why}" if why else ""

    def offload(self) -> None:
        """Save the environments' states, close them and give their memory up. `WorkflowError` when they cannot be saved."""
        if self._states:
            return
        if why := self._why_it_stays():
            raise WorkflowError(f"{self.name} cannot leave its device: {why}. Next: a device of its own, or memory for all (device_memory=).")
        self._states = [cast("Restorable", group.env).save_state() if group.has_begun else None for group in self.groups]
        for group in self.groups:
            group.give_up_environments()

    def onload(self) -> None:
        """Make them anew and go on from the saved states."""
        if not self._states:
            return
        for group, state in zip(self.groups, self._states, strict=True):
            group.env = self._made(group.size)
            if group.has_begun:
                cast("Restorable", group.env).restore_state(state)
        self._states = []

    def collect(self, actions: Inbox[Action], observations: Outbox[Observation], trajectories: Outbox[Trajectory]) -> None:
        """``steps`` steps of every environment; then one `Trajectory` per slot."""
        for group in self.groups:
            group.begin(self.steps)
            observations.put(group.observation())
        for left in range(self.steps - 1, -1, -1):
            for group in self.groups:
                group.record(actions.take(key=group.slot))
                if left:
                    observations.put(group.observation())
            self._show()
        trajectories.put_all(group.finish() for group in self.groups)

    def evaluate(self, actions: Inbox[Action], observations: Outbox[Observation], episodes: int = 50) -> dict[str, float]:
        """Whole episodes on seeds that training never sees, the same ones in every evaluation; training episodes under way are given up.

        Ranks share the ``episodes``, rounded up to whole rounds of all environments. Returns this rank's means: ``episodes``,
        ``success_rate`` (at the end), ``success_once``, ``return``.
        """
        rounds = -(-episodes // self.num_envs)
        outcomes: list[tuple[float, bool, bool]] = []
        base = environment_seed(self.seed, Purpose.EVALUATION)
        for index in range(rounds):
            for group in self.groups:
                group.restart(base + index * self.num_envs)
                observations.put(group.observation())
            live = list(self.groups)
            while live:
                for group in live:
                    group.step(actions.take(key=group.slot).action_NA)
                live = [g for g in live if not g.each_has_ended()]
                for group in live:
                    observations.put(group.observation())
                self._show()
            outcomes += [outcome for group in self.groups for outcome in group.first_outcomes()]
        for group in self.groups:
            group.forget()
        returns, at_end, once = np.array(outcomes, dtype=float).T
        return {
            "episodes": float(len(outcomes)), "success_rate": float(at_end.mean()),
            "success_once": float(once.mean()), "return": float(returns.mean()),
        }  # fmt: skip

    def close(self) -> None:
        for group in () if self._states else self.groups:  # those that are away have been closed
            group.env.close()

    def _check_sizes(self, spec: EnvSpec) -> None:
        found = (spec.obs_size, spec.action_size)
        if self.sizes not in (None, found):
            raise ConfigError(
                f"{self.name}: {spec.id} has observations of {found[0]} and actions of {found[1]} numbers, the policy is built for "
                f"{self.sizes}. Next: obs_size={found[0]}, action_size={found[1]}."
            )

    def _show(self) -> None:
        if self.wants_frame():
            image = self.groups[0].env.render()
            if image is not None:
                self.frame(image)


def _registered(env_id: str) -> Callable[..., VecEnv]:
    from rlinf_lab.vecenv import (
        make_vec,  # where the worker lives; declaring it needs no simulator
    )

    return partial(make_vec, env_id)
