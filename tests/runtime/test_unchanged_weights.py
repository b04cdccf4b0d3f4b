"""Weights that go on being learnt after they were published are refused: nobody would see that a version is not what it says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlinf_lab import ExecutionPlan, Weights, Worker, Workflow
from rlinf_lab.errors import WorkerError
from rlinf_lab.runtime.run.run import session
from rlinf_lab.runtime.transport.unchanged import Unchanged

torch = pytest.importorskip("torch")


@dataclasses.dataclass
class Holder:
    params: Any


class Learner(Worker):
    """Publishes a state of which ``how`` says what it is and what happens to it afterwards. Its values are the version."""

    def setup(self) -> None:
        self.model, self.halves, self.array = torch.nn.Linear(2, 2), torch.zeros(2, 3), np.zeros(100_000)
        self.tensor = torch.nn.Parameter(torch.zeros(100_000))
        self.optimiser = torch.optim.SGD([self.tensor], lr=1.0, fused=True)
        with torch.no_grad():
            self.model.bias.zero_()

    def learn(self, how: str, version: int, weights: Weights) -> int:
        with torch.no_grad():
            self.model.bias.fill_(version), self.halves[version % 2].fill_(version), self.tensor.fill_(version)
        self.array[:] = version
        states: dict[str, Any] = {
            "counted": self.model.state_dict(), "another half": {"bias": self.halves[version % 2]}, "array": {"bias": self.array},
            "data": {"bias": self.tensor.detach()}, "fused": {"bias": self.tensor.detach()}, "copies": {"bias": self.tensor.detach().clone()},
        }  # fmt: skip
        return weights.publish(states[how])

    def go_on(self, how: str, version: int) -> int:
        with torch.no_grad():
            if how == "counted":
                self.model.bias.add_(1)
            elif how == "another half":
                self.halves[(version + 1) % 2].fill_(-1.0)
            elif how == "array":
                self.array += 1
            elif how in ("data", "copies"):
                self.tensor.data.add_(1)
        if how == "fused":
            self.tensor.grad = torch.ones(100_000)
            self.optimiser.step()
        return version


class Actor(Worker):
    def act(self, after: object, weights: Weights) -> tuple[int, float]:
        version, state = weights.pull(at_least=1)
        return version, float(state["bias"][0])


def learning(learner: type[Worker]) -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("learning")
    weights = flow.weights("w")
    learns, actor = flow.worker(learner, name="learner"), flow.worker(Actor, name="actor")

    @flow.iteration
    def iteration(how: Any = "copies", version: int = 1, goes_on: bool = True) -> object:
        if learner is Hurries:
            return actor.act(learns.learn(how, version, weights).wait(), weights)
        learnt = learns.learn(how, version, weights).wait()
        return actor.act(learns.go_on(how, learnt).wait() if goes_on else learnt, weights)

    return flow, ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"learner": [0], "actor": [1]})


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_a_version_that_was_changed_after_it_was_published_is_refused(executor: str) -> None:
    """Also by changes that nobody counts. Before, the actor got version 1 with what had been learnt since. Who writes another part of the same memory has
    changed nothing, though torch has one count for all views of a tensor."""
    with session(*learning(Learner), executor=executor, emulate=True) as s:
        for published, how in enumerate(["counted", "array", "data", "fused"]):
            changed = rf"Version {2 * published + 1} of the weights 'w' was changed after 'learner' published it \(.*\['bias'\] in.*Next: publish a copy"
            with pytest.raises(WorkerError, match=changed):
                s.step(how, 2 * published + 1)
            assert s.step(how, 2 * published + 2, False) == (2 * published + 2,) * 2, how
        for version, how in enumerate(["another half", "another half", "copies"], 2 * published + 3):
            assert s.step(how, version) == (version, version), how


def test_whatever_can_be_pickled_can_be_published() -> None:
    """Before: RecursionError, and ValueError of a parameter that has no shape yet."""
    changing = torch.zeros(2)
    nested: list = [changing]
    for _ in range(5000):
        nested = [nested]
    state: dict = {"lazy": torch.nn.LazyLinear(3).state_dict(), "nested": nested}
    state["itself"] = state
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


def test_samples_of_whatever_lies_in_host_memory() -> None:
    for state in (
        np.zeros(3), np.zeros((700, 900))[:, ::2], np.zeros((50, 60)).T, np.full(5000, np.nan), torch.full((3,), float("nan")), torch.zeros(()),
        torch.zeros(70_000, dtype=torch.bfloat16), torch.zeros(300, 400).T, torch.zeros(2, 200, 300)[:, 1:], torch.zeros(1000, dtype=torch.bool),
    ):  # fmt: skip
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
    def learn(self, goes_on: bool, kind: int, weights: Weights) -> int:
        part = np.zeros(500_000) if kind else torch.zeros(500_000)
        return weights.publish({"more": GoesOn(part) if goes_on else None, "bias": part})


def test_a_change_while_a_version_is_on_its_way_is_refused() -> None:
    """Before, the actor got version 1 with what was learnt while it was sent."""
    with session(*learning(Hurries), executor="processes", emulate=True) as s:
        for kind in (0, 1):
            with pytest.raises(WorkerError, match=rf"Version {2 * kind + 1} of the weights 'w' was changed after .*\['bias'\]"):
                s.step(True, kind)
            assert s.step(False, kind) == (2 * kind + 2, 0.0)


def changes(state: object, act: Callable[[], object]) -> str:
    unchanged = Unchanged(state)
    act()
    return unchanged.changed()


def test_what_holds_them_is_looked_at() -> None:
    """Before, of all of these only what torch counts, and nothing within modules and dataclasses."""
    model, array = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)), np.zeros(3)
    held = torch.zeros(2)
    assert changes({"a": [1, (held.detach(), "x")], "b": None}, lambda: held.add_(1)) == "['a'][1][0]"
    with torch.inference_mode():
        assert not Unchanged([torch.zeros(1)]).changed()
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
