"""Whether a method needs its devices before its input is there: what it does first is read from its source, not its first line alone."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import importlib
import inspect
import time
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rlinf_lab as lab
from rlinf_lab.workflow.source import batched, computes_first


@dataclasses.dataclass
class Config:
    size: int = 4

    @property
    def model(self) -> Any:
        raise AssertionError("computes")


class Reads(lab.Worker):
    """Nothing but idle statements stands before the first get."""

    def at_once(self, inbox: lab.Inbox) -> None:
        for _ in inbox:
            self.work()

    def with_an_empty_list(self, inbox: lab.Inbox) -> list[int]:
        """A text."""
        sizes = []
        for batch in inbox:
            sizes.append(len(batch))
        return sizes

    def with_containers(self, inbox: lab.Inbox) -> None:
        import math  # noqa: F401

        a, (b, self.c), d = 0, ({}, set()), deque(maxlen=8)
        seen: dict[str, list[int]] = defaultdict(list)
        counts, start, far = collections.Counter(), time.perf_counter(), 0.5
        limit = self.limit

        def inner(x: int) -> int:
            return x

        batch = inbox.get()
        self.work(a, b, d, seen, counts, start, far, limit, inner, batch)

    def in_a_loop(self, inbox: lab.Inbox) -> None:
        n = 0
        while True:
            if not (batch := inbox.get(4)):
                break
            n += len(batch)
            self.work()
        self.work()

    def while_there_is_some(self, inbox: lab.Inbox) -> None:
        while batch := inbox.get():
            self.work(batch)

    def counted(self, inbox: lab.Inbox) -> None:
        for _ in range(self.steps):
            inbox.take()

    def numbered(self, inbox: lab.Inbox, other: lab.Inbox) -> None:
        for _ in enumerate(zip(inbox, other, strict=False), 1):
            self.work()

    def all_of_it(self, inbox: lab.Inbox) -> None:
        batches = sorted(inbox)
        self.work(batches)

    def in_arguments(self, inbox: lab.Inbox) -> Any:
        return self.work([item for batch in inbox for item in batch])

    def sliced(self, inbox: lab.Inbox) -> Any:
        return inbox.get_all()[0].x

    def under_a_block(self, inbox: lab.Inbox) -> None:
        with contextlib.nullcontext(), contextlib.suppress(KeyError):
            try:
                self.work(inbox.get_weight(100))
            finally:
                self.work()

    def in_one_case(self, inbox: lab.Inbox, more: bool = True) -> None:
        if more and self.limit is None:
            inbox.get()

    def in_either_case(self, inbox: lab.Inbox, more: bool = True) -> None:
        if more:
            inbox.get()
        else:
            inbox.get(3)
        self.work()

    def under_a_span(self, inbox: lab.Inbox) -> int:
        with self.span("rollout"):
            return sum(len(batch) for batch in inbox)

    def counts_and_tells(self, inbox: lab.Inbox, mode: str = "x") -> None:
        self.calls += 1
        print("call", self.calls)
        self.log(calls=1)
        if mode == "y" or isinstance(mode, int) or self.iteration > self.rank:
            print(f"mode {mode!r} of {len(mode)}")
        count = 4 if mode is None else len(mode)
        while batch := inbox.get(count):
            self.work(batch)

    def by_its_keys(self, inbox: lab.Inbox) -> None:
        for key in (0, 1):
            self.work(inbox.get(key=key))

    def by_its_share_of_keys(self, inbox: lab.Inbox) -> None:
        for key in range(self.rank, 8 // 2, self.ranks):
            self.work(inbox.get(key=key))

    def exchanged(self, inbox: lab.Inbox) -> list[Any]:
        return [item for part in self.exchange(inbox.get_all()) for item in part]

    def compared(self, inbox: lab.Inbox) -> None:
        while len(inbox.get()) + 1 != 0:
            self.work([*inbox])

    def __init__(self, config: Config, extra: int) -> None:
        self.config, self.extra = config, extra
        self.own = Config(8)

    def as_configured(self, inbox: lab.Inbox, config: Config | None = None) -> None:
        size = config.size if config is not None else self.own.size
        inbox.get(self.config.size)
        self.work(size)

    @torch.no_grad()
    def without_gradients(self, inbox: lab.Inbox) -> None:
        for batch in inbox:
            self.work(batch)

    def a_text_at_the_margin(self, inbox: lab.Inbox) -> None:
        """A text
        that begins at the margin."""
        for batch in inbox:
            self.work(batch)


def warms(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def inner(self: Any, *given: Any) -> Any:
        self.work()
        return method(self, *given)

    return inner


class Works(lab.Worker):
    """Something is done, or might be, before the first get; or there is none."""

    def a_call(self, inbox: lab.Inbox) -> None:
        self.work()
        inbox.get()

    def after_an_empty_list(self, inbox: lab.Inbox) -> None:
        sizes = []
        sizes.append(self.work())
        inbox.get()

    def a_value(self, inbox: lab.Inbox) -> None:
        weights = self.model()
        inbox.get(weights)

    def arithmetic(self, inbox: lab.Inbox) -> None:
        scaled = self.weights * 2
        inbox.get(scaled)

    def into_a_buffer(self, inbox: lab.Inbox) -> None:
        self.buffer[0] = 0
        inbox.get()

    def from_a_tensor(self, inbox: lab.Inbox) -> None:
        n = int(self.count)
        inbox.get(n)

    def an_argument_of_the_get(self, inbox: lab.Inbox) -> None:
        inbox.get(self.how_many())

    def another_loop(self, inbox: lab.Inbox) -> None:
        for _ in self.loader:
            inbox.get()

    def beside_the_inbox(self, inbox: lab.Inbox) -> None:
        for _ in zip(inbox, self.steps(), strict=False):
            pass

    def a_block_of_its_own(self, inbox: lab.Inbox) -> None:
        with self.lock:
            inbox.get()

    def in_one_case(self, inbox: lab.Inbox, first: bool = True) -> None:
        if first:
            self.work()
        inbox.get()

    def perhaps_no_get(self, inbox: lab.Inbox) -> None:
        for _ in range(self.steps):
            inbox.get()
        self.work()

    def out_before_the_get(self, inbox: lab.Inbox) -> None:
        while True:
            if self.limit:
                break
            inbox.get()
        self.work()

    @property
    def model(self) -> Any:
        return self.work()

    @model.setter
    def model(self, value: Any) -> None:
        self.work(value)

    @functools.cached_property
    def table(self) -> Any:
        return self.work()

    @warms
    def decorated(self, inbox: lab.Inbox) -> None:
        inbox.get()

    def a_property(self, inbox: lab.Inbox) -> None:
        inbox.get(self.model)

    def a_property_once(self, inbox: lab.Inbox) -> None:
        inbox.get(self.table)

    def a_setter(self, inbox: lab.Inbox) -> None:
        self.model = 0
        inbox.get()

    def __init__(self, config: Config) -> None:
        self.config = config

    def handled(self, inbox: lab.Inbox) -> None:
        try:
            state = self.state
            inbox.get(state)
        except AttributeError:
            self.work()
        inbox.get()

    def a_default(self, inbox: lab.Inbox) -> None:
        def inner(x: Any = self.work()) -> Any:  # noqa: B008
            return x

        inbox.get(inner())

    def called_before_its_arguments(self, inbox: lab.Inbox) -> None:
        self.work().add(inbox.get())

    def rebound(self, inbox: Any) -> None:
        inbox = self.work(inbox)
        inbox.get()

    rebound.__annotations__["inbox"] = lab.Inbox

    def a_stand_in(self, inbox: Any, later: lab.Inbox) -> None:
        for inbox in (later,):
            for _ in inbox:
                self.work()

    a_stand_in.__annotations__["inbox"] = lab.Inbox

    def two_tensors(self, inbox: lab.Inbox) -> None:
        if self.weights == self.others:
            inbox.get()

    def a_put(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        out.put(0)
        inbox.get()

    def only_a_question(self, inbox: lab.Inbox) -> None:
        inbox.__repr__()
        inbox.get()

    def a_name_of_its_own(self, inbox: lab.Inbox, deque: Any) -> None:
        found = deque()
        inbox.get(found)

    def nothing_at_all(self, inbox: lab.Inbox) -> None:
        """A text."""

    def no_inbox(self, out: lab.Outbox) -> None:
        count = 0
        out.put(count)


@pytest.mark.parametrize("name", [n for n in vars(Reads) if not n.startswith("_")])
def test_what_reads_first_needs_no_device_yet(name: str) -> None:
    assert not computes_first(getattr(Reads, name), Reads)


@pytest.mark.parametrize("name", [n for n, f in vars(Works).items() if inspect.isfunction(f) and not n.startswith("_")])
def test_what_might_compute_first_gets_its_device(name: str) -> None:
    assert computes_first(inspect.getattr_static(Works, name), Works)


def test_a_subclass_may_make_a_property_of_an_attribute() -> None:
    """What its parent only looks up; and who asks for all attributes may do anything."""
    computes = property(lambda self: self.work())
    assert not computes_first(Reads.with_containers, Reads)
    assert computes_first(Reads.with_containers, type("Computes", (Reads,), {"limit": computes}))
    assert computes_first(Reads.with_containers, type("Asks", (Reads,), {"__getattr__": lambda self, name: self.work()}))
    assert not computes_first(Reads.at_once, type("Asks", (Reads,), {"__getattr__": lambda self, name: self.work()}))


def test_without_a_source_the_answer_is_the_safe_one() -> None:
    scope: dict[str, Any] = {"lab": lab}
    exec("def go(self, inbox: lab.Inbox):\n    inbox.get()", scope)
    assert computes_first(scope["go"], lab.Worker)


def test_torch_without_gradients_is_no_work() -> None:
    assert not computes_first(quietly, lab.Worker)


def quietly(self: Any, inbox: lab.Inbox) -> None:
    with torch.no_grad(), torch.inference_mode():
        for batch in inbox:
            self.work(batch)


class Batches(lab.Worker):
    def all_of_them(self, inbox: lab.Inbox, other: lab.Inbox) -> None:
        for _, batch in enumerate(inbox):
            self.work(batch, other.get())

    def so_many(self, inbox: lab.Inbox) -> None:
        for _ in inbox:
            inbox.get(3)

    def handed_on(self, inbox: lab.Inbox) -> None:
        self.work([len(batch) for batch in inbox], inbox)


def test_who_takes_batches_as_they_come() -> None:
    """Nothing else is done with the inbox: neither is it asked for a number, nor handed on."""
    assert batched(Batches.all_of_them) == {"inbox", "other"} and not batched(Batches.so_many) and not batched(Batches.handed_on)


def test_a_file_that_changed_since_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was imported computes first; what stands there now reads first."""
    path = tmp_path / "changing_worker.py"
    head = "import rlinf_lab as lab\n\nclass Changed(lab.Worker):\n    def go(self, inbox: lab.Inbox):\n        "
    path.write_text(head + "self.warm_up()\n        inbox.get()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    cls = importlib.import_module("changing_worker").Changed
    path.write_text(head + "inbox.get()\n        inbox.get()\n        # another length\n")
    assert computes_first(cls.go, cls)
