"""The last batch of an iteration goes to one rank, whole: nobody divides it among those that are free. Plans count it so, and choose by it."""

from __future__ import annotations

import pytest
from mock_runs import run, seconds
from test_whole_calls import chain

import rlinf_lab as lab
from rlinf_lab.planning.forecast.per_rank import by_rank
from rlinf_lab.planning.placement.calls import Calls


@pytest.mark.parametrize("items, ranks, micro_batches", [(8, 3, 2), (10, 4, 2), (20, 3, 4), (33, 5, 2), (40, 7, 4), (50, 4, 8), (50, 7, 4), (14, 4, 16)])
@pytest.mark.parametrize("fixed", [0.0, 0.02])
def test_runs_take_what_plans_say_whatever_is_left_for_the_last_batch(items: int, ranks: int, micro_batches: int, fixed: float) -> None:
    flow, profile = chain({"a": (0, 0.002), "b": (fixed, 0.1), "c": (0, 0.002)}, items, most=(1, ranks, 1))
    planned = next(p for p in lab.plan(flow, [f"cpu:{i}" for i in range(ranks + 2)], profile, micro_batches=micro_batches) if p.shape == "a | b | c")
    assert planned.placement["b"]["ranks"] == ranks
    assert seconds(run(flow, planned, 2)) == pytest.approx(planned.seconds, rel=0.02)


def test_chunks_are_chosen_by_what_the_last_batch_takes() -> None:
    """Four batches of two items on three ranks are two rounds; three batches of 3, 3 and 2 are one."""
    flow, profile = chain({"a": (0, 0.002), "b": (0, 0.1), "c": (0, 0.002)}, 8, most=(1, 3, 1))
    best = lab.plan(flow, [f"cpu:{i}" for i in range(5)], profile, micro_batches=2).best
    assert best.execution.micro_batches["x0"] == 3 and seconds(run(flow, best, 2)) < 0.35


def test_what_a_call_counts_as() -> None:
    calls = Calls.of(20, 4, 3)
    assert calls.parts().tolist() == [6, 6, 6, 2] and [float(calls.counted(n)) for n in calls.parts()] == [6, 6, 6, 4]  # four on three ranks: one has two
    calls = Calls.of(7, 1, 4)
    assert calls.parts().tolist() == [7] and float(calls.counted(7)) == 7


def test_who_has_a_rest_is_simulated_by_rank() -> None:
    flow, profile = chain({"a": (0, 0.002), "b": (0, 0.1)}, 40, most=(1, 7))
    for items, simulated in ((40, True), (42, False)):
        planned = lab.plan(flow, [f"cpu:{i}" for i in range(8)], profile.replace(items=items), micro_batches=2)["spatial"]
        assert ("b" in by_rank(planned.candidate.placement)) == simulated
