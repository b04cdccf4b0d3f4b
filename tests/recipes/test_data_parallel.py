"""Several learner ranks with torch's DistributedDataParallel: they learn what one rank learns, survive failures, leave their device."""

from __future__ import annotations

import datetime
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import rlinf_lab as lab
from rlinf_lab.errors import Cancelled, WorkflowError
from rlinf_lab.recipes.ppo import PPOConfig, build
from rlinf_lab.workers import RankGroup
from rlinf_lab.workflow.worker import Context

sys.path.insert(0, str(Path(__file__).parents[1] / "workers"))
from line_env import SavedLineEnv

SMALL = PPOConfig(SavedLineEnv, max_episode_steps=5, num_envs=4, n_steps=10, iterations=10, batch_size=7, n_epochs=2)  # minibatches of uneven parts
EXECUTORS = ["local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.long])]


def trained(executor: str, ranks: int, **fields) -> tuple[list[dict], dict]:
    flow = build(SMALL)
    plan = lab.ExecutionPlan.temporal(flow, [f"cpu:{i}" for i in range(ranks)], {"learner": ranks}, **fields)
    with lab.session(flow, plan, executor=executor, emulate=True) as session:
        metrics = [session.step() for _ in range(3)]
        return metrics, session.step("state")


@pytest.mark.parametrize(("executor", "ranks"), [("local", 2), ("local", 3), pytest.param("ray", 2, marks=EXECUTORS[1].marks)])
def test_several_ranks_learn_what_one_learns(executor: str, ranks: int) -> None:
    one, state = trained("local", 1)
    several, shared = trained(executor, ranks)
    for a, b in zip(one, several, strict=True):
        assert a.keys() == b.keys() and a["env_steps"] == b["env_steps"]
        assert b["value_loss"] == pytest.approx(a["value_loss"], rel=1e-3)
    for name, array in state["weights"].arrays.items():
        assert np.allclose(array, shared["weights"].arrays[name], atol=2e-4), name
    first, *_ = (a for n, a in state["weights"].arrays.items() if n.endswith("weight"))
    assert np.abs(first).max() > 1e-3


@pytest.mark.parametrize("at_once", [False, True])
def test_ranks_learn_also_when_they_are_switched_out(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``at_once``: and when each of them leaves as soon as it is built, as on a GPU."""
    monkeypatch.setattr(lab.TorchWorker, "_leaves_at_once", lambda _: at_once)
    stays = trained("local", 2)[1]
    plan = {"memory": {"learner": 2, "policy": 2, "simulator": 2}, "device_memory": 2}
    leaves = trained("local", 2, **plan)[1]
    for name, array in stays["weights"].arrays.items():
        assert np.allclose(array, leaves["weights"].arrays[name], atol=1e-6), name


class Together(lab.Worker):
    def __init__(self, fails: tuple[int, int]) -> None:
        self.fails = fails  # (rank, iteration)

    def setup(self) -> None:
        self.group = RankGroup(self, timeout=60)
        torch.manual_seed(0)
        self.net = nn.Linear(2, 1)

    def train(self) -> tuple[list, dict]:
        with self.group:
            model = self.group.parallel(self.net)
            if (self.rank, self.iteration) == self.fails:
                raise ValueError("no")
            self.net.zero_grad()
            model(torch.full((1, 2), self.rank + 1.0)).sum().backward()
            return self.net.weight.grad.tolist(), self.group.mean({"rank": float(self.rank)})


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_rank_that_fails_ends_the_collectives_of_the_others(executor: str) -> None:
    """Their time-out is a minute, the test's is less than the next step would then take."""
    flow = lab.Workflow("together")
    together = flow.worker(Together, (1, 1), name="together")
    flow.iteration(lambda: together.train())
    plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1", "cpu:2"], {"together": [0, 1, 2]})
    with lab.session(flow, plan, executor=executor, emulate=True) as session:
        expected = [([[2.0, 2.0]], {"rank": 1.0})] * 3
        assert session.step() == expected
        with pytest.raises(lab.errors.WorkerError, match="'together' rank 1 failed in train.*no"):
            session.step()
        assert session._loop.under_way.labels() == []  # nobody is left in a collective
        assert session.step() == expected


class Meeting(Context):
    """Two ranks in threads of a test. Rank 0 is given up in its third exchange, when the other has the values already."""

    ranks = 2

    def __init__(self, rank: int, values: list, barrier: threading.Barrier) -> None:
        self.rank, self.values, self.barrier, self.meetings = rank, values, barrier, 0

    def exchange(self, value: object) -> list:
        self.values[self.rank] = value
        self.barrier.wait()
        met = list(self.values)
        self.barrier.wait()
        self.meetings += 1
        if (self.rank, self.meetings) == (0, 3):
            raise Cancelled("given up")
        return met


def test_a_rank_that_is_given_up_while_it_meets_the_others_ends_their_collectives() -> None:
    """They may have met it already and compute, while it has not heard so yet."""
    values, barrier = [None, None], threading.Barrier(2, timeout=60)

    def twice(rank: int) -> None:
        worker = lab.Worker()
        worker._context = Meeting(rank, values, barrier)
        group = RankGroup(worker, timeout=60)
        for _ in range(2):
            with group:
                group.barrier()

    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(twice, rank) for rank in range(2)]
        with pytest.raises(Cancelled, match="given up"):
            ranks[0].result()
        with pytest.raises(RuntimeError, match="closed"):
            ranks[1].result(timeout=30)


class GivenUp(Meeting):
    """Rank 0 is given up while it tells where the group forms, when the other knows it already; then the call of both is over."""

    over = False

    def exchange(self, value: object) -> list:
        self.meetings += 1 if (self.rank, self.meetings) == (0, 1) else 0
        try:
            return super().exchange(value)
        except Cancelled:
            GivenUp.over = True
            raise

    def cancelled(self) -> bool:
        return GivenUp.over


def test_a_rank_that_is_given_up_before_the_group_is_formed_lets_the_others_go() -> None:
    """They wait for it at the store, not in torch, where they would until its time-out."""
    GivenUp.over = False
    values, barrier = [None, None], threading.Barrier(2, timeout=60)

    def once(rank: int) -> None:
        worker = lab.Worker()
        worker._context = GivenUp(rank, values, barrier)
        with RankGroup(worker, timeout=60):
            pass

    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(once, rank) for rank in range(2)]
        with pytest.raises(Cancelled, match="given up"):
            ranks[0].result(timeout=30)
        with pytest.raises(Cancelled, match="its group was not formed, because the call was given up"):
            ranks[1].result(timeout=30)


def test_ranks_of_several_nodes_meet_at_the_addresses_that_their_executor_knows() -> None:
    """Not where a packet to the rest of the world would leave the node: there may be no such way, or one by another network."""
    values, barrier, told = [None, None], threading.Barrier(2, timeout=60), []

    class OnItsNode(Meeting):
        def exchange(self, value: object) -> list:
            self.meetings = 10  # nobody is given up
            met = super().exchange(value)
            told.extend(m[0] for m in met if isinstance(m[0], str))
            return met

    def once(rank: int) -> None:
        worker = lab.Worker()
        worker._context = OnItsNode(rank, values, barrier)
        worker._context.address = f"127.0.0.{rank + 2}"
        with RankGroup(worker, timeout=60) as group:
            group.barrier()
            group.leave()

    with ThreadPoolExecutor(2) as pool:
        for rank in [pool.submit(once, rank) for rank in range(2)]:
            rank.result(timeout=60)
    assert sorted(told) == ["127.0.0.2", "127.0.0.2", "127.0.0.3", "127.0.0.3"]


class StandIn:
    """NCCL's part of a group, on a machine without GPUs."""

    def __init__(self) -> None:
        self.aborted = threading.Event()

    def abort(self) -> None:
        self.aborted.set()


class OnAGPU(RankGroup):
    """Its collectives go by Gloo; what is NCCL's is told to a stand-in."""

    nccl = None

    def _joined(self, store, address):
        self.nccl = StandIn()
        return super()._joined(store, address)

    def _nccl(self):
        return self.nccl if self._group is not None else None


def on_gpus(context: Meeting) -> OnAGPU:
    context.meetings = 10  # nobody is given up by its exchange
    worker = lab.Worker()
    worker._context = context
    return OnAGPU(worker, timeout=60)


def test_leaving_a_group_aborts_its_communicators() -> None:
    values, barrier = [None, None], threading.Barrier(2, timeout=60)

    def once(rank: int) -> tuple[bool, bool]:
        group = on_gpus(Meeting(rank, values, barrier))
        with group:
            group.barrier()
            before = group.nccl.aborted.is_set()
        group.leave()
        return before, group.nccl.aborted.is_set()

    with ThreadPoolExecutor(2) as pool:
        assert [rank.result(timeout=60) for rank in [pool.submit(once, rank) for rank in range(2)]] == [(False, True)] * 2


def test_a_rank_whose_call_is_given_up_aborts_what_waits_on_its_gpu_and_does_not_go_on_from_there() -> None:
    """NCCL would wait for the rank that has gone until its watchdog ends the process."""
    values, barrier, gone = [None, None], threading.Barrier(2, timeout=60), threading.Event()

    class GivenUp(Meeting):
        def cancelled(self) -> bool:
            return self.rank == 1 and gone.is_set()

    def once(rank: int) -> None:
        group = on_gpus(GivenUp(rank, values, barrier))
        with group:
            pass
        if rank == 1:
            with pytest.raises(WorkflowError, match=r"ranks \[1\] on their GPUs were broken off.*Next: go on from a checkpoint"), group:
                gone.set()
                assert group.nccl.aborted.wait(10)  # the collective
            gone.clear()
        else:
            with group:
                group.nccl.aborted.wait(3)
        with pytest.raises(WorkflowError, match=r"ranks \[1\] on their GPUs were broken off"), group:
            pass
        group.forget()  # a checkpoint has been loaded
        with group:
            group.barrier()
        group.leave()

    with ThreadPoolExecutor(2) as pool:
        for rank in [pool.submit(once, rank) for rank in range(2)]:
            rank.result(timeout=60)


def test_a_rank_alone_needs_no_group() -> None:
    worker = Together((-1, -1))
    worker.setup()
    assert worker.train() == ([[1.0, 1.0]], {"rank": 0.0}) and worker.group.parallel(worker.net) is worker.net
    worker.group.barrier()
    assert repr(worker.group) == "RankGroup(<Together, by hand>, rank 0 of 1, not formed)"


class LeavesItsDevice(Meeting):
    """Rank 1 has to leave its device after it has said what it has, in the first exchange of its second `with`."""

    leaves = None

    def exchange(self, value: object) -> list:
        self.meetings = 10  # nobody is given up
        met = super().exchange(value)
        if self.rank == 1 and self.leaves is not None:
            self.leaves()
            self.leaves = None
        return met


def test_a_rank_that_leaves_its_device_while_it_meets_wraps_its_modules_together_with_the_others() -> None:
    """One rank had wrapped its module, a collective, while the other computed: both ran into the time-out. Within the `with` nothing is unwrapped."""
    values, barrier = [None, None], threading.Barrier(2, timeout=60)

    def thrice(rank: int) -> list[float]:
        worker, gradients = lab.Worker(), []
        worker._context = LeavesItsDevice(rank, values, barrier)
        group, module = RankGroup(worker, timeout=10), nn.Linear(2, 1)
        for number in range(3):
            worker._context.leaves = group.offload if number == 1 else None
            with group:
                assert worker._context.together == 1
                model = group.parallel(module)
                if rank == 1 and number == 1:
                    group.offload()  # at a put in between
                module.zero_grad()
                model(torch.full((1, 2), rank + 1.0)).sum().backward()
                gradients.append(module.weight.grad[0, 0].item())
            assert worker._context.together == 0
        group.leave()
        return gradients

    with ThreadPoolExecutor(2) as pool:
        assert [rank.result(timeout=60) for rank in [pool.submit(thrice, rank) for rank in range(2)]] == [[1.5] * 3] * 2


def test_a_module_whose_rank_has_left_its_gpu_within_the_with_refuses_to_go_on() -> None:
    values, barrier = [None, None], threading.Barrier(2, timeout=60)

    def once(rank: int) -> None:
        group = on_gpus(Meeting(rank, values, barrier))
        with group:
            model = group.parallel(nn.Linear(2, 1))
            group._worker._context.device = "cuda:0"
            group.offload()
            with pytest.raises(WorkflowError, match="had to leave cuda:0 within `with group:`.*Next: take"):
                model(torch.zeros(1, 2))
        group.leave()

    with ThreadPoolExecutor(2) as pool:
        for rank in [pool.submit(once, rank) for rank in range(2)]:
            rank.result(timeout=60)


class OutOfOrder(lab.Worker):
    def train(self) -> None:
        if self.rank:
            self.exchange("of its own")
        with RankGroup(self, timeout=60):
            pass


def test_an_exchange_that_meets_the_group_of_another_rank_is_named() -> None:
    flow = lab.Workflow("mixed")
    mixed = flow.worker(OutOfOrder, name="mixed")
    flow.iteration(lambda: mixed.train())
    plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"mixed": [0, 1]})
    message = r"rank 1 gave 'of its own' to an exchange\(\) of its own where this rank began `with group:`.*in the same order"
    with lab.session(flow, plan, emulate=True) as session, pytest.raises(lab.errors.WorkerError, match=message):
        session.step()


@pytest.mark.parametrize("seed", range(4))
def test_a_group_is_formed_by_all_ranks_or_by_none(seed: int) -> None:
    """Whoever gives up while the last one comes: three that looked at different instants had each drawn a conclusion of its own."""
    rng = random.Random(seed)
    seen = set()
    for _ in range(60):
        store, gives_up, words = dist.HashStore(), [rng.random() < 0.4 for _ in range(3)], [""] * 3
        delays = [rng.random() * 2e-3 for _ in range(3)]

        def come(rank: int, store: Any = store, gives_up: list[bool] = gives_up, words: list[str] = words, delays: list[float] = delays) -> None:
            worker = SimpleNamespace(ranks=3, cancelled=False, name="learner")
            group = SimpleNamespace(_worker=worker, _timeout=datetime.timedelta(seconds=20))
            timer = threading.Timer(delays[rank], lambda: setattr(worker, "cancelled", gives_up[rank]))
            timer.start()
            time.sleep(delays[rank - 1])
            try:
                RankGroup._assemble(group, store)
                words[rank] = "formed"
            except Cancelled:
                words[rank] = "given up"
            timer.join()

        threads = [threading.Thread(target=come, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(words)) == 1, words
        assert words[0] == "formed" or any(gives_up)
        seen.add(words[0])
    assert "formed" in seen
