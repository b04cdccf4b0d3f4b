"""A ring of calls is refused only where it is certain that it stands still: whose first worker may put before it reads is let run, and does."""

from __future__ import annotations

import contextlib
import functools
import linecache
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rlinf_lab as lab
from rlinf_lab.errors import DeadlockError, PlanError
from rlinf_lab.planning.plan import execution_plan as plans
from rlinf_lab.workflow.source import statements
from rlinf_lab.workflow.source.sure_reads import Reads, sure_reads


class Base(lab.Worker):
    nothing = 0
    state: Any  # nobody gives it

    def begin(self, out: Any) -> Any:
        out.put(0)
        return self

    def merge(self, batch: Any) -> Any:
        return batch


def greets(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def inner(self: Any, obs: Any, actions: Any) -> None:
        actions.put(0)
        method(self, obs, actions)

    return inner


class Enters:
    def __init__(self, out: Any) -> None:
        self.out = out

    def __enter__(self) -> None:
        self.out.put(0)

    def __exit__(self, *error: object) -> None:
        pass


class PutsFirst:
    """Each puts something before it reads, in a way of its own."""

    class Decorated(Base):
        @greets
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            obs.get(1)

    class OfItsParent(Decorated):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            super().step(obs, actions)

    class Handler(Base):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            try:
                self.merge(self.state)
            except AttributeError:
                actions.put(0)
            obs.get(1)

    class GetBehindAnError(Base):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            try:
                self.merge(self.state)
                obs.get(1)
            except AttributeError:
                pass
            actions.put(0)
            obs.get(1)

    class LeftAtLast(Base):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            try:
                self.merge(self.state)
                obs.get(1)
            finally:
                return  # noqa: B012

    class Swallowed(Base):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            with contextlib.suppress(AttributeError):
                self.merge(self.state)
                obs.get(1)
            actions.put(0)
            obs.get(1)

    class BeforeItsArguments(Base):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            self.begin(actions).merge(obs.get(1))

    class OtherArgument(Base):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            for _ in enumerate(obs, start=self.begin(actions).nothing):
                break

    class Default(Base):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            def helper(x: Any = actions.put(0)) -> Any:  # noqa: B008
                return x

            obs.get(1)

    class Property(Base):
        @property
        def ready(self) -> bool:
            self.kept.put(0)
            return True

        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            self.kept = actions
            if self.ready:
                obs.get(1)

    class Setter(Base):
        @property
        def out(self) -> Any:
            return self.kept

        @out.setter
        def out(self, out: Any) -> None:
            self.kept = out
            out.put(0)

        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            self.out = actions
            obs.get(1)

    class Unnamed(Base):
        def __getattr__(self, name: str) -> Any:
            return self.kept.put(0) if name == "ready" else object.__getattribute__(self, name)

        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            self.kept = actions
            self.merge(self.ready)
            obs.get(1)

    class Rebound(Base):
        def step(self, obs: Any, actions: lab.Outbox) -> None:
            obs, later = ((0,),), obs
            for _ in obs:
                actions.put(0)
            later.get(1)

        step.__annotations__["obs"] = lab.Inbox

    class EarlyReturn(Base):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            if not self.nothing:
                return
            obs.get(1)
            actions.put(0)

    class Generator(Base):
        def batches(self, obs: Any, actions: Any) -> Iterator[Any]:
            actions.put(0)
            yield obs.get(1)

        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            for _ in self.batches(obs, actions):
                pass

    class Later(Base):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            functools.partial(actions.put, 0)()
            obs.get(1)

    class Inner(Base):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            def go() -> None:
                actions.put(0)

            go()
            obs.get(1)

    class OneCase(Base):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            batch = obs.get(1) if self.nothing else []
            actions.put(len(batch))
            obs.get(1)

    class Short(Base):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            batch = not self.nothing or obs.get(1)
            actions.put(batch)
            obs.get(1)

    class NoTurn(Base):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            for _ in range(self.nothing):
                obs.get(1)
            while self.nothing:
                obs.get(1)
            actions.put(0)
            obs.get(1)

    class LeavesTheLoop(Base):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            while True:
                if not self.nothing:
                    break
                obs.get(1)
            actions.put(0)
            obs.get(1)

    class Block(Base):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            with Enters(actions):
                obs.get(1)

    class Matched(Base):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            match self.nothing:
                case 0:
                    actions.put(0)
            obs.get(1)

    class OfTheFrame(Base):
        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            locals()["actions"].put(0)
            obs.get(1)

    class Replaced(Base):
        def setup(self) -> None:
            self.step = lambda obs, actions: self.begin(actions).merge(obs.get(1))

        def step(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
            obs.get(1)


def not_at_all(self: Any, obs: lab.Inbox, actions: lab.Outbox) -> None:
    if self.nothing:
        obs.get_all()
    actions.put(0)


NEVER = type("NEVER", (Base,), {"step": not_at_all})
CLASSES = [cls for cls in vars(PutsFirst).values() if isinstance(cls, type)]


class Echo(lab.Worker):
    def echo(self, actions: lab.Inbox, obs: lab.Outbox) -> None:
        for batch in actions:
            obs.put_all(batch)


def ring(cls: type[lab.Worker], whole: bool = False, discard_unread: bool = False) -> tuple[lab.Workflow, lab.ExecutionPlan]:
    flow = lab.Workflow(f"ring of {cls.__name__}")
    obs, actions = (flow.channel(name, capacity=None, whole=whole, discard_unread=discard_unread) for name in ("obs", "actions"))
    a, b = flow.worker(cls, name="a"), flow.worker(Echo, name="b")

    @flow.iteration
    def iteration() -> None:
        a.step(obs, actions)
        b.echo(actions, obs)

    return flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"])


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_who_may_put_first_is_let_run(cls: type[lab.Worker]) -> None:
    with lab.session(*ring(cls)) as session:
        session.step()


def test_an_inbox_that_is_not_read_holds_nobody_up() -> None:
    with lab.session(*ring(NEVER, whole=True, discard_unread=True)) as session:
        session.step()


# --- what is certain ----------------------------------------------------------------------------------------------
class Certain(Base):
    """Each reads ``obs`` before it can put, whatever else stands there."""

    def at_once(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
        for batch in obs:
            actions.put_all(batch)

    def after_other_things(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
        self.merge(self.nothing)
        with self.span("asks"), contextlib.nullcontext():
            sizes = [len(batch) for batch in obs]
        actions.put(sizes)

    def in_arguments(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
        self.begin(sum(len(batch) for batch in obs)).merge(actions)

    def in_either_case(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
        batch = obs.get(1) if self.nothing else obs.get_all()
        actions.put_all(batch)

    def as_long_as_there_is_some(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
        try:
            while batch := obs.get():
                actions.put_all(batch)
        finally:
            self.merge(0)

    def without_end(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
        while True:
            if not (batch := obs.get()):
                break
            actions.put_all(batch)


class BothWays(Base):
    def puts_before(self, obs: lab.Inbox, actions: lab.Outbox) -> None:
        actions.put(0)
        obs.get(1)

    def reads_two(self, obs: lab.Inbox, other: lab.Inbox, actions: lab.Outbox) -> None:
        batch = obs.get_all()
        actions.put_all(batch)
        self.merge(other.get(1))


@pytest.mark.parametrize("name", [n for n in vars(Certain) if not n.startswith("_")])
def test_a_ring_of_who_surely_reads_first_is_refused_and_would_stand_still(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = getattr(Certain, name)
    assert sure_reads(method, Certain)[:2] == ({"obs"}, {"obs"})
    cls = type("Of", (Certain,), {"step": method})
    with pytest.raises(PlanError, match=r"would stand still, under every plan: .*a\.step\(\) waits for items of 'obs'"):
        ring(cls)
    monkeypatch.setattr(plans, "refuse_standstill", lambda *given: None)
    with pytest.raises(DeadlockError), lab.session(*ring(cls)) as session:
        session.step()


def test_what_is_read_before_a_put_and_what_after() -> None:
    assert sure_reads(BothWays.puts_before) == Reads(frozenset(), frozenset({"obs"}))
    assert sure_reads(BothWays.reads_two) == Reads(frozenset({"obs"}), frozenset({"obs", "other"}))


def test_who_takes_batches_as_they_come() -> None:
    """Nothing else is done with the inbox: neither is it asked for a number, nor handed on."""
    batched = {name for name, method in vars(Certain).items() if not name.startswith("_") and sure_reads(method, Certain).batched}
    assert batched == {"at_once", "after_other_things", "in_arguments", "as_long_as_there_is_some", "without_end"}
    assert sure_reads(PutsFirst.Generator.step, PutsFirst.Generator).batched == set()


def test_a_file_that_changed_since_says_nothing(tmp_path: Path) -> None:
    """What was imported reads first, what stands there now does not, and the other way round."""
    path, module = tmp_path / "edited.py", types.ModuleType("edited")
    text = "import rlinf_lab as lab\nclass W(lab.Worker):\n    def go(self, inbox: lab.Inbox, out: lab.Outbox):\n        {}\n        {}\n"
    path.write_text(text.format("out.put(0)", "inbox.get()"))
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    assert sure_reads(module.W.go, module.W).all == {"inbox"}
    path.write_text(text.format("inbox.get()", "out.put(0)"))
    linecache.checkcache(str(path))
    assert sure_reads(module.W.go, module.W) == Reads()


def test_a_file_is_read_once_for_all_workers_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """To compile and compare what stands there took two thirds of the time of a graph."""
    read: list[str] = []
    compare = statements._is_what_runs
    monkeypatch.setattr(statements, "_is_what_runs", lambda definition, code: read.append(definition.name) or compare(definition, code))
    monkeypatch.setattr(statements, "_READ", {})
    assert [sure_reads(BothWays.puts_before) for _ in range(3)] == [Reads(frozenset(), frozenset({"obs"}))] * 3
    assert read == ["puts_before"]
