"""The simulator by hand: protocol, rows, episode ends, persistence, evaluation."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box
from line_env import OBSERVATION, LineEnv, SavedLineEnv

from rlinf_lab.errors import ConfigError
from rlinf_lab.records import Action, wilson
from rlinf_lab.workers import SimulatorWorker
from rlinf_lab.workers.seeds import RANGE, Purpose, environment_seed
from rlinf_lab.workflow.worker import Collected, Context

SEED = next(s for s in range(1000) if environment_seed(s, Purpose.TRAINING, 0) % 8 == 0)  # with it environment i of LineEnv starts at i


class Answering:
    """Both ends of the cell: every observation put is answered by ``policy``; answers are taken by slot."""

    def __init__(self, policy):
        self.policy, self.waiting, self.seen = policy, {}, []

    def put(self, token, *, key=None):
        assert key is None and token.slot not in self.waiting, "one token of a slot in flight"
        self.seen.append(token)
        action = self.policy(token.obs_N)
        self.waiting[token.slot] = Action(token.slot, action, np.full(len(action), -0.5), len(self.seen))

    def take(self, *, key):
        return self.waiting.pop(key)


def worker(num_envs=2, n_steps=3, max_episode_steps=4, rank=0, ranks=1, sub_batches=1, taken=0, env=LineEnv, **context):
    made = SimulatorWorker(env, num_envs=num_envs, n_steps=n_steps, max_episode_steps=max_episode_steps, seed=SEED, taken=taken)
    made._context = Context()
    for key, value in {"rank": rank, "ranks": ranks, "sub_batches": sub_batches, **context}.items():
        setattr(made._context, key, value)
    made.setup()
    return made


def collect(simulator, policy=lambda obs: np.full((len(obs), 1), 0.5)):
    cell, out = Answering(policy), Collected()
    simulator.collect(cell, cell, out)
    assert not cell.waiting
    return out, cell


def test_rows_are_observation_action_consequence():
    (t,), cell = collect(worker())
    np.testing.assert_array_equal(t.obs_TN[:, 0], [[0, 0], [0.5, 1], [1, 2]])
    np.testing.assert_array_equal(t.obs_TN[:, 1, 0], [1, 1.5, 2])
    np.testing.assert_array_equal(t.reward_TN[:, 0], [-0.5, -1, -1.5])
    np.testing.assert_array_equal(t.last_obs_N[:, 0], [1.5, 2.5])
    np.testing.assert_array_equal(t.version_T, [1, 2, 3])
    assert (t.action_TN == 0.5).all() and (t.log_prob_TN == -0.5).all() and t.steps == 6
    assert len(cell.seen) == 3 and len(t.end_E2) == 0
    assert "3 steps × 2 environments" in repr(t)


def test_episodes_run_through_iterations_and_end_with_their_final_observation():
    simulator = worker()
    (first,), _ = collect(simulator)
    (second,), _ = collect(simulator)
    np.testing.assert_array_equal(second.obs_TN[0], first.last_obs_N)
    np.testing.assert_array_equal(second.truncated_TN[:, 0], [True, False, False])
    np.testing.assert_array_equal(second.end_E2, [[0, 0], [0, 1]])
    np.testing.assert_array_equal(second.end_obs_E, [[2, 4], [3, 4]])
    np.testing.assert_array_equal(second.obs_TN[1, :, 0], [0.25, 1.25])  # after the reset
    np.testing.assert_allclose(second.end_return_E, [-(0.5 + 1 + 1.5 + 2), -(1.5 + 2 + 2.5 + 3)])
    assert simulator.groups[0].env.resets == [environment_seed(SEED, Purpose.TRAINING, 0)]
    assert (first.obs_TN[:, 0, 0] == [0, 0.5, 1]).all(), "an earlier trajectory is not written again"


def test_success_at_the_end_and_once_are_told_apart():
    # environment 0 starts in the goal's middle and leaves it; environment 1 arrives in its last step
    (t,), _ = collect(worker(n_steps=4), lambda obs: np.array([[0.25], [-0.25]]))
    np.testing.assert_array_equal(t.end_success_once_E, [1, 1])
    np.testing.assert_array_equal(t.end_success_E, [0, 1])


def test_success_once_is_of_one_episode_only():
    """The first episode passes the goal; the second begins in it, the third never sees it."""
    actions = iter([0.25, 0.25, 0.25, 0.25, *[9.0] * 8])
    (t,), _ = collect(worker(num_envs=1, n_steps=12), lambda obs: np.array([[next(actions)]]))
    np.testing.assert_array_equal(t.end_success_once_E, [1, 0, 0])
    np.testing.assert_array_equal(t.end_length_E, [4, 4, 4])


def test_an_evaluation_counts_the_first_episode_of_each_environment():
    """Environment 0 ends in every step, environment 1 after four."""
    simulator = worker()
    cell = Answering(lambda obs: np.array([[2000.0], [0.0]]))
    score = simulator.evaluate(cell, cell, episodes=2)
    start = environment_seed(SEED, Purpose.EVALUATION) % 8
    np.testing.assert_allclose(score.return_E, [-(start + 2000), -4 * ((start + 1) % 8)])
    np.testing.assert_array_equal(score.length_E, [1, 4])


def test_bootstrap_values_come_from_the_final_observation():
    simulator = worker(n_steps=6)
    (t,), _ = collect(simulator)
    following = t.next_values(t.obs_TN[..., 0], t.last_obs_N[:, 0], t.end_obs_E[:, 0])
    np.testing.assert_allclose(following[:, 0], [0.5, 1, 1.5, 2, 0.75, 1.25])


def test_termination_is_not_truncation():
    (t,), _ = collect(worker(n_steps=1), lambda obs: np.array([[2000.0], [0.0]]))
    np.testing.assert_array_equal(t.terminated_TN, [[True, False]])
    assert not t.truncated_TN.any() and (t.end_E2 == [[0, 0]]).all()


@pytest.mark.parametrize(("ranks", "sub_batches"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_what_is_collected_does_not_depend_on_the_plan(ranks, sub_batches):
    trajectories = []
    for rank in range(ranks):
        out, cell = collect(worker(4, rank=rank, ranks=ranks, sub_batches=sub_batches))
        assert {o.slot for o in cell.seen} == {rank * sub_batches + k for k in range(sub_batches)}
        trajectories += out
    assert [t.slot for t in trajectories] == list(range(ranks * sub_batches))
    assert [t.first_env for t in trajectories] == [t.slot * 4 // (ranks * sub_batches) for t in trajectories]
    np.testing.assert_array_equal(np.concatenate([t.obs_TN for t in trajectories], 1)[0, :, 0], [0, 1, 2, 3])


def test_environments_that_cannot_be_shared_evenly():
    with pytest.raises(ConfigError, match=r"num_envs=3 .* 1 ranks × 2 sub-batches.* multiple of 2"):
        worker(3, sub_batches=2)


def test_a_policy_of_another_size_is_refused():
    simulator = SimulatorWorker(LineEnv, num_envs=1, n_steps=1, max_episode_steps=1, spaces=(OBSERVATION, Box(-1, 1, (4,))))
    with pytest.raises(ConfigError, match=r"test/Line-v0 has the observation space .* the policy is built for .*Box\(-1.0, 1.0, \(4,\)"):
        simulator.setup()


def test_evaluation_uses_fresh_seeds_whole_episodes_and_leaves_training_a_clean_start():
    simulator = worker(num_envs=4, sub_batches=2)
    collect(simulator)
    cell = Answering(lambda obs: -obs[:, :1])
    score = simulator.evaluate(cell, cell, episodes=6)
    assert score.summary() == {
        "episodes": 8.0, "return": 0.0, "return_interval": (0.0, 0.0), "length": 4.0, "success_rate": 1.0, "success_once": 1.0,
        "success_interval": wilson(8, 8), "success_once_interval": wilson(8, 8),
    }  # fmt: skip
    assert len(cell.seen) == 2 * 2 * 4 and not cell.waiting  # rounds × slots × steps
    evaluation = environment_seed(SEED, Purpose.EVALUATION)
    assert simulator.groups[1].env.resets == [environment_seed(SEED, Purpose.TRAINING, 0) + 2, evaluation + 2, evaluation + 6]
    (first, _), _ = collect(simulator)
    assert first.obs_TN[0, 0, 1] == 0 and simulator.groups[0].env.resets[-1] < RANGE


def test_training_never_meets_an_episode_of_an_evaluation_nor_itself():
    """Forty evaluations between pieces of training: the seeds of training are new each time, those of evaluations the same."""
    simulator = worker(num_envs=8, n_steps=3)
    training, evaluation = set(), set()
    (group,) = simulator.groups
    for _ in range(40):
        collect(simulator)
        new = {group.env.resets[-1] + i for i in range(8)}
        assert not training & new
        training |= new
        group.env.resets.clear()
        cell = Answering(lambda obs: -obs[:, :1])
        simulator.evaluate(cell, cell, episodes=50)
        evaluation |= {first + i for first in group.env.resets for i in range(8)}
    assert len(training) == 40 * 8 and len(evaluation) == 56
    assert not training & evaluation


def test_a_run_that_goes_on_repeats_no_episode():
    first, second = worker(), worker(taken=3)
    collect(first)
    (_, *more) = collect(second)[1].seen
    assert first.groups[0].env.resets != second.groups[0].env.resets
    assert [o.step for o in more] == [4, 5]


def test_pictures_only_when_somebody_looks():
    shown = []
    hooks = {"wants_frame": lambda: len(shown) < 1, "frame": shown.append}
    collect(worker(**hooks))
    assert [image.shape for image in shown] == [(4, 4, 3)]
    collect(worker(wants_frame=lambda: False, frame=lambda image: pytest.fail("nobody asked")))


def test_close_closes_the_environments():
    simulator = worker(sub_batches=2)
    simulator.close()
    assert all(group.env.closed for group in simulator.groups)


def test_who_leaves_before_its_first_step_has_no_state_to_save_and_begins_as_ever():
    stays, leaves = worker(sub_batches=2), worker(sub_batches=2, env=SavedLineEnv)
    for _ in range(3):
        leaves.offload()
        leaves.offload()  # twice is once
        leaves.onload()
        leaves.onload()
        (first, *_), (same, *_) = collect(stays)[0], collect(leaves)[0]
        np.testing.assert_array_equal(first.obs_TN, same.obs_TN)
        np.testing.assert_array_equal(first.reward_TN, same.reward_TN)


class Harder(SavedLineEnv):
    """Every reset makes it harder: it starts further away."""

    level = 0.0

    def reset(self, *, seed):
        self.level += 0.5
        super().reset(seed=seed)
        self.x += self.level
        return self._obs()

    def save_state(self):
        return super().save_state(), self.level

    def restore_state(self, state):
        saved, self.level = state
        super().restore_state(saved)


def test_what_lasts_from_episode_to_episode_is_saved_after_an_evaluation_too():
    """The next trajectory begins with a reset, but not as the first one did."""
    stays, leaves = worker(env=Harder), worker(env=Harder)
    found = []
    for simulator in (stays, leaves):
        cell = Answering(lambda obs: np.full((len(obs), 1), 0.5))
        simulator.evaluate(cell, cell, episodes=2)
        if simulator is leaves:
            simulator.offload()
            simulator.onload()
        found.append(collect(simulator)[0][0].obs_TN)
    np.testing.assert_array_equal(*found)


def test_rows_of_chunks_end_with_their_episode():
    """Environments 0 and 1 begin at 0 and 1, +0.5 a step, episodes of 4 steps; the last two actions of the second chunk come after the end."""
    simulator = SimulatorWorker(LineEnv, num_envs=2, n_steps=6, max_episode_steps=4, seed=SEED, chunk_size=3)
    simulator._context = Context()
    simulator.setup()
    (t,), _ = collect(simulator, lambda obs: np.full((len(obs), 3, 1), 0.5))
    np.testing.assert_array_equal(t.chunk_steps_TN, [[3, 3], [1, 1]])
    np.testing.assert_array_equal(t.chunk_reward_TNK[:, 0], [[-0.5, -1, -1.5], [-2, 0, 0]])
    np.testing.assert_array_equal(t.truncated_TN, [[False, False], [True, True]])
    np.testing.assert_array_equal(t.end_obs_E, [[2, 4], [3, 4]])
    np.testing.assert_array_equal([t.end_length_E, t.end_return_E], [[4, 4], [-5, -9]])
    np.testing.assert_array_equal(t.last_obs_N, [[0.25, 2], [1.25, 2]])  # two steps with the action zero
    assert t.action_TN.shape == (2, 2, 3, 1) and t.steps == 8 and t.rows == 4
    reward_TN, factor_TN = t.discounted(0.5)
    np.testing.assert_array_equal(reward_TN[:, 0], [-0.5 - 1 / 2 - 1.5 / 4, -2])
    np.testing.assert_array_equal(factor_TN, [[0.125, 0.125], [0.5, 0.5]])


def test_what_is_learned_from_may_be_more_than_what_environments_get():
    class Chain(Answering):
        def put(self, token, *, key=None):
            chain = self.policy(token.obs_N)
            self.waiting[token.slot] = Action(token.slot, chain, np.full(len(chain), -0.5), 0, executed_N=chain[:, -1])

    simulator, out = worker(), Collected()
    cell = Chain(lambda obs: np.broadcast_to([[9.0], [0.5]], (len(obs), 2, 1)).copy())
    simulator.collect(cell, cell, out)
    (t,) = out
    assert t.action_TN.shape == (3, 2, 2, 1)
    np.testing.assert_array_equal(t.obs_TN[:, 0, 0], [0, 0.5, 1])


class OnTwoCores(LineEnv):
    cores = 2


def test_a_rank_has_one_core_so_that_the_plan_counts_them_all():
    with pytest.raises(ConfigError, match=r"SimulatorWorker\(cores=2\): .* its processes are the plan's ranks"):
        SimulatorWorker(LineEnv, num_envs=2, n_steps=3, cores=2)
    with pytest.warns(UserWarning, match="on 2 cores .*, and the plan counts one core a rank"):
        worker(env=OnTwoCores)


def test_a_gpu_that_was_asked_for_is_not_taken_behind_a_plan_of_cores():
    asked = SimulatorWorker(LineEnv, num_envs=2, n_steps=3, device="cuda:0")
    asked._context = Context()
    asked._context.device = "cpu:0"
    with pytest.raises(ConfigError, match="steps on a GPU, and the plan puts it on cpu:0"):
        asked.setup()
