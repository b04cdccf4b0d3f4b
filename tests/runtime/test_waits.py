"""Who waits for whom: the cycle, and what the dashboard is told; what would never end is told at once, with what would end it."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import pytest
from flows import Numbers
from sessions import both, opened, step_within

from rlinf_lab import ExecutionPlan, Inbox, Outbox, Weights, Worker, Workflow
from rlinf_lab.errors import DeadlockError, WorkerError
from rlinf_lab.planning.plan.wait_graph import standstill
from rlinf_lab.runtime.host.liveness.deadlock_watch import Watch
from rlinf_lab.runtime.host.liveness.wait_graph import Wait, WaitGraph, rings
from rlinf_lab.runtime.run.run import session


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
    told = str(standstill([dataclasses.replace(wait, advice=f"let {wait.who} go") for wait in waits]))
    assert told.endswith("Next: let policy[0] go; or let learner[0] go."), "others wait for those in the ring"
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


class Counts(Worker):
    def put_and_get(self, inbox: Inbox, out: Outbox, gives: int, wants: int) -> int:
        out.put_all(range(gives))
        got = inbox.get(wants)
        out.put(0)
        return len(got)

    def crossed(self, inbox: Inbox, out: Outbox) -> None:
        self.log()  # it might put something first: a plan cannot tell
        out.put(inbox.take())

    def two_then_none(self, inbox: Inbox, out: Outbox) -> None:
        for n, batch in enumerate(inbox):
            if n < 2:
                out.put_all(batch)

    def puts(self, out: Outbox, count: int) -> None:
        for i in range(count):
            out.put(i, key=i)

    def takes(self, inbox: Inbox, key: int) -> Any:
        return inbox.take(key=key)

    def publishes(self, weights: Weights, times: int) -> None:
        for _ in range(times):
            weights.publish({"w": 1.0})

    def pulls(self, weights: Weights, at_least: int) -> int:
        return weights.pull(at_least=at_least).version

    def meets(self) -> None:
        self.exchange(0)

    def meets_unevenly(self) -> None:
        for n in range(2 - self.rank):
            self.exchange(n)


def ring(first: Any, second: Any, fed: int = 0) -> Workflow:
    """``first``, ``second``: method and arguments of a, which reads back and writes forth, and of b, which does the opposite."""
    flow = Workflow("ring")
    forth, back = flow.channels("forth", "back")
    a, b = flow.worker(Counts, name="a"), flow.worker(Counts, name="b")

    @flow.iteration
    def iteration(stuck: bool = True) -> Any:
        if not stuck:
            return 7
        forth.put_all(range(fed)) if fed else None
        return getattr(a, first[0])(back, forth, *first[1:]), getattr(b, second[0])(forth, back, *second[1:])

    return flow


def versions(published: int) -> Workflow:
    flow = Workflow("versions")
    weights = flow.weights("w")
    a, b = flow.worker(Counts, name="a"), flow.worker(Counts, name="b")
    flow.iteration(lambda stuck=True: (a.publishes(weights, published), b.pulls(weights, 5)) if stuck else 7)
    return flow


def keys() -> Workflow:
    flow = Workflow("keys")
    items = flow.channel("items", keyed=True)
    a, b = flow.worker(Counts, name="a"), flow.worker(Counts, name="b")
    flow.iteration(lambda stuck=True: (a.puts(items, 3), b.takes(items, 7)) if stuck else 7)
    return flow


def meeting(shared: bool) -> Workflow:
    """``shared``: beside ranks that meet on the same devices, so that who waits stands aside."""
    flow = Workflow("uneven")
    a = flow.worker(Counts, name="a")
    b = flow.worker(Counts, name="b") if shared else None
    flow.iteration(lambda stuck=True: (a.meets_unevenly(), b and b.meets()) if stuck else 7)
    return flow


def counts(gives: int, wants: int) -> Workflow:
    return ring(("put_and_get", gives, wants), ("put_and_get", gives, wants))


RING = [r"more: (?:a\[0\] → b\[0\] → a\[0\]|b\[0\] → a\[0\] → b\[0\])\n", r"a\[0\] waits for items of channel 'back'",
        r"b\[0\] waits for items of channel 'forth'", r"\nNext: have one of .* put before it gets \(channel 'back', 'forth'\)"]  # fmt: skip
EQUALLY = r"\nNext: have every rank of 'a' call exchange\(\) equally often"
CASES: dict[str, tuple[Workflow, list[str]]] = {  # and what is said of it
    **{f"{gives} before {wants}": (counts(gives, wants), RING) for gives, wants in ((0, 1), (1, 2), (3, 5))},
    "nobody begins": (ring(("crossed",), ("crossed",)), RING),
    "the loop has fed one": (ring(("two_then_none",), ("two_then_none",), fed=3), RING),
    "a version": (versions(2), [
        r"b\[0\] waits for version 5 of the weights 'w'",
        r"Next: publish version 5 of the weights 'w' \(2 is the newest\) in a call that ends before this one, or pull\(at_least=\) of less\.",
    ]),
    "no version": (versions(0), [r"b\[0\] waits for version 5 of the weights 'w'", r"Next: publish version 5 of the weights 'w' \(nobody has yet\)"]),
    "a key": (keys(), [
        r"b\[0\]: channel 'items': take\(key=7\) after the end of the stream: a has finished, and no item of key 7 is left. Next: take as many as are put",
    ]),
    "a meeting": (meeting(False), [r"a\[0\] waits for the value of a\[1\] in exchange\(\) 2 of meets_unevenly\(\)", EQUALLY]),
    "a meeting aside": (meeting(True), [r"a\[0\].* in exchange\(\) 2 of meets_unevenly\(\)", EQUALLY]),
}  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), [*itertools.product(CASES, ["local", "mesh"]), ("nobody begins", "processes")])
def test_what_would_never_end_is_told_with_what_would_end_it(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before two waves of questions have had the same answers."""
    (flow, told), ask, waves = CASES[name], Watch._ask_all, list[int]()
    monkeypatch.setattr(Watch, "_ask_all", lambda watch: (ask(watch), waves.append(watch._wave)))
    places = dict.fromkeys(flow.workers, ((0,), (1,))) if flow.name == "uneven" else {"a": ((0,),), "b": ((1,),)}
    plan = ExecutionPlan("apart", ("cpu:0", "cpu:1"), places, micro_batches=dict.fromkeys(flow.channel_specs, 1))
    opens = session(flow, plan, executor=kind, emulate=True) if kind == "processes" else opened(kind, flow, plan)
    with opens as s:
        with pytest.raises((DeadlockError, WorkerError), match="(?s)" + ".*".join(told)) as caught:
            step_within(s)
        if kind == "mesh" and isinstance(caught.value, DeadlockError) and flow.name != "versions":  # of these hosts know it by themselves
            assert 2 in waves
        if flow.name == "versions":
            (wait,) = [w for w in caught.value.waits if w.who == "b[0]"]
            assert wait.what == "version 5 of the weights 'w'" and wait.on == (("a[0]",) if "newest" in told[1] else ())
        assert step_within(s, False) == 7
