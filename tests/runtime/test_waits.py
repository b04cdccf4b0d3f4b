"""Who waits for whom: the cycle, and what the dashboard is told."""

from __future__ import annotations

import random
from typing import Any

from flows import Numbers
from sessions import both, opened

from rlinf_lab import ExecutionPlan, Workflow
from rlinf_lab.runtime.host.liveness.wait_graph import Wait, WaitGraph, rings


def test_every_ring_is_named_in_its_shortest_form_and_who_waits_for_one_who_computes_is_in_none() -> None:
    waits = [
        Wait("driver[0]", "the calls of this iteration", ("policy[0]", "sim[1]")),
        Wait("sim[0]", "items of channel 'actions'", ("policy",)),
        Wait("sim[1]", "the value of learner[0]", ("learner[0]",)),
        Wait("policy[0]", "room in channel 'batches'", ("learner",)),
        Wait("learner[0]", "its devices (cuda:0 is held by policy[0])", ("policy[0]",)),
    ]
    assert rings(waits) == [["policy[0]", "learner[0]", "policy[0]"]]
    assert WaitGraph(tuple(waits)).lines()[-1] == "a cycle: policy[0] → learner[0] → policy[0]"
    assert rings(waits[:2]) == [] == rings([])
    waits = [Wait(f"{who}[0]", "items", (on,)) for who, on in ("ab", "ba", "cd", "de", "ec", "ff")]
    assert rings(waits) == [["f[0]", "f[0]"], ["a[0]", "b[0]", "a[0]"], ["c[0]", "d[0]", "e[0]", "c[0]"]]


def test_one_who_moves_frees_who_needs_any_but_not_who_needs_all() -> None:
    ring = Wait("b[0]", "items of channel 'y'", ("a",))
    any_of = Wait("a[0]", "items of channel 'x'", ("b", "c"))
    assert rings([any_of, ring], ["c[0]"]) == [] and rings([any_of, ring]) == []  # c may compute
    assert rings([any_of, ring, Wait("c[0]", "items", ("b",))]) == [["a[0]", "b[0]", "a[0]"]]
    both = Wait("a[0]", "its devices", ("b", "c"), needs=frozenset(("b", "c")))
    assert rings([both, ring], ["c[0]"]) == [["a[0]", "b[0]", "a[0]"]]


def test_a_ring_through_hundreds_of_ranks_is_found_and_drawn_in_a_few_boxes() -> None:
    waits = [*(Wait(f"sim[{r}]", "items of channel 'actions'", ("policy",), ("actions",)) for r in range(300)), Wait("policy[0]", "room", ("sim",), ("obs",))]
    graph = WaitGraph((Wait("driver[0]", "the calls", tuple(w.who for w in waits)), *waits), ("logger[0].write",))
    assert graph.rings() == [["sim[0]", "policy[0]", "sim[0]"]] or graph.rings() == [["policy[0]", "sim[0]", "policy[0]"]]
    drawn = graph.drawn()
    names = [node["name"] for node in drawn["nodes"]]
    assert sorted(names) == ["logger[0]", "policy[0]", "sim[0]", "sim[1–299]"]
    assert {tuple(names[i] for i in (a, b)): label for a, b, label in drawn["edges"]} == {
        ("sim[0]", "policy[0]"): "actions", ("sim[1–299]", "policy[0]"): "actions", ("policy[0]", "sim[0]"): "obs", ("policy[0]", "sim[1–299]"): "obs",
    }  # fmt: skip
    assert [{names[i] for i in ring} for ring in drawn["cycles"]] == [{"sim[0]", "policy[0]"}]
    assert [node["name"] for node in drawn["nodes"] if node["computes"]] == ["logger[0]"]
    fed = WaitGraph((Wait("driver[0]", "the value of a[0]", ("a[0]",)), Wait("a[0]", "items of channel 'x'", ("driver",), ("x",)))).drawn()
    assert [node["name"] for node in fed["nodes"]] == ["driver[0]", "a[0]"] and fed["cycles"] == [[0, 1]]


def test_who_is_waited_for_by_its_name_and_by_its_rank_is_drawn_once() -> None:
    """Also where it is in no call at all: the dashboard draws this while it learns that nothing moves."""
    rollout = Wait("rollout[0]", "version 2 of the weights", ("learner[0]",), ("",))
    logger = Wait("logger[0]", "items of channel 'stats'", ("learner",), ("stats",))
    drawn = WaitGraph((rollout, logger)).drawn()
    names = [node["name"] for node in drawn["nodes"]]
    assert sorted(names) == ["learner[0]", "logger[0]", "rollout[0]"]
    assert {(names[a], names[b]) for a, b, _ in drawn["edges"]} == {("rollout[0]", "learner[0]"), ("logger[0]", "learner[0]")}
    for seed in range(300):
        rng = random.Random(seed)
        labels = [f"{w}[{r}]" for w in "abc" for r in range(3)]
        waits = tuple(Wait(who, rng.choice("xy"), tuple(rng.sample([*labels, *"abcd"], 2)), ("",)) for who in rng.sample(labels, rng.randint(0, 6)))
        graph = WaitGraph(waits, tuple(f"{label}.work" for label in labels if label not in {w.who for w in waits} and rng.random() < 0.3))
        drawn = graph.drawn()
        assert all(0 <= n < len(drawn["nodes"]) for a, b, _ in drawn["edges"] for n in (a, b)) and graph.lines() is not None


class Learns(Numbers):
    def state(self) -> str:
        return "learnt"


@both
def test_a_value_of_a_call_behind_one_that_reads_to_the_end_of_a_stream_comes(kind: str) -> None:
    """It stood still: the loop ends a stream where it waits for who reads it, and it waited for the call behind that one."""
    flow = Workflow("behind")
    items, learner, collector = flow.channel("items"), flow.worker(Learns, name="learner"), flow.worker(Numbers, name="collector")

    @flow.iteration
    def iteration() -> Any:
        collector.make(10, items)
        trained = learner.total(items)
        return learner.state().wait(), trained

    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"learner": [0], "collector": [1]})
    with opened(kind, flow, plan) as s:
        assert [s.step(), s.step()] == [("learnt", 45)] * 2
