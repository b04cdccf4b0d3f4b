"""The dry run: what symbols take part in, which branches are found, what is said when the loop cannot be run on symbols."""

from __future__ import annotations

import copy
import json
import math
import operator
import pickle

import numpy as np
import pytest
import torch

from rlinf_lab.errors import RlinfLabError, WorkflowError
from rlinf_lab.workflow.handles import Handle, Ref
from rlinf_lab.workflow.structure import leaves
from rlinf_lab.workflow.symbol import Symbol
from rlinf_lab.workflow.tracing.trace import Tracer
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow


class Any_(Worker):
    def step(self, value: object = None, **more: object) -> object:
        return value

    def write(self, out: Outbox) -> None:
        out.put(1)

    def read(self, inbox: Inbox) -> None:
        inbox.get_all()


def symbol() -> Symbol:
    return Symbol(Tracer(Workflow("w")), "x")


def methods(body) -> list[str]:
    """What the program of a loop with one worker ``w`` calls."""
    flow = Workflow("w")
    w = flow.worker(Any_, name="w")
    flow.iteration(lambda: body(w))
    return [step.call.method for step in flow.graph.program]


def worker_calls(body, n: int = 2) -> set[str]:
    """Which of several workers ``w0``, ``w1``, ... the dry run has seen in use."""
    flow = Workflow("w")
    workers = [flow.worker(Any_, name=f"w{i}") for i in range(n)]
    flow.iteration(lambda: body(*workers))
    return {node.name for node in flow.graph.nodes if node.calls}


BINARY = [
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift",
    "lt", "le", "gt", "ge", "eq", "ne", "iadd", "imod", "ior",
]  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_binary_operators_give_symbols_from_both_sides(name: str) -> None:
    operate = getattr(operator, name)
    assert {type(operate(*pair)) for pair in ((symbol(), 2), (2, symbol()), (symbol(), symbol()))} == {Symbol}


@pytest.mark.parametrize(
    "use",
    [
        operator.neg, operator.pos, operator.invert, abs, round, math.floor, math.ceil, math.trunc, lambda s: round(s, 2), copy.copy, copy.deepcopy,
        np.mean, np.log, lambda s: np.concatenate([s, s]), lambda s: np.float64(2) * s, lambda s: np.arange(3) + s,
        torch.mean, lambda s: torch.stack([s, torch.zeros(1)]), lambda s: torch.ones(2) * s,
        lambda s: s.metrics["loss"][1:].item(), lambda s: sum(s), lambda s: divmod(s, 2)[0], lambda s: divmod(7, s)[1], lambda s: max([s]),
    ],
)  # fmt: skip
def test_functions_of_a_symbol_are_symbols(use) -> None:
    assert isinstance(use(symbol()), Symbol)


def test_a_symbol_gives_a_number_where_python_insists_on_one() -> None:
    s = symbol()
    assert (len(s), int(s), float(s), list(range(s)), math.sqrt(s), f"{s:.3f}") == (1, 1, 1.0, [0], 1.0, "<x>")
    first, (second, *rest), third = s
    assert [type(v) for v in (first, second, *rest, third)] == [Symbol] * 4
    assert [type(v) for v in s] == [Symbol] and list(reversed(s)) and dict(s)
    s["a"] = 3
    del s["a"]
    with s as entered:
        assert isinstance(entered, Symbol)
    assert isinstance(np.mean([s, s, 3.0]), Symbol) and isinstance(np.asarray(s)[()], Symbol)
    assert np.asarray([s, s], np.float32).tolist() == [1.0, 1.0] and np.array(s, dtype=int) == 1
    with pytest.raises(WorkflowError, match="cannot be copied or sent"):
        pickle.dumps(s)


@pytest.mark.parametrize(
    "use",
    [
        bool, len, iter, list, float, int, round, abs, operator.neg, operator.pos, operator.invert, reversed, next, np.asarray, torch.tensor,
        lambda h: h > 3, lambda h: h == 3, lambda h: h != 3, lambda h: 3 in h, lambda h: h + 1, lambda h: 1 - h, lambda h: h % 2, lambda h: 2**h,
        lambda h: h // 2, lambda h: h & 1, lambda h: h << 1, lambda h: h(), lambda h: f"{h:.3f}", lambda h: range(h), math.sqrt,
        lambda h: dict(h.x), lambda h: h.__setitem__("a", 1), lambda h: 1 if h else 0,
    ],
)  # fmt: skip
@pytest.mark.parametrize("part", [lambda h: h, lambda h: h.metrics["loss"]])
def test_what_needs_the_value_of_a_handle_says_wait(use, part) -> None:
    flow = Workflow("w")
    w = flow.worker(Any_, name="w")
    with flow.dispatching(Tracer(flow)), pytest.raises(WorkflowError, match=r"w\.step.* has no value yet.*\n?.*\.wait\(\)"):
        use(part(w.step(1)))


def test_handles_are_compared_with_handles_and_do_not_travel() -> None:
    flow = Workflow("w")
    w = flow.worker(Any_, name="w")
    with flow.dispatching(Tracer(flow)):
        a, b = w.step(1), w.step(2)
    assert a == a and a != b and a in [b, a] and len({a, b, a}) == 2
    assert a.x["y"] == a.x["y"] and a.x != a.y and a.x != a and hash(a.x) == hash(a.y)
    assert isinstance(a, Handle) and isinstance(a.x, Ref) and f"{a}" == repr(a)
    with pytest.raises(WorkflowError, match="in a list, tuple, dict or dataclass"):
        pickle.dumps(a)


# --- branches and loops --------------------------------------------------------------------------------------------
def test_each_of_many_branches_is_seen() -> None:
    def body(*workers):
        loss = workers[0].step().wait()
        for i, worker in enumerate(workers[1:]):
            if loss[i] > i:
                worker.step()

    assert len(worker_calls(body, 20)) == 20


def test_a_branch_on_a_number_is_seen_both_ways() -> None:
    def body(a, b, c, d, e):
        value = a.step().wait()
        if len(value) == 0:
            b.step()
        for _ in value:
            c.step()
        if int(value) % 10 == 0:
            d.step()
        if 1 / float(value) < 2:
            e.step()

    assert worker_calls(body, 5) == {"w0", "w1", "w2", "w3", "w4"}


def test_loops_on_values_end() -> None:
    def body(a, b):
        while not a.step().wait():
            pass
        while a.step().wait().error > 0.1:
            b.step()
        for _ in range(50):
            if a.step().wait() < 1:
                break
            b.step()

    assert worker_calls(body) == {"w0", "w1"}


def test_branches_that_belong_together_are_no_error() -> None:
    def body(a, b):
        value = a.step().wait()
        if value > 3:
            later = b.step(2)
        a.step()
        if value > 3:
            b.step(later)

    assert worker_calls(body) == {"w0", "w1"}
    assert methods(lambda w: (w.step(1), w.step(2))) == ["step", "step"]


def test_assertions_and_refusals_of_the_loop_are_no_error() -> None:
    flow = Workflow("w")
    a, b = flow.worker(Any_, name="a"), flow.worker(Any_, name="b")

    @flow.iteration
    def iteration():
        loss = a.step().wait()
        assert loss < 10, "diverged"
        if loss != loss:
            raise FloatingPointError("not a number")
        b.step()

    assert [s.worker for s in flow.graph.program] == ["a", "b"]

    @flow.iteration
    def never():
        a.step()
        raise RuntimeError("always")

    with pytest.raises(WorkflowError, match=r"`raise RuntimeError\(\"always\"\)`: RuntimeError: always"):
        _ = flow.graph
    assert repr(flow).startswith("Workflow('w': 2 workers, 0 channels; its iteration cannot be traced. The dry run") and flow._repr_html_() is None


@pytest.mark.parametrize(
    ("call", "text"), [(lambda w: w.step(1, 2, 3), "too many positional arguments"), (lambda w: w.stepp(), "Did you mean 'step'")]
)
def test_a_wrong_call_in_a_branch_is_found_before_the_run_with_its_line(call, text: str) -> None:
    flow = Workflow("w")
    w = flow.worker(Any_, name="w")

    @flow.iteration
    def iteration():
        if w.step().wait() > 3:
            call(w)

    with pytest.raises(RlinfLabError, match=text) as caught:
        _ = flow.graph
    assert "line" in caught.value.__notes__[0] and "`call(w)`" in caught.value.__notes__[0]


def test_a_loop_that_no_symbol_ends_is_found() -> None:
    def body(a, b):
        while float(a.step().wait()) > 0.5:
            pass

    with pytest.raises(WorkflowError, match="2000 calls in one iteration"):
        worker_calls(body)


# --- parameters ----------------------------------------------------------------------------------------------------
def test_parameters_with_a_default_are_tried_both_ways() -> None:
    flow = Workflow("w")
    first, second, third = flow.channels("first", "second", "third")
    w, v = flow.worker(Any_, name="w"), flow.worker(Any_, name="v")

    @flow.iteration
    def iteration(batch, mode="train", extra=None, *more, steps=3, out=third, **options):
        for _ in range(steps):
            w.write(first)
        v.read(first)
        if mode == "test":
            w.write(second)
            v.read(second)
        if extra is not None:
            w.write(out)
            v.read(out)

    graph = flow.graph
    assert [(e.producer, e.channel, e.consumer) for e in graph.edges] == [("w", "first", "v"), ("w", "second", "v"), ("w", "third", "v")]
    assert sum(s.worker == "w" and s.call.writes == ("first",) for s in graph.program) == 3


# --- errors ----------------------------------------------------------------------------------------------------------
def test_an_exception_in_the_iteration_function_is_explained_with_its_line() -> None:
    flow = Workflow("plots")
    w = flow.worker(Any_, name="w")

    def helper(value: object) -> str:
        return json.dumps(value)

    @flow.iteration
    def iteration(batch):
        value = w.step(batch).wait()
        return helper({"value": value})

    with pytest.raises(WorkflowError) as caught:
        _ = flow.graph
    text = str(caught.value)
    number = iteration.__code__.co_firstlineno + 3
    assert f"workflow 'plots' failed in line {number} of iteration(), `return helper(" in text
    assert "TypeError: Object of type Symbol" in text and "symbols instead of values" in text and "Next:" in text
    assert isinstance(caught.value.__cause__, TypeError)


class Keeper:
    def __init__(self) -> None:
        self.kept: list = []


def test_what_an_object_outside_has_kept_of_the_dry_run_says_so() -> None:
    flow = Workflow("w")
    w = flow.worker(Any_, name="w")
    keeper = Keeper()

    @flow.iteration
    def iteration():
        if keeper.kept:  # of the iteration before
            w.step(keeper.kept[0])
            w.step(more=keeper.kept[1])
            _ = keeper.kept[0].wait() > keeper.kept[1]
        handle = w.step()
        keeper.kept[:] = [handle, handle.wait()]

    assert flow.graph.program
    for use in (lambda: keeper.kept[0].wait(), lambda: bool(keeper.kept[1]), lambda: float(keeper.kept[1])):
        with pytest.raises(WorkflowError, match="dry run, which is over"):
            use()
    assert "known at run time" in repr(keeper.kept[1])


# --- variables outside the loop ------------------------------------------------------------------------------------
count = 0
shared: dict = {"step": 0, "history": []}


kept_by_helpers: list = []


def note(value, seen=[]):  # noqa: B006
    global count
    kept_by_helpers.append(value)
    seen.append(value)
    count += 1
    return note_deeper(value)


def note_deeper(value):
    shared["history"].append(value)
    return note(value) if False else len(kept_by_helpers)  # each names the other


def test_the_dry_run_leaves_lists_counters_and_variables_alone_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Also those that functions of the module and of the cell use."""
    flow = Workflow("w")
    w = flow.worker(Any_, name="w")
    losses: list = []
    inner = {"losses": losses, "best": [1.0]}
    best = None

    def remember(value):
        inner["best"].append(value)

    @flow.iteration
    def iteration(n=2):
        nonlocal best
        global count
        loss = w.step(n).wait()
        losses.append(loss)
        assert inner["losses"] is losses and len(losses) in (1, 2)  # one variable, however it is reached; each path begins anew
        inner["best"][0] = loss
        remember(loss)
        assert note(loss) == len(kept_by_helpers) == len(inner["best"]) - 1  # they share their variables with the loop
        shared["step"] += 1
        [losses.append(v) for v in loss]
        best, count = loss, count + 1
        del losses[1:]
        print(f"loss {loss:.3f}", [print(v) for v in range(3)])
        return loss

    assert len(flow.graph.program) == 1 and capsys.readouterr().out == ""
    assert (losses, inner, best, count, shared) == ([], {"losses": [], "best": [1.0]}, None, 0, {"step": 0, "history": []})
    assert (kept_by_helpers, note.__defaults__) == ([], ([],))


kept_by_helpers: list = []


def test_what_only_later_iterations_do_is_seen() -> None:
    flow = Workflow("w")
    first, later, handed = (flow.worker(Any_, name=n) for n in ("first", "later", "handed"))
    state = {"step": 0}
    previous: list = []

    @flow.iteration
    def iteration():
        if state["step"] == 0:
            first.step()
        else:
            later.step()
        if previous:
            handed.step(previous.pop().weights)
        previous.append(first.step())
        state["step"] += 1

    assert {n.name for n in flow.graph.nodes if n.calls} == {"first", "later", "handed"}
    assert [(v.producer, v.consumer, v.label) for v in flow.graph.value_edges] == [("first", "handed", "weights")]
    assert [s.worker for s in flow.graph.program] == ["first", "first"] and state == {"step": 0} and not previous


def test_values_inside_structures_make_edges() -> None:
    flow = Workflow("w")
    a, b, c = (flow.worker(Any_, name=n) for n in "abc")

    @flow.iteration
    def iteration():
        first = a.step()
        second = b.step({"weights": [first.weights, 3], "n": (1, first)})
        c.step([second.wait().loss, {"x": first}])

    graph = flow.graph
    assert [(v.producer, v.consumer, v.label) for v in graph.value_edges] == [
        ("a", "b", "weights"), ("a", "b", "value"), ("a", "c", "value"), ("b", "c", "value"),
    ]  # fmt: skip
    assert [s.after for s in graph.program] == [(), (0,), (0, 1)]


class Elsewhere:
    """No container: whoever puts a handle inside has hidden it."""

    def __init__(self, inner: object) -> None:
        self.inner = inner


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        (lambda f, w: [f.channel("c")], r"'value' contains the channel 'c'"),
        (lambda f, w: {"w": w}, "workers do not call each other"),
        (lambda f, w: f, "workers do not call each other"),
        (lambda f, w: Workflow("other").channel("c"), "not annotated as an"),
        (lambda f, w: w.read(Workflow("other").channel("c")), r"of another workflow \('other'\)"),
        (lambda f, w: f.channel("c").put({"x": w.step()}), r"Handle\(w.step.*was put into channel 'c'"),
    ],
)
def test_parts_of_the_loop_are_no_values(argument, text) -> None:
    flow = Workflow("w")
    w = flow.worker(Any_, name="w")
    with flow.dispatching(Tracer(flow)), pytest.raises(WorkflowError, match=text):
        w.step(argument(flow, w))


def test_leaves_of_structures() -> None:
    inner = [1, "a"]
    loop: list = [Elsewhere(1)]
    loop.append(loop)
    marker = Elsewhere(2)
    assert marker in list(leaves([{"x": (marker, 3)}, inner]))
    assert list(leaves(loop)) == [loop[0]]


def test_taking_a_value_apart_without_an_end_is_refused() -> None:
    """numpy's seeds do so, in C: without an end the process died."""
    with pytest.raises(WorkflowError, match="over its parts, and over theirs"):
        np.random.default_rng([symbol(), 1])
