"""Dry run of the user's loop. It records who calls what with which channels, without running any worker.

A value that only exists at run time is a `Symbol`. Where the loop branches on one, both ways are explored
(up to `MAX_PATHS`), and the graph is the union of what was seen.
"""

from __future__ import annotations

import dis
import inspect
import linecache
import pathlib
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from rlinf_lab.errors import RlinfLabError, WorkflowError
from rlinf_lab.workflow.calls import bind
from rlinf_lab.workflow.channel import Channel
from rlinf_lab.workflow.declaration import signature_of
from rlinf_lab.workflow.graph import DRIVER, Call, LoopStep, Node, Step, ValueEdge, WorkflowGraph
from rlinf_lab.workflow.handles import FlowBuilder, Handle, LoopPart
from rlinf_lab.workflow.specs import READ, WRITE, CallSpec, ChannelArg, ChannelSpec, RefArg
from rlinf_lab.workflow.structure import Path, leaves, path_text
from rlinf_lab.workflow.symbol import Symbol, source_of
from rlinf_lab.workflow.tracing.isolation import isolated

MAX_PATHS = 32  # branches on run-time values grow as 2^n; a loop of research code has a handful
MAX_CALLS = 2_000  # a loop that no symbol ends
# so often one branch is taken the same way in a path: `while not handle.wait()` ends, and so does `while handle.wait()`
MAX_SAME_WAY = 3
_HERE = str(pathlib.Path(__file__).parents[1])  # the room: what the user wrote is outside
Site = tuple[Any, int]  # code object and instruction that ask


class Tracer:
    """A dispatcher that runs nothing. ``decisions``: prescribed answers, in order; ``one``: what stands for every
    number.
    """

    is_dry = True

    def __init__(self, flow: FlowBuilder, decisions: Sequence[bool] = (), one: int = 1) -> None:
        self.flow = flow
        self._prescribed, self._one = decisions, one
        self.answers: list[bool] = []
        self.sites: list[Site] = []
        self.numbers = 0  # how often a number was asked for
        self.calls: list[CallSpec] = []
        self.driver: dict[str, set[str]] = {READ: set(), WRITE: set()}
        self.loop: list[LoopStep] = []
        self.over = False

    # --- what symbols ask ----------------------------------------------------------------------------------
    def decide(self) -> bool:
        """The next prescribed answer. Beyond them False (leave the loop, skip the branch), now and then True at the
        same place.
        """
        site = _asking()
        number = len(self.answers)
        if number < len(self._prescribed):
            answer = self._prescribed[number]
        else:
            before = [a for a, s in zip(self.answers, self.sites, strict=True) if s == site][-MAX_SAME_WAY:]
            answer = len(before) == MAX_SAME_WAY and not any(before)
        self.answers.append(answer)
        self.sites.append(site)
        return answer

    def number(self) -> int:
        self.numbers += 1
        return self._one

    def ways(self) -> set[tuple[Site, bool] | None]:
        """Every branch with the answer that was given."""
        return set(zip(self.sites, self.answers, strict=True))

    def turns(self) -> list[tuple[list[bool], tuple[Site, bool]]]:
        """Paths that follow this one up to some branch and then go the other way. Where that is and which way."""
        found = []
        for i in range(len(self._prescribed), len(self.answers)):
            way = (self.sites[i], not self.answers[i])
            if sum(self.sites[j] == way[0] and self.answers[j] == way[1] for j in range(i)) < MAX_SAME_WAY:
                found.append(([*self.answers[:i], way[1]], way))
        return found

    # --- dispatcher (see workflow.handles.Dispatcher) ------------------------------------------------------
    def call(self, worker: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle:
        if len(self.calls) >= MAX_CALLS:
            raise WorkflowError(
                f"Tracing {self.flow.name!r}: {MAX_CALLS} calls in one iteration without an end. Next: bound the loop "
                "(`for _ in range(n)`), or let its condition be a value as it is (`value > 3`, not `float(value) > "
                "3`)."
            )
        spec = bind(self, self.flow, len(self.calls), worker, method, args, kwargs, 0)
        self.calls.append(spec)
        return Handle(self, spec)

    def wait(self, call: CallSpec, path: Path, timeout: float | None) -> Symbol:
        tracer = self.current()
        if tracer is None:
            raise WorkflowError(
                f"The handle of {call.worker}.{call.method}() is of the dry run, which is over: there is nothing to "
                "wait for. A variable outside "
                "the iteration function has kept it. Next: make that variable anew before the run, or let the "
                "iteration return the handle."
            )
        source = RefArg(call.call_id if tracer is self else -1, path, call.worker)
        if tracer is self:
            self._loop(LoopStep("wait", len(self.calls), call=call.call_id, part=bool(path)))
        return Symbol(tracer, f"{call.worker}.{call.method}(){path_text(path)}", source)

    def done(self, call: CallSpec) -> bool:
        return (self.current() or self).decide()

    def driver_put(
        self,
        channel: ChannelSpec,
        items: list[Any],
        key: int | None,
        weight: int | None = None,
        priority: float | None = None,
    ) -> None:
        self.driver[WRITE].add(channel.name)
        self._loop(LoopStep("put", len(self.calls), channel.name))

    def driver_get(self, channel: ChannelSpec, n: int | str | None, key: int | None) -> list[Any]:
        self.driver[READ].add(channel.name)
        self._loop(LoopStep("get", len(self.calls), channel.name, n))
        return [Symbol(self, channel.name)] if n is not None or self.decide() else []

    def _loop(self, step: LoopStep) -> None:
        """Note a step of the loop once, however often it follows itself. A loop may put a million items one by one."""
        if self.loop[-1:] != [step]:
            self.loop.append(step)

    def current(self) -> Tracer | None:
        """The tracer that traces now. It is this one, or that of a later path when a variable outside the loop has kept
        something of this one.
        """
        if not self.over:
            return self
        now = self.flow.listener()
        return now if isinstance(now, Tracer) and not now.over else None


def _asking() -> Site:
    """Where in the user's code a symbol is asked."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


# --- exploring ---------------------------------------------------------------------------------------------------
def trace(flow: FlowBuilder) -> WorkflowGraph:
    """Run the iteration function on symbols along every branch and collect the union.

    Parameters with a default are tried with the default and with a symbol; where the loop has asked for a number, once
    more with 0; where one iteration can leave something for the next (a list, a counter), once more as the second
    iteration. Raises `WorkflowError`, naming the line, when the function cannot be run on symbols.
    """
    variants = _variants(flow)
    found: list[list[Tracer]] = []
    failures: list[Exception] = []
    for parameters in variants:
        tracers, _, failure = _explore(flow, parameters)
        if isinstance(failure, RlinfLabError):
            failure.add_note(f"In the dry run of workflow {flow.name!r}: {_line(flow, failure)}.")
            raise failure
        if failure is None:
            found.append(tracers)
        else:
            failures.append(failure)
    if not found:
        raise _untraceable(flow, failures[0]) from failures[0]
    seen = [tracer for tracers in found for tracer in tracers]
    further = [(0, False)] * any(tracer.numbers for tracer in seen) + [(1, True)] * isolated(flow.body)[1]
    # the number may never be 0: what fails then proves nothing, and what it called before counts
    for one, again in further:
        for parameters in variants:
            tracers, failed, _ = _explore(flow, parameters, one, again)
            seen += tracers + failed
    return _graph(flow, seen, max(found[0], key=lambda t: len(t.calls)))


def _variants(flow: FlowBuilder) -> list[list[inspect.Parameter]]:
    """The parameters that get a symbol: those without a default, then all of them."""
    named = [p for p in inspect.signature(flow.body).parameters.values() if p.kind is not p.VAR_KEYWORD]
    required = [p for p in named if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    free = [p for p in named if not isinstance(p.default, (Channel, LoopPart))]  # `def iteration(numbers=numbers)`
    # A parameter behind one that keeps its default can be passed by name only.
    return [required] if len(free) == len(required) else [required, free]


def _arguments(tracer: Tracer, parameters: list[inspect.Parameter]) -> inspect.BoundArguments:
    made = {p.name: Symbol(tracer, f"argument {p.name!r}") for p in parameters}
    several = {p.name: (made[p.name],) for p in parameters if p.kind is p.VAR_POSITIONAL}
    return inspect.BoundArguments(inspect.signature(tracer.flow.body), OrderedDict(made | several))


def _explore(
    flow: FlowBuilder, parameters: list[inspect.Parameter], one: int = 1, again: bool = False
) -> tuple[list[Tracer], list[Tracer], Exception | None]:
    """The paths that come to their end, those that fail, and a failure that counts.

    It counts unless every branch of its path is taken by a path that succeeds too: then the combination is impossible
    (`if first: x = ...` and later `if first: use(x)`); nor does what the function itself raises (`assert loss < 10`)
    where it need not.
    ``again``: what the second of two iterations does.
    """
    open_: list[tuple[list[bool], tuple[Site, bool] | None]] = [([], None)]
    tracers: list[Tracer] = []
    failed: list[tuple[Tracer, Exception]] = []
    taken: set[tuple[Site, bool] | None] = set()
    while open_ and len(tracers) + len(failed) < MAX_PATHS:
        fresh = next((i for i, (_, way) in enumerate(open_) if way not in taken), None)
        if fresh is None and (again or not one):  # combinations of branches matter to the first look only
            break
        decisions, _ = open_.pop(fresh or 0)
        body, _ = isolated(flow.body)
        if again:
            _once(body, Tracer(flow, (), one), parameters)
        tracer = Tracer(flow, decisions, one)
        error = _once(body, tracer, parameters)
        if error is None:
            tracers.append(tracer)
            taken.update(tracer.ways())
        else:
            failed.append((tracer, error))
        open_ += tracer.turns()
    counts = (
        error for tracer, error in failed if not tracers or not (tracer.ways() <= taken or _deliberate(flow, error))
    )
    return tracers, [tracer for tracer, _ in failed], next(counts, None)


def _once(body: Callable[..., Any], tracer: Tracer, parameters: list[inspect.Parameter]) -> Exception | None:
    """One dry iteration; what it raised."""
    given = _arguments(tracer, parameters)
    try:
        with tracer.flow.dispatching(tracer):
            body(*given.args, **given.kwargs)
    except Exception as error:
        return error
    finally:
        tracer.over = True
    return None


def _deliberate(flow: FlowBuilder, error: Exception) -> bool:
    """Whether a ``raise`` or ``assert`` of the iteration function itself has ended the path."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    code = getattr(inspect.unwrap(flow.body), "__code__", None)
    if trace is None or trace.tb_frame.f_code is not code:
        return False
    return any(i.offset == trace.tb_lasti and i.opname == "RAISE_VARARGS" for i in dis.get_instructions(code))


def _untraceable(flow: FlowBuilder, error: Exception) -> WorkflowError:
    return WorkflowError(
        f"The dry run of workflow {flow.name!r} failed in {_line(flow, error)}: {type(error).__name__}: {error}\n"
        "The iteration function is run once on symbols instead of values, to see which worker calls what; they take "
        "part in arithmetic, "
        "comparisons and branches. Next: convert it first (float(value) gives a stand-in), move what needs real "
        "values (files, plots) into "
        f"a worker's method, or return the value and use it after the step."
    )


def _line(flow: FlowBuilder, error: BaseException) -> str:
    """Where in the user's iteration function it happened."""
    code = getattr(inspect.unwrap(flow.body), "__code__", None)
    frames = [(f.f_code, number) for f, number in traceback.walk_tb(error.__traceback__)]
    outside = [(c, n) for c, n in frames if not c.co_filename.startswith(_HERE)]
    mine = [(c, n) for c, n in frames if c is code] or outside
    if not mine:  # it could not even be called
        return f"the call of {flow.body!r}"
    at, number = mine[-1]
    text = linecache.getline(at.co_filename, number).strip()
    return f"line {number} of {at.co_name}()" + (f", `{text}`" if text else "")


# --- the graph -----------------------------------------------------------------------------------------------------
def _graph(flow: FlowBuilder, tracers: list[Tracer], example: Tracer) -> WorkflowGraph:
    """The union of what all have seen; the calls of one are the program."""
    sites: dict[str, dict[Call, None]] = {name: {} for name in flow.workers}
    values: dict[ValueEdge, None] = {}
    reads: set[str] = set()
    writes: set[str] = set()
    for tracer in tracers:
        reads |= tracer.driver[READ]
        writes |= tracer.driver[WRITE]
        for spec in tracer.calls:
            sites[spec.worker][_site(flow, spec)] = None
            for ref in _sources(spec):
                label = path_text(ref.path).lstrip(".") or "value"
                values[ValueEdge(ref.producer, spec.worker, label)] = None
    nodes = [Node(name, flow.declaration(name).class_name, tuple(calls)) for name, calls in sites.items()]
    if reads or writes:
        driver = Call("iteration", "()", tuple(sorted(reads)), tuple(sorted(writes)), True)
        nodes.insert(0, Node(DRIVER, "your loop", (driver,)))
    program = tuple(Step(c.worker, _site(flow, c), _after(c)) for c in example.calls)
    graph = WorkflowGraph(
        flow.name, tuple(nodes), tuple(flow.channel_specs.values()), tuple(values), program, tuple(example.loop)
    )
    graph.validate()
    return graph


def _after(spec: CallSpec) -> tuple[int, ...]:
    return tuple(dict.fromkeys(r.call_id for r in _sources(spec) if r.call_id >= 0))


def _sources(spec: CallSpec) -> list[RefArg]:
    """The values that a call is given, whether as handles or waited for before."""
    waited = [
        source
        for a in spec.arguments()
        for leaf in leaves(a)
        if isinstance(leaf, Symbol) and (source := source_of(leaf)) is not None
    ]
    return spec.refs() + waited


def _site(flow: FlowBuilder, spec: CallSpec) -> Call:
    declaration = flow.declaration(spec.worker)
    given = signature_of(declaration.function(spec.method)).bind(None, *spec.args, **spec.kwargs).arguments
    batched = declaration.batched(spec.method)
    known = tuple(a.channel for name, a in given.items() if name in batched and isinstance(a, ChannelArg))
    ends = tuple(spec.channels(READ)), tuple(spec.channels(WRITE))
    return Call(spec.method, declaration.signature(spec.method), *ends, spec.starts_on_device, known)
