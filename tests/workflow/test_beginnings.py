"""Whether a method needs its devices before its input is there: what it does first is read from its source, not its first line alone."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path
from typing import Any

import pytest

import rlinf_lab as lab
from rlinf_lab.workflow.source import batched, computes_first

#: Nothing but idle statements stands before the first get.
READS = {
    "at once": "for _ in inbox: self.work()",
    "with an empty list": '"""A text."""\nsizes = []\nfor batch in inbox:\n    sizes.append(len(batch))\nreturn sizes',
    "with containers": "import math\na, (b, self.c), d = 0, ({}, set()), deque(maxlen=8)\nseen: dict[str, list[int]] = defaultdict(list)\n"
    "counts, start, far = collections.Counter(), time.perf_counter(), 0.5\nlimit = self.limit\ndef inner(x): return x\n"
    "batch = inbox.get()\nself.work(a, b, d, seen, counts, start, far, limit, inner, batch)",
    "in a loop": "n = 0\nwhile True:\n    if not (batch := inbox.get(4)): break\n    n += len(batch)\n    self.work()\nself.work()",
    "while there is some": "while batch := inbox.get(): self.work(batch)",
    "counted": "for _ in range(self.steps): inbox.take()",
    "numbered": "for _ in enumerate(zip(inbox, other, strict=False), 1): self.work()",
    "all of it": "batches = sorted(inbox)\nself.work(batches)",
    "in arguments": "return self.work([item for batch in inbox for item in batch])",
    "sliced": "return inbox.get_all()[0].x",
    "under a block": "with contextlib.nullcontext(), contextlib.suppress(KeyError):\n    try: self.work(inbox.get_weight(100))\n    finally: self.work()",
    "in one case": "if more and self.limit is None: inbox.get()",
    "in either case": "if more: inbox.get()\nelse: inbox.get(3)\nself.work()",
    "under a span": 'with self.span("rollout"): return sum(len(batch) for batch in inbox)',
    "counts and tells": 'self.calls += 1\nprint("call", self.calls)\nself.log(calls=1)\n'
    'if mode == "y" or isinstance(mode, int) or self.iteration > self.rank: print(f"mode {mode!r} of {len(mode)}")\n'
    "count = 4 if mode is None else len(mode)\nwhile batch := inbox.get(count): self.work(batch)",
    "by its keys": "for key in (0, 1): self.work(inbox.get(key=key))",
    "by its share of keys": "for key in range(self.rank, 8 // 2, self.ranks): self.work(inbox.get(key=key))",
    "exchanged": "return [item for part in self.exchange(inbox.get_all()) for item in part]",
    "compared": "while len(inbox.get()) + 1 != 0: self.work([*inbox])",
    "as configured": "size = config.size if config is not None else self.own.size\ninbox.get(self.config.size)\nself.work(size)",
    "without gradients": "with torch.no_grad(), torch.inference_mode():\n    for batch in inbox: self.work(batch)",
}
#: Something is done, or might be, before the first get; or there is none.
WORKS = {
    "a call": "self.work()\ninbox.get()",
    "after an empty list": "sizes = []\nsizes.append(self.work())\ninbox.get()",
    "a value": "weights = self.model()\ninbox.get(weights)",
    "arithmetic": "scaled = self.weights * 2\ninbox.get(scaled)",
    "into a buffer": "self.buffer[0] = 0\ninbox.get()",
    "from a tensor": "n = int(self.count)\ninbox.get(n)",
    "an argument of the get": "inbox.get(self.how_many())",
    "another loop": "for _ in self.loader: inbox.get()",
    "beside the inbox": "for _ in zip(inbox, self.steps(), strict=False): pass",
    "a block of its own": "with self.lock: inbox.get()",
    "in one case": "if more: self.work()\ninbox.get()",
    "perhaps no get": "for _ in range(self.steps): inbox.get()\nself.work()",
    "out before the get": "while True:\n    if self.limit: break\n    inbox.get()\nself.work()",
    "a property": "inbox.get(self.model)",
    "a property once": "inbox.get(self.table)",
    "a setter": "self.model = 0\ninbox.get()",
    "handled": "try:\n    state = self.state\n    inbox.get(state)\nexcept AttributeError: self.work()\ninbox.get()",
    "a default": "def inner(x=self.work()): return x\ninbox.get(inner())",
    "called before its arguments": "self.work().add(inbox.get())",
    "rebound": "inbox = self.work(inbox)\ninbox.get()",
    "a stand-in": "for inbox in (other,):\n    for _ in inbox: self.work()",
    "two tensors": "if self.weights == self.others: inbox.get()",
    "a put": "out.put(0)\ninbox.get()",
    "only a question": "inbox.__repr__()\ninbox.get()",
    "a name of its own": "deque = self.work\nfound = deque()\ninbox.get(found)",
    "nothing at all": '"""A text."""',
    "no inbox": "count = 0\nout.put(count)",
}
HEAD = """
import collections, contextlib, functools, time
from collections import defaultdict, deque
import torch
import rlinf_lab as lab

def warms(method):
    @functools.wraps(method)
    def inner(self, *given):
        self.work()
        return method(self, *given)
    return inner

class Cases(lab.Worker):
    @property
    def model(self): return self.work()
    @model.setter
    def model(self, value): self.work(value)
    @functools.cached_property
    def table(self): return self.work()
    @torch.no_grad()
    def quiet(self, inbox: lab.Inbox):
        for batch in inbox: self.work(batch)
    @warms
    def decorated(self, inbox: lab.Inbox): inbox.get()
"""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> type[lab.Worker]:
    """A class of a file with all of these methods: ``reads_...`` and ``works_...``."""
    text, head = HEAD, "(self, inbox: lab.Inbox, other: lab.Inbox, out: lab.Outbox, more: bool = True, mode: str = 'x', config=None):"
    for kind, bodies in (("reads", READS), ("works", WORKS)):
        for number, body in enumerate(bodies.values()):
            text += f"    def {kind}_{number}{head}\n" + textwrap.indent(body, " " * 8) + "\n\n"
    folder = tmp_path_factory.mktemp("cases")
    (folder / "cases_of_beginnings.py").write_text(text)
    spec = importlib.util.spec_from_file_location("cases_of_beginnings", folder / "cases_of_beginnings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Cases


def case(cases: type, kind: str, name: str) -> Any:
    return getattr(cases, f"{kind}_{list(READS if kind == 'reads' else WORKS).index(name)}")


@pytest.mark.parametrize("name", READS)
def test_what_reads_first_needs_no_device_yet(cases: type, name: str) -> None:
    assert not computes_first(case(cases, "reads", name), cases)


@pytest.mark.parametrize("name", WORKS)
def test_what_might_compute_first_gets_its_device(cases: type, name: str) -> None:
    assert computes_first(case(cases, "works", name), cases)


def test_of_decorators_only_those_that_do_nothing_are_seen_through(cases: Any) -> None:
    assert not computes_first(cases.quiet, cases) and computes_first(cases.decorated, cases)


def test_a_subclass_may_make_a_property_of_an_attribute(cases: type) -> None:
    """What its parent only looks up; and who asks for all attributes may do anything."""
    computes, containers = property(lambda self: self.work()), case(cases, "reads", "with containers")
    asks = type("Asks", (cases,), {"__getattr__": lambda self, name: self.work()})
    assert computes_first(containers, type("Computes", (cases,), {"limit": computes})) and computes_first(containers, asks)
    assert not computes_first(case(cases, "reads", "at once"), asks)


def test_without_a_source_the_answer_is_the_safe_one() -> None:
    scope: dict[str, Any] = {"lab": lab}
    exec("def go(self, inbox: lab.Inbox):\n    inbox.get()", scope)
    assert computes_first(scope["go"], lab.Worker)


def all_of_them(self: Any, inbox: lab.Inbox, other: lab.Inbox) -> None:
    for _, batch in enumerate(inbox):
        self.work(batch, other.get())


def so_many(self: Any, inbox: lab.Inbox) -> None:
    for _ in inbox:
        inbox.get(3)


def handed_on(self: Any, inbox: lab.Inbox) -> None:
    self.work([len(batch) for batch in inbox], inbox)


def test_who_takes_batches_as_they_come() -> None:
    """Nothing else is done with the inbox: neither is it asked for a number, nor handed on."""
    assert batched(all_of_them) == {"inbox", "other"} and not batched(so_many) and not batched(handed_on)


def test_a_file_that_changed_since_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was imported computes first; what stands there now reads first."""
    path = tmp_path / "changing_worker.py"
    head = "import rlinf_lab as lab\n\nclass Changed(lab.Worker):\n    def go(self, inbox: lab.Inbox):\n        "
    path.write_text(head + "self.warm_up()\n        inbox.get()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    cls = importlib.import_module("changing_worker").Changed
    path.write_text(head + "inbox.get()\n        inbox.get()\n        # another length\n")
    assert computes_first(cls.go, cls)
