"""`lab.profile` on real workers: what is measured, kept, flagged and refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flows import Numbers, cell_flow

import rlinf_lab as lab
from rlinf_lab.runtime.profiling import profiler

CALLS: list[str] = []


class Sampler(lab.Worker):
    def setup(self) -> None:
        self.weights = bytearray(40 << 20)
        self.weights[::4096] = b"x" * len(self.weights[::4096])  # touched, so that it is really there

    def onload(self) -> None:
        CALLS.append("onload")
        time.sleep(0.03)

    def offload(self) -> None:
        CALLS.append("offload")
        time.sleep(0.01)

    def sample(self, out: lab.Outbox) -> None:
        for i in range(16):
            self.compute(0.012 if i == 15 else 0.002)
            out.put(i)


class Trainer(lab.Worker):
    def train(self, inbox: lab.Inbox) -> None:
        for batch in inbox:
            if len(batch) == 4 and getattr(self, "fragile", False):
                raise ValueError("four")
            self.compute(0.01 + 0.002 * len(batch))


class Fragile(Trainer):
    fragile = True


def flow(trainer: type[lab.Worker] = Trainer) -> lab.Workflow:
    made = lab.Workflow("sampling")
    samples = made.channel("samples", capacity=None)
    sampler, learner = made.worker(Sampler, name="sampler"), made.worker(trainer, name="trainer")
    made.iteration(lambda n=0: (sampler.sample(samples), learner.train(samples)))
    return made


def test_workers_are_measured() -> None:
    CALLS.clear()
    made = flow()
    profile = lab.profile(made, ["cpu:0", "cpu:1"], ranks={"trainer": [1, 2]}, iterations=2, generators={"sampler": 512}, progress=False)
    assert profile.items == 16 and profile.name == "sampling" and profile.stale() == ()
    sampler, trainer = profile.workers["sampler"], profile.workers["trainer"]
    # Times on a busy machine: never shorter than what was computed.
    assert sampler.samples[0].seconds >= 15 * 0.002 + 0.012 and sampler.kind == "generation"
    assert sampler.samples[0].outputs[-1][1] == 1.0 and len(sampler.samples[0].outputs) == 16
    assert {(s.devices, s.items) for s in trainer.samples} >= {(1, 4), (1, 16), (2, 16)}
    assert min(s.seconds for s in trainer.samples) >= 0.018
    assert sampler.onload_s >= 0.03 and sampler.offload_s >= 0.01
    assert all(s.peak_gib is None or s.peak_gib >= sampler.memory.resident_gib for s in sampler.samples)
    assert CALLS == ["offload", "onload"] * 2
    assert sampler.ranks.most == 1 and trainer.ranks.most == 0
    plans = lab.plan(made, ["cpu:0", "cpu:1"], profile)
    finished = lab.run(made, plans.best, iterations=2, dashboard=False)
    assert len(finished.wait(60)) == 2 and finished.plan == plans.best.execution


class Heavy(Trainer):
    def __init__(self) -> None:
        self.weights = bytearray(200 << 20)
        self.weights[::4096] = b"x" * len(self.weights[::4096])


class Greedy(Trainer):
    def train(self, inbox: lab.Inbox) -> None:
        for batch in inbox:
            held = bytearray(len(batch) * (16 << 20))
            held[::4096] = b"x" * len(held[::4096])
            self.compute(0.1)
            del held


MEMORY = """
import json
from test_profiler import Greedy, Heavy, flow
import rlinf_lab as lab

def measured(trainer):
    workers = lab.profile(flow(trainer), ["cpu:0"], iterations=2, progress=False).workers
    return {name: [w.memory.resident_gib, w.offloadable, {s.items: s.peak_gib for s in w.samples}] for name, w in workers.items()}

print(json.dumps([measured(Greedy), measured(Heavy)]))
"""


def test_memory_is_measured() -> None:
    """In a process of its own, because others in this one take and give back memory meanwhile.

    The baseline of a peak is what was there when the call began; a batch of 16 holds 256 MiB, one of 4 a quarter of that.
    """
    ran = subprocess.run([sys.executable, "-c", MEMORY], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    greedy, heavy = json.loads(ran.stdout.splitlines()[-1])
    resident, leaves, peaks = greedy["trainer"]
    assert resident == 0 and leaves, "there is nothing to leave"
    assert 0.2 < peaks["16.0"] < 0.5 and 0.03 < peaks["4.0"] < 0.2
    assert 0.03 < greedy["sampler"][0] < 0.3 and greedy["sampler"][1]
    assert 0.15 < heavy["trainer"][0] < 0.4 and not heavy["trainer"][1], "made by the constructor, and nobody could take it away"


def test_messages_are_measured_once_within_a_node_and_to_each_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """And everything of one rank each on the first device."""
    monkeypatch.setattr(profiler, "message_costs", lambda kind, some: (kind, *some))
    many = "cpu:0 node1/cpu:0 cpu:1 node1/cpu:1 node2/cpu:3"
    for executor, devices, asked in (("local", many, ""), ("processes", "cpu:0", ""), ("ray", many, "cpu:0 node1/cpu:0 cpu:1 node2/cpu:3")):
        measuring = profiler._Measuring(flow(), tuple(devices.split()), {"trainer": [1, 2, 3]}, None, 1, executor)
        assert measuring._messages() == ((executor, *asked.split()) if asked else ())
        plans = [measuring._plan("some", n) for n in range(1, min(3, len(measuring.devices)) + 1)]
        assert [(plan.devices, plan.ranks("trainer")) for plan in plans] == [(measuring.devices[:n], n) for n in range(1, len(plans) + 1)]


def test_cells_are_measured_with_half_batches() -> None:
    profile = lab.profile(cell_flow(), ["cpu:0", "cpu:1"], ranks={"sim": [1, 2]}, items=8, iterations=1, progress=False)
    assert {(s.devices, s.items) for s in profile.workers["sim"].samples} == {(1, 4.0), (1, 8.0), (2, 8.0)}
    assert {s.items for s in profile.workers["policy"].samples} == {4.0, 8.0} and profile.workers["sim"].calls == 6


class Roller(lab.Worker):
    """One token goes round, or as many as the plan says."""

    def __init__(self, follows: bool = False) -> None:
        self.follows = follows

    def roll(self, acts: lab.Inbox, obs: lab.Outbox, done: lab.Outbox) -> None:
        tokens = self.sub_batches if self.follows else 1
        for step in range(5):
            for token in range(tokens):
                if step:
                    acts.get(1)
                obs.put(token)
        acts.get(tokens)
        for i in range(8):
            done.put(i)


@pytest.mark.parametrize("follows", [False, True])
def test_steps_of_a_cell_without_keys_are_counted(follows: bool) -> None:
    made = lab.Workflow("unkeyed")
    obs, acts, done = made.channels("obs", "acts", "done")
    roller, answerer, reader = made.worker(Roller, follows), made.worker(Numbers, name="answerer"), made.worker(Numbers, name="reader")
    made.iteration(lambda: (roller.roll(acts, obs, done), answerer.pass_on(obs, acts), reader.count(done)))
    profile = lab.profile(made, ["cpu:0"], iterations=1, progress=False)
    assert {w: p.calls for w, p in profile.workers.items()} == {"roller": 5, "answerer": 5, "reader": 1}
    assert [c.sub_batches for c in profile.cells] == ([] if follows else [(1,)])  # plans may choose where they are followed
    assert {s.items for s in profile.workers["answerer"].samples} == ({4.0, 8.0} if follows else {8.0})


def test_a_variation_that_fails_is_noted(capsys: pytest.CaptureFixture) -> None:
    profile = lab.profile(flow(Fragile), ["cpu:0"], iterations=1)
    assert "profile: 100%" in capsys.readouterr().err
    assert [s.items for s in profile.workers["trainer"].samples] == [16.0]
    assert profile.notes[0].startswith("smaller batches: not measured, Worker 'trainer' rank 0 failed in train(): ValueError: four")


class OnGpu(lab.Worker):
    """Weights of 256 MiB, and as much again for a moment in every call."""

    def setup(self) -> None:
        import torch

        self.weights = torch.ones(64 << 20, device=self.device)

    def train(self, inbox: lab.Inbox) -> None:
        for _ in inbox:
            for _ in range(50):
                self.weights.mul_(1.0)
            another = self.weights * 2
            del another


@pytest.mark.gpu
def test_memory_and_seconds_of_a_gpu() -> None:
    profile = lab.profile(flow(OnGpu), ["cuda:0"], iterations=2, progress=False)
    trainer = profile.workers["trainer"]
    assert profile.device_memory_gib > 1 and profile.fingerprint.devices
    assert trainer.memory.resident_gib == pytest.approx(0.25, abs=0.02)
    assert max(s.peak_gib for s in trainer.samples if s.peak_gib) == pytest.approx(0.5, abs=0.05)
    assert all(s.seconds > 0 for s in trainer.samples)
