"""Generators that are no source on devices: services on the host, whose responses stream in the search as in a plan, and those that others feed."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest
from brute_force import best

from rlinf_lab.planning.forecast.per_rank import has_a_rest
from rlinf_lab.planning.forecast.steady_state import settled
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.planner.lower_bound import lower_bound
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.profile.profile import EdgeProfile, Lengths, Profile, RankRule, Sample, WorkerProfile
from rlinf_lab.planning.search.problem import Problem
from rlinf_lab.planning.search.solver import solve


def service(seed: int, most: int = 4) -> tuple[Profile, str]:
    """A branching flow in which one of the first two generates on the host, and its name."""
    rng = random.Random(seed)
    names = list("abcd"[: rng.randint(2, most)])
    workers = {n: WorkerProfile((Sample(8, 256.0, rng.uniform(3, 60)),), exponent=rng.choice([0.6, 1.0]), ranks=RankRule(rng.choice([1, 1, 2]))) for n in names}
    lengths = Lengths(4096.0, mean_tokens=rng.choice([300.0, 1500.0]), group_correlation=rng.random())
    sample, name = Sample(0, 256.0, rng.uniform(5, 60)), rng.choice(names[:2])
    workers[name] = WorkerProfile(
        (sample,), "generation", rng.choice([1.0, 3.0]), rng.choice([None, 0.6]), resource="host", lengths=lengths, max_running=rng.choice([None, 16])
    )
    edges = tuple(EdgeProfile(p, c, rng.choice([1, 8]), rng.random() < 0.1) for p, c in itertools.combinations(names, 2) if rng.random() < 0.7)
    return Profile(256, workers, edges, weights=rng.choice(["equal", "tokens"])), name


def beside(profile: Profile, name: str) -> Profile:
    """The same with the service on a device of its own."""
    worker = profile.workers[name]
    return profile.with_worker(name, resource="device", devices=1, samples=tuple(dataclasses.replace(s, devices=1) for s in worker.samples))


@pytest.mark.parametrize("seed", range(8))
def test_on_the_host_it_streams_as_on_one_more_device(seed: int) -> None:
    profile, name = service(seed)
    host, device = (
        plan(p, n, micro_batches=16, modes=("spatial",), simulate=False, staleness=seed % 2).best.candidate
        for p, n in ((profile, 8), (beside(profile, name), 9))
    )  # fmt: skip
    assert (host.searched, host.seconds) == (pytest.approx(device.searched), pytest.approx(device.seconds))


@pytest.mark.parametrize("resource", ["host", "device"])
@pytest.mark.parametrize("seed", range(6))
def test_in_the_middle_of_a_flow_all_its_requests_are_there_before_it_begins(seed: int, resource: str) -> None:
    """The search, the followed micro-batches and the scheduler in virtual time agree: what is known of its lengths holds for requests that start together.

    To the digit, but where the last call of c has less items than the others: its ranks take what there is by themselves. Of plans that the search prefers
    that is at most 2 %. Of those that the simulation prefers for it at most 4 %, or one call that a rank without more to do is earlier.
    """
    rng = random.Random(seed)
    first, last = (WorkerProfile((Sample(8, 256.0, rng.uniform(5, 60)),), exponent=1.0) for _ in range(2))
    sample = Sample(0 if resource == "host" else 8, 256.0, rng.uniform(5, 60))
    middle = WorkerProfile((sample,), "generation", exponent=0.6, resource=resource, lengths=Lengths(4096.0, mean_tokens=rng.choice([300.0, 1500.0])))
    profile = Profile(256, {"a": first, "b": middle, "c": last}, (EdgeProfile("a", "b"), EdgeProfile("b", "c")))
    for made in (*plan(profile, 8, micro_batches=16, simulate=False), *plan(profile, 8, micro_batches=16)):
        work, timeline = made.candidate.streamed.work, made.timeline.to_pandas().query("iteration == 0 and kind == 'run'")
        assert work[1].starts[0] >= work[0].ends[-1] * (1 - 1e-9)
        begun, ended = timeline.query("worker == 'b'")["start_ns"].min(), timeline.query("worker == 'a'")["end_ns"].max()
        assert begun >= ended - 1
        followed, simulated = made.candidate.seconds, settled(made.timeline, 0)[1]
        seat, later = made.candidate.placement.seats["c"], 1e-6 * followed
        if has_a_rest(made.candidate.placement, seat):
            later = (0.02 if made.simulated is None else 0.04) * followed
        call = float(np.max(work[2].ends - work[2].starts)) if later > 1e-6 * followed and made.simulated is not None and seat.micro_batches > 1 else 0.0
        assert followed - max(later, call) <= simulated <= followed + later, made
        ranks = made.placement["b"]["ranks"]
        assert made.execution.micro_batches["a_to_b"] == (0 if ranks == 1 else -(-256 // ranks))


def test_its_consumer_does_not_wait_for_the_last_response() -> None:
    lengths = Lengths(4096.0, mean_tokens=400.0)
    slow = WorkerProfile((Sample(0, 256.0, 40.0),), "generation", resource="host", lengths=lengths)
    profile = Profile(256, {"a": slow, "b": WorkerProfile((Sample(4, 256.0, 36.0),))}, (EdgeProfile("a", "b"),))
    best = plan(profile, 4, simulate=False).best
    assert best.shape == "a | b" and 40.0 < best.seconds < 60.0 and best.candidate.searched < 60.0


def in_milliseconds(problem: Problem) -> Problem:
    """With whole numbers, of which the enumeration's sums are exact."""

    def whole(seconds: np.ndarray) -> np.ndarray:
        return np.round(1000 * seconds)

    assert problem.streams is not None
    streams = problem.streams
    return dataclasses.replace(
        problem, table=lambda leaf, context: whole(problem.table(leaf, context)), streams=lambda leaf, context: tuple(map(whole, streams(leaf, context))),
        onload=tuple(1000 * s for s in problem.onload), offload=tuple(1000 * s for s in problem.offload),
    )  # fmt: skip


def test_no_plan_is_better() -> None:
    for seed in range(8):
        setting = Setting.of(service(seed, most=3)[0], 4, 4, staleness=seed % 2)
        for arrangement in setting.arrangements()[:2]:
            problem = in_milliseconds(setting.problem(arrangement))
            assert solve(problem)[0].seconds == best(problem, dominance=True), f"seed {seed}"


def test_a_nanosecond_below_what_the_search_says_is_no_other_bound() -> None:
    """A simulated plan is rounded to nanoseconds. The counts that it rests on still count as work."""
    workers = {"a": WorkerProfile((Sample(8, 64.0, 54.0),), exponent=0.6, ranks=RankRule(counts=(4, 8))), "b": WorkerProfile((Sample(8, 64.0, 30.0),))}
    setting = Setting.of(Profile(64, workers, (EdgeProfile("a", "b"),)), 8)
    known = float(setting.tables.of(0, 0, setting.arrangements()[0].forms)[0, 4])
    bounds = [lower_bound(setting, seconds).seconds for seconds in (known, known - 1e-9, 0.99 * known)]
    assert bounds[0] == bounds[1] < 0.9 * bounds[2]
