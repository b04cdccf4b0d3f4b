"""Dry run of the user's loop: records who calls what with which channels, without running any worker.

A value that only exists at run time is a `Symbol`. Where the loop branches on one, both ways are explored
(up to `MAX_PATHS`), and the graph is the union of what was seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rlinf_lab.errors import WorkflowError
from rlinf_lab.workflow.calls import READ, WRITE, CallSpec, Handle, bind, path_text
from rlinf_lab.workflow.channel import ChannelSpec
from rlinf_lab.workflow.graph import DRIVER, Call, Node, Step, ValueEdge, WorkflowGraph

if TYPE_CHECKING:
    from rlinf_lab.workflow.workflow import Workflow

MAX_PATHS = 32  # branches on run-time values grow as 2^n; a loop of research code has a handful
MAX_CALLS = 2_000  # `while not handle.wait().converged` never ends in a dry run


class Symbol:
    """Stands for a value of a later run. Arithmetic gives symbols, truth asks the tracer which way to go."""

    def __init__(self, tracer: Tracer, text: str) -> None:
        self._tracer = tracer
        self._text = text

    def __getattr__(self, name: str) -> Symbol:
        if name.startswith("__"):
            raise AttributeError(name)
        return Symbol(self._tracer, f"{self._text}.{name}")

    def _derived(self, *_: Any, **__: Any) -> Symbol:
        return Symbol(self._tracer, self._text)

    __call__ = __getitem__ = _derived
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _derived
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __abs__ = _derived
    __eq__ = __ne__ = _derived  # type: ignore[assignment]
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return self._tracer.decide()

    def __iter__(self) -> Iterator[Symbol]:
        yield Symbol(self._tracer, f"{self._text}[0]")

    def __len__(self) -> int:
        return 1

    def __float__(self) -> float:
        return 1.0

    def __int__(self) -> int:
        return 1

    __index__ = __int__

    def __format__(self, spec: str) -> str:
        return f"<{self._text}>"

    def __repr__(self) -> str:
        return f"<value of {self._text}, known at run time>"


class Tracer:
    """A dispatcher that runs nothing."""

    def __init__(self, flow: Workflow, decisions: list[bool]) -> None:
        self._flow = flow
        self._decisions = decisions
        self.asked = 0
        self.calls: list[CallSpec] = []
        self.driver: dict[str, set[str]] = {READ: set(), WRITE: set()}

    def decide(self) -> bool:
        """The next prescribed answer; False (leave the loop, skip the branch) beyond them."""
        self.asked += 1
        return self._decisions[self.asked - 1] if self.asked <= len(self._decisions) else False

    def call(self, worker: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle:
        if len(self.calls) >= MAX_CALLS:
            raise WorkflowError(
                f"Tracing {self._flow.name!r}: {MAX_CALLS} calls in one iteration without an end. "
                f"Does a loop wait for a value to become true? Bound it (`for _ in range(n)`)."
            )
        declaration = self._flow.declaration(worker)
        spec = bind(
            len(self.calls), worker, declaration.function(method), method, args, kwargs, 0,
            declaration.starts_on_device(method),
        )  # fmt: skip
        self.calls.append(spec)
        return Handle(self, spec)

    def wait(self, call: CallSpec, path: tuple[tuple[str, Any], ...], timeout: float | None) -> Symbol:
        return Symbol(self, f"{call.worker}.{call.method}(){path_text(path)}")

    def done(self, call: CallSpec) -> bool:
        return self.decide()

    def driver_put(self, channel: ChannelSpec, items: list[Any], key: int | None) -> None:
        self.driver[WRITE].add(channel.name)

    def driver_get(self, channel: ChannelSpec, n: int | str | None, key: int | None) -> list[Any]:
        self.driver[READ].add(channel.name)
        if n is None and self.asked > MAX_PATHS:
            return []
        return [Symbol(self, channel.name)] if n is not None or self.decide() else []


def trace(flow: Workflow, arguments: int) -> WorkflowGraph:
    """Run the iteration function on symbols along every branch and collect the union."""
    paths: list[list[bool]] = [[]]
    seen: list[Tracer] = []
    while paths and len(seen) < MAX_PATHS:
        decisions = paths.pop()
        tracer = Tracer(flow, decisions)
        with flow.dispatching(tracer):
            flow.body(*[Symbol(tracer, f"argument {i}") for i in range(arguments)])
        seen.append(tracer)
        paths += [
            [*decisions, *([False] * (i - len(decisions))), True] for i in range(len(decisions), min(tracer.asked, 8))
        ]
    return _graph(flow, seen)


def _graph(flow: Workflow, tracers: list[Tracer]) -> WorkflowGraph:
    sites: dict[str, dict[Call, None]] = {name: {} for name in flow.workers}
    values: dict[ValueEdge, None] = {}
    reads: set[str] = set()
    writes: set[str] = set()
    for tracer in tracers:
        reads |= tracer.driver[READ]
        writes |= tracer.driver[WRITE]
        for spec in tracer.calls:
            sites[spec.worker][_site(flow, spec)] = None
            for ref in spec.refs():
                label = path_text(ref.path).lstrip(".") or "value"
                values[ValueEdge(ref.producer, spec.worker, label)] = None
    nodes = [Node(name, flow.declaration(name).class_name, tuple(calls)) for name, calls in sites.items()]
    if reads or writes:
        driver = Call("iteration", "()", tuple(sorted(reads)), tuple(sorted(writes)), True)
        nodes.insert(0, Node(DRIVER, "your loop", (driver,)))
    longest = max(tracers, key=lambda t: len(t.calls)).calls
    program = tuple(Step(c.worker, _site(flow, c), tuple(r.call_id for r in c.refs())) for c in longest)
    graph = WorkflowGraph(flow.name, tuple(nodes), tuple(flow.channel_specs.values()), tuple(values), program)
    graph.validate()
    return graph


def _site(flow: Workflow, spec: CallSpec) -> Call:
    text = flow.declaration(spec.worker).signature(spec.method)
    return Call(spec.method, text, tuple(spec.channels(READ)), tuple(spec.channels(WRITE)), spec.starts_on_device)
