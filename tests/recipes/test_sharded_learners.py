"""Learner ranks that share weights, gradients and Adam's moments by torch's fully_shard: they learn what one rank learns, in processes and in threads."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError
from rlinf_lab.recipes.ppo import PPOConfig, build
from rlinf_lab.workers import LearnerWorker, ShardGroup

sys.path.insert(0, str(Path(__file__).parents[1] / "workers"))
from line_env import SavedLineEnv

SMALL = PPOConfig(SavedLineEnv, max_episode_steps=5, num_envs=4, n_steps=10, iterations=10, batch_size=7, n_epochs=2)  # minibatches of uneven parts
SHARDED = replace(SMALL, parallel="fsdp")


def plan_of(flow: lab.Workflow, ranks: int, **fields) -> lab.ExecutionPlan:
    return lab.ExecutionPlan.temporal(flow, [f"cpu:{i}" for i in range(ranks)], {"learner": ranks}, **fields)


def same(a, b, atol: float = 2e-4) -> None:
    assert a.arrays.keys() == b.arrays.keys() and a.version == b.version
    for name, array in a.arrays.items():
        assert array.shape == b.arrays[name].shape and np.allclose(array, b.arrays[name], atol=atol), name


@pytest.mark.long
def test_shards_learn_what_one_rank_learns_also_when_switched_out_and_after_a_checkpoint() -> None:
    """Two updates by one rank and by two; then both go on from the checkpoint of the two, which is one of any number of ranks."""
    flow = build(SMALL)
    with lab.session(flow, plan_of(flow, 1)) as session:
        one = [session.step() for _ in range(2)]
        alone = session.step("state")
    flow = build(SHARDED)
    memory = {"memory": {"learner": 2, "policy": 2, "simulator": 2}, "device_memory": 2}  # the learner leaves and comes back between updates
    with lab.session(flow, plan_of(flow, 2, **memory), executor="processes", emulate=True) as session:
        several = [session.step() for _ in range(2)]
        shared = session.step("state")
    # after the end: while it goes on, what other processes recorded comes a tenth of a second later
    assert {"onload", "offload"} <= {s.name for s in session.timeline.rows() if s.track.worker == "learner"}
    for a, b in zip(one, several, strict=True):
        assert a.keys() == b.keys() and b["value_loss"] == pytest.approx(a["value_loss"], rel=1e-3)
    same(alone["weights"], shared["weights"])
    assert alone["optimizer"]["state"].keys() == shared["optimizer"]["state"].keys()
    for i, each in alone["optimizer"]["state"].items():
        assert np.allclose(each["exp_avg"], shared["optimizer"]["state"][i]["exp_avg"], atol=1e-3)

    flow = build(SMALL, state=alone)
    with lab.session(flow, plan_of(flow, 1)) as session:
        next_one = session.step()
    flow = build(SHARDED, state=shared)
    with lab.session(flow, plan_of(flow, 2), executor="processes", emulate=True) as session:
        again = session.step()
        assert again["value_loss"] == pytest.approx(next_one["value_loss"], rel=1e-3)
        assert again["policy_loss"] == pytest.approx(next_one["policy_loss"], abs=1e-3)


def test_shards_teach_the_value_net_alone_as_one_rank_does() -> None:
    """After an update of both, with the memory of Adam."""
    learnt = []
    for config, ranks in ((SMALL, 1), (SHARDED, 2)):
        flow = build(config)
        with lab.session(flow, plan_of(flow, ranks), emulate=True) as session:
            session.step()
            state = session.step("state")
        flow = build(replace(config, critic_warmup=2), state=state)
        with lab.session(flow, plan_of(flow, ranks), emulate=True) as session:
            session.step()
            learnt.append((state["weights"].arrays, session.step("state")["weights"]))
    (before, one), (_, several) = learnt
    same(one, several)
    moved = {name for name in before if not np.array_equal(before[name], one.arrays[name]) and "preprocess" not in name}
    assert moved and all(name.startswith("critic") for name in moved), moved


class Layers(lab.Worker):
    """Two layers that are gathered one at a time; rank 0 says how much of the weights it keeps."""

    def setup(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(self.rank)  # different on purpose: all begin with those of rank 0
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)).to(self.device)  # 3 rows are not divided by two
        self.sgd = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.group = ShardGroup(self, timeout=60)

    def train(self, fails: int = -1, after: object = None) -> tuple[int, list, list]:
        with self.group:
            net = self.group.parallel(self.net, self.sgd, units=list(self.net))
            x = torch.full((2, 4), self.rank + 1.0, device=self.device)
            net(x).sum().backward()
            if self.rank == fails:
                raise ValueError("no")
            self.sgd.step()
            self.sgd.zero_grad()
            with self.group.gathered(self.net):
                gathered = [p.tolist() for p in self.net.parameters()]
            kept = sum(p.to_local().numel() for p in self.net.parameters())
            return kept, [t.tolist() for t in self.group.whole(self.net).values()], gathered


def layers(kind: str = "cpu") -> tuple[lab.Workflow, lab.ExecutionPlan]:
    flow = lab.Workflow("layers")
    worker = flow.worker(Layers, name="layers")
    flow.iteration(lambda fails=-1: worker.train(fails))
    return flow, lab.ExecutionPlan.spatial(flow, [f"{kind}:0", f"{kind}:1"], {"layers": [0, 1]})


def test_each_rank_keeps_its_part_and_a_failed_update_is_not_gone_on_from() -> None:
    flow, plan = layers()
    with lab.session(flow, plan, executor="processes", emulate=True) as session:
        (kept, whole, gathered), (other, *same_whole) = session.step()
        assert whole == gathered and [whole, gathered] == same_whole and kept + other == 4 * 8 + 8 + 8 * 3 + 3 and max(kept, other) < 40
        with pytest.raises(lab.errors.WorkerError, match="'layers' rank 1 failed in train.*no"):
            session.step(1)
        assert session._loop.under_way.labels() == []  # nobody is left in a collective
        with pytest.raises(lab.errors.WorkerError, match="the shards may be of different steps. Next: go on from a checkpoint"):
            session.step()


@pytest.mark.gpu
def test_on_gpus_the_same_weights_through_nccl() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs: NCCL takes one rank on each")
    found = []
    for kind in ("cpu", "cuda"):
        flow, plan = layers(kind)
        with lab.session(flow, plan, executor="processes", emulate=True) as session:
            session.step()
            found.append(session.step()[0][1])
    for on_cpu, on_gpu in zip(*found, strict=True):
        assert np.allclose(on_cpu, on_gpu, atol=1e-5)


@pytest.mark.long
def test_threads_of_one_process_share_weights_too() -> None:
    """Also where a rank of another worker is on the devices of both, so that all live in one process."""
    flow = build(SMALL)
    with lab.session(flow, plan_of(flow, 1)) as session:
        one = session.step()
        alone = session.step("state")
    flow = build(SHARDED)
    plan = lab.ExecutionPlan("p", ["cpu:0", "cpu:1"], {"simulator": [[0]], "policy": [[0, 1]], "learner": [[0], [1]]}, micro_batches={"obs": 1})
    for executor in ("local", "processes"):
        assert lab.check(flow, plan, executor, emulate=True).ok
        with lab.session(flow, plan, executor=executor, emulate=True) as session:
            assert session.step()["value_loss"] == pytest.approx(one["value_loss"], rel=1e-3)
            same(alone["weights"], session.step("state")["weights"])


def one_after_another(workers: list, fails: int = -1) -> list:
    """At the same time each of two could have one of the two devices that both need."""
    made = [workers[0].train(fails if len(workers) == 1 else -1)]
    for worker in workers[1:]:
        made.append(worker.train(fails, made[-1]))
    return made


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_two_workers_of_the_same_processes_shard_side_by_side(executor: str) -> None:
    """What each computes is what it computes alone; one that fails takes nothing from the other."""
    found = []
    for names in (["actor"], ["actor", "critic"]):
        flow = lab.Workflow("layers")
        workers = [flow.worker(Layers, name=name) for name in names]
        flow.iteration(partial(one_after_another, workers))
        plan = lab.ExecutionPlan.temporal(flow, ["cpu:0", "cpu:1"], dict.fromkeys(names, 2))
        with lab.session(flow, plan, executor=executor, emulate=True) as session:
            found.append([session.step() for _ in range(3)])
            with pytest.raises(lab.errors.WorkerError, match=f"'{names[-1]}' rank 1 failed in train.*no"):
                session.step(1)
    for (alone,), (actor, critic) in zip(*found, strict=True):
        assert alone == actor == critic


def test_only_known_ways_to_share() -> None:
    with pytest.raises(ConfigError, match=r"LearnerWorker\(parallel='zero'\): 'ddp' or 'fsdp'"):
        LearnerWorker(lambda: None, gamma=0.9, gae_lambda=0.9, learning_rate=1e-3, parallel="zero")
    with pytest.raises(ConfigError, match="parallel"):
        replace(SMALL, parallel="zero")
