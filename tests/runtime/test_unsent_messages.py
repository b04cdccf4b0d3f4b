"""A message of any kind that cannot be sent ends the run in words, within seconds; none is lost in silence."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from mesh import MeshExecutor
from sessions import in_time, opened, session_of, step_within

from rlinf_lab import ExecutionPlan, Inbox, Outbox, Weights, Worker, Workflow
from rlinf_lab.errors import ExecutorError, RlinfLabError, WorkerError, WorkflowError
from rlinf_lab.runtime.host.driver import waiting
from rlinf_lab.runtime.host.liveness.failures import described
from rlinf_lab.runtime.host.state.messages import _KINDS
from rlinf_lab.runtime.host.state.values import Returned, ValueTable
from rlinf_lab.runtime.run.run import session
from rlinf_lab.runtime.transport.links import Link
from rlinf_lab.runtime.transport.pickling import pickled
from rlinf_lab.workflow.specs import CallSpec

DEVICES = ["cpu:0", "cpu:1", "cpu:2"]


@pytest.fixture(autouse=True)
def _not_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long an iteration that failed waits for calls of which nothing more will be heard."""
    monkeypatch.setattr(waiting, "SETTLE_SECONDS", 0.1)


class Plain:
    def __init__(self, lock: Any) -> None:
        self.lock = lock


class Maker(Worker):
    def make(self, given: Inbox, out: Outbox, weights: Weights, fails: bool) -> int:
        if fails:
            raise ValueError("of its own")
        weights.publish([1.0] * 3)
        for batch in given:
            for item in batch:
                out.put(item)
        return 5

    def unsendable(self, kinds: str) -> None:
        """From now on nothing of these kinds leaves this process."""
        gather = Link.gather

        def fails(self: Link, message: tuple) -> None:
            if message[0] in kinds.split():
                raise RuntimeError(f"no {message[0]} today")
            gather(self, message)

        Link.gather = fails  # type: ignore[method-assign]


class Taker(Worker):
    def take(self, inbox: Inbox, weights: Weights, made: int) -> int:
        weights.pull(at_least=1)
        if self.ranks == 2:
            self.exchange(self.rank)
        return sum(len(batch) for batch in inbox) + made


def flow_of() -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("kinds")
    given, items = flow.channel("given", capacity=2), flow.channel("items", capacity=2)
    newest = flow.weights("newest")
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker")

    @flow.iteration
    def iteration(fails: bool = False, kind: str = "") -> Any:
        if kind:
            return maker.unsendable(kind)
        made = maker.make(given, items, newest, fails)
        taken = taker.take(items, newest, 5)
        given.put_all(range(20))
        return made, taken

    return flow, ExecutionPlan("kinds", tuple(DEVICES), {"maker": ((0,),), "taker": ((1,), (2,))}, micro_batches={"items": 1, "given": 1})


class Unsendable:
    """In place of a host's way out."""

    def __init__(self, executor: MeshExecutor) -> None:
        self.kind, self.met = "", 0
        for name in executor.hosts:
            executor.before_sending[name] = self._fails

    def _fails(self, to: str, message: tuple) -> None:
        if message[0] == self.kind and (self.kind != "value" or message[5] is None):  # not the error in its place
            self.met += 1
            raise RuntimeError(f"no {self.kind} today")


ALWAYS = ["put", "close", "get", "got", "want", "value", "published", "pull", "weights", "ended", "call", "seal", "stall", "credit", "fix",
          "fixed", "pin", "pinned"]  # fmt: skip


def test_all_kinds_are_tried() -> None:
    """Those of elastic groups and the watch leave the iteration alone and are tried below, or one for all."""
    others = (
        "puts failed broken cancel retire join joined leave left pulse? pulse remarked "
        "relieve relieved unwanted unread collected came met cut_off lacks never_comes"
    )
    assert {*ALWAYS, *others.split()} == set(_KINDS) == {kind.kind for kind in MeshExecutor(*flow_of()).driver_host.post._handlers}


@pytest.mark.parametrize("kind", ALWAYS)
def test_an_iteration_that_cannot_go_on_says_so(kind: str) -> None:
    executor = MeshExecutor(*flow_of())
    unsendable = Unsendable(executor)
    with session_of(executor, clean=False) as s:
        assert sum(step_within(s)[1]) == 30
        unsendable.kind = kind
        with pytest.raises(RlinfLabError, match=f"RuntimeError: no {kind} today") as caught:
            for _ in range(3):  # whether a producer meets a full channel is a matter of time
                step_within(s)
        assert unsendable.met and isinstance(caught.value, (WorkerError, ExecutorError))
        unsendable.kind = ""
        if kind in ("got", "value", "weights"):  # a user's object is the cause: the next iteration is a new one
            assert sum(step_within(s)[1]) == 30
        else:
            with pytest.raises(ExecutorError, match=f"could not send a '{kind}' message to .*The session has ended by that"):
                step_within(s)


@pytest.mark.parametrize("kind", ["failed", "ended", "cancel", "retire", "join", "joined", "left", "leave"])
def test_what_is_said_about_failures_and_members_is_not_lost_either(kind: str) -> None:
    executor = MeshExecutor(*flow_of(), absent={"taker": [1]} if "join" in kind else None)
    unsendable = Unsendable(executor)
    with session_of(executor, clean=False) as one, pytest.raises(RlinfLabError, match=r"no \w+ today|of its own"):
        unsendable.kind = kind
        if "join" in kind:
            in_time(lambda: one.join("taker", 1))
        elif kind == "failed":
            other = next(host for name, host in executor.hosts.items() if name != "driver")
            other.post.report(WorkerError.of("maker", 0, "make", ValueError("of its own"), "nowhere"))
            step_within(one)
        elif kind in ("left", "leave"):
            in_time(lambda: one.leave("taker", 1))
            for _ in range(50):
                step_within(one)
        else:
            for _ in range(3):
                step_within(one, kind in ("ended", "cancel"))
    assert unsendable.met


def test_a_process_that_can_tell_nobody_goes_and_that_is_heard() -> None:
    with session(*flow_of(), executor="processes", emulate=True) as s:
        s.step(kind="close broken")
        with pytest.raises(ExecutorError, match=r"Host 'host0' died .*maker\[0\] lived there"):
            step_within(s)


class Keeper(Worker):
    def keep(self) -> None:
        self.exchange({"lock": threading.Lock()})


def test_what_is_exchanged_and_does_not_pickle_is_named_as_the_user_knows_it() -> None:
    """Values and weights: see `test_process_runs` and `test_versions_of_calls`."""
    flow = Workflow("keeps")
    keeper = flow.worker(Keeper, name="keeper")
    flow.iteration(lambda: keeper.keep())
    told = r"'keeper' .*failed in keep\(\): .*What keep\(\) gave to exchange\(\), \{'lock': .*\}, cannot be sent .*\(at \['lock'\]\)\. Next: "
    with opened("mesh", flow, ExecutionPlan.spatial(flow, DEVICES, {"keeper": [0, 1]})) as s, pytest.raises(WorkerError, match=told):
        step_within(s)


def test_who_wanted_a_value_that_failed_tells_that_failure_as_it_is() -> None:
    """Whichever of the two ends the driver hears first."""
    call = CallSpec(7, "taker", "take", iteration=0)
    failed = WorkerError.of("maker", 0, "make", ValueError("broken"), "there")
    taker: Any = SimpleNamespace(worker="taker", rank=0, heard=failed)
    assert described(taker, call, failed) is failed
    of_its_own_session = WorkerError.of("sim", 0, "step", ValueError("broken"), "there")
    for raised, said_so in ((ValueError("its own"), "ValueError: its own"), (of_its_own_session, "WorkerError: Worker 'sim' rank 0 failed in step()")):
        own = described(taker, call, raised)
        assert isinstance(own, WorkerError) and own.worker == "taker" and said_so in str(own)


class Reduced:
    """Leaves its lock out, and forgets that its log does not pickle either."""

    def __init__(self) -> None:
        self.lock, self.log = threading.Lock(), (line for line in ())

    def __getstate__(self) -> dict[str, Any]:
        return {name: part for name, part in vars(self).items() if name != "lock"}


class Changing(dict[str, Any]):
    """As one that another thread writes to."""

    def items(self) -> Any:
        raise RuntimeError("dictionary changed size during iteration")


def test_what_is_at_fault_is_named_only_where_it_is_known() -> None:
    """What an object says itself to be pickled of it is not in its attributes; and of what cannot be looked at the error is told all the same."""
    for value, place in (
        ({"a": [0, threading.Lock()]}, r" \(at \['a'\]\[1\]\)\. Next:"),
        (Plain(threading.Lock()), r" \(at \.lock\)\. Next:"),
        ([Reduced()], r" \(at \[0\]\)\. Next:"),
        ([Changing(a=1)], r"changed size during iteration \(at \[0\]\)\. Next:"),
        ([None] * 5000 + [threading.Lock()], r"object\. Next:"),
    ):
        with pytest.raises(WorkflowError, match=place):
            pickled(value)


@pytest.mark.parametrize(("call", "words"), [(5, "What actor[2] returned from act()"), (-5, "What actor[2] gave to the other ranks in act()")])
def test_what_is_not_plain_travels_with_its_source(call: int, words: str) -> None:
    entry, _ = ValueTable().entry(call, 2, 0)
    entry.source = ("actor", 2, "act")
    for plain in (None, True, 3, 2.5, "text"):
        entry.value = plain
        assert entry.to_send(call) is plain
    entry.value = [1, 2]
    sent = entry.to_send(call)
    assert isinstance(sent, Returned) and sent.what == words and sent.open() == [1, 2]
    entry.value = sent
    assert entry.to_send(call) is sent and entry.get() == [1, 2]
