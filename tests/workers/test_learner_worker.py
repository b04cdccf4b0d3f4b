"""The learner by hand: equal start, determinism, order of arrival, statistics, checkpoint, and that it learns."""

from __future__ import annotations

import copy
import io
from functools import partial

import numpy as np
import pytest
import torch
from line_env import ACTION, MAKE, OBSERVATION, LineEnv
from torch import nn

from rlinf_lab.algorithms import decoupled_policy_loss, grpo, policy_loss
from rlinf_lab.errors import ConfigError
from rlinf_lab.policies import Flow, PolicyWeights
from rlinf_lab.policies.ppo_by_hand import PPOByHand
from rlinf_lab.policies.transformer import make_chunk_transformer
from rlinf_lab.records import TrainBatch
from rlinf_lab.workers import LearnerWorker, PolicyWorker, SimulatorWorker
from rlinf_lab.workers.group_learner import GroupLearner
from rlinf_lab.workers.learner import episode_metrics, number_of_minibatches
from rlinf_lab.workflow.worker import Collected, Context, Scripted


def learner(policy=MAKE, **kwargs):
    made = LearnerWorker(policy, **{"gamma": 0.9, "gae_lambda": 0.9, "learning_rate": 1e-3, "n_epochs": 2, "batch_size": 16, **kwargs})
    made.setup()
    return made


class Cell:
    """A policy worker as both ends of the simulator's cell."""

    def __init__(self, make=MAKE):
        self.policy, self.waiting = PolicyWorker(make, seed=1), {}
        self.policy.setup()

    def put(self, token, *, key=None):
        out = Collected()
        self.policy.act(Scripted([token]), out)
        self.waiting[token.slot] = out[0]

    def take(self, *, key):
        return self.waiting.pop(key)


def simulator(sub_batches=2):
    made = SimulatorWorker(LineEnv, num_envs=4, n_steps=12, max_episode_steps=5)
    made._context = Context()
    made._context.sub_batches = sub_batches
    made.setup()
    return made


def trajectories(seed=None):
    out = Collected()
    cell = Cell()
    simulator().collect(cell, cell, out)
    return list(out)


def same(a: PolicyWeights, b: PolicyWeights) -> bool:
    return all(np.array_equal(a.arrays[k], b.arrays[k]) for k in a.arrays)


def test_learner_and_policy_start_equal():
    policy = PolicyWorker(MAKE)
    policy.setup()
    assert same(learner().weights(), policy.policy.weights())


def test_an_update_counts_moves_weights_and_reports():
    worker = learner()
    before = worker.weights()
    update = worker.train(Scripted(trajectories()))
    assert update.weights.version == 1 and not same(before, update.weights)
    assert update.metrics["env_steps"] == 48 and update.metrics["episodes"] == 8
    assert {"success_rate", "success_once", "return", "policy_loss", "value_loss", "entropy", "kl"} <= update.metrics.keys()
    assert all(isinstance(v, float) and np.isfinite(v) for v in update.metrics.values())


def test_staleness_is_that_of_the_oldest_record():
    worker, (first, second) = learner(), trajectories()
    worker.policy.version = 7
    first.version_T[:], second.version_T[:] = 6, 7
    second.version_T[3] = 2
    assert worker.train(Scripted([first, second])).metrics["staleness"] == 5
    assert worker.train(Scripted([first])).metrics["staleness"] == 2


def test_a_state_goes_through_a_file():
    worker = learner(normalize_reward=True)
    worker.train(Scripted(trajectories()))
    file = io.BytesIO()
    torch.save(worker.state_dict(), file)
    file.seek(0)
    other = learner(normalize_reward=True)
    other.load_state_dict(torch.load(file))
    data = trajectories()
    assert same(worker.train(Scripted(data)).weights, other.train(Scripted(data)).weights)


def test_returned_weights_are_not_touched_by_the_next_update():
    worker = learner()
    first = worker.train(Scripted(trajectories())).weights
    kept = copy.deepcopy(first)
    worker.train(Scripted(trajectories()))
    assert same(first, kept)


def chunks(make):
    """A trajectory of chunks of three in episodes of five steps: the third action of every second chunk is carried out by nobody."""
    made = SimulatorWorker(LineEnv, num_envs=4, n_steps=12, max_episode_steps=5, chunk_size=3)
    made._context = Context()
    made.setup()
    out, cell = Collected(), Cell(make)
    made.collect(cell, cell, out)
    (t,) = out
    assert (t.chunk_steps_TN[1] == 2).all() and t.action_TN.shape[-2] == 3
    return t


BY_ACTION = {"Gaussian": partial(MAKE, chunk=3, per_action=True), "flow": partial(MAKE, chunk=3, per_action=True, flow=Flow(steps=2))}


@pytest.mark.parametrize("head", BY_ACTION)
@pytest.mark.parametrize("per_action", [False, True])
def test_actions_of_a_chunk_that_came_after_the_end_teach_nothing(per_action: bool, head: str) -> None:
    """With a ratio for each action, and with one for each chunk, in what is told of it, too."""
    make = BY_ACTION[head]
    t = chunks(make)
    assert t.log_prob_TN.shape[2] == 3

    def learnt(k, add):
        other = copy.deepcopy(t)
        action_NKA = other.action_TN[1] if head == "Gaussian" else other.action_TN[1][:, -1]  # what was executed, where the flow ends
        action_NKA[:, k] += add
        other.log_prob_TN[1, :, k] -= add
        worker = LearnerWorker(make, gamma=0.9, gae_lambda=0.9, learning_rate=1e-3, n_epochs=2, batch_size=16, per_action=per_action)
        worker.setup()
        update = worker.train(Scripted([other]))
        return update.weights, update.metrics["kl"], update.metrics["policy_loss"]

    plain, unseen, seen = learnt(2, 0.0), learnt(2, 0.3), learnt(1, 0.3)
    assert same(plain[0], unseen[0]) and plain[1:] == unseen[1:]
    assert not same(plain[0], seen[0]) and plain[1] != seen[1]


def test_a_ratio_for_each_action_needs_their_log_probabilities() -> None:
    make = partial(MAKE, chunk=3)
    worker = LearnerWorker(make, gamma=0.9, gae_lambda=0.9, learning_rate=1e-3, batch_size=16, per_action=True)
    worker.setup()
    with pytest.raises(ConfigError, match="one log-probability for a whole chunk"):
        worker.train(Scripted([chunks(make)]))


class Affine(nn.Linear):
    """An encoder that learns."""

    features_dim = 4

    def __init__(self, space) -> None:
        super().__init__(2, 4)


@pytest.mark.parametrize("make", [
    MAKE, partial(MAKE, encoder=Affine), partial(MAKE, encoder=Affine, share_encoder=True), partial(make_chunk_transformer, OBSERVATION, ACTION, chunk=3, width=8, heads=2, depth=1),
], ids=["plain", "encoders", "shared encoder", "transformer"])  # fmt: skip
def test_to_teach_the_value_net_alone_leaves_the_policy_as_it_is(make) -> None:
    """To the last bit, whatever both share, and whatever Adam remembers of steps before."""
    made = SimulatorWorker(LineEnv, num_envs=4, n_steps=12, max_episode_steps=5, chunk_size=3 if make.func is make_chunk_transformer else None)
    made._context = Context()
    made.setup()
    out, cell = Collected(), Cell(make)
    made.collect(cell, cell, out)
    worker = LearnerWorker(make, gamma=0.9, gae_lambda=0.9, learning_rate=1e-2, n_epochs=2, batch_size=8, ent_coef=0.1, moves_normaliser=False)
    worker.setup()
    worker.train(Scripted(out))
    worker.critic_warmup = 2
    (t,) = out
    action, value = worker.policy.act(t.last_obs_N, None), worker.policy.values(t.last_obs_N)
    worker.train(Scripted(out))
    assert all(np.array_equal(a, b) for a, b in zip(action, worker.policy.act(t.last_obs_N, None), strict=True))
    assert not np.array_equal(value, worker.policy.values(t.last_obs_N))


def grouped(**settings):
    """A `GroupLearner` and a list of the steps that its optimiser makes."""
    worker, steps = GroupLearner(MAKE, advantage=grpo, learning_rate=1e-2, n_epochs=4, batch_size=10, **settings), []
    worker.setup()
    step = worker.optimizer.step
    worker.optimizer.step = lambda: steps.append(1) or step()
    return worker, steps


@pytest.mark.parametrize(("ent_coef", "moves"), [(0.0, False), (0.1, True)])
def test_episodes_that_came_to_the_same_teach_nothing(ent_coef: float, moves: bool) -> None:
    """Gradients of zero would let Adam's momentum move the weights on. A bonus of entropy needs no episodes."""
    (worker, steps), data = grouped(ent_coef=ent_coef), trajectories()
    before = worker.train(Scripted(data)).weights
    assert len(steps) == 16
    for t in data:
        t.end_return_E[:] = 0.1
    update = worker.train(Scripted(data))
    moved = [name for name, array in update.weights.arrays.items() if not np.array_equal(array, before.arrays[name]) and "preprocess" not in name]
    assert (len(steps) > 16) == bool(moved) == moves
    assert update.metrics["policy_loss"] == pytest.approx(0, abs=1e-6) and update.metrics["entropy"] > 0


def test_an_update_without_values_ends_where_it_went_too_far() -> None:
    """The ratio is 1 in its first step, and no more in its second."""
    worker, steps = grouped(target_kl=1e-5)
    assert worker.train(Scripted(trajectories())).metrics["kl"] > 1e-5 and len(steps) == 2


def test_what_follows_the_end_of_a_task_is_not_looked_at():
    """Where an episode was cut it is."""
    (t, *_) = trajectories()
    (step, env), *_ = t.end_E2
    t.terminated_TN[step, env], t.truncated_TN[step, env] = True, False
    weights = []
    for changed in (None, 0, 1):
        other = copy.deepcopy(t)
        if changed is not None:
            other.end_obs_E[changed] += 1.0
        weights.append(learner().train(Scripted([other])).weights)
    assert same(weights[0], weights[1]) and not same(weights[0], weights[2])


def test_order_of_arrival_does_not_matter():
    data = trajectories()
    assert same(learner().train(Scripted(data)).weights, learner().train(Scripted(data[::-1])).weights)


def test_normalisation_follows_the_observations():
    worker, data = learner(), trajectories()
    weights = worker.train(Scripted(data)).weights
    rows = np.concatenate([t.obs_TN.reshape(-1, 2) for t in data]).astype(float)
    np.testing.assert_allclose(weights.arrays["preprocess.obs_mean"], rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(weights.arrays["preprocess.obs_std"], rows.std(0), rtol=1e-5)


def test_the_first_gradient_step_starts_at_ratio_one():
    update = learner(n_epochs=1, batch_size=48).train(Scripted(trajectories()))
    assert update.metrics["kl"] == pytest.approx(0, abs=1e-6) and update.metrics["clip_fraction"] == 0


def test_checkpoint_continues_exactly():
    a, b, data = learner(), learner(), trajectories()
    a.train(Scripted(data))
    b.load_state_dict(copy.deepcopy(a.state_dict()))
    assert same(a.train(Scripted(data)).weights, b.train(Scripted(data)).weights) and a.env_steps == b.env_steps == 96


def test_a_checkpoint_stays_as_it_is_whoever_goes_on():
    """In one process nothing is copied on the way: several runs from one checkpoint were each something else."""
    a, data = learner(), trajectories()
    a.train(Scripted(data))
    state = a.state_dict()
    following = [a.train(Scripted(data)).weights]
    for _ in range(2):
        b = learner()
        b.load_state_dict(state)
        following.append(b.train(Scripted(data)).weights)
    assert same(following[0], following[1]) and same(following[0], following[2])


def test_learning_rate_is_annealed():
    worker = learner(learning_rate=lambda progress: 1e-2 - 5e-3 * progress, updates=10, n_epochs=lambda progress: 1 + 3 * progress)
    for version, expected in ((0, 1e-2), (5, 7.5e-3), (10, 5e-3), (99, 5e-3)):
        worker.policy.version = version
        assert worker.now("learning_rate") == pytest.approx(expected)
    assert worker.now("n_epochs") == 4 and worker.now("gamma") == 0.9


def test_switching_out_and_in_changes_nothing():
    a, b, data = learner(), learner(), trajectories()
    for worker in (a, b):
        worker.train(Scripted(data))
    a.offload()
    a.onload()
    assert same(a.train(Scripted(data)).weights, b.train(Scripted(data)).weights)


def test_close_saves_the_weights(tmp_path):
    worker = learner(save_to=str(tmp_path / "w.safetensors"))
    weights = worker.train(Scripted(trajectories())).weights
    worker.close()
    assert same(PolicyWeights.load(tmp_path / "w.safetensors"), weights)


def test_wrong_use_is_refused():
    with pytest.raises(ValueError, match="no trajectory"):
        learner().train(Scripted([]))
    few = trajectories()[:1]
    worker = learner()
    worker._context = Context()
    worker._context.ranks = 1000
    with pytest.raises(ValueError, match="24 samples for 1000 ranks"):
        worker._batch(few)


@pytest.mark.parametrize("settings", [{}, {"target_kl": 1e-3}, {"policy": BY_ACTION["Gaussian"]}, {"policy": BY_ACTION["Gaussian"], "per_action": True}])
def test_decoupled_ppo_of_fresh_data_is_ppo(settings: dict) -> None:
    """With its clipping, and with the brake of its divergence: the policy before the update is the one that acted."""
    data = [chunks(settings["policy"])] if "policy" in settings else trajectories()
    found = [learner(n_epochs=8, learning_rate=1e-2, loss_of_policy=loss, **settings).train(Scripted(data)) for loss in (policy_loss, decoupled_policy_loss)]
    assert found[0].metrics["clip_fraction"] > 0 and found[1].metrics == pytest.approx(found[0].metrics, rel=1e-3, abs=1e-5)
    for name, array in found[0].weights.arrays.items():
        np.testing.assert_allclose(found[1].weights.arrays[name], array, rtol=1e-3, atol=1e-5, err_msg=name)


def test_decoupled_ppo_of_stale_data_measures_from_where_the_update_began() -> None:
    """In its only step the policy has not moved yet, but it is another than the one that acted."""
    kl = {}
    for loss in (policy_loss, decoupled_policy_loss):
        worker = learner(n_epochs=1, batch_size=48, loss_of_policy=loss)
        with torch.no_grad():
            worker.policy.head.log_std.add_(0.5)
        kl[loss] = worker.train(Scripted(trajectories())).metrics["kl"]
    assert kl[policy_loss] > 0.1 and kl[decoupled_policy_loss] == pytest.approx(0, abs=1e-6)


def test_no_episode_ended_means_no_rate():
    out, cell = Collected(), Cell()
    short = SimulatorWorker(LineEnv, num_envs=1, n_steps=2, max_episode_steps=5)
    short.setup()
    short.collect(cell, cell, out)
    assert episode_metrics(list(out)) == {"episodes": 0.0}


def test_it_learns():
    """Going to the origin of a line: the return rises by more than half of what is possible."""
    sim, cell = simulator(), Cell()
    worker = learner(learning_rate=3e-3, n_epochs=8, reward_scale=0.5)
    returns = []
    for _ in range(40):
        out = Collected()
        sim.collect(cell, cell, out)
        update = worker.train(Scripted(out))
        cell.policy.load_weights(update.weights)
        returns.append(update.metrics["return"])
    assert np.mean(returns[-5:]) > np.mean(returns[:5]) / 2, returns


@pytest.mark.gpu
def test_on_a_gpu_the_optimiser_moves_too():
    worker = LearnerWorker(MAKE, gamma=0.9, gae_lambda=0.9, learning_rate=1e-3, batch_size=16)
    worker._context = Context()
    worker._context.device = "cuda:0"
    worker.setup()
    data = trajectories()
    worker.train(Scripted(data))
    worker.offload()
    held = [v for s in worker.optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    assert all(v.device.type == "cpu" for v in [*held, *worker.policy.parameters()])
    worker.onload()
    assert worker.train(Scripted(data)).weights.version == 2


@pytest.mark.parametrize("minibatch", [2, 3, 5, 200])
@pytest.mark.parametrize("samples", [2, 3, 4, 5, 7, 201, 401])
def test_no_minibatch_is_of_one_sample(samples: int, minibatch: int) -> None:
    sizes = [len(part) for part in torch.arange(samples).tensor_split(number_of_minibatches(samples, minibatch))]
    assert sum(sizes) == samples and min(sizes) >= 2 and max(sizes) - min(sizes) <= 1
    assert max(sizes) <= minibatch or samples // -(-samples // minibatch) < 2


def test_no_sample_of_a_pass_loses_its_advantage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advantages 1, 2, 3 in minibatches of at most two. Alone, a sample would get (a - a) / 0 = 0; together (a - 2) / sqrt(2/3)."""
    worker, seen = learner(n_epochs=1, batch_size=2), []

    step = PPOByHand.step
    monkeypatch.setattr(PPOByHand, "step", lambda self, batch, **factors: seen.append(batch.advantage_B) or step(self, batch, **factors))
    zeros = np.zeros(3, np.float32)
    worker._optimise(TrainBatch(np.zeros((3, 2), np.float32), np.zeros((3, 1), np.float32), zeros, np.array([1.0, 2.0, 3.0], np.float32), zeros))
    assert sorted(torch.cat(seen).tolist()) == pytest.approx([-np.sqrt(1.5), 0.0, np.sqrt(1.5)])


def test_a_minibatch_of_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size=1"):
        learner(batch_size=1)


@pytest.mark.parametrize("settings", [
    {}, {"policy": BY_ACTION["Gaussian"], "batch_size": 6, "ent_coef": 0.1}, {"critic_warmup": 2}, {"target_kl": 1e-5}, {"normalizes_advantage": False, "vf_coef": 0.0, "ent_coef": 0.01}, {"learning_rate": lambda done: 1e-3 * (1 - done)},
], ids=["plain", "chunks", "values first", "values after some steps", "of groups", "schedule"])  # fmt: skip
def test_written_out_gradients_learn_what_autograd_does(settings: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several updates, through every change between the two, with the memory of Adam that they share."""
    steps = {"written out": 0, "autograd": 0}
    counted = {"written out": (PPOByHand, "step"), "autograd": (LearnerWorker, "_gradients")}
    for name, (owner, method) in counted.items():
        original = getattr(owner, method)
        monkeypatch.setattr(owner, method, lambda self, *given, name=name, original=original, **more: steps.update({name: steps[name] + 1}) or original(self, *given, **more))
    mine, other = learner(updates=4, **settings), learner(updates=4, **settings)
    other._is_written_out = lambda: False
    data = [chunks(settings["policy"])] if "policy" in settings else trajectories()
    for _ in range(4):
        before = dict(steps)
        found = mine.train(Scripted(data))
        by_hand = {name: steps[name] - before[name] for name in steps}
        assert sum(by_hand.values()) == 2 * 3
        if not settings:
            assert by_hand["autograd"] == 0
        if "critic_warmup" in settings:
            assert (by_hand["written out"] == 0) == (found.weights.version <= 2)
        if "target_kl" in settings and found.weights.version > 1:
            assert by_hand["written out"] and by_hand["autograd"], "both in one update"
        wanted = other.train(Scripted(data))
        assert found.metrics == pytest.approx(wanted.metrics, rel=1e-3, abs=1e-5)
        for name, array in found.weights.arrays.items():
            np.testing.assert_allclose(array, wanted.weights.arrays[name], rtol=1e-3, atol=1e-5, err_msg=name)
        if found.weights.version == 2:  # in the middle: what was learnt so far goes through a switch and a file
            mine.offload()
            mine.onload()
            state, mine = mine.state_dict(), learner(updates=4, **settings)
            mine.load_state_dict(state)
