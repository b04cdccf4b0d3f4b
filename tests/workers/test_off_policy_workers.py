"""Replay learning by hand: rows against the environment's own steps, gradient steps against plain torch, a learner against its copy."""

from __future__ import annotations

import copy
import math
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium.spaces import Box

sys.path.insert(0, str(Path(__file__).parent))
from reach_line import ACTION, ReachLine

from rlinf_lab.policies import fused, make_actor, make_q_ensemble
from rlinf_lab.records import Action
from rlinf_lab.replay import NStep, ReplayBuffer
from rlinf_lab.replay.n_step import over_n_steps
from rlinf_lab.trees import map_tree
from rlinf_lab.workers.environments import EnvGroup
from rlinf_lab.workers.off_policy import Minibatch, Minibatches, OffPolicyLearner, SACStep, TD3Step
from rlinf_lab.workers.off_policy.stepping import Shared
from rlinf_lab.workers.off_policy.transitions import transitions
from rlinf_lab.workflow.worker import Scripted

OBS = Box(-np.inf, np.inf, (2,), np.float32)
NETS = {"net_arch": (8, 8), "seed": 5}


def played(steps=12, envs=3, groups=1, version=0, seed=2, cuts=None):
    """Trajectories of random actions, each group's environments with the actions that they would have in one group. ``cuts``: lists of them, of iterations
    that end after so many steps.
    """
    rng = np.random.default_rng(seed)
    action_TN = rng.uniform(-1, 1, (steps, envs, 1)).astype(np.float32)
    size, ends = envs // groups, (*(cuts or ()), steps)
    found = [[] for _ in ends]
    for g in range(groups):
        mine = slice(g * size, (g + 1) * size)
        group = EnvGroup(ReachLine(size, 5), g, g * size, seed)
        for i, (first, end) in enumerate(zip((0, *ends), ends, strict=False)):
            group.begin(end - first)
            for t in range(first, end):
                group.record(Action(g, action_TN[t, mine], np.zeros(size, np.float32), version))
            found[i].append(group.finish())
    return found[0] if cuts is None else found


def test_rows_are_what_the_environment_did():
    rows, env = transitions(played()), ReachLine(3, 5)
    seeded = played()[0]
    obs = env.reset(seed=int(seeded.obs_TN[0, 0, 0]))
    action_TN = rows["action"].reshape(12, 3, 1)
    expected = {name: [] for name in rows}
    for action_N in action_TN:
        step = env.step(action_N)
        for name, value in zip(
            ("obs", "action", "reward", "next_obs", "terminated"),
            (obs, action_N, step.reward_N, step.final_obs_N, step.terminated_N),
            strict=True,
        ):
            expected[name].append(np.copy(value))
        obs = step.obs_N
    assert rows["terminated"].any() and not rows["terminated"].all()
    for name, parts in expected.items():
        np.testing.assert_array_equal(rows[name], np.concatenate(parts).astype(rows[name].dtype), err_msg=name)


def test_rows_do_not_depend_on_groups():
    one, three = transitions(played(groups=1)), transitions(played(groups=3)[::-1])
    map_tree(np.testing.assert_array_equal, one, three)


def batch_of(rng, rows=16):
    numbers = [torch.from_numpy(rng.standard_normal((rows, 2)).astype(np.float32)) for _ in range(2)]
    action = torch.from_numpy(rng.uniform(-1, 1, (rows, 1)).astype(np.float32))
    reward, discount = torch.from_numpy(rng.standard_normal((2, rows)).astype(np.float32))
    return Minibatch(numbers[0], action, reward, 0.9 * (discount > 0), numbers[1], None)


def plain(module):
    """An actor's or critic's layers as a list of (weight, bias) leaves with gradients, each critic by itself."""
    if hasattr(module, "policy"):
        return [(layer.weight.detach().clone().requires_grad_(), layer.bias.detach().clone().requires_grad_()) for layer in module.policy if hasattr(layer, "weight")]
    layers = [layer for layer in module.net if hasattr(layer, "weight")]
    return [
        [(layer.weight[k].detach().T.clone().requires_grad_(), layer.bias[k, 0].detach().clone().requires_grad_()) for layer in layers]
        for k in range(layers[0].weight.shape[0])
    ]


def forward(layers, x):
    for weight, bias in layers[:-1]:
        x = F.relu(F.linear(x, weight, bias))
    return F.linear(x, *layers[-1])


def leaves_of(nets):
    return [tensor for layers in nets for pair in layers for tensor in pair]


def values(critics, obs, action):
    return torch.stack([forward(layers, torch.cat([obs, action], 1))[:, 0] for layers in critics])


@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "by autograd"])
@pytest.mark.parametrize("target_critics", [None, 2], ids=["SAC", "REDQ"])
def test_sac_steps_are_those_of_plain_torch(by_hand, target_critics):
    step = SACStep(
        partial(make_actor, OBS, ACTION, **NETS), partial(make_q_ensemble, OBS, ACTION, **NETS), learning_rate=1e-2, target_entropy=-1.0, ent_coef=0.3,
        target_critics=target_critics,
    )  # fmt: skip
    assert step.by_hand is not None
    step.by_hand = step.by_hand if by_hand else None
    actor, critics = plain(step.actor), plain(step.critic)
    targets, log_alpha = copy.deepcopy(critics), torch.tensor(math.log(0.3), requires_grad=True)
    adam = partial(torch.optim.Adam, lr=1e-2)
    optimizers = adam(leaves_of([actor])), adam(leaves_of(critics)), adam([log_alpha])

    def drawn(obs, noise):
        mean, log_std = forward(actor, obs).chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        raw = mean + normal.stddev * noise
        log_prob = normal.log_prob(raw) - torch.log(1 - torch.tanh(raw) ** 2 + 1e-12)
        return torch.tanh(raw), log_prob.sum(1)

    rng = np.random.default_rng(1)
    for count in range(5):
        batch, noise = batch_of(rng), torch.from_numpy(rng.standard_normal((2, 16, 1)).astype(np.float32))
        weight = torch.from_numpy(rng.random(16).astype(np.float32)) if count % 2 else None  # of a prioritised sample
        step.step(batch._replace(weight=weight), noise, {"tau": 0.1}, Shared())
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            action, log_prob = drawn(batch.next_obs, noise[0])
            y = batch.reward + batch.discount * (values(targets, batch.next_obs, action).min(0).values - alpha * log_prob)
        loss = sum(0.5 * ((1.0 if weight is None else weight) * (q - y) ** 2).mean() for q in values(critics, batch.obs, batch.action))
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        action, log_prob = drawn(batch.obs, noise[1])
        q = values(critics, batch.obs, action)
        loss = (alpha * log_prob - (q.mean(0) if target_critics else q.min(0).values)).mean()
        for optimizer in (optimizers[0], optimizers[2]):
            optimizer.zero_grad()
        (loss - (log_alpha * (log_prob.detach() - 1.0)).mean()).backward()
        optimizers[0].step()
        optimizers[2].step()
        with torch.no_grad():
            for target, source in zip(leaves_of(targets), leaves_of(critics), strict=True):
                target.mul_(0.9).add_(source, alpha=0.1)
    for ours, theirs in ((plain(step.actor), actor), (plain(step.critic), critics), (plain(step.target), targets)):
        for one, other in zip(_flat(ours), _flat(theirs), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(step.temperature.log_alpha[0], log_alpha, rtol=1e-4, atol=1e-6)


def test_the_critics_of_a_target_are_drawn_by_seed_and_step():
    """Each as often as another, and of two runs not the same."""
    make = partial(
        SACStep, partial(make_actor, OBS, ACTION, **NETS), partial(make_q_ensemble, OBS, ACTION, critics=5, **NETS), learning_rate=1e-2, target_entropy=-1.0,
        target_critics=2,
    )  # fmt: skip

    def drawn(seed):
        step, found = make(seed=seed), []
        for step.count in range(500):
            found.append(step._subset(5).tolist())
        return np.array(found)

    one, again, other = drawn(0), drawn(0), drawn(1)
    np.testing.assert_array_equal(one, again)
    assert (one != other).any(1).mean() > 0.9  # 19 of 20 by chance
    assert all(abs(np.bincount(each.ravel(), minlength=5) - 200).max() < 60 for each in (one, other))


def test_normalised_critics_have_the_gradients_of_autograd():
    """The same steps with and without autograd, of five critics."""
    rng, steps = np.random.default_rng(3), []
    critic = partial(make_q_ensemble, OBS, ACTION, norm="layer", critics=5, **NETS)
    for by_hand in (True, False):
        step = SACStep(partial(make_actor, OBS, ACTION, **NETS), critic, learning_rate=1e-2, target_entropy=-1.0, target_critics=2)
        assert step.by_hand is not None
        step.by_hand = step.by_hand if by_hand else None
        steps.append(step)
    for _ in range(5):
        batch, noise = batch_of(rng), torch.from_numpy(rng.standard_normal((2, 16, 1)).astype(np.float32))
        found = [step.step(batch, noise, {"tau": 0.1}, Shared()) for step in steps]
        for name, value in found[0].items():
            torch.testing.assert_close(value.reshape(()), found[1][name].reshape(()), rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    for part in ("actors", "critics", "targets"):
        one, other = (getattr(step, part).vector for step in steps)
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert (steps[0].critics.gradient != 0).float().mean() > 0.5


def in_double(make, **settings):
    """Nets that take observations as they are."""

    def made():
        net = make(OBS, ACTION, **NETS, **settings).double()
        net.preprocess.forward = lambda obs: obs
        return net

    return made


@pytest.mark.parametrize(("settings", "target_critics"), [({}, None), ({}, 2), ({"norm": "layer", "critics": 5}, 2)], ids=["SAC", "REDQ", "RLPD"])
def test_gradients_that_are_written_out_are_those_of_autograd_in_double_precision(settings, target_critics, monkeypatch):
    monkeypatch.setattr(fused, "applies", lambda _: False)  # all by torch's own layers
    step = SACStep(in_double(make_actor), in_double(make_q_ensemble, **settings), learning_rate=1e-2, target_entropy=-1.0, target_critics=target_critics)
    by_hand, alpha, rng = step.by_hand, torch.tensor([0.3], dtype=torch.float64), np.random.default_rng(2)
    for rows in (16, 16, 9):  # memory is taken again, and is of another shape
        batch = Minibatch(*(None if x is None else x.double() for x in batch_of(rng, rows)))
        noise = torch.from_numpy(rng.standard_normal((2, rows, 1)))
        with torch.no_grad():
            begun = by_hand.begin(batch, noise, True)
            losses = [by_hand.critic_gradients(batch, begun, alpha, 1.0, step._subset(step.n_critics))[0]]
            losses.append(by_hand.actor_gradients(begun, alpha, 1.0, target_critics is not None)[0])
        found = [flat.gradient.clone() for flat in (step.critics, step.actors)]
        step.learns_temperature = False
        sides = (step.critics, step.critic_loss, noise[0]), (step.actors, step.actor_loss, noise[1])
        for (flat, loss, drawn), mine, gradient in zip(sides, losses, found, strict=True):
            flat.gradient.zero_()
            with step.fixed(step.critics) if flat is step.actors else nullcontext():
                theirs = loss(batch, drawn, alpha)[0]
            theirs.backward()
            torch.testing.assert_close(mine.reshape(()), theirs.detach().reshape(()), rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(gradient, flat.gradient, rtol=1e-10, atol=1e-10)
            assert (gradient != 0).double().mean() > 0.5
        with torch.no_grad():
            for flat, gradient in zip((step.critics, step.actors), found, strict=True):
                flat.vector.sub_(gradient)


def _flat(nets):
    return leaves_of(nets) if isinstance(nets[0], list) else leaves_of([nets])


def test_td3_steps_are_those_of_plain_torch():
    step = TD3Step(
        partial(make_actor, OBS, ACTION, deterministic=True, **NETS), partial(make_q_ensemble, OBS, ACTION, **NETS), learning_rate=1e-2, policy_delay=2
    )
    actor, critics = plain(step.actor), plain(step.critic)
    slow_actor, targets = copy.deepcopy(actor), copy.deepcopy(critics)
    adam = partial(torch.optim.Adam, lr=1e-2)
    optimizers = adam(leaves_of([actor])), adam(leaves_of(critics))
    rng = np.random.default_rng(1)
    for count in range(1, 6):
        batch, noise = batch_of(rng), torch.from_numpy(rng.standard_normal((1, 16, 1)).astype(np.float32))
        step.step(batch, noise, {"tau": 0.1, "target_policy_noise": 0.2, "target_noise_clip": 0.3}, Shared())
        with torch.no_grad():
            action = (torch.tanh(forward(slow_actor, batch.next_obs)) + (0.2 * noise[0]).clamp(-0.3, 0.3)).clamp(-1, 1)
            y = batch.reward + batch.discount * values(targets, batch.next_obs, action).min(0).values
        loss = sum(0.5 * F.mse_loss(q, y) for q in values(critics, batch.obs, batch.action))
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        if count % 2 == 0:
            optimizers[0].zero_grad()
            (-values(critics, batch.obs, torch.tanh(forward(actor, batch.obs)))[0].mean()).backward()
            optimizers[0].step()
            with torch.no_grad():
                for slow, fast in ((targets, critics), ([slow_actor], [actor])):
                    for target, source in zip(leaves_of(slow), leaves_of(fast), strict=True):
                        target.mul_(0.9).add_(source, alpha=0.1)
    for ours, theirs in ((plain(step.actor), actor), (plain(step.critic), critics), (plain(step.target), targets), (plain(step.target_actor), slow_actor)):
        for one, other in zip(_flat(ours), _flat(theirs), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_half_precision_is_nearly_single_precision():
    made = [
        SACStep(partial(make_actor, OBS, ACTION, **NETS), partial(make_q_ensemble, OBS, ACTION, **NETS), learning_rate=1e-2, target_entropy=-1.0, precision=p)
        for p in ("float32", "bfloat16")
    ]
    rng = np.random.default_rng(1)
    for _ in range(3):
        batch, noise = batch_of(rng), torch.from_numpy(rng.standard_normal((2, 16, 1)).astype(np.float32))
        found = [step.step(batch, noise, {"tau": 0.1}, Shared()) for step in made]
    assert all(0 < abs(float(found[1][name] - value)) < 0.05 * abs(float(value)) + 0.01 for name, value in found[0].items() if name.endswith("loss"))
    assert made[1].actors.vector.dtype == torch.float32


def learner(state=None, **changes):
    make = partial(
        SACStep, partial(make_actor, OBS, ACTION, normalize_obs=True, **NETS), partial(make_q_ensemble, OBS, ACTION, normalize_obs=True, **NETS), target_entropy=-1.0
    )
    given = {"settings": {"learning_rate": 1e-2, "gamma": 0.9, "tau": 0.1}, "buffer_size": 50, "batch_size": 8, "updates": 10, "seed": 4, "state": state}
    made = OffPolicyLearner(make, **{**given, **changes})
    made.setup()
    return made


def weights_of(made):
    return np.concatenate([array.reshape(-1) for array in made.learnt.actor.weights().arrays.values()])


@pytest.mark.parametrize("prioritised", [False, True])
def test_a_learner_goes_on_exactly_where_its_state_was_taken(prioritised):
    one = learner(prioritised=prioritised)
    for seed in range(2):  # 72 rows: the buffer has begun to forget
        one.train(Scripted(played(seed=seed)))
    state = one.state_dict()
    other = learner(state, prioritised=prioritised)
    results = [each.train(Scripted(played(seed=7, version=2))) for each in (one, other)]
    np.testing.assert_array_equal(weights_of(one), weights_of(other))
    assert results[0].metrics == results[1].metrics and results[0].metrics["env_steps"] == 108 and results[0].metrics["staleness"] == 0


@pytest.mark.parametrize("groups", [1, 3])
def test_rows_over_several_steps_run_through_iterations(groups):
    """Environments go on from one trajectory to the next; where one is fresh an episode was given up. Iterations of fewer steps than are spanned."""
    (whole,), folder = played(24), NStep(4, 0.9)
    pieces = played(24, groups=groups, cuts=(2, 3, 9, 16))
    made = [transitions(piece, folder) for piece in pieces]
    assert [len(rows["reward"]) // 3 for rows in made] == [0, 0, 6, 7, 8] and "truncated" not in made[0]
    steps = transitions([whole])
    steps = map_tree(lambda leaf: leaf.reshape(24, 3, *leaf.shape[1:]), steps) | {"truncated": whole.truncated_TN}
    expected = map_tree(lambda leaf: leaf.reshape(21 * 3, *leaf.shape[2:]), over_n_steps(steps, 4, 0.9, 21))
    assert whole.terminated_TN.any() and whole.truncated_TN.any()
    map_tree(np.testing.assert_array_equal, map_tree(lambda *leaves: np.concatenate(leaves), *made), expected)
    rest = transitions(played(8, seed=5), folder)  # other episodes: the last three steps are over what there was
    given_up = map_tree(lambda leaf: leaf.reshape(9, *leaf.shape[2:]), over_n_steps(map_tree(lambda leaf: leaf[21:], steps), 4, 0.9))
    map_tree(np.testing.assert_array_equal, map_tree(lambda leaf: leaf[:9], rest), given_up)


@pytest.mark.parametrize("prioritised", [False, True])
def test_a_learner_over_several_steps_goes_on_exactly_where_its_state_was_taken(prioritised):
    pieces = [[t] for piece in played(36, cuts=(2, 14, 25)) for t in piece]
    one = learner(prioritised=prioritised, n_steps=3, batch_size=4)
    assert one.train(Scripted(pieces[0])).metrics["gradient_steps"] == 0, "of two steps none is complete"
    for piece in pieces[1:3]:  # 69 complete rows: the buffer of 50 has begun to forget
        one.train(Scripted(piece))
    state = one.state_dict()
    other = learner(state, prioritised=prioritised, n_steps=3, batch_size=4)
    results = [each.train(Scripted(pieces[3])) for each in (one, other)]
    np.testing.assert_array_equal(weights_of(one), weights_of(other))
    assert results[0].metrics == results[1].metrics and results[0].metrics["env_steps"] == 108
    assert results[0].metrics["gradient_steps"] == 36 + 33 + 33, "as many as steps came, complete or not"
    (whole,), kept = played(36), one.replay.rows(one.replay.order)
    steps = map_tree(lambda leaf: leaf.reshape(36, 3, *leaf.shape[1:]), transitions([whole])) | {"truncated": whole.truncated_TN}
    expected = map_tree(lambda leaf: leaf.reshape(34 * 3, *leaf.shape[2:])[-50:], over_n_steps(steps, 3, 0.9, 34))
    map_tree(np.testing.assert_array_equal, kept, expected)


def test_a_minibatch_has_the_discounts_of_its_rows():
    rows = transitions(played(), NStep(3, 0.9))
    buffer = ReplayBuffer(len(rows["reward"]), seed=1)
    buffer.add(rows)
    for batch, index in Minibatches(buffer, 8, "cpu").draw(5, 0.5, 2.0):
        np.testing.assert_array_equal(batch.discount, rows["discount"][index])
        np.testing.assert_array_equal(batch.reward, 2 * rows["reward"][index])


def test_half_of_each_minibatch_are_demonstrations():
    online, offline = ReplayBuffer(20, seed=1), ReplayBuffer(20, seed=2)
    rows = transitions(played())
    online.add(rows)
    offline.add({**rows, "reward": rows["reward"] + 1000})
    for share, expected in ((0.5, 4), (0.25, 2), (0.0, 0), (1.0, 8)):
        batches = [batch for batch, _ in Minibatches(online, 8, "cpu", offline, share).draw(5, 0.9, 2.0)]
        assert [int((batch.reward > 1000).sum()) for batch in batches] == [expected] * 5
    alone = [batch for batch, _ in Minibatches(ReplayBuffer(9), 8, "cpu", offline, 0.5).draw(2, 0.9, 1.0)]
    assert all((batch.reward > 900).all() for batch in alone)
    assert all(((batch.discount == 0) | (batch.discount == 0.9)).all() for batch in alone)


def test_importance_weights_correct_ever_more_over_the_updates():
    """Their exponent goes from 0.4 to 1 with the share of the updates that is done; the weights themselves are of closed form."""
    made, exponents = learner(prioritised=True, batch_size=36, updates=4), []
    step, tree = made.learnt.step, made.replay._tree

    def seen(batch, *rest):
        chance = tree.get(drawn.pop()) / tree.total  # as it was drawn, priorities follow the step
        lowest = int(chance.argmin())
        other = int(chance.argmax())
        if chance[other] > 1.01 * chance[lowest]:
            exponents.append(math.log(float(batch.weight[other] / batch.weight[lowest])) / math.log(chance[lowest] / chance[other]))
        return step(batch, *rest)

    drawn, draw = [], made.minibatches.draw
    made.minibatches.draw = lambda *given: ((drawn.append(index) or batch, index) for batch, index in draw(*given))
    made.learnt.step = seen
    for version, expected in enumerate((0.4, 0.55, 0.7, 0.85, 1.0, 1.0)):
        made.train(Scripted(played(seed=version, version=version)))
        assert exponents[-1] == pytest.approx(expected, abs=1e-3)


def test_a_floor_keeps_what_hardly_varies_small():
    made = learner(std_floor=0.5)
    made.train(Scripted(played()))
    np.testing.assert_allclose(made.learnt.actor.preprocess.obs_std, transitions(played())["obs"].std(0) + 0.5, rtol=1e-5)


def test_demonstrations_are_normalised_as_they_are_spread():
    offline = ReplayBuffer(36, seed=2)
    rows = transitions(played())
    offline.add(rows | {"obs": rows["obs"] + 3})
    made = learner(offline=offline)
    made.train(Scripted(played()))
    both = np.concatenate([rows["obs"] + 3, rows["obs"]])
    np.testing.assert_allclose(made.learnt.actor.preprocess.obs_mean, both.mean(0), rtol=1e-5)


def test_leaving_the_device_changes_nothing():
    stays, goes = learner(), learner()
    for seed in range(3):
        stays.train(Scripted(played(seed=seed)))
        goes.train(Scripted(played(seed=seed)))
        goes.offload()
        goes.onload()
    np.testing.assert_array_equal(weights_of(stays), weights_of(goes))


def test_nothing_is_learnt_before_learning_starts():
    made = learner(learning_starts=40)
    before = weights_of(made)[4:]  # behind the statistics of observations
    first = made.train(Scripted(played()))
    np.testing.assert_array_equal(weights_of(made)[4:], before)
    assert first.metrics["gradient_steps"] == 0 and "critic_loss" not in first.metrics
    assert made.train(Scripted(played(seed=1))).metrics["gradient_steps"] == 36


def test_weights_that_are_not_finite_stop_the_learner():
    made = learner(settings={"learning_rate": 1e30, "gamma": 0.9, "tau": 0.1})
    with pytest.raises(FloatingPointError, match="smaller learning_rate"):
        for seed in range(5):
            made.train(Scripted(played(seed=seed)))


def test_moments_of_dead_units_fade_to_zero_and_not_to_denormals():
    """These would make a step of Adam eight times as long; outside of an update they are there as always."""
    made = learner()
    with torch.no_grad():
        made.learnt.critic.net[0].bias.fill_(-1e6)  # relu gives nothing, and gets no gradients
    made.train(Scripted(played()))
    (state,) = made.learnt.critic_optimizer.state.values()
    state["exp_avg"].fill_(1e-39)
    made.train(Scripted(played(seed=1)))
    moment = made.learnt.critic_optimizer.state_dict()["state"][0]["exp_avg"]
    assert (moment == 0).any() and not ((moment != 0) & (moment.abs() < torch.finfo(torch.float32).tiny)).any()
    assert (torch.full((8,), 1e-30) * 1e-9 > 0).all()
