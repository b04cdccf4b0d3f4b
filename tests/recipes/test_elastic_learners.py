"""Learner ranks that come and go: every update is that of one rank with the whole batch, whoever takes part."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rlinf_lab as lab
from rlinf_lab.errors import WorkflowError
from rlinf_lab.recipes.ppo import PPOConfig, build
from rlinf_lab.workers import RankGroup, ShardGroup
from rlinf_lab.workflow.worker import Context

sys.path.insert(0, str(Path(__file__).parents[1] / "workers"))
from line_env import LineEnv

EXECUTORS = ["local", "processes", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.long])]
ROWS = 12  # divided evenly by 1, 2 and 3 ranks
TURNOVER = {2: [("join", 1)], 4: [("leave", 2)], 6: [("leave", 1)], 8: [("join", 2)]}  # ranks 0 and 2 begin, then 012, 01, 0, 02


def rows_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(step))
    return x, x.sum(1, keepdim=True)


def net(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
    return made, torch.optim.AdamW(made.parameters(), 1e-2 / (1 + seed))


def after(net: nn.Module) -> list[list[float]]:
    return [p.detach().flatten().tolist() for p in net.parameters()]


class Learner(lab.Worker):
    """Its learning rate, in param_groups, halves every third step."""

    def setup(self) -> None:
        torch.set_num_threads(1)
        self.net, self.optimizer = net(self.rank)  # a newcomer has other weights and another learning rate
        self.steps = 0
        self.group = self.made_group()

    def made_group(self) -> RankGroup:
        return RankGroup(self, timeout=60)

    def train(self, step: int) -> tuple[int, list[list[float]]]:
        with self.group:
            if self.group.formed_now:
                self.steps = self.group.handed_over(self.steps)
            model = self.group.parallel(self.net, self.optimizer)
            self.steps += 1
            if self.steps % 3 == 0:
                self.optimizer.param_groups[0]["lr"] /= 2
            x, y = (part.tensor_split(self.ranks)[self.group.position] for part in rows_of(step))
            self.optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            self.optimizer.step()
            return self.rank, [t.flatten().tolist() for t in self.group.whole(self.net).values()]

    def close(self) -> None:
        self.group.leave()


def by_hand(steps: int) -> list[list[list[float]]]:
    """What one rank learns, by torch alone."""
    learner, optimizer = net(0)
    found = []
    for step in range(steps):
        if (step + 1) % 3 == 0:
            optimizer.param_groups[0]["lr"] /= 2
        x, y = rows_of(step)
        optimizer.zero_grad()
        ((learner(x) - y) ** 2).mean().backward()
        optimizer.step()
        found.append(after(learner))
    return found


def elastic(cls: type[lab.Worker], executor: str) -> None:
    flow = lab.Workflow("elastic")
    learner = flow.worker(cls, name="learner")
    flow.iteration(lambda step: learner.train(step))
    plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1", "cpu:2"], {"learner": [0, 1, 2]})
    there, expected = {0, 2}, by_hand(10)
    with lab.session(flow, plan, executor=executor, emulate=True, absent={"learner": [1]}) as session:
        for step in range(10):
            for what, rank in TURNOVER.get(step, []):
                getattr(session, what)("learner", rank)
                there ^= {rank}
            found = dict(session.step(step))
            assert set(found) == there
            for rank, weights in found.items():
                assert weights == found[0], f"step {step}: ranks 0 and {rank} differ"
                for one, other in zip(weights, expected[step], strict=True):
                    assert np.allclose(one, other, atol=1e-6), f"step {step}, rank {rank}"


@pytest.mark.parametrize("executor", EXECUTORS)
def test_ranks_come_and_go_and_every_update_is_that_of_the_whole_batch(executor: str) -> None:
    elastic(Learner, executor)


SMALL = PPOConfig(LineEnv, max_episode_steps=5, num_envs=4, n_steps=10, iterations=10, batch_size=7, n_epochs=2)


@pytest.mark.parametrize(("executor", "parallel"), [("local", "ddp"), pytest.param("processes", "ddp", marks=pytest.mark.long), ("local", "fsdp"), ("processes", "fsdp")])
def test_the_learner_of_the_library_goes_on_with_who_is_there(executor: str, parallel: str) -> None:
    """Rank 1 joins before the third update and leaves before the fifth; version, counts, moments and minibatches are those of one rank."""

    def learned(ranks: int, **fields: Any) -> list[tuple[Any, dict]]:
        flow, found = build(replace(SMALL, parallel=parallel)), []
        plan = lab.ExecutionPlan.temporal(flow, [f"cpu:{i}" for i in range(ranks)], {"learner": ranks})
        with lab.session(flow, plan, executor=executor, emulate=True, **fields) as session:
            for step in range(6):
                if ranks > 1 and step in (2, 4):
                    (session.join if step == 2 else session.leave)("learner", 1)
                found.append((session.members["learner"], session.step()))
            return [*found, ((), session.step("state"))]

    (*alone, (_, last)), (*several, (_, state)) = learned(1), learned(2, absent={"learner": [1]})
    assert [members for members, _ in several] == [(0,), (0,), (0, 1), (0, 1), (0,), (0,)]
    for (_, a), (_, b) in zip(alone, several, strict=True):
        assert a["env_steps"] == b["env_steps"] and b["value_loss"] == pytest.approx(a["value_loss"], rel=1e-3)
    assert state["weights"].version == last["weights"].version == 6 and state["rng"] == last["rng"]
    for name, array in last["weights"].arrays.items():
        assert np.allclose(array, state["weights"].arrays[name], atol=2e-4), name


class Meeting(Context):
    """Ranks in threads of a test."""

    def __init__(self, members: tuple[int, ...], rank: int, told: dict[int, list[Any]], barrier: Any) -> None:
        self.members, self.rank, self.ranks, self.told, self.barrier = members, rank, len(members), told, barrier

    def exchange(self, value: object) -> list:
        self.told[self.rank] = [value]
        self.barrier.wait()
        met = [self.told[rank][0] for rank in self.members]
        self.barrier.wait()
        return met


def test_what_counts_is_known_by_the_first_that_has_worked_and_not_by_a_newcomer() -> None:
    """Here the newcomer is rank 0, which no session lets go and come."""
    import threading

    told, barrier = {}, threading.Barrier(2, timeout=60)

    def work(rank: int) -> tuple[Any, ...]:
        worker = lab.Worker()
        made, optimizer = net(rank)
        group = RankGroup(worker, timeout=60)
        if rank == 3:
            worker._context = Meeting((3,), 3, told, None)
            with group:
                made(rows_of(0)[0]).sum().backward()
                optimizer.step()
        worker._context = Meeting((0, 3), rank, told, barrier)
        with group:
            group.parallel(made, optimizer)
            handed = group.handed_over({"rank": rank, "deep": [torch.full((2,), float(rank)), torch.zeros(0)]})
            first = optimizer.state[next(made.parameters())]
            own = (group.position, handed["rank"], handed["deep"][0].tolist(), after(made), optimizer.param_groups[0]["lr"], first["exp_avg"].tolist())
            first["exp_avg"].fill_(rank + 1)  # nobody else's
            group.barrier()
            assert (first["exp_avg"] == rank + 1).all()
            group.leave()
        return own

    with ThreadPoolExecutor(2) as pool:
        zero, three = [task.result(timeout=60) for task in [pool.submit(work, rank) for rank in (0, 3)]]
    assert (zero[0], three[0]) == (0, 1) and zero[1:] == three[1:] and zero[1:3] == (3, [3.0, 3.0])


class Sharded(Learner):
    def made_group(self) -> RankGroup:
        return ShardGroup(self, timeout=60)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_shards_are_handed_over_when_ranks_come_and_go(executor: str) -> None:
    elastic(Sharded, executor)


class Quiet(Sharded):
    """It does not leave its group by itself, and may fail when the others are through."""

    def train(self, step: int, fails: bool = False) -> tuple[int, list[list[float]]]:
        found = super().train(step)
        with self.group:
            if fails and self.rank == 1:
                raise ValueError("no")
        return found

    def close(self) -> None:
        pass


def quiet(fails: bool) -> tuple[lab.Workflow, lab.ExecutionPlan]:
    flow = lab.Workflow("quiet")
    learner = flow.worker(Quiet, name="learner")
    flow.iteration(lambda step: learner.train(step, fails and step == 1))
    return flow, lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"learner": [0, 1]})


def test_what_a_rank_leaves_behind_is_there_whatever_its_close_does_and_is_kept_no_longer_than_needed() -> None:
    flow, plan = quiet(False)
    with lab.session(flow, plan, emulate=True) as session:
        session.step(0)
        session.leave("learner", 1)
        assert [rank for rank, _ in session.step(1)] == [0]
        assert not any(value.iteration > 10 for value in session._host.state.values._values.values())
        session.join("learner", 1)
        (_, zero), (_, one) = session.step(2)
        assert zero == one and all(np.allclose(a, b, atol=1e-6) for a, b in zip(zero, by_hand(3)[2], strict=True))


def test_shards_of_an_update_that_failed_are_not_gone_on_from_when_a_rank_leaves() -> None:
    flow, plan = quiet(True)
    with lab.session(flow, plan, emulate=True) as session:
        session.step(0)
        with pytest.raises(lab.errors.WorkerError, match="rank 1 failed in train.*no"):
            session.step(1)
        session.leave("learner", 1)
        with pytest.raises(lab.errors.WorkerError, match="rank 1 has left with its part .* after an update of it had failed. Next: go on from a checkpoint"):
            session.step(2)
        for what in (session.join, session.leave):
            with pytest.raises(lab.errors.WorkerError, match="an update of its sharded weights has failed.*Next: go on from a checkpoint"):
                session.step(3)
            what("learner", 1)


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_a_rank_that_goes_and_comes_back_between_two_updates_is_a_newcomer(executor: str) -> None:
    """Its number alone does not tell."""
    for cls in (Learner, Sharded):
        flow = lab.Workflow("back")
        learner = flow.worker(cls, name="learner")
        flow.iteration(lambda step, learner=learner: learner.train(step))
        plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"learner": [0, 1]})
        with lab.session(flow, plan, executor=executor, emulate=True) as session:
            session.step(0)
            session.leave("learner", 1)
            session.join("learner", 1)
            (_, zero), (_, one) = session.step(1)
            assert zero == one and all(np.allclose(a, b, atol=1e-6) for a, b in zip(zero, by_hand(2)[1], strict=True))


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_checkpoint_before_its_first_update_takes_nothing_from_a_newcomer(parallel: str) -> None:
    """What each rank knows is read from the ranks themselves: it differed without a word."""
    flow = build(replace(SMALL, parallel=parallel))
    plan = lab.ExecutionPlan.temporal(flow, ["cpu:0", "cpu:1"], {"learner": 2})
    with lab.session(flow, plan, emulate=True, absent={"learner": [1]}) as session:
        session.step()
        session.join("learner", 1)
        before = session.step("state")
        assert before["weights"].version == 1
        session.step()
        ranks = [p.instance for p in session._host.state.ranks if p.worker == "learner"]
        zero, one = ({**w._kept(), "moments": w.moments.mean.tolist(), "returns": w.returns.moments.count} for w in ranks)
        assert zero == one and zero["version"] == 2 and zero["env_steps"] > before["env_steps"] > 0


class Looks(Learner):
    """A `with group` that hands nothing over may come first."""

    def do(self, what: str, step: int) -> Any:
        return self.train(step) if what == "train" else getattr(self, what)()

    def look(self) -> bool:
        with self.group:
            self.group.barrier()
            return self.group.formed_now

    def known(self) -> int:
        return self.steps


def test_newcomers_may_take_over_in_a_later_with() -> None:
    flow = lab.Workflow("looks")
    learner = flow.worker(Looks, name="learner")
    flow.iteration(lambda what, step=0: learner.do(what, step))
    plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"learner": [0, 1]})
    with lab.session(flow, plan, emulate=True, absent={"learner": [1]}) as session:
        for step in range(3):
            session.step("train", step)
        session.join("learner", 1)
        assert session.step("look") == [True, True] == session.step("look")
        (_, zero), (_, one) = session.step("train", 3)
        assert zero == one and session.step("look") == [False, False] and session.step("known") == [4, 4]


def kept(session: Any) -> list[Any]:
    return [value for value in session._host.state.values._values.values() if value.iteration > 10]


class Reloads(Looks, Sharded):
    def reload(self) -> None:
        assert self.group.forget()
        self.net, self.optimizer = net(0)


def test_parts_that_a_checkpoint_has_replaced_are_forgotten() -> None:
    flow = lab.Workflow("reloads")
    learner = flow.worker(Reloads, name="learner")
    flow.iteration(lambda what, step=0: learner.do(what, step))
    plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"learner": [0, 1]})
    with lab.session(flow, plan, emulate=True) as session:
        session.step("train", 0)
        session.leave("learner", 1)
        session.step("reload")
        until = time.monotonic() + 30
        while not kept(session):  # it goes in a thread of its own
            assert time.monotonic() < until
            time.sleep(0.01)
        session.step("train", 0)
        assert not kept(session)


def test_two_ranks_that_are_gone_are_both_collected_before_either_is_judged() -> None:
    collected = []

    class Gone(Context):
        def collect(self, place: int, rank: int) -> Any:
            collected.append(rank)
            return None if rank == 1 else []

    worker = lab.Worker()
    worker._context = Gone()
    group = ShardGroup(worker)
    group._members = (0, 1, 2)
    with pytest.raises(WorkflowError, match="rank 1 has left with its part"):
        group._collected([])
    assert collected == [1, 2]


class Unwell(Sharded):
    def made_group(self) -> RankGroup:
        class Unwell(ShardGroup):
            def _parts(self) -> Any:
                if self._worker.rank == 1:
                    raise MemoryError("no room for its part")
                return super()._parts()

        return Unwell(self, timeout=60)


@pytest.mark.long
@pytest.mark.parametrize("executor", ["local", "processes"])
def test_a_farewell_that_fails_is_the_reason_that_the_others_hear(executor: str) -> None:
    """They had waited for what did not come."""
    flow = lab.Workflow("unwell")
    learner = flow.worker(Unwell, name="learner")
    flow.iteration(lambda step: learner.train(step))
    plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"learner": [0, 1]})
    heard = False
    at_the_end = pytest.raises(lab.errors.WorkerError, match="rank 1 failed in close.*no room for its part")
    with at_the_end, lab.session(flow, plan, executor=executor, emulate=True) as session:
        session.step(0)
        session.leave("learner", 1)
        with pytest.raises(lab.errors.WorkerError, match=r"(?s)rank 1 failed in leave\(\).*no room for its part"):
            session.step(1)
        heard = True
    assert heard


class GroupPerCall(lab.Worker):
    def train(self) -> int:
        with RankGroup(self) as group:
            group.barrier()
            group.leave()
        return len(self._context._process.farewells)


def test_a_group_that_was_left_is_not_kept_for_its_farewell() -> None:
    flow = lab.Workflow("per_call")
    learner = flow.worker(GroupPerCall, name="learner")
    flow.iteration(lambda: learner.train())
    plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"learner": [0, 1]})
    with lab.session(flow, plan, emulate=True) as session:
        assert [session.step() for _ in range(3)] == [[0, 0]] * 3


def test_what_is_left_behind_twice_is_there_as_it_was_left_last() -> None:
    class Leaves(lab.Worker):
        def go(self) -> Any:
            for value in range(2 * self.rank):
                self._context.leave_behind(-5, value)
            self.exchange(None)
            return self._context.collect(-5, 1) if self.rank == 0 else None

    flow = lab.Workflow("twice")
    leaves = flow.worker(Leaves, name="leaves")
    flow.iteration(lambda: leaves.go())
    with lab.session(flow, lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"leaves": [0, 1]}), emulate=True) as session:
        assert session.step() == [1, None] and not kept(session)
