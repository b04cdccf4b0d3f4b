"""The GRPO workflow: the same learning under every plan, gone on with, and robust against bad samples."""

from __future__ import annotations

import os
import re
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, UnknownNameError, WorkerError
from rlinf_lab.experiments.storage.snapshot import Snapshot
from rlinf_lab.planning.simulator.staleness import StalenessPolicy
from rlinf_lab.recipes.grpo import GRPOConfig, build
from rlinf_lab.workers.reasoning import reward as reward_worker

CORES = ["cpu:0", "cpu:1"]
SMALL = {
    "env": "reasoning/remainder", "prompts": 4, "group_size": 3, "max_tokens": 12, "warm_up_steps": 0, "hidden": 16, "layers": 1,
    "iterations": 4, "slots": 8, "learning_rate": 5e-3,
}  # fmt: skip


def ones(problem, text):
    """A reward that an untrained model gets, too."""
    return float("1" in text)


def temporal(flow):
    return lab.ExecutionPlan.temporal(flow, CORES[:1])


def spatial(flow, **fields):
    on = {"prompts": [0], "generator": [0], "reward": [1], "learner": [1]}
    return lab.ExecutionPlan.spatial(flow, CORES, on, micro_batches={"responses": 1, "judged": 1}, **fields)


def metrics_of(config, plan, iterations=3, executor="local", state=None):
    flow = build(config, state)
    run = lab.run(flow, plan(flow), iterations=iterations, executor=executor, dashboard=False)
    run.wait(120)
    return run.results


def test_every_plan_learns_the_same_to_the_last_bit():
    config = GRPOConfig(**SMALL, reward=ones)
    batch = metrics_of(config, temporal)
    streamed = metrics_of(config, spatial)
    assert batch == streamed and all(m["grad_norm"] > 0 for m in batch)
    assert metrics_of(config, spatial, executor="processes") == batch
    as_they_come = metrics_of(GRPOConfig(**SMALL, reward=ones, in_order=False), spatial)
    for one, other in zip(batch, as_they_come, strict=True):
        assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)


def test_several_generators_and_judges_give_the_same():
    config = GRPOConfig(**SMALL, reward=ones)
    on = {"prompts": [0], "generator": [0, 1], "reward": [1, 0], "learner": [1]}
    flow, one = build(config), metrics_of(config, temporal, iterations=2)
    plan = lab.ExecutionPlan.spatial(flow, CORES, on, micro_batches={"responses": 1, "judged": 1})
    with lab.session(flow, plan) as session:
        for expected in one:
            got = session.step("train")
            assert got == pytest.approx(expected, rel=1e-3, abs=1e-6)
        assert session.step("evaluate")["samples"] == 1000


def test_staleness_is_bounded_by_the_plan_and_told():
    config = GRPOConfig(**SMALL, reward=ones)
    results = metrics_of(config, lambda flow: spatial(flow, staleness=1), iterations=4)
    assert {m["staleness_max"] for m in results} <= {0.0, 1.0} and results[0]["staleness_max"] == 0.0
    assert all(m["mismatch_max"] < 1e-4 for m in results)


@pytest.mark.parametrize(("name", "fields"), [
    ("pace", {}), pytest.param("drop_stale", {}, marks=pytest.mark.long), ("recycle", {"longest_first": True}),
    pytest.param("drop_oldest", {"oversample": 1.5}, marks=pytest.mark.long),
])  # fmt: skip
def test_staleness_is_a_policy_of_the_recipe(name, fields):
    config = GRPOConfig(**SMALL, reward=ones, staleness=StalenessPolicy(name, bound=1), **fields)
    flow = build(config)
    run = lab.run(flow, temporal(flow), iterations=4, dashboard=False)
    run.wait(120)
    for k, m in enumerate(run.results):
        shares = [v for key, v in m.items() if key.startswith("staleness_") and key != "staleness_max"]
        assert sum(shares) == pytest.approx(1) and m["groups"] == 4 and m["staleness_max"] <= min(k, 4 if name == "pace" else 1 + k)
        assert name not in ("drop_stale", "recycle") or m["staleness_0"] + m["staleness_1"] == pytest.approx(1)
    assert {"carried", "dropped", "recycled", "length_bias", "decode_steps"} <= set(run.metrics.columns)
    assert run.metrics["carried"].max() > 0
    streamed = build(config)  # several generators, groups that stream
    on = {"prompts": [0], "generator": [0, 1], "reward": [1], "learner": [1]}
    plan = lab.ExecutionPlan.spatial(streamed, CORES, on, micro_batches={"responses": 1, "judged": 1}, staleness=1)
    with lab.session(streamed, plan) as session:
        assert [session.step("train")["groups"] for _ in range(2)] == [4, 4]
        assert session.step("evaluate")["samples"] == 1000 and session.step("train")["groups"] == 4


@pytest.mark.parametrize("how", [{"dispatch": "shortest_queue"}, {"longest_first": True}])
def test_who_takes_what_and_in_which_order_changes_no_answer(how):
    config, one = GRPOConfig(**SMALL | {"slots": 2}, reward=ones, **how), GRPOConfig(**SMALL, reward=ones)
    flow = build(config)
    on = {"prompts": [0], "generator": [0, 1], "reward": [1], "learner": [1]}
    with lab.session(flow, lab.ExecutionPlan.spatial(flow, CORES, on)) as session:
        for expected in metrics_of(one, temporal, iterations=2):
            assert session.step("train") == pytest.approx(expected, rel=1e-3, abs=1e-6)


class ShownOnce(lab.tasks.Remainder):
    """Whoever warms up a second time has nothing to learn from."""

    shown = 0

    def examples(self, rng, level=None):
        ShownOnce.shown += 1
        assert ShownOnce.shown == 1
        return super().examples(rng, level)


def test_going_on_from_a_state_is_as_if_nothing_had_been(monkeypatch):
    monkeypatch.setattr(ShownOnce, "shown", 0)
    config = GRPOConfig(**SMALL | {"env": ShownOnce(), "warm_up_steps": 1}, reward=ones)
    flow = build(config)
    with lab.session(flow, temporal(flow)) as session:
        session.step("train")
        kept = session.step("checkpoint")
        expected = session.step("train")
    again = build(config, kept["state"])
    with lab.session(again, temporal(again)) as session:
        assert session.step("train") == expected
        test = session.step("evaluate")
    assert test["samples"] == 1000 and 0 <= test["reward"] <= 1 and test["failed"] == 0


@pytest.mark.parametrize(("name", "how", "fields"), [
    ("pace", "resume", {}), ("pace", "retract", {"longest_first": True}), ("recycle", "resume", {"concurrency": 3.0}), ("drop_oldest", "resume", {"oversample": 1.5}),
])  # fmt: skip
def test_answers_in_the_making_go_on_from_a_file(name, how, fields, tmp_path):
    """As if nothing had been: what runs, what waits, what is not begun yet, and what is remembered of lengths."""
    config = GRPOConfig(**SMALL, reward=ones, staleness=StalenessPolicy(name, bound=1, while_generating=how), **fields)
    flow = build(config)
    with lab.session(flow, temporal(flow)) as session:
        session.step("train")
        kept = session.step("checkpoint")
        expected = [session.step("train") for _ in range(3)]
    assert kept["rollouts"]["groups"]["open"] and any(len(c["token_ids"]) for c in kept["rollouts"]["partials"])
    Snapshot(2, {**kept["state"], "rollouts": kept["rollouts"]}).save(tmp_path / "state.safetensors")
    state = Snapshot.load(tmp_path / "state.safetensors").state
    again = build(config, state)
    with lab.session(again, temporal(again)) as session:
        assert [session.step("train") for _ in range(3)] == expected
    looked = build(config)
    with lab.session(looked, temporal(looked)) as session:  # to look changes nothing
        session.step("checkpoint")
        assert session.step("state")["version"] == 1 and session.step("train")["groups"] == 4
        assert [session.step("train") for _ in range(3)] == expected
    two = build(config, state)  # dealt out to two generators
    on = {"prompts": [0], "generator": [0, 1], "reward": [1], "learner": [1]}
    with lab.session(two, lab.ExecutionPlan.spatial(two, CORES, on)) as session:
        assert [session.step("train")["groups"] for _ in range(2)] == [4, 4]


@pytest.mark.parametrize("variant", ["dr_grpo", "dapo", "rloo", "reinforce++"])
def test_variants_learn(variant):
    config = GRPOConfig.preset(variant, **SMALL, reward=ones)
    results = metrics_of(config, temporal, iterations=2)
    assert sum(m["grad_norm"] for m in results) > 0
    if variant == "dapo":
        assert config.asked == 6 and all(m["groups"] <= 4 for m in results)


def test_several_updates_of_an_iteration_and_ones_own_functions():
    @lab.algorithms.advantage("twice_the_mean")
    def twice(reward_PG):
        return 2 * (reward_PG - reward_PG.mean())

    config = GRPOConfig(
        **SMALL, reward=ones, minibatches=2, advantage="twice_the_mean", loss=lab.algorithms.reinforce_loss
    )
    results = metrics_of(config, temporal, iterations=2)
    assert all(np.isfinite(m["policy_loss"]) and m["staleness_max"] == 0 for m in results)
    assert all(
        m["mismatch_max"] < 1e-4 for m in results
    )  # of the first update's tokens: the second's weights have moved


def test_bad_samples_are_recorded_and_do_not_stop_the_run():
    def moody(problem, text):
        if "1" in text:
            raise RuntimeError("no parse")
        if "2" in text:
            time.sleep(60)
        if "3" in text:
            os._exit(1)
        return 1.0

    (metrics,) = metrics_of(
        GRPOConfig(**SMALL | {"max_tokens": 3}, reward=moody, reward_timeout_s=0.3), temporal, iterations=1
    )
    assert 0 < metrics["failed"] < 1

    class Foreign(lab.tasks.Remainder):
        def problem(self, rng, level):
            return lab.tasks.Problem("é", "1")

        def sample(self, rng, n, level=None, *, split="train"):
            return [self.problem(rng, 1) if i % 2 else super(Foreign, self).problem(rng, 1) for i in range(n)]

    flow = build(GRPOConfig(**SMALL | {"env": Foreign()}))
    run = lab.run(flow, temporal(flow), 1, dashboard=False)
    (metrics,) = run.wait(120)
    assert metrics["failed"] == 0.5
    assert set(run.failures["worker"]) == {"reward"} and run.failures["sample"].str.endswith(": é").all()
    assert len(run.failures) == run.failures.attrs["total"] == 0.5 * metrics["env_steps"]


def test_a_reward_that_never_works_is_told():
    def broken(problem, text):
        return text.no_such_method()

    with pytest.warns(UserWarning, match=r"reward: all \d+ rewards of an iteration failed.*no_such_method"):
        (metrics,) = metrics_of(GRPOConfig(**SMALL, reward=broken), temporal, iterations=1)
    assert metrics["failed"] == 1
    with pytest.raises(ConfigError, match="reward is 'x'.*a function of a problem and a text"):
        GRPOConfig(**SMALL, reward="x")
    for nothing in ("", 5):
        with pytest.raises(ConfigError, match="model is .*'small', the path"):
            GRPOConfig(**SMALL | {"model": nothing})


def test_a_reward_that_hangs_is_told_with_its_answer(monkeypatch):
    told, says = threading.Event(), []

    def hangs(problem, text):
        assert told.wait(120)
        return 1.0

    def warn(message, **_):
        says.append(message)
        told.set()

    monkeypatch.setattr(reward_worker, "LONG_SECONDS", 0.0)
    monkeypatch.setattr(reward_worker, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(reward_worker, "warnings", SimpleNamespace(warn=warn))
    (metrics,) = metrics_of(GRPOConfig(**SMALL, reward=hangs), temporal, iterations=1)
    assert metrics["reward"] == 1 and len(says) == 1
    assert re.search(r"reward: the reward of answer 0\.\d/\d to '.*' has taken .* s and goes on.*reward_timeout_s=5", says[0])


def test_prompts_that_cannot_work_are_recorded_and_do_not_stop_the_run():
    class Odd(lab.tasks.Remainder):
        """Nothing, more than the context holds, and what works."""

        def sample(self, rng, n, level=None, *, split="train"):
            prompts = ("", "1" * 600, "7%2=", "9%4=")
            return [lab.tasks.Problem(prompts[i % 4], "1") for i in range(n)]

    config, seen = GRPOConfig(**SMALL | {"env": Odd()}, reward=ones), []
    flow = build(config)
    (metrics,) = metrics_of(config, temporal, iterations=1)
    assert metrics["failed"] == 0.5 and metrics["grad_norm"] >= 0
    with lab.session(flow, temporal(flow)) as session:
        seen.append(session.step("evaluate"))
    assert seen[0]["failed"] == 0.5 and seen[0]["samples"] == 1000


def test_a_model_from_a_folder_learns_in_low_rank_and_goes_on(tmp_path):
    folder = lab.generation.small_model(lab.tasks.Remainder.alphabet, hidden=16, layers=1, heads=2).save(tmp_path / "model")
    fields = {k: v for k, v in SMALL.items() if k not in ("warm_up_steps", "hidden", "layers")}
    config = GRPOConfig(**fields, model=str(folder), lora=4, gradient_checkpointing=True, reward=ones)
    flow = build(config)
    with lab.session(flow, temporal(flow)) as session:
        assert session.step("train")["mismatch_max"] < 1e-4
        kept = session.step("checkpoint")
        expected = session.step("train")
    assert kept["metrics"]["mismatch_max"] < 1e-4 and kept["metrics"]["grad_norm"] > 0  # generated by the merged weights
    assert len(kept["state"]["trained"]) > 0 and all("lora" in name for name in kept["state"]["trained"])
    again = build(config, kept["state"])
    with lab.session(again, temporal(again)) as session:
        assert session.step("train") == expected


def test_a_folder_that_holds_no_model_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(ConfigError, match=r"without config.json.*Next: the folder that model.save"):
        GRPOConfig(**{k: v for k, v in SMALL.items() if k not in ("warm_up_steps", "hidden", "layers")}, model=str(tmp_path))


def test_an_advantage_of_another_shape_is_named():
    config = GRPOConfig(**SMALL, reward=ones, advantage=lambda reward_PG: reward_PG[0] if len(reward_PG) == 1 else reward_PG)
    with pytest.raises(WorkerError, match=r"gave \(3,\) for rewards \(1, 3\)"):
        metrics_of(config, temporal, iterations=1)


@pytest.mark.parametrize(("field", "value", "says"), [
    ("group_size", 1, "at least 2"), ("minibatches", 3, "divisor of prompts=4"), ("oversample", 2.0, "1 without dynamic_sampling"),
    ("aggregation", "mean", "token_mean"), ("correction", "off", "'truncated'"), ("level", 9, "between 1 and 3"),
    ("model", "/nowhere/model", "neither 'small' nor a folder"), ("dual_clip", 0.5, "greater than 1"), ("overlong_buffer", 99, "max_tokens"),
    ("staleness", "drop", "StalenessPolicy.name is 'drop'"), ("concurrency", 0.5, "at least 1"),
    ("lora", 4, "left out with model='small'"), ("dispatch", "random", "'even' or 'shortest_queue'"), ("temperature", float("nan"), "greater than 0"), ("env", 3, "a task's name"),
])  # fmt: skip
def test_a_field_that_cannot_work_is_named(field, value, says):
    with pytest.raises(ConfigError, match=says if "Policy" in says else rf"GRPOConfig\.{field} is .*{says}"):
        GRPOConfig(**SMALL | {field: value})


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'remainder'"):
        GRPOConfig("reasoning/remaindr")
    with pytest.raises(UnknownNameError, match="Did you mean 'rloo'"):
        GRPOConfig(**SMALL, advantage="rlo")
    with pytest.raises(UnknownNameError, match="Did you mean 'dapo'"):
        GRPOConfig.preset("dappo", env="remainder")
    with pytest.raises(ConfigError, match="longest_first is True; it must be False with shortest_queue"):
        GRPOConfig(**SMALL, longest_first=True, dispatch="shortest_queue")
    with pytest.raises(ConfigError, match="needs a task"):
        GRPOConfig.preset("dapo")
