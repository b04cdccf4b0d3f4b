"""Torch workers leave their device and return: same tensors, same numbers, training goes on; simulators come back where they were."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rlinf_lab.policies import GaussianMLP
from rlinf_lab.vecenv import Restorable, make_vec
from rlinf_lab.workers import PolicyWorker, SimulatorWorker, TorchWorker
from rlinf_lab.workers.residence import Residence
from rlinf_lab.workflow.worker import Worker


class Tied(nn.Module):
    """Two layers with one weight, a buffer, and a parameter that is a view with an offset."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.block = torch.arange(8.0)
        self.tail = nn.Parameter(self.block[4:])
        self.register_buffer("steps", torch.zeros(3, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)) + self.tail


class Net(TorchWorker):
    def setup(self) -> None:
        torch.manual_seed(0)
        self.nets = {"a": [Tied()]}
        self.optimizer = torch.optim.Adam(self.nets["a"][0].parameters(), lr=0.1)

    def train(self) -> float:
        loss = self.nets["a"][0](torch.ones(2, 4)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def made() -> Net:
    worker = Net()
    worker.setup()
    return worker


def test_training_goes_on_as_if_nothing_had_happened():
    stays, travels = made(), made()
    for step in range(4):
        assert travels.train() == stays.train()
        if step % 2:
            travels.offload()
            travels.onload()
    for a, b in zip(stays.nets["a"][0].state_dict().values(), travels.nets["a"][0].state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_every_block_really_moves_and_shared_memory_stays_shared():
    worker = made()
    worker.train()
    net = worker.nets["a"][0]
    before = {name: (id(t), t.data_ptr(), t.detach().clone()) for name, t in net.named_parameters(remove_duplicate=False)}
    worker.offload()
    assert "now in host memory" in repr(worker._residence)
    for name, tensor in net.named_parameters(remove_duplicate=False):
        identity, address, value = before[name]
        assert id(tensor) == identity and tensor.data_ptr() != address and torch.equal(tensor, value)
    assert net.first.weight is net.second.weight
    worker.onload()
    with torch.no_grad():
        net.first.weight.zero_()
    assert not net.second.weight.any()


def test_who_is_away_can_be_read_and_written():
    worker = made()
    worker.offload()
    with torch.no_grad():
        worker.nets["a"][0].tail.fill_(7.0)
    worker.onload()
    assert worker.nets["a"][0].tail.tolist() == [7.0] * 4


def test_leaving_twice_and_coming_without_having_left_are_harmless():
    worker = made()
    worker.onload()
    worker.offload()
    worker.offload()
    worker.onload()
    worker.onload()
    assert worker.train() == made().train()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from([torch.float32, torch.bfloat16, torch.float64])), min_size=1, max_size=8), st.integers(1, 4))
def test_any_sizes_and_types_survive_any_number_of_switches(shapes, switches):
    module = nn.ParameterList([nn.Parameter(torch.randn(n).to(kind)) for n, kind in shapes])
    before = [p.detach().clone() for p in module]
    residence, there = Residence([module], "cpu"), [p.data_ptr() for p in module]
    held = []
    for _ in range(switches):
        residence.leave()
        held.append(sorted(block.data_ptr() for block in residence._held))
        residence.come_back()
        assert [p.data_ptr() for p in module] == there  # a core's memory is kept, and nobody gets another's place
    assert all(torch.equal(a, b) for a, b in zip(before, module, strict=True))
    assert all(addresses == held[0] for addresses in held)  # host memory is kept for the next time
    assert residence.nbytes == sum(p.numel() * p.element_size() for p in module)


@pytest.mark.gpu
def test_a_gpu_is_free_afterwards():
    module = nn.Linear(2048, 2048).cuda()
    residence = Residence([module], "cuda:0")
    torch.cuda.synchronize()
    used, before = torch.cuda.memory_allocated(), module.weight.detach().cpu()
    residence.leave()
    assert torch.cuda.memory_allocated() <= used - residence._held[0].numel() and module.weight.device.type == "cpu"
    residence.come_back()
    assert module.weight.is_cuda and torch.equal(module.weight.cpu(), before)


def test_a_policy_answers_the_same_after_a_switch_and_follows_its_weights():
    policy = PolicyWorker(partial(GaussianMLP, 2, 1, seed=3))
    policy.setup()
    obs = np.ones((3, 2), np.float32)
    before = policy.policy.act(obs, None)[0]
    policy.offload()
    policy.onload()
    assert np.array_equal(policy.policy.act(obs, None)[0], before)
    with torch.no_grad():
        policy.policy.policy[-1].bias.add_(1.0)
    assert np.allclose(policy.policy.act(obs, None)[0], before + 1.0)  # no view of the old memory answers


def test_environments_come_back_where_they_were():
    rng = np.random.default_rng(0)
    stays, leaves = make_vec("numpy/ReachArm-v0", 3), make_vec("numpy/ReachArm-v0", 3)
    assert isinstance(leaves, Restorable)
    for env in (stays, leaves):
        env.reset(seed=5)
    for step in range(130):  # two ends of episodes, whose new targets come from the generators
        action = rng.uniform(-1, 1, (3, 2)).astype(np.float32)
        a, b = stays.step(action), leaves.step(action)
        assert np.array_equal(a.obs_NO, b.obs_NO) and np.array_equal(a.truncated_N, b.truncated_N)
        if step % 50 == 40:
            state = leaves.save_state()
            leaves.step(action)  # does not touch what was saved
            leaves = make_vec("numpy/ReachArm-v0", 3)
            leaves.restore_state(state)


def test_a_simulator_worker_leaves_with_environments_that_can():
    worker = SimulatorWorker("numpy/ReachArm-v0", num_envs=2, steps=3)
    worker.setup()
    group = worker.groups[0]
    group.begin(3)
    first, env = group.observation(), group.env
    assert worker.can_leave()
    worker.offload()
    worker.onload()
    assert group.env is not env and np.array_equal(group.observation().obs_NO, first.obs_NO)
    group.step(np.zeros((2, 2), np.float32))  # it has been reset: the state came along
    worker.offload()
    worker.close()  # while it is away


def test_who_cannot_leave_says_so():
    class Plain(Worker):
        pass

    worker = SimulatorWorker("gymnasium/Pendulum-v1", num_envs=1, steps=3)
    worker.setup()
    env = worker.groups[0].env
    assert not worker.can_leave() and not Plain().can_leave() and made().can_leave()
    worker.offload()
    worker.onload()
    assert worker.groups[0].env is env
    worker.close()
