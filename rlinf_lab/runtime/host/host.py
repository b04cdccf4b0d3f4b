"""A host: the threads of some worker ranks in one process, driven by one engine.

The local executor is one host with everything on it; every device host of a Ray run is one, and so is the driver of a
Ray run. Hosts speak to each other in one-way messages (`state.messages`); nothing is asked once per item. Which thread
may go on when is decided by the scheduler (`control.scheduler`). Here the parts are put together, each with what it
uses: the state of the host, and what it may ask of others (`state.parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.runtime.host.calls.arguments import Arguments
from rlinf_lab.runtime.host.calls.values import Values
from rlinf_lab.runtime.host.calls.work import Calls
from rlinf_lab.runtime.host.channels.credit import Credits
from rlinf_lab.runtime.host.channels.ends import ChannelEnds
from rlinf_lab.runtime.host.channels.ports import Ports
from rlinf_lab.runtime.host.channels.remote_readers import FarReaders
from rlinf_lab.runtime.host.channels.stream_end import Unwanted
from rlinf_lab.runtime.host.context import Told
from rlinf_lab.runtime.host.control.post import Post
from rlinf_lab.runtime.host.control.scheduler import Scheduler
from rlinf_lab.runtime.host.driver.loop import Loop
from rlinf_lab.runtime.host.driver.remarks import remark_of_curves
from rlinf_lab.runtime.host.elastic.exchange import Exchange
from rlinf_lab.runtime.host.elastic.meetings import Meetings
from rlinf_lab.runtime.host.elastic.turnover import Turnover
from rlinf_lab.runtime.host.liveness.cut_off import Connections
from rlinf_lab.runtime.host.liveness.deadlock_watch import Watch
from rlinf_lab.runtime.host.liveness.failures import death, misunderstood
from rlinf_lab.runtime.host.liveness.relief import Relief
from rlinf_lab.runtime.host.liveness.unsent import Unsent
from rlinf_lab.runtime.host.liveness.wait_graph import Waits
from rlinf_lab.runtime.host.ranks import Ranks
from rlinf_lab.runtime.host.state import messages
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.messages import decoded
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.host.weights.weights import WeightTable
from rlinf_lab.timeline.record.clock import Clock
from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.workflow.graph import DRIVER


class Host:
    """See the module's docstring. For executors, sessions and those who look on; no part of it is given this.

    ``place``: host name of every (worker, rank). ``send(host, message)``: how to reach the others, ``sent()``: those
    are all for now; neither is called under the mutex. ``check_items``: see `HostState`.
    """

    def __init__(
        self,
        name: str,
        layout: Layout,
        place: dict[tuple[str, int], str],
        clock: Clock,
        recorder: Recorder,
        send: Callable[[str, tuple], None] | None = None,
        sent: Callable[[], None] | None = None,
        check_items: bool = False,
    ) -> None:
        state = self.state = HostState(name, layout, place, clock, recorder, layout.new_engine(), check_items)
        for worker, rank in layout.members:
            if place[worker, rank] == name:
                state.add_rank(worker, rank)
        self.name, self.place, self.clock, self.recorder = name, place, clock, recorder
        post = self.post = Post(state, send, sent)
        control = self.scheduler = Scheduler(state, post)
        meetings = Meetings(state, control, post)
        credits = Credits(state, control, post)
        far = FarReaders(state, control, post)
        unwanted = self._unwanted = Unwanted(state, post, credits, meetings.may_meet)
        ends = ChannelEnds(state, control, post, credits, far, unwanted)
        self.ports = Ports(layout, ends, meetings.refuse_within)
        self.weights = WeightTable(state, control, post)
        self.values = Values(state, control, post)
        arguments = Arguments(state, self.ports, self.weights, self.values)
        calls = Calls(state, control, post, ends, unwanted, self.weights, self.values, arguments)
        exchange = Exchange(state, control.spans, post, self.values, meetings)
        turnover = Turnover(state, control, post, exchange)
        self.told = Told()
        self._ranks = Ranks(
            state, control, post, control.residency, calls, turnover, self.told, control.instants, exchange
        )
        self.loop = Loop(state, control, post, calls, ends) if state.is_driver else None
        self._waits = Waits(state, meetings.missing, None if self.loop is None else self.loop.under_way.labels)
        self._relief = Relief(state, control, post, unwanted.indices, self._waits)
        if self.loop is not None:
            Connections(state, post)
            self._watch = Watch(
                state, post, self._relief, self._waits, self.loop.waits_in_iteration, self.loop.streams.stranded,
                self.loop.deadlock,
            )  # fmt: skip
            self.loop.watch_reset = self._watch.reset
            self.weights.unpublished.users = self.loop.under_way.users
            self.weights.unpublished.waits_for_end_of = self.loop.waiting.waits_for_end_of
            self.loop.waiting.on_look = self.weights.unpublished.look
        post.on_failure(Unsent(state, post, lambda weights: self.weights.store(weights).owner).replace)
        post.on(messages.Retire, self._retire)
        self._retired = (far, state.queues, state.values, meetings, unwanted)
        control.connect(
            ends, calls.finished, meetings.came, turnover.takes_nothing_more, self._is_stuck, self.write_down
        )
        self.start = self._ranks.start
        self.flush = post.flush
        self.waits, self.is_quiet = self._waits.all, control.is_quiet
        self.open_lookout = control.open_lookout

    # --- life ------------------------------------------------------------------------------------------------
    def stop(self, grace_seconds: float = 5.0) -> list[str]:
        """End workers and threads. Returns the labels of ranks that did not end in time; see `Ranks.stop`."""
        late = self._ranks.stop(grace_seconds)
        self.post.stop()
        return late

    def _is_stuck(self) -> bool:
        """Under the mutex, where a host alone cannot go on; whether somebody can now."""
        assert self.loop is not None
        if self._relief.relieve(self.loop.streams.stranded()):
            return True
        self.loop.deadlock(self._waits.all())
        return False

    def _retire(self, message: messages.Retire) -> None:
        """Forget the queues and values of this iteration and of those before it."""
        state, iteration = self.state, message.iteration
        state.given_up = {i: cause for i, cause in state.given_up.items() if i > iteration}
        for part in self._retired:
            part.retire(iteration)
        self.weights.over(iteration + 1)  # values are kept for one iteration longer

    # --- messages --------------------------------------------------------------------------------------------
    def receive(self, message: tuple) -> None:
        """A message from another host, as it travels. The caller flushes."""
        self.scheduler.deliver(decoded(message))

    def heard_all(self) -> None:
        """Everything that had arrived on a link was handled."""
        if not self.scheduler.has_listener():  # a rank that has heard it goes on first
            self.write_down()
        self.post.flush()

    def write_down(self) -> None:
        """Record what has come. A rank does so before it waits again, and it is done before the recording is read."""
        if self.state.traffic.is_open():
            with self.state.mutex:
                self.state.traffic.write_down()

    def unreadable(self, peer: str, error: BaseException) -> None:
        """A message of ``peer`` could not be unpickled or handled here. It counts as heard: else the watch would take
        it for being on its way for ever."""
        with self.state.mutex:
            self.post.heard += 1
        self.post.report(misunderstood(self.state, peer, error))
        self.post.flush()

    def lost(self, host: str) -> None:
        """Another host has died, or is cut off: let nobody here wait for it.

        Anywhere else than with the driver that is the driver's to say.
        """
        if self.loop is not None:
            self.loop.host_died(host)
        else:
            state = self.state
            with state.mutex:
                state.dead.add(host)
                state.failure = state.failure or death(state, host)
                self.post.tell_driver(messages.CutOff(state.name, host))
        self.post.flush()

    def hear_news(self, name: str, quiet: bool) -> None:
        """At the driver's host: another one has said in passing whether it is quiet."""
        with self.state.mutex:
            self._watch.news(name, quiet)
        self.post.flush()

    def curves_missing(self, devices: Iterable[str], problem: str) -> None:
        """From a sampler: tell the user why GPUs among these devices have no curves. Without GPUs nothing is told."""
        if (remark := remark_of_curves(self.name, devices, problem)) is not None:
            with self.state.mutex:
                self.post.remark(*remark)

    # --- looking ---------------------------------------------------------------------------------------------
    @property
    def driver(self) -> Process:
        """The rank of the user's loop."""
        return self.state.members[DRIVER, 0]

    @property
    def stopping(self) -> bool:
        """Whether the host ends."""
        return self.state.stopping

    def statistics(self) -> list[dict[str, Any]]:
        """Depth, puts and gets of every queue of this host."""
        with self.state.mutex:
            return self.state.queues.rows()

    def transports(self) -> list[dict[str, Any]]:
        """What has come to this host, by edge, origin and transport."""
        with self.state.mutex:
            return self.state.traffic.rows()
