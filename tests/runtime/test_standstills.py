"""What would never end, because of what the workers' own code asks for: told at once, with who waits for whom and what would end it; the next iteration works."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from sessions import opened, step_within

import rlinf_lab as lab
from rlinf_lab.errors import DeadlockError, WorkerError


class Counts(lab.Worker):
    def put_and_get(self, inbox: lab.Inbox, out: lab.Outbox, gives: int, wants: int) -> int:
        out.put_all(range(gives))
        got = inbox.get(wants)
        out.put(0)
        return len(got)

    def crossed(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        self.log()  # it might put something first: a plan cannot tell
        out.put(inbox.take())

    def two_then_none(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        for n, batch in enumerate(inbox):
            if n < 2:
                out.put_all(batch)

    def puts(self, out: lab.Outbox, count: int) -> None:
        for i in range(count):
            out.put(i, key=i)

    def takes(self, inbox: lab.Inbox, key: int) -> Any:
        return inbox.take(key=key)

    def publishes(self, weights: lab.Weights, times: int) -> None:
        for _ in range(times):
            weights.publish({"w": 1.0})

    def pulls(self, weights: lab.Weights, at_least: int) -> int:
        return weights.pull(at_least=at_least).version

    def meets(self) -> None:
        self.exchange(0)

    def meets_unevenly(self) -> None:
        for n in range(2 - self.rank):
            self.exchange(n)


def ring(first: Any, second: Any, fed: int = 0) -> lab.Workflow:
    """``first``, ``second``: method and arguments of a, which reads back and writes forth, and of b, which does the opposite."""
    flow = lab.Workflow("ring")
    forth, back = flow.channels("forth", "back")
    a, b = flow.worker(Counts, name="a"), flow.worker(Counts, name="b")

    @flow.iteration
    def iteration(stuck: bool = True) -> Any:
        if not stuck:
            return 7
        forth.put_all(range(fed)) if fed else None
        return getattr(a, first[0])(back, forth, *first[1:]), getattr(b, second[0])(forth, back, *second[1:])

    return flow


def versions(published: int) -> lab.Workflow:
    flow = lab.Workflow("versions")
    weights = flow.weights("w")
    a, b = flow.worker(Counts, name="a"), flow.worker(Counts, name="b")
    flow.iteration(lambda stuck=True: (a.publishes(weights, published), b.pulls(weights, 5)) if stuck else 7)
    return flow


def keys() -> lab.Workflow:
    flow = lab.Workflow("keys")
    items = flow.channel("items", keyed=True)
    a, b = flow.worker(Counts, name="a"), flow.worker(Counts, name="b")
    flow.iteration(lambda stuck=True: (a.puts(items, 3), b.takes(items, 7)) if stuck else 7)
    return flow


def meeting(shared: bool) -> lab.Workflow:
    """``shared``: beside ranks that meet on the same devices, so that who waits stands aside."""
    flow = lab.Workflow("uneven")
    a = flow.worker(Counts, name="a")
    b = flow.worker(Counts, name="b") if shared else None
    flow.iteration(lambda stuck=True: (a.meets_unevenly(), b and b.meets()) if stuck else 7)
    return flow


def counts(gives: int, wants: int) -> lab.Workflow:
    return ring(("put_and_get", gives, wants), ("put_and_get", gives, wants))


RING = [r"more: (?:a\[0\] → b\[0\] → a\[0\]|b\[0\] → a\[0\] → b\[0\])\n", r"a\[0\] waits for items of channel 'back'",
        r"b\[0\] waits for items of channel 'forth'", r"\nNext: have one of .* put before it gets \(channel 'back', 'forth'\)"]  # fmt: skip
EQUALLY = r"\nNext: have every rank of 'a' call exchange\(\) equally often"
CASES: dict[str, tuple[lab.Workflow, list[str]]] = {  # and what is said of it
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
def test_what_would_never_end_is_told_with_what_would_end_it(name: str, kind: str) -> None:
    flow, told = CASES[name]
    places = dict.fromkeys(flow.workers, ((0,), (1,))) if flow.name == "uneven" else {"a": ((0,),), "b": ((1,),)}
    plan = lab.ExecutionPlan("apart", ("cpu:0", "cpu:1"), places, micro_batches=dict.fromkeys(flow.channel_specs, 1))
    session = lab.session(flow, plan, executor=kind, emulate=True) if kind == "processes" else opened(kind, flow, plan)
    with session as s:
        with pytest.raises((DeadlockError, WorkerError), match="(?s)" + ".*".join(told)) as caught:
            step_within(s)
        if flow.name == "versions":
            (wait,) = [w for w in caught.value.waits if w.who == "b[0]"]
            assert wait.what == "version 5 of the weights 'w'" and wait.on == (("a[0]",) if "newest" in told[1] else ())
        assert step_within(s, False) == 7
