"""Versioned weights from who learns to who acts, as the workflow's author writes it. The executor moves them."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from rlinf_lab.errors import ConfigError, WorkflowError
from rlinf_lab.workflow.handles import FlowBuilder, LoopPart


class Published(NamedTuple):
    """What `Weights.pull` gives. ``version``: how often had been published; 0 with the state None: never yet."""

    version: int
    state: Any


class Weights:
    """A store of weights, as a worker's method sees it. A method takes one so: ``def act(self, prompts: lab.Inbox,
    weights: lab.Weights)``.

    Declared with ``flow.weights("actor")`` and passed to methods like a channel. A version is there for others when the
    call that published it has ended well. Constructed by hand it is a store of its own, for trying a worker out.
    """

    def __init__(self, name: str = "weights") -> None:
        self.name = name
        self._newest = Published(0, None)

    def publish(self, state: Any) -> int:
        """Hand out a new state, from rank 0 of the learner. Any value that travels, not to be changed any more. Returns
        its version: 1, 2, ...

        ``model.state_dict()`` is the model's own tensors: publish a copy, ``{k: v.clone() for k, v in
        model.state_dict().items()}``. What was changed in place after it was published, or while it was sent, fails
        whoever wants that version; so does a dict, list, dataclass or module that got other parts. (A change of a few
        elements of a large array, which torch does not count, may be missed: of arrays, of what ``.data`` or a fused
        optimiser changed and of GPUs.)

        Kept are the newest version, and those that calls of several ranks which are under way have: all their ranks get
        the same.
        """
        self._newest = Published(self._newest.version + 1, state)
        return self._newest.version

    def pull(self, at_least: int = 0) -> Published:
        """The newest version, at once; waits only for ``at_least``.

        All ranks of a call get the same one, that of the first who pulls, and so does who pulls again in that call:
        only ``at_least`` (a version beyond it) brings a newer one, the same on all ranks again. In iteration i of a
        plan with staleness s it holds everything that was published in the iterations up to i - s - 1. It travels from
        the learner to each process that pulls, once a version; whoever comes late gets the newest.
        """
        if self._newest.version < at_least:
            raise WorkflowError(
                f"{self!r}.pull(at_least={at_least}): nobody else publishes here. Next: publish() first."
            )
        return self._newest

    def newest(self) -> int:
        """The newest version that is published, without waiting; 0: none yet.

        Beyond the one that was pulled, ``pull(at_least=newest)`` brings it, also in the middle of a call. Ranks of a
        call may hear of it at different moments.
        """
        return self._newest.version

    def __repr__(self) -> str:
        return f"Weights({self.name!r}, version {self._newest.version})"


class WeightsHandle(LoopPart):
    """A declared store inside the iteration function: an argument for workers' methods."""

    def __init__(self, flow: FlowBuilder, name: str) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise ConfigError(
                f"The name of weights is {name!r}, which is not an identifier. Next: use letters, digits and "
                "underscores."
            )
        self._flow = flow
        self.name = name

    def _refuse(self, *_: Any) -> NoReturn:
        raise WorkflowError(
            f"weights {self.name!r}: publish(), pull() or newest() belongs into a worker's method. Next: pass the "
            "store as an argument, `def act(self, prompts: lab.Inbox, weights: lab.Weights)`."
        )

    publish = pull = newest = _refuse

    def __repr__(self) -> str:
        return f"WeightsHandle({self.name!r} of {self._flow.name!r})"
