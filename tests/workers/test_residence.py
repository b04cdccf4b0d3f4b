"""Torch workers leave their device and return: same tensors, same numbers, training goes on; simulators come back where they were."""

from __future__ import annotations

import gc
import pickle
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from line_env import LineEnv
from torch import nn

from rlinf_lab.errors import WorkflowError
from rlinf_lab.policies import make_policy
from rlinf_lab.records import Action
from rlinf_lab.vecenv import Restorable, cannot_leave, make_vec
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
    residence, held, there = Residence([module], "cpu"), [], []
    for _ in range(switches):
        residence.leave()
        held.append(sorted(block.data_ptr() for block in residence._held))
        residence.come_back()
        there.append([p.data_ptr() for p in module])
    assert all(torch.equal(a, b) for a, b in zip(before, module, strict=True))
    assert all(addresses == there[0] for addresses in there)  # a core's memory is kept, and nobody gets another's place
    assert all(addresses == held[0] for addresses in held)  # host memory is kept for the next time
    assert residence.nbytes == sum(p.numel() * p.element_size() for p in module)


def switched(*modules: nn.Module) -> None:
    residence = Residence(modules, "cpu")
    residence.leave()
    residence.come_back()


def test_what_a_tensor_lay_on_at_first_is_not_written():
    """It may be a file that is mapped for reading: writing there ends the process."""
    theirs, module = np.ones(8, np.float32), nn.Module()
    module.register_buffer("constants", torch.from_numpy(theirs))
    residence = Residence([module], "cpu")
    for value in (2.0, 3.0):
        residence.leave()
        module.constants.fill_(value)
        residence.come_back()
        assert module.constants.tolist() == [value] * 8 and theirs.tolist() == [1.0] * 8


def test_conjugates_and_negatives_stay_what_they_are():
    z, module = torch.tensor([1 + 2j]), nn.Module()
    module.register_buffer("conjugate", z.clone().conj())
    module.register_buffer("negative", z.clone().conj().imag)
    switched(module)
    assert module.conjugate.tolist() == [1 - 2j] and module.negative.tolist() == [-2.0]


def test_what_was_assigned_while_it_was_away_comes_back():
    module = nn.Linear(2, 2)
    residence = Residence([module], "cpu")
    residence.leave()
    module.weight.data = torch.full((2, 2), 7.0)
    module.bias.data = module.weight.data[0]
    residence.come_back()
    assert module.weight.tolist() == [[7.0, 7.0]] * 2
    with torch.no_grad():
        module.weight[0, 0] = 5.0
    assert module.bias[0] == 5.0  # they still share it


def test_two_workers_with_one_module_see_what_each_other_has_learned():
    module = nn.ParameterList([nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))])
    one, other = Residence([module], "cpu"), Residence([module], "cpu")
    rng = np.random.default_rng(0)
    for turn in range(60):
        residence = (one, other)[rng.integers(2)]
        if rng.integers(2):
            residence.come_back()
        else:
            residence.leave()
        assert [p.tolist() for p in module] == [[float(turn)] * 4, [-float(turn)] * 4]
        with torch.no_grad():
            module[0].fill_(turn + 1)
            module[1].fill_(-turn - 1)


def test_sparse_and_quantized_tensors_travel_whole_and_lazy_ones_not_yet():
    embedding, lazy, constants = nn.Embedding(10, 4, sparse=True), nn.LazyLinear(3), nn.Module()
    embedding(torch.tensor([1])).sum().backward()
    gradient = embedding.weight.grad
    assert gradient is not None
    before = gradient._values().data_ptr()
    constants.register_buffer("rows", torch.eye(3).to_sparse_csr())
    constants.register_buffer("small", torch._empty_affine_quantized([3], scale=0.5, zero_point=0, dtype=torch.quint8).fill_(1.0))
    assert Residence([constants], "cpu").nbytes == 4 * 8 + 3 * 8 + 3 * 4 + 3
    residence = Residence([embedding, lazy, constants], "cpu")
    residence.leave()
    assert embedding.weight.grad is gradient and gradient._values().data_ptr() != before
    residence.come_back()
    assert gradient.to_dense()[1].tolist() == [1.0] * 4 and torch.equal(constants.rows.to_dense(), torch.eye(3))
    assert constants.small.dequantize().tolist() == [1.0] * 3 and lazy(torch.ones(1, 2)).shape == (1, 3)
    torch.optim.SparseAdam(embedding.parameters()).step()


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
    policy = PolicyWorker(partial(make_policy, spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)), seed=3))
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
    assert isinstance(leaves, Restorable) and not cannot_leave(leaves)
    for env in (stays, leaves):
        env.reset(seed=5)
    for step in range(130):  # two ends of episodes, whose new targets come from the generators
        action = rng.uniform(-1, 1, (3, 2)).astype(np.float32)
        a, b = stays.step(action), leaves.step(action)
        assert np.array_equal(a.obs_N, b.obs_N) and np.array_equal(a.truncated_N, b.truncated_N)
        if step % 50 == 40:
            state = leaves.save_state()
            leaves.step(action)  # does not touch what was saved
            leaves = make_vec("numpy/ReachArm-v0", 3)
            leaves.restore_state(state)


def test_a_simulator_worker_leaves_with_environments_that_can():
    worker = SimulatorWorker("numpy/ReachArm-v0", num_envs=2, n_steps=3)
    worker.setup()
    group = worker.groups[0]
    group.begin(3)
    first, env = group.observation(), group.env
    assert worker.can_leave()
    worker.offload()
    worker.onload()
    assert group.env is not env and np.array_equal(group.observation().obs_N, first.obs_N)
    group.step(np.zeros((2, 2), np.float32))  # it has been reset: the state came along
    worker.offload()
    worker.close()  # while it is away


def test_who_cannot_leave_says_so():
    class Plain(Worker):
        pass

    class Builds(Worker):
        def setup(self):
            self.weights = bytearray(100)

    class Returns(Builds):
        def onload(self):
            self.setup()

    worker = SimulatorWorker(LineEnv, num_envs=1, n_steps=3, max_episode_steps=4)
    assert not worker.can_leave()  # its class tells before there is an environment
    worker.setup()
    env = worker.groups[0].env
    assert not worker.can_leave() and not Builds().can_leave() and made().can_leave()
    assert Plain().can_leave() and Returns().can_leave()  # nothing to leave, and one who makes it anew
    with pytest.raises(WorkflowError, match=r"SimulatorWorker cannot leave its device: test/Line-v0 cannot be saved: LineEnv has no.*Next: a device"):
        worker.offload()
    with pytest.raises(WorkflowError, match=r"Builds has to leave cpu .*cannot: Builds has a setup\(\), and neither offload\(\) nor.*Next: give it a device"):
        Builds()._switch("offload", [], [])
    worker.onload()
    assert worker.groups[0].env is env


@pytest.mark.parametrize("id", ["gymnasium/Hopper-v5", pytest.param("metaworld/door-lock-v3", marks=pytest.mark.long)])
def test_what_is_collected_does_not_depend_on_leaving(id):
    """Rollouts of which the simulator is away in between are those of one that stays; what it had held is freed."""
    stays, goes = (SimulatorWorker(id, num_envs=2, n_steps=7, max_episode_steps=5, seed=3) for _ in range(2))
    rng = np.random.default_rng(0)
    for worker in (stays, goes):
        worker.setup()
    for _ in range(3):
        for group in (stays.groups[0], goes.groups[0]):
            group.begin(7)
        for t in range(7):
            action = Action(0, rng.uniform(-1, 1, (2, *stays.groups[0].env.spec.action_space.shape)).astype(np.float32), np.zeros(2, np.float32), 0)
            for group in (stays.groups[0], goes.groups[0]):
                group.record(action)
            if t == 3:
                gone = weakref.ref(goes.groups[0].env)
                goes.offload()
                gc.collect()
                assert gone() is None, "its memory is not given up"
                goes.offload()  # it is away
                goes.onload()
        one, other = stays.groups[0].finish(), goes.groups[0].finish()
        assert len(one.end_E2) and pickle.dumps(one) == pickle.dumps(other)
    goes.offload()
    goes.close()  # while it is away
    stays.close()
