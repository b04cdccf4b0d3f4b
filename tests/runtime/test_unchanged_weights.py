"""Weights that go on being learnt after they were published are refused: nobody would see that a version is not what it says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlinf_lab.errors import WorkerError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.run.run import session
from rlinf_lab.runtime.transport.unchanged import Unchanged
from rlinf_lab.workflow.weights import Weights
from rlinf_lab.workflow.worker import Worker
from rlinf_lab.workflow.workflow import Workflow

torch = pytest.importorskip("torch")


class Learner(Worker):
    def setup(self) -> None:
        self.model = torch.nn.Linear(2, 2)
        with torch.no_grad():
            self.model.bias.zero_()

    def learn(self, copies: bool, weights: Weights) -> int:
        with torch.no_grad():
            self.model.bias.add_(1)
        state = self.model.state_dict()
        return weights.publish({k: v.clone() for k, v in state.items()} if copies else state)

    def go_on(self, version: int) -> int:
        with torch.no_grad():
            self.model.bias.add_(1)
        return version


class Actor(Worker):
    def act(self, after: object, weights: Weights) -> tuple:
        version, state = weights.pull(at_least=1)
        return version, float(state["bias"][0])


def two_workers() -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("learning")
    weights = flow.weights("w")
    learner, actor = flow.worker(Learner, name="learner"), flow.worker(Actor, name="actor")

    @flow.iteration
    def iteration(copies: bool, goes_on: bool) -> object:
        version = learner.learn(copies, weights).wait()
        after = learner.go_on(version).wait() if goes_on else version
        return actor.act(after, weights)

    return flow, ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"learner": [0], "actor": [1]})


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_a_version_that_was_changed_after_it_was_published_is_refused(executor: str) -> None:
    """Before, the actor got version 1 with what the second update had made of it."""
    flow, plan = two_workers()
    with session(flow, plan, executor=executor, emulate=True) as s:
        with pytest.raises(WorkerError, match=r"Version 1 of the weights 'w' was changed after 'learner' published it \(\['bias'\] in.*Next: publish a copy"):
            s.step(False, True)
        assert s.step(True, True) == (2, 3.0)
        assert s.step(False, False) == (3, 5.0)


def test_what_is_looked_at() -> None:
    held = torch.zeros(2)
    state = {"a": [1, (held.detach(), "x")], "b": None}
    seen = Unchanged(state)
    assert not seen.changed()
    held.add_(1)
    assert seen.changed() == "['a'][1][0]"
    with torch.inference_mode():
        assert not Unchanged([torch.zeros(1)]).changed()


class Halves(Worker):
    """Publishes one half of a buffer while it writes the other."""

    def setup(self) -> None:
        self.halves = torch.zeros(2, 3)

    def learn(self, version: int, weights: Weights) -> int:
        self.halves[version % 2].fill_(version)
        return weights.publish({"bias": self.halves[version % 2]})

    def go_on(self, version: int) -> int:
        self.halves[(version + 1) % 2].fill_(-1.0)
        return version


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_who_writes_another_part_of_the_same_memory_is_not_refused(executor: str) -> None:
    """torch has one count for all views of a tensor. Before, a learner with two buffers in one was refused though it changed nothing."""
    flow = Workflow("halves")
    weights = flow.weights("w")
    learner, actor = flow.worker(Halves, name="learner"), flow.worker(Actor, name="actor")

    @flow.iteration
    def iteration(version: int) -> object:
        return actor.act(learner.go_on(learner.learn(version, weights).wait()).wait(), weights)

    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"learner": [0], "actor": [1]})
    with session(flow, plan, executor=executor, emulate=True) as s:
        assert [s.step(i) for i in (1, 2, 3)] == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_whatever_can_be_pickled_can_be_published() -> None:
    """Before: RecursionError, and ValueError of a parameter that has no shape yet."""
    changing = torch.zeros(2)
    state: dict = {"lazy": torch.nn.LazyLinear(3).state_dict()}
    state.update(shape=(2, 3), nested={"a": [np.float32(1), (1,)]})
    assert changes(state, lambda: state.update(shape=tuple([2, 3]), nested={"a": [np.float32(1), (int("1"),)]})) == ""  # noqa: C409
    assert changes(state, lambda: state.update(nested={"a": [np.float32(2), (1,)]})) == "['nested']['a'][0]"
    state["itself"] = state
    nested: list = [changing]
    for _ in range(5000):
        nested = [nested]
    state["nested"] = nested
    seen = Unchanged(state)
    assert not seen.changed() and seen.refusal(1, "w", "learner") is None
    changing.add_(1)
    assert seen.changed().startswith("['nested'][0][0]") and seen.refusal(1, "w", "learner") is not None


def test_a_change_of_the_memory_around_is_none() -> None:
    whole = torch.zeros(4)
    seen, sparse = Unchanged([whole[:2]]), Unchanged([around := torch.eye(2).to_sparse()])
    whole[2:].add_(1)
    assert seen.changed() == "" and seen.refusal(1, "w", "learner") is None
    around.mul_(2)
    assert sparse.refusal(1, "w", "learner") is not None
    assert Unchanged(whole).changed() == "" and Unchanged(whole).refusal(1, "w", "learner") is None


class Library(Worker):
    """What ``change`` does to the bias is counted by nobody."""

    def __init__(self, change: str) -> None:
        self.change = change

    def setup(self) -> None:
        self.state: dict = {"bias": np.zeros(100_000) if self.change == "array" else torch.zeros(100_000)}
        self.optimiser = None
        if self.change == "fused":
            self.state = {"bias": torch.nn.Parameter(self.state["bias"])}
            self.optimiser = torch.optim.SGD(self.state.values(), lr=1.0, fused=True)

    def learn(self, weights: Weights) -> int:
        return weights.publish({k: v.detach() for k, v in self.state.items()} if self.optimiser else self.state)

    def go_on(self, version: int) -> int:
        if self.optimiser is not None:
            self.state["bias"].grad = torch.ones(100_000)
            self.optimiser.step()
        elif self.change == "array":
            self.state["bias"] += 1
        else:
            self.state["bias"].data.add_(1)
        return version


@pytest.mark.parametrize("executor", ["local", "processes"])
@pytest.mark.parametrize("change", ["array", "data", "fused"])
def test_changes_that_nobody_counts_are_noticed_too(change: str, executor: str) -> None:
    """Before, the actor got version 1 with what had been learnt since."""
    flow = Workflow("uncounted")
    weights = flow.weights("w")
    learner, actor = flow.worker(Library, change, name="learner"), flow.worker(Actor, name="actor")

    @flow.iteration
    def iteration() -> object:
        return actor.act(learner.go_on(learner.learn(weights).wait()).wait(), weights)

    told = r"Version 1 of the weights 'w' was changed after .*\['bias'\]"
    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"learner": [0], "actor": [1]})
    with session(flow, plan, executor=executor, emulate=True) as s, pytest.raises(WorkerError, match=told):
        s.step()


@pytest.mark.parametrize("state", [
    np.zeros(3), np.zeros((700, 900))[:, ::2], np.zeros((50, 60)).T, np.full(5000, np.nan), torch.full((3,), float("nan")), torch.zeros(()),
    torch.zeros(70_000, dtype=torch.bfloat16), torch.zeros(300, 400).T, torch.zeros(2, 200, 300)[:, 1:], torch.zeros(1000, dtype=torch.bool),
])  # fmt: skip
def test_samples_of_whatever_lies_in_host_memory(state: np.ndarray | torch.Tensor) -> None:
    seen = Unchanged([state])
    assert seen.changed() == "" and seen.knows_any
    if isinstance(state, torch.Tensor):
        state.data.fill_(1)
    else:
        state.fill(1)
    assert seen.changed() == "[0]"


def test_what_has_no_samples_is_left_alone() -> None:
    storage = torch.zeros(10)
    seen = Unchanged([np.array([object()]), np.zeros(0), torch.zeros(0), "x", torch.zeros(2, device="meta"), storage])
    storage.untyped_storage().resize_(0)  # as sharded models do with what they have gathered
    assert seen.changed() == "" and not Unchanged(("x", 1, (None,))).knows_any


class GoesOn:
    """Something in a state that is learnt on while the state is being sent."""

    def __init__(self, part: np.ndarray | torch.Tensor) -> None:
        self.part = part

    def __reduce__(self) -> tuple:
        self.part += 1
        return str, ("a new one",)


class Hurries(Worker):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def learn(self, goes_on: bool, weights: Weights) -> int:
        part = np.zeros(500_000) if self.kind == "arrays" else torch.zeros(500_000)
        return weights.publish({"more": GoesOn(part) if goes_on else None, "bias": part})


@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_a_change_while_a_version_is_on_its_way_is_refused(kind: str) -> None:
    """Before, the actor got version 1 with what was learnt while it was sent."""
    flow = Workflow("hurries")
    weights = flow.weights("w")
    learner, actor = flow.worker(Hurries, kind, name="learner"), flow.worker(Actor, name="actor")

    @flow.iteration
    def iteration(goes_on: bool) -> object:
        return actor.act(learner.learn(goes_on, weights).wait(), weights)

    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"learner": [0], "actor": [1]})
    with session(flow, plan, executor="processes", emulate=True) as s:
        with pytest.raises(WorkerError, match=r"Version 1 of the weights 'w' was changed after .*\['bias'\]"):
            s.step(True)
        assert s.step(False) == (2, 0.0)


class Params:
    """Of a learner without torch: one dict, new arrays."""

    def __init__(self, kind: str) -> None:
        self.kind, self.kept = kind, {"w": np.zeros(3), "steps": 0}

    def state(self) -> object:
        return {"dict": self.kept, "nested": [self.kept], "dataclass": Holder(self.kept)}[self.kind]


@dataclasses.dataclass
class Holder:
    params: object


class Rebinds(Worker):
    def setup(self) -> None:
        self.params = Params("dict")

    def learn(self, kind: str, weights: Weights) -> int:
        self.params = Params(kind)
        return weights.publish(self.params.state())

    def go_on(self, version: int) -> int:
        self.params.kept["w"] = self.params.kept["w"] + 1
        return version


class Takes(Worker):
    def act(self, after: object, weights: Weights) -> int:
        return weights.pull(at_least=1).version


@pytest.mark.parametrize("kind", ["dict", "nested", "dataclass"])
@pytest.mark.parametrize("executor", ["local", "processes"])
def test_a_dict_that_gets_new_arrays_was_changed(executor: str, kind: str) -> None:
    """Before, the actor got version 1 with the arrays of the next step."""
    flow = Workflow("rebinding")
    weights = flow.weights("w")
    learner, actor = flow.worker(Rebinds, name="learner"), flow.worker(Takes, name="actor")

    @flow.iteration
    def iteration(goes_on: bool) -> object:
        version = learner.learn(kind, weights).wait()
        return actor.act(learner.go_on(version).wait() if goes_on else version, weights)

    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"learner": [0], "actor": [1]})
    with session(flow, plan, executor=executor, emulate=True) as s:
        with pytest.raises(WorkerError, match=r"Version 1 of the weights 'w' was changed after 'learner' published it \(.*\['w'\] in place"):
            s.step(True)
        assert s.step(False) == 2


def changes(state: object, act: Callable[[], object]) -> str:
    unchanged = Unchanged(state)
    act()
    return unchanged.changed()


def test_what_holds_them_is_looked_at() -> None:
    """Before, of all of these only what torch counts, and nothing within modules and dataclasses."""
    model, array = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)), np.zeros(3)
    assert changes({"m": model}, lambda: torch.nn.init.ones_(model[0].weight)) == "['m']['0']['weight']"
    assert changes(model, lambda: model.train()(torch.ones(2, 2))).startswith("['1']['")
    assert changes(model, lambda: model.append(torch.nn.ReLU())) == "the whole of it"
    assert changes(model, lambda: setattr(model[0], "bias", torch.nn.Parameter(torch.ones(2)))) == "['0']['bias']"
    assert changes(Holder(array), lambda: array.__iadd__(1)) == "['params']"
    holder = Holder(array)
    state: dict[str, Any] = {"a": [1, 2.5], "t": torch.zeros(3)}
    assert changes({"h": holder}, lambda: setattr(holder, "params", np.full(3, 7.0))) == "['h']['params']"
    assert changes(state, lambda: state["a"].append(3)) == "['a']"
    assert changes(state, lambda: state.pop("a")) == "the whole of it"
    assert changes(state, lambda: state.update(t=torch.ones(3))) == "['t']"
    assert changes(state, lambda: state.update(t=torch.ones(3, dtype=torch.float64))) == "['t']"


def test_parts_that_are_equal_are_no_change() -> None:
    model, state = torch.nn.Linear(300, 2), {"n": 1000, "x": 0.5, "b": b"x", "a": np.full(3, np.nan), "m": [Holder, len], "t": torch.arange(3)}
    state.update(model.state_dict())
    assert changes(state, lambda: state.update(model.state_dict(), n=int("1000"), x=float("0.5"), a=np.full(3, np.nan), t=torch.arange(3))) == ""
    assert changes(model, lambda: model.requires_grad_(False).eval()(torch.ones(3, 300))) == ""
    assert changes(state, lambda: torch.nn.Linear(300, 2).load_state_dict({k: state[k] for k in ("weight", "bias")})) == ""
    state.update(shape=(2, 3), nested={"a": [np.float32(1), (1,)]})
    assert changes(state, lambda: state.update(shape=tuple([2, 3]), nested={"a": [np.float32(1), (int("1"),)]})) == ""  # noqa: C409
    assert changes(state, lambda: state.update(nested={"a": [np.float32(2), (1,)]})) == "['nested']['a'][0]"
    state["itself"] = state
    assert changes(state, lambda: None) == ""
