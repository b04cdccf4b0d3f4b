"""The worker that owns the environments.

    observation (slot) ──> policy ──> action (slot) ──> environments of the slot ──> row of the slot's Trajectory

The simulator's environments are split into ``sub_batches`` groups, each a *slot* with its own token: while the policy
answers one, the simulator steps another. Invariants: a slot has at most one token in flight; a slot's environments are
the same in every iteration and are not reset between iterations; which environments there are, and their seeds, depend
on the configuration only, never on the plan.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, cast

from rlinf_lab.errors import ConfigError, WorkflowError, refuse_old_names, said, shown
from rlinf_lab.records import Action, Episodes, Observation, Trajectory
from rlinf_lab.vecenv import cannot_leave, environment
from rlinf_lab.vecenv.base import LONGEST
from rlinf_lab.vecenv.stepping.on_host import HostVecEnv, on_host
from rlinf_lab.workers.environments import EnvGroup, Outcome
from rlinf_lab.workers.environments import episodes as as_episodes
from rlinf_lab.workers.seeds import Purpose, environment_seed
from rlinf_lab.workers.standing import Standing, fitting, of, plain, why_not
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker

if TYPE_CHECKING:
    from rlinf_lab.vecenv import EnvSpec, Restorable, VecEnv


class SimulatorWorker(Worker):
    """Steps environments, each for ``n_steps`` steps per call of `collect`.

    ``num_envs``: over all ranks and slots together. ``env``: whatever `vecenv.environment` takes: an id, a class, a
    function that makes one or several, a gymnasium VectorEnv. ``max_episode_steps``: steps after which an episode is
    cut (None: the environment's own limit). ``taken``: training steps of each environment in an earlier run that this
    one goes on from; its episodes and its noise are not repeated. ``spaces``: the (observation, action) spaces that the
    policy was built for, checked in `setup`. ``render``: whether to draw a picture now and then, for a dashboard.
    ``chunk_size``: the policy chooses so many actions at once, and a row of a trajectory is such a chunk; ``n_steps``
    is a multiple of it. ``standing``: where the environments of an earlier run stood (`where_they_stand`); those of
    slots that fit go on exactly there. ``options`` go to the environment's constructor.
    """

    def __init__(
        self,
        env: Any,
        *,
        num_envs: int,
        n_steps: int,
        max_episode_steps: int | None = None,
        seed: int = 0,
        taken: int = 0,
        spaces: tuple[Any, Any] | None = None,
        render: bool = True,
        chunk_size: int | None = None,
        standing: Standing | None = None,
        **options: Any,
    ) -> None:
        renamed = {
            "horizon": "max_episode_steps",
            "steps": "n_steps",
            "sizes": "spaces=(observation_space, action_space)",
        }
        refuse_old_names("SimulatorWorker", options, renamed)
        if options.get("cores", 1) != 1:
            raise ConfigError(
                f"SimulatorWorker(cores={shown(options['cores'])}): a rank has the core that the plan gives it, and "
                "its processes are the plan's ranks, which "
                "the planner counts. Next: leave cores out; a plan with more ranks, such as "
                "lab.ExecutionPlan.temporal(flow, lab.devices(), ranks=...)."
            )
        self.env, self.num_envs, self.n_steps = environment(env), num_envs, n_steps
        self.max_episode_steps, self.seed, self.taken, self.spaces, self.options = (
            max_episode_steps,
            seed,
            taken,
            spaces,
            options,
        )
        if chunk_size is not None and n_steps % chunk_size:
            raise ConfigError(
                f"SimulatorWorker(n_steps={n_steps}, chunk_size={chunk_size}): n_steps must be a multiple of the "
                "chunk's size."
            )
        self.chunk_size, self._standing = chunk_size, standing
        self.groups: list[EnvGroup] = []
        self._states: list[Any] = []
        self._draws = render

    def preflight(self) -> None:
        slots = self.ranks * self.sub_batches
        if self.num_envs % slots:
            raise ConfigError(
                f"{self.name}: num_envs={self.num_envs} cannot be shared by {self.ranks} ranks × {self.sub_batches} "
                "sub-batches. "
                f"Next: a multiple of {slots}."
            )

    def setup(self) -> None:
        self.preflight()
        size = self.num_envs // (self.ranks * self.sub_batches)
        for slot in range(self.rank * self.sub_batches, (self.rank + 1) * self.sub_batches):
            env = self._made(size)
            self._check_spaces(env.spec)
            self._check_cores(env.spec)
            self.groups.append(self._env_group(env, slot, slot * size))
            before = fitting(self._standing, self._kind(), self.ranks * self.sub_batches, slot * size)
            if before is not None:
                self.groups[-1].go_on(before)
        self._standing = None

    def _made(self, size: int) -> VecEnv:
        return on_host(self.env(size, self.max_episode_steps, **{**self.options, **self._there()}))

    def _there(self) -> dict[str, str]:
        """Of a simulator on a GPU, the plan's. `ConfigError` where the plan gives it a core: it would take a GPU that
        the plan gives to others.
        """
        there = self.options.get("device")
        if there is None:
            there = self.env.spec(self.max_episode_steps).device if self.env.takes("device") else None
        if there is None or not there.startswith("cuda"):
            return {}
        if not self.device.startswith("cuda"):
            raise ConfigError(
                f"{self.name}: {self.env.id} steps on a GPU, and the plan puts it on {self.device}. Next: a plan on "
                f"{there}, such as "
                f"lab.ExecutionPlan.temporal(flow, [{there!r}]); or device='cpu'."
            )
        return {"device": self.device}

    def _env_group(self, env: VecEnv, slot: int, first_env: int) -> EnvGroup:
        if not isinstance(env, HostVecEnv):
            return EnvGroup(env, slot, first_env, self.seed, self.taken, self.chunk_size)
        from rlinf_lab.workers.tensors.environments import TensorEnvGroup  # torch is needed here only

        if self.chunk_size is not None:
            raise ConfigError(
                f"SimulatorWorker(chunk_size={self.chunk_size}): {env.spec.id} hands over tensors, of single steps. "
                "Next: leave chunk_size out."
            )
        return TensorEnvGroup(env, slot, first_env, self.seed, self.taken)

    # --- leaving the device ---------------------------------------------------------------------------------
    def can_leave(self) -> bool:
        """Whether all environments are `Restorable`, and say nothing else (`vecenv.cannot_leave`)."""
        return not self._why_it_stays()

    def _why_it_stays(self) -> str:
        """Why its environments cannot leave; "" where they can.

        Before `setup` as far as the environment's class, or the adapter of its simulator, can tell.
        """
        if not self.groups:
            return self.env.cannot_leave()
        if self._states:
            return ""
        env = self.groups[0].env
        why = cannot_leave(env)
        return f"{env.spec.id} cannot be saved: {why}" if why else ""

    def offload(self) -> None:
        """Save the environments' states, close them and give their memory up. `WorkflowError` when they cannot be
        saved.
        """
        if self._states:
            return
        if why := self._why_it_stays():
            raise WorkflowError(
                f"{self.name} cannot leave its device: {why}. Next: a device of its own, or memory for all "
                "(device_memory=)."
            )
        self._states = [
            cast("Restorable", group.env).save_state() if group.has_begun else None for group in self.groups
        ]
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

    # --- going on in another run ----------------------------------------------------------------------------
    def where_they_stand(self) -> Standing:
        """Where the episodes of this rank's environments are, for ``standing=`` of another run. Why that cannot be told
        where they cannot be saved.
        """
        why = f"{self.env.id} stays on its GPU" if isinstance(self.groups[0].env, HostVecEnv) else self._why_it_stays()
        if why:
            return {"why": why}
        saved = self._states or [
            cast("Restorable", group.env).save_state() if group.has_begun else None for group in self.groups
        ]
        try:
            return {
                "of": self._kind(),
                "groups": [group.standing(plain(state)) for group, state in zip(self.groups, saved, strict=True)],
            }
        except TypeError as error:
            return {"why": f"{self.env.id}: {error}"}

    @property
    def begins_anew(self) -> str:
        """Why its environments begin new episodes instead of going on where ``standing`` says. "" where they go on.
        Known before `setup`.
        """
        return why_not(self._standing, self._kind(), self.ranks * self.sub_batches)

    def _kind(self) -> dict[str, Any]:
        return of(self.env.id, self.num_envs, self.max_episode_steps, self.seed, self.chunk_size)

    def collect(
        self, actions: Inbox[Action], observations: Outbox[Observation], trajectories: Outbox[Trajectory]
    ) -> None:
        """``n_steps`` steps of every environment; then one `Trajectory` per slot."""
        rows = self.n_steps // (self.chunk_size or 1)
        for group in self.groups:
            group.begin(rows)
            observations.put(group.observation())
        for left in range(rows - 1, -1, -1):
            for group in self.groups:
                group.record(actions.take(key=group.slot))
                if left:
                    observations.put(group.observation())
            self._show()
        trajectories.put_all(group.finish() for group in self.groups)

    def evaluate(self, actions: Inbox[Action], observations: Outbox[Observation], episodes: int = 50) -> Episodes:
        """Whole episodes on seeds that training never sees, the same ones in every evaluation. Training episodes under
        way are given up.

        Ranks share the ``episodes``, rounded up to whole rounds of all environments. Returns what this rank's came to.
        Where nothing limits an episode it is cut after `LONGEST` steps.
        """
        rounds = -(-episodes // self.num_envs)
        outcomes: list[Outcome] = []
        base = environment_seed(self.seed, Purpose.EVALUATION)
        for index in range(rounds):
            for group in self.groups:
                group.restart(base + index * self.num_envs)
                observations.put(group.observation())
            self._play(list(self.groups), actions, observations)
            outcomes += [outcome for group in self.groups for outcome in group.first_outcomes()]
        for group in self.groups:
            group.forget()
        return as_episodes(outcomes)

    def _play(self, live: list[EnvGroup], actions: Inbox[Action], observations: Outbox[Observation]) -> None:
        """Until each environment has ended an episode."""
        taken = 0
        while live:
            for group in live:
                group.step(actions.take(key=group.slot).for_environment_N)
            taken += self.chunk_size or 1
            if taken >= LONGEST and live[0].env.spec.max_episode_steps is None:
                warnings.warn(
                    f"{live[0].env.spec.id}: an evaluated episode was cut after {taken} steps. Next: "
                    "max_episode_steps=.",
                    stacklevel=2,
                )
                for group in live:
                    group.cut()
            live = [g for g in live if not g.each_has_ended()]
            for group in live:
                observations.put(group.observation())
            self._show()

    def close(self) -> None:
        for group in () if self._states else self.groups:  # those that are away have been closed
            group.env.close()

    def _check_spaces(self, spec: EnvSpec) -> None:
        found = (spec.observation_space, spec.action_space)
        if self.spaces not in (None, found):
            raise ConfigError(
                f"{self.name}: {spec.id} has the observation space {found[0]} and the action space {found[1]}, the "
                f"policy is built for {self.spaces}. "
                f"Next: make the policy from this environment's spaces."
            )

    def _check_cores(self, spec: EnvSpec) -> None:
        """A warning for a vector with processes or threads in it. One of somebody's own, which no plan counts."""
        if spec.runner is not None and spec.runner.cores > 1 and self.rank == 0:
            warnings.warn(
                f"{self.name}: {spec.id} steps by {spec.runner}, and the plan counts one core a rank. Next: a vector "
                "on one core, and more ranks in the plan.",
                stacklevel=2,
            )

    def _show(self) -> None:
        """A picture, where somebody looks; one that cannot be drawn stops nothing."""
        if not self._draws or not self.wants_frame():
            return
        env = self.groups[0].env
        try:
            image = env.render() if env.spec.renders else None
        except Exception as error:
            warnings.warn(
                f"{env.spec.id} cannot be drawn here: {type(error).__name__}: {said(error)}. Next: lab.doctor() says "
                "what is missing.",
                stacklevel=2,
            )
            image = None
        if image is None:
            self._draws = False
        else:
            self.frame(image)
