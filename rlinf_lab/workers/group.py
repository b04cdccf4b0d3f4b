"""torch.distributed among the ranks of one worker.

In threads of one process as well as in processes.

    the first rank opens a store ── exchange(address) ──> every rank joins ──> one process group:
        DistributedDataParallel, collectives

The group is no default group of the process: several workers, and several ranks in one process, have groups side by
side. A collective does not hang: a rank that fails leaves the group, which ends the collectives of the others at once,
and the next call forms a new one. NCCL does not notice that another rank has gone: there each rank looks whether its
call has been given up, and aborts its own end (the calls are tested with a stand-in; this has not been run on GPUs). A
group is formed anew also when ranks have come or gone since; then all take over what the first rank that has worked
before knows (`RankGroup.handed_over`).
"""

from __future__ import annotations

import copy
import datetime
import itertools
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from rlinf_lab.errors import Cancelled, MissingDependencyError, WorkflowError, shown
from rlinf_lab.workflow.structure import rebuilt
from rlinf_lab.workflow.worker import Worker

T = TypeVar("T")
TIMEOUT_SECONDS = 120.0
LEAVE_SECONDS = 0.5
ALL_GO, GIVEN_UP, TOO_LATE = "all go", "given up", "too late"
_NUMBERS = itertools.count(1)  # of groups in this process
LOOPBACK = "127.0.0.1"


class Met(NamedTuple):
    """What a rank says of itself when a group is formed."""

    address: str
    port: int


class Came(NamedTuple):
    """What a rank says of itself before the ranks work together. ``formed``: the group that it is in (0: none),
    ``last``: that it was in, ``wrapped``: how many modules it works on together with the others, ``worked``: how much
    it knows (1: it has worked to the end of a ``with group``, 2: and knows what counts, for it began together with the
    others or took over what they know), ``broken``: whether a collective of NCCL may have been broken off since.
    """

    formed: int
    last: int
    wrapped: int
    worked: int
    broken: bool


class Placeholder(NamedTuple):
    """A tensor that comes by a collective. ``kind``: of its device."""

    shape: torch.Size
    dtype: torch.dtype
    kind: str


class RankGroup:
    """The ranks of ``worker`` in a call, as a process group.

    Those that take part in it: Gloo on CPU, and NCCL for tensors of a GPU. ``with group:`` around the part of a call in
    which the ranks work together forms the group if it is not there, or if others take part than before (all ranks of
    the call must come), and leaves it when the body raises. Take and put items before or after the block: under a plan
    that lets another worker whose ranks meet share the devices, the block refuses a get, and a put into a channel with
    a capacity, by `WorkflowError`. ``timeout``: seconds that a collective waits for the others.
    """

    def __init__(self, worker: Worker, timeout: float = TIMEOUT_SECONDS) -> None:
        if not dist.is_available():
            raise MissingDependencyError(
                "RankGroup needs torch.distributed, which this build of torch lacks. Next: install another build of "
                "torch."
            )
        self._worker, self._timeout = worker, datetime.timedelta(seconds=timeout)
        self._formed = 0  # the number of the group; 0: none now
        self._last = 0  # of the last one
        self._members: tuple[int, ...] = ()  # ranks in the last one
        self._worked = 0  # see `Came`
        self._broken = False
        self._within = 0  # `with` blocks under way, among several ranks
        self._unwraps_later = False  # at the end of the `with`
        self._over = threading.Event()  # the present `with`
        self._watcher: threading.Thread | None = None
        self._place = 0  # of what is left behind for the others; see `Context.on_leaving`
        self._source = 0  # the position of the first rank that knew what counts when the group was formed
        self._formed_now = self._handed = False
        self._owes = False  # it was a newcomer then, and has not taken over what the others know
        self._alike: list[torch.optim.Optimizer] = []  # those whose states are the same since the group was formed
        self._wrapped: list[nn.Module] = []  # those of `parallel`
        self._group: Any = None
        self._leaving: threading.Timer | None = None
        self._store: Any = None

    # --- joining and leaving ------------------------------------------------------------------------------
    def __enter__(self) -> RankGroup:
        """Raises what a rank that does not come has raised."""
        self._left_by_now()
        try:
            if self._worker.ranks > 1:
                self._meet()
                self._within += 1
                self._worker._context.together += 1
            else:
                self._part([self._came()])
        except BaseException:
            # A rank may fail before this one has heard that all are here. The others compute already and wait for it.
            self._leave_soon()
            raise
        if self._nccl() is not None:
            self._over = threading.Event()
            self._watcher = threading.Thread(
                target=self._watch, args=(self._over,), name=f"watch of {self._worker!r}", daemon=True
            )
            self._watcher.start()
        return self

    def _nccl(self) -> Any:
        """The part of the group that works on a GPU; None if there is none."""
        return (
            self._group._get_backend(torch.device("cuda"))
            if self._group is not None and self._worker.device.startswith("cuda")
            else None
        )

    def _watch(self, over: threading.Event) -> None:
        """End the collectives of a call that is given up. It runs in a thread of its own."""
        while not over.wait(LEAVE_SECONDS):
            if self._worker.cancelled:
                self._broken = True  # a kernel that is aborted leaves numbers behind, and no error
                self.leave()
                return

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part in the present call, in order."""
        return self._worker._context.members or tuple(range(self._worker.ranks))

    @property
    def position(self) -> int:
        """This rank's place in the group, from 0. Among those that take part in the present call."""
        return self.members.index(self._worker.rank)

    @property
    def formed_now(self) -> bool:
        """Whether what ranks keep may differ; the same on all ranks.

        Since the group was formed, until the end of the first ``with`` in which `handed_over` was called.
        """
        return self._formed_now

    def _meet(self) -> None:
        told = self._worker.exchange(tuple(self._came()))
        for rank, other in zip(self.members, told, strict=True):
            if type(other) is not tuple or len(other) != len(Came._fields):
                raise WorkflowError(
                    f"{self._worker!r}: rank {rank} gave {shown(other)} to an exchange() of its own where this rank "
                    "began `with group:`. Next: let all ranks "
                    f"call exchange() and begin `with group:` in the same order."
                )
        came = [Came(*c) for c in told]
        if came[0].formed and len({c.formed for c in came}) == 1 and self._members == self.members:
            if any(c.wrapped for c in came):
                self._unwrap_alike()
            return
        self._part(came)
        self._source = max(range(len(came)), key=lambda position: (came[position].worked, -position))
        self._owes = came[self._source].worked > came[self.position].worked
        self._form(max(c.last for c in came) + 1)

    def _unwrap_alike(self) -> None:
        """All unwrap again where some may have left their device.

        Also after they had said what they have: wrapping is a collective too, so all do it again. A collective tells,
        for nobody leaves a device in it.
        """
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        most = torch.tensor([len(self._wrapped), -len(self._wrapped)])
        self._group.allreduce([most], options).wait()
        if most.sum():
            self.unwrap()

    def _came(self) -> Came:
        return Came(self._formed, self._last, len(self._wrapped), self._worked, self._broken)

    def _part(self, came: Sequence[Came]) -> None:
        """The latest group of these ranks ends. A rank that has gone and come back has a new worker, which was not in
        it.
        """
        self._refuse_to_form_again(came)
        latest = max(c.last for c in came)
        stay = [rank for rank, c in zip(self.members, came, strict=True) if c.last == latest]
        if self._formed:
            self._disband(stay)
        self.leave()
        if self._worker.rank == stay[0]:  # nobody goes on with what is still there
            for rank in self._members:
                if rank not in stay:
                    self._worker._context.discard(self._place, rank)

    def _disband(self, stay: Sequence[int]) -> None:
        """Others take part than before. ``stay``: ranks of the group that do now, too."""

    def _refuse_to_form_again(self, came: Sequence[Came]) -> None:
        """Raise, on all ranks alike, where these ranks cannot go on together any more. Also for one alone."""
        self._refuse_broken([self.members[position] for position, c in enumerate(came) if c.broken])

    def _refuse_broken(self, ranks: Sequence[int]) -> None:
        if ranks:
            raise WorkflowError(
                f"{self._worker!r}: collectives of ranks {list(ranks)} on their GPUs were broken off in the middle of "
                "an update; the weights may hold what no "
                "step has made. Next: go on from a checkpoint, LearnerWorker(state=...), or call RankGroup.forget() "
                "after loading one."
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watcher is not None:
            self._over.set()
            self._watcher.join()
            self._watcher = None
        self._end_within()
        if error is not None:
            self._leave_soon()
        elif self._broken:
            self._refuse_broken([self._worker.rank])
        else:
            self._worked = max(self._worked, 1 if self._owes else 2)
            self._formed_now = self._formed_now and not self._handed

    def _end_within(self) -> None:
        if self._within:
            self._within -= 1
            self._worker._context.together -= 1
        if self._unwraps_later and not self._within:
            self.unwrap()

    def _leave_soon(self) -> None:
        """Leave after what broke off here is told. The others' collectives break off then."""
        if self._group is not None:
            self._leaving = threading.Timer(LEAVE_SECONDS, self.leave)
            self._leaving.daemon = True
            self._leaving.start()

    def _left_by_now(self) -> None:
        """A leaving that is still to come is done."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving.join()
            self._leaving = None
            self.leave()

    def _form(self, number: int) -> None:
        position = self.position
        if position == 0:
            self._store = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=self._timeout)
        own = Met(self._worker._context.address, self._store.port if position == 0 else 0)
        met = [Met(*m) for m in self._worker.exchange(tuple(own))]
        self._place = self._worker._context.on_leaving(self._say_farewell)
        on_one_machine = len({m.address for m in met}) == 1
        client = dist.TCPStore(
            LOOPBACK if on_one_machine else met[0].address, met[0].port, is_master=False, timeout=self._timeout
        )
        self._assemble(client)
        self._group = self._joined(client, LOOPBACK if on_one_machine else met[position].address)
        self._formed = self._last = number
        self._members, self._formed_now, self._handed = self.members, True, False
        self.barrier()

    def _assemble(self, store: Any) -> None:
        """Wait until all ranks are at the store.

        Forming a group is torch's own wait, in which nobody hears that the call has been given up. All go on, or
        nobody: whoever has seen all of them, or gives up, says so at the store, where the first word counts for all.
        """
        ranks, pause, deadline = self._worker.ranks, 0.0005, time.monotonic() + self._timeout.total_seconds()
        there, word = store.add("here", 1), ""
        while not word:
            if there == ranks:
                word = ALL_GO
            elif store.check(["word"]) or self._worker.cancelled:
                word = GIVEN_UP
            elif time.monotonic() > deadline:
                word = TOO_LATE
            else:
                time.sleep(pause)
                pause = min(2 * pause, 0.02)
                there = store.add("here", 0)
        word = store.compare_set("word", "", word).decode()
        if word == TOO_LATE:
            raise TimeoutError(
                f"{self._worker!r}: {there} of its {ranks} ranks came to form a group within "
                f"{self._timeout.total_seconds():g} s. Next: a RankGroup(timeout=) "
                f"of more seconds."
            )
        if word == GIVEN_UP:
            raise Cancelled(f"{self._worker!r}: its group was not formed, because the call was given up.")

    def _joined(self, store: Any, address: str) -> Any:
        """The group, of the ranks that speak with each other at ``address`` of this machine."""
        return _process_group(store, self.position, self._worker.ranks, self._worker.device, address, self._timeout)

    def leave(self) -> None:
        """Close this rank's connections.

        Collectives of the others fail instead of waiting (on GPUs: see the module's docstring).
        """
        if (nccl := self._nccl()) is not None:
            nccl.abort()  # not shutdown(), which waits for the others
        self.unwrap()
        self._group, self._store, self._formed, self._alike = None, None, 0, []
        self._formed_now = self._owes = False
        self._needs_no_farewell()

    def _needs_no_farewell(self) -> None:
        """Nobody goes on with what it has."""
        self._worker._context.take_back(self._say_farewell)

    def _say_farewell(self) -> None:
        """This rank goes while the run goes on: the others go on without it."""
        self.leave()

    def unwrap(self) -> None:
        """Forget the modules of `parallel` and their buffers for gradients, as before leaving a device."""
        # Gloo closes its connections when the last reference goes, not in abort(); frames of the error keep the modules
        # alive.
        for wrapped in self._wrapped:
            for name in ("process_group", "reducer", "logger"):
                wrapped.__dict__.pop(name, None)
        self._wrapped, self._unwraps_later = [], False

    def offload(self) -> None:
        """Before the worker leaves its device. On a CPU what a ``with group`` under way holds is forgotten at its end.
        """
        if self._within and self._worker.device == "cpu":
            self._unwraps_later = True
            return
        # a parameter that leaves a GPU loses the hooks that average its gradient
        for wrapped in self._wrapped if self._within else ():
            wrapped.__dict__["forward"] = self._refuse_forward
        self.unwrap()

    def _refuse_forward(self, *inputs: Any, **named: Any) -> Any:
        raise WorkflowError(
            f"{self._worker!r}: it had to leave {self._worker.device} within `with group:`, so its module does not "
            "average gradients any more. Next: take "
            f"and put items before or after the block, or begin a new block for each step."
        )

    def forget(self) -> bool:
        """Give up what `parallel` has made. Whether the modules and optimisers themselves were changed by it, so that
        new ones are needed.
        """
        self.unwrap()
        self._broken = False
        return False

    # --- what newcomers take over -----------------------------------------------------------------------------
    def handed_over(self, value: T) -> T:
        """``value`` of one rank, on all ranks; all must ask.

        That of the first which had worked when the group was formed. It is what ranks keep and must agree on. Others
        get a copy; its tensors come by a collective, onto their own devices. Where nobody has worked yet it is that of
        the first rank.
        """
        self._handed, self._owes = True, False
        return self._from_source(value)

    def _from_source(self, value: T) -> T:
        if self._worker.ranks == 1:
            return value
        mine, tensors = self.position == self._source, list[torch.Tensor]()

        def held(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            tensors.append(leaf.detach().contiguous())
            return _Tensor(Placeholder(leaf.shape, leaf.dtype, leaf.device.type))

        def filled(leaf: Any) -> Any:
            if not isinstance(leaf, _Tensor):
                return leaf
            kind = leaf.place.kind
            tensors.append(
                torch.empty(
                    leaf.place.shape, dtype=leaf.place.dtype, device=kind if kind == "cpu" else self._worker.device
                )
            )
            return tensors[-1]

        told = self._worker.exchange(copy.deepcopy(rebuilt(value, held)) if mine else None)[self._source]
        if not mine:
            value = rebuilt(copy.deepcopy(told), filled)
        self._broadcast(tensors)
        return value

    def _broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """In place, from the first rank that had worked."""
        options: Any = dist.BroadcastOptions()
        options.rootRank = self._source
        for tensor in tensors:
            if tensor.numel():
                self._group.broadcast([tensor], options).wait()

    def _agree(self, module: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """What makes a step is the same on all ranks."""
        self._make_alike(module)
        if optimizer is None or any(known is optimizer for known in self._alike):
            return
        numbered = optimizer.state_dict()
        state = self._from_source(numbered)
        if state is not numbered:
            _take_over(optimizer, state)
        self._alike.append(optimizer)

    def _make_alike(self, module: nn.Module) -> None:
        """DistributedDataParallel does that, from the first rank."""
        if self._source:
            with torch.no_grad():
                self._broadcast([t.data for t in (*module.parameters(), *module.buffers())])

    # --- working together -----------------------------------------------------------------------------------
    def parallel(self, module: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> nn.Module:
        """``module`` with the gradients of all ranks averaged in `backward`, as torch's DistributedDataParallel does.
        Itself on a single rank.

        ``optimizer``: of its parameters. Where the group has been formed anew, parameters and buffers, the optimiser's
        state and its param_groups are those of the first rank that has worked before.
        """
        if self._worker.ranks == 1:
            return module
        for wrapped in self._wrapped:
            if wrapped.module is module:
                return wrapped
        from torch.nn.parallel import DistributedDataParallel

        self._agree(module, optimizer)
        self._wrapped.append(DistributedDataParallel(module, process_group=self._group))
        return self._wrapped[-1]

    def gathered(self, module: nn.Module) -> AbstractContextManager[Any]:
        """``with group.gathered(module):`` its parameters are whole, for reading. All ranks must come."""
        return nullcontext()

    def whole(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """The module's state, every tensor of its whole shape. All ranks must come."""
        return module.state_dict()

    def whole_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimiser's state, as an optimiser on a single rank would have it. All ranks must come."""
        return optimizer.state_dict()

    def mean(self, values: dict[str, float] | torch.Tensor) -> Any:
        """Means over the ranks, which all give the same names. Of a tensor of one shape in place."""
        if self._worker.ranks == 1:
            return values
        if isinstance(values, torch.Tensor):
            self._group.allreduce([values]).wait()
            return values.div_(self._worker.ranks)
        names = sorted(values)
        total = torch.tensor([values[name] for name in names], dtype=torch.float64)
        self._group.allreduce([total]).wait()
        return dict(zip(names, (total / self._worker.ranks).tolist(), strict=True))

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self._worker.ranks > 1:
            self._group.allreduce([torch.zeros(1)]).wait()

    def __repr__(self) -> str:
        now = f"group {self._formed}" if self._formed else "not formed"
        return f"{type(self).__name__}({self._worker!r}, rank {self._worker.rank} of {self._worker.ranks}, {now})"


class _Tensor:
    """Where in a value a tensor belongs. (No tuple: those are containers of values.)"""

    def __init__(self, place: Placeholder) -> None:
        self.place = place


def _take_over(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """What `load_state_dict` does, without its conversions. A step is then the same to the last bit."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.state.clear()
    for key, each in state["state"].items():
        optimizer.state[parameters[key] if isinstance(key, int) else key] = each
    for group, other in zip(optimizer.param_groups, state["param_groups"], strict=True):
        group.update({name: value for name, value in other.items() if name != "params"})


def _process_group(store: Any, rank: int, ranks: int, device: str, address: str, timeout: datetime.timedelta) -> Any:
    """A group that torch's registry of groups does not know. So that threads of one process can each have their own."""
    group: Any = dist.ProcessGroup(store, rank, ranks)
    kinds = dist.ProcessGroup.BackendType
    backend: Any = dist.ProcessGroupGloo  # torch's stubs lack its options
    options = backend._Options()
    options._devices, options._timeout = [backend.create_device(hostname=address)], timeout
    gloo = backend(store, rank, ranks, options)
    group._set_default_backend(kinds.GLOO)
    group._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
    if device.startswith("cuda"):
        wishes = dist.ProcessGroupNCCL.Options()
        wishes._timeout = timeout
        nccl = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, ranks, wishes)
        group._set_default_backend(kinds.NCCL)
        group._register_backend(torch.device("cuda"), kinds.NCCL, nccl)
    group._set_group_name(f"rlinf_lab {next(_NUMBERS)}")
    return group
