"""Every completion of a training is a row of the run's samples, and some are bars of the timeline."""

from __future__ import annotations

import pytest

import rlinf_lab as lab
from rlinf_lab.planning.simulator.staleness import StalenessPolicy
from rlinf_lab.recipes.grpo import GRPOConfig, build
from rlinf_lab.runtime.run.samples import SampleTable
from rlinf_lab.workflow.quantities import SampleFields

CORES = ["cpu:0", "cpu:1"]
SMALL = {
    "env": "reasoning/remainder", "prompts": 4, "group_size": 3, "max_tokens": 12, "warm_up_steps": 0, "hidden": 16, "layers": 1,
    "iterations": 4, "slots": 8, "learning_rate": 5e-3,
}  # fmt: skip


def ones(problem, text):
    return float("1" in text)


def run_of(config, executor="local", iterations=3):
    flow = build(config)
    on = {"prompts": [0], "generator": [0, 1], "reward": [1], "learner": [1]}
    plan = lab.ExecutionPlan.spatial(flow, CORES, on, micro_batches={"responses": 1, "judged": 1})
    run = lab.run(flow, plan, iterations=iterations, executor=executor, dashboard=False, **({"emulate": True} if executor == "processes" else {}))
    run.wait(120)
    return run


@pytest.mark.parametrize("executor", ["local", pytest.param("processes", marks=pytest.mark.long)])
def test_what_was_learnt_from_is_there_once_with_its_reward(executor):
    config = GRPOConfig(**SMALL, reward=ones)
    run = run_of(config, executor)
    found, metrics = run.samples, run.results
    assert found["id"].is_unique and len(found) == found.attrs["total"] == 3 * 12
    assert set(found["id"]) == {f"{k}.{p}/{s}" for k in range(3) for p in range(4) for s in range(3)}
    assert found["reward"].tolist() == [ones(None, text) for text in found["text"]]
    for k, told in enumerate(metrics):  # what the learner says of what it used
        mine = found[found["learnt_in"] == k]
        assert len(mine) == 12 and mine["reward"].mean() == pytest.approx(told["reward"])
        assert mine["tokens"].mean() == pytest.approx(told["response_tokens"]) and mine["tokens"].max() == told["response_tokens_max"]
        assert (mine["oldest_version"] == k).all() and (mine["newest_version"] == k).all()
    assert (found["end_ns"] > found["start_ns"]).all() and set(found["worker"]) == {"generator"}
    bars = run.timeline.to_pandas().query("kind == 'label' and name == 'completion'")
    assert 0 < len(bars) <= len(found)
    for bar in bars.itertuples():  # each shows one of them
        shown = run.sample_of_bar(bar.worker, bar.rank, bar.start_ns)
        assert shown is not None and shown["end_ns"] == bar.end_ns
    assert run.sample_of_bar("generator", 0, -5) is None


def test_it_can_be_left_out_and_changes_nothing():
    shown, silent = (run_of(GRPOConfig(**SMALL, reward=ones, log_completions=on), iterations=2) for on in (True, False))
    assert silent.samples.empty and "completion" not in set(silent.timeline.to_pandas()["name"])
    assert shown.results == silent.results


def test_what_was_discarded_says_why():
    stale = run_of(GRPOConfig(**SMALL, reward=ones, staleness=StalenessPolicy("drop_oldest"), oversample=2.0)).samples
    assert (stale["discarded"] == "newer groups were there").any()
    assert not (stale["discarded"].notna() & stale["learnt_in"].notna()).any()
    equal = run_of(GRPOConfig.preset("dapo", **SMALL, reward=lambda problem, text: 1.0), iterations=1).samples
    assert set(equal["discarded"].dropna()) == {"all rewards of its group are equal"} and "learnt_in" not in equal


@pytest.mark.long
@pytest.mark.parametrize("executor", ["local", "processes"])
def test_whoever_was_not_needed_has_a_reason_too(executor):
    """Dynamic sampling stops as soon as it has its groups: what its channels still hold is discarded wherever it is."""
    run = run_of(GRPOConfig.preset("dapo", **SMALL | {"max_tokens": 6}, reward=ones, oversample=3.0), executor)
    found = run.samples
    assert (found["discarded"].notna() ^ found["learnt_in"].notna()).all()
    assert (found["discarded"] == "enough groups were there").any()


def test_only_the_latest_are_kept():
    table = SampleTable(most=3)
    table.tell(0, SampleFields.of("maker[0]", ("1", "3"), {"later": ["never seen", "seen"]}, makes_rows=False))
    assert len(table.frame()) == 0
    for k in range(5):
        table.tell(k, SampleFields.of("maker[0]", (str(k),), {"worker_says": "x" * 900}))
        table.tell(k, SampleFields((str(k),), {"worker": "maker", "rank": 0, "start_ns": 10 * k, "end_ns": 10 * k + 5}))
    kept = table.frame()
    assert kept["id"].tolist() == ["2", "3", "4"] and kept.attrs["total"] == 5 and kept["worker_says"].str.len().max() == 400
    assert kept["later"].fillna("-").tolist() == ["-", "seen", "-"]
    assert table.of_bar("maker", 0, 0) is None and table.of_bar("maker", 0, 40)["id"] == "4"
    with pytest.raises(lab.errors.WorkflowError, match="2 values for 1 samples"):
        SampleFields.of("maker[0]", ("1",), {"reward": [1.0, 2.0]})
    with pytest.raises(lab.errors.WorkflowError, match="no number, text or bool"):
        SampleFields.of("maker[0]", ("1", "2"), {"reward": [1.0, None]})
    with pytest.raises(lab.errors.WorkflowError, match="column of the run's own"):
        SampleFields.of("maker[0]", ("1",), {"rank": 2})
    with pytest.raises(lab.errors.WorkflowError, match="no number, text or bool"):
        SampleFields.of("maker[0]", ("1",), {"reward": None})
