"""Memory: sequences against single steps, resets, gradients through time, wrappers, and a task that needs it."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.policies import make_recurrent_policy

OBS = spaces.Dict(
    {
        "state": spaces.Box(-np.inf, np.inf, (3,)),
        "image": spaces.Box(0, 255, (12, 12, 1), np.uint8),
        "task": spaces.Discrete(3),
    }
)
ACTION = spaces.Dict({"arm": spaces.Box(-1, 1, (2,)), "grip": spaces.Discrete(2)})
T, N = 7, 4


def sequences(seed=0):
    rng = np.random.default_rng(seed)
    obs = {
        "image": rng.integers(0, 256, (T, N, 12, 12, 1), dtype=np.uint8),
        "state": rng.normal(size=(T, N, 3)).astype(np.float32),
        "task": rng.integers(0, 3, (T, N)),
    }
    starts = rng.random((T, N)) < 0.25
    starts[0, :2] = False, True
    return obs, starts


def made(core="gru", seed=0, **kwargs):
    policy = make_recurrent_policy(OBS, ACTION, core=core, core_size=8, net_arch=(), seed=seed, **kwargs)
    with torch.no_grad():
        policy.policy[-1].weight.mul_(80)
    return policy


def rolled(policy, obs, starts, state):
    """One step after another, zeros put into the state by hand."""
    rng, actions, log_probs = np.random.default_rng(1), [], []
    for t in range(T):
        state = np.where(starts[t][:, None], 0, state).astype(np.float32)
        action, log_prob, state = policy.act({k: v[t] for k, v in obs.items()}, policy.draw_noise(rng, N), state)
        actions.append(action)
        log_probs.append(log_prob)
    return {k: np.stack([a[k] for a in actions]) for k in ACTION.spaces}, np.stack(log_probs), state


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_a_sequence_is_its_steps_one_after_another(core, share):
    policy, (obs, starts) = made(core, share_encoder=share), sequences()
    state = np.random.default_rng(2).normal(size=(N, policy.state_size)).astype(np.float32)
    before = state.copy()
    action, log_prob, _ = rolled(policy, obs, starts, state)
    learned, entropy, value = policy.evaluate_actions(obs, action, state, starts)
    np.testing.assert_allclose(log_prob, learned.detach(), atol=2e-5)
    np.testing.assert_array_equal(state, before)
    np.testing.assert_allclose(policy.values(obs, state, starts), value.detach(), atol=1e-5)
    assert learned.shape == entropy.shape == value.shape == (T, N)
    (learned.sum() + entropy.sum() + value.sum()).backward()
    assert all(p.grad is not None for p in policy.parameters())


def test_nothing_passes_the_start_of_an_episode():
    policy, (obs, _) = made(), sequences()
    starts = np.zeros((T, N), bool)
    starts[4, 1] = True
    action, _, _ = rolled(policy, obs, starts, policy.initial_state(N))
    state = torch.zeros(N, policy.state_size, requires_grad=True)
    given = {k: torch.from_numpy(v) for k, v in obs.items()}
    given["state"].requires_grad_(True)
    log_prob, _, value = policy.evaluate_actions(given, action, state, starts)
    (log_prob[4:].sum() + value[4:].sum()).backward()
    reached = given["state"].grad.abs().sum(-1)
    assert (reached[:4, 1] == 0).all() and (reached[:4, [0, 2, 3]] > 0).all()
    assert (state.grad[1] == 0).all() and (state.grad[[0, 2, 3]].abs().sum(1) > 0).all()


def test_acting_depends_on_the_seed_and_on_the_past_only():
    torch.manual_seed(3)
    a, b, c = made(seed=5), made(seed=5), made(seed=6)
    obs, starts = sequences()
    first, second = rolled(a, obs, starts, a.initial_state(N)), rolled(b, obs, starts, b.initial_state(N))
    for mine, theirs in zip([*first[0].values(), *first[1:]], [*second[0].values(), *second[1:]], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert (rolled(c, obs, starts, c.initial_state(N))[1] != first[1]).any()
    twin, sent = copy.deepcopy(a), pickle.loads(pickle.dumps(a))
    c.load(a.weights())
    for copied in (twin, sent, c):
        np.testing.assert_array_equal(rolled(copied, obs, starts, a.initial_state(N))[2], first[2])
    other = {**obs, "state": obs["state"] + (np.arange(T) == 0)[:, None, None].astype(np.float32)}
    assert (rolled(a, other, np.zeros((T, N), bool), a.initial_state(N))[2] != first[2]).any()


def test_gradients_pass_a_wrapper_of_the_module(tmp_path):
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    policies, (obs, starts) = [made() for _ in range(3)], sequences()
    action, _, _ = rolled(policies[0], obs, starts, policies[0].initial_state(N))
    trees = policies[0]._tensors(OBS, obs), policies[0]._tensors(ACTION, action)
    rest = torch.zeros(N, policies[0].state_size), torch.from_numpy(starts)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh("cpu", (1,))
        models = policies[0], DistributedDataParallel(policies[1]), fully_shard(policies[2], mesh=mesh)
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
        for _ in range(2):  # the second time with weights that a step has changed
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                sum(part.sum() for part in model(*trees, *rest)).backward()
                optimizer.step()
        bare, *others = [
            [g.full_tensor() if hasattr(g := p.grad, "full_tensor") else g for p in policy.parameters()]
            for policy in policies
        ]
        for gradients in others:
            torch.testing.assert_close(gradients, bare)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_a_cue_at_the_start_is_remembered(core):
    """The expert does at the end what was shown at the beginning; nothing in between tells."""
    policy = make_recurrent_policy(spaces.Box(-1, 1, (1,)), spaces.Discrete(2), core=core, core_size=16, net_arch=())
    rng, steps = np.random.default_rng(0), 6
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    starts = np.zeros((steps, 64), bool)
    starts[0] = True
    for _ in range(60):
        obs, cue = cues(rng, steps)
        loss = policy.clone_loss(obs, np.repeat(cue[None], steps, 0), policy.initial_state(64), starts, rng)
        optimizer.zero_grad()
        loss[-1].mean().backward()
        optimizer.step()
    obs, cue = cues(rng, steps)
    state = policy.initial_state(64)
    for t in range(steps):
        action, _, state = policy.act(obs[t], None, state)
    assert (action == cue).mean() > 0.95


def cues(rng, steps):
    cue = rng.integers(0, 2, 64)
    obs = np.zeros((steps, 64, 1), np.float32)
    obs[0, :, 0] = 2 * cue - 1
    return obs, cue


def test_what_cannot_work_is_refused():
    policy, (obs, starts) = made(), sequences()
    first = {k: v[0] for k, v in obs.items()}
    with pytest.raises(ValueError, match=r"state has the shape \(3, 32\).*initial_state\(4\)"):
        policy.act(first, None, np.zeros((3, 32)))
    with pytest.raises(UnknownNameError, match="Did you mean 'gru'"):
        make_recurrent_policy(OBS, ACTION, core="grru")
    with pytest.raises(ConfigError, match="core_size=0"):
        make_recurrent_policy(OBS, ACTION, core_size=0)
    assert "state_size=16" in repr(policy) and starts.shape == (T, N)
