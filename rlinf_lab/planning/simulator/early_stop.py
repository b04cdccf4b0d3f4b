"""Calls whose stream is not wanted any more end early, in virtual time. They put into a stream whose rest is not wanted
and that nobody reads any more.

The rules of `runtime.host.channels.stream_end`, as far as a plan tells: a call whose value another one takes goes on to
its end. That a method returns a value which no call takes, or that ranks may meet, is not known here; such calls are
foretold to end, though they go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from rlinf_lab.planning.simulator.state import Apply, Instructions, Iteration, Rank, State


class Unwanted:
    """Of all iterations. ``apply``: carries out what the engine says. Writes `State.discarded`."""

    def __init__(self, state: State, apply: Apply) -> None:
        self._state, self._calls, self._engine, self._apply = state, state.calls, state.engine, apply
        self._wanted = {i for call in state.calls for i in call.after}

    def look(self, iteration: int, made: Iteration) -> None:
        """Look again when a call or the loop has ended. Where no reader is left, though somebody may still put, what is
        blocked goes on.
        """
        if made.all_known:
            self._discard(
                iteration,
                [
                    c
                    for c in dict.fromkeys(c for i in made.unended for c in self._calls[i].writes)
                    if self._may_go(c, made)
                ],
            )

    def relieve(self, iteration: int, positions: Sequence[int]) -> Instructions:
        """Nothing moves: what the engine makes room by. Channels that only a call which the loop cannot make now would
        read on get none while anything else helps. ``positions``: of the calls that the loop of this iteration has
        made."""
        made = self._state.open.get(iteration)
        stranded: set[str] = set()
        if made is not None and not made.all_known:
            stranded = {
                c
                for i in positions
                for c in self._calls[i].reads
                if (c, iteration) not in self._state.discarded and self._may_go(c, made)
            }
        spared = {
            queue: name[0] for name, queue in self._state.queues.items() if name[0] in stranded and name[1] == iteration
        }
        found = self._engine.relieve(spared=spared)
        if not found:
            self._discard(iteration, sorted({name for queue, name in spared.items() if self._engine.is_full(queue)}))
        return found

    def ends(self, p: Rank) -> bool:
        """Whether a call that is about to put ends, since nobody reads what it writes. No other call takes its value;
        what it has not read is then not wanted, either."""
        if (
            p.call is None
            or p.number in self._wanted
            or not all((c, p.iteration) in self._state.discarded for c in p.call.writes)
        ):
            return False
        self._state.open[p.iteration].left_off.update(p.call.reads)
        return True

    def asked_by(self, p: Rank) -> tuple[Callable[[], int], Callable[[str], bool]]:
        """What the scripts of a rank may ask about channels: see `Turn`."""
        return partial(getattr, p, "first"), partial(self.is_wanted, p)

    def is_wanted(self, p: Rank, channel: str) -> bool:
        """Whether anybody may still read what its call puts there."""
        if p.number not in self._wanted:
            self.ends(p)
        return (channel, p.iteration) not in self._state.discarded

    def _may_go(self, channel: str, made: Iteration) -> bool:
        """Nobody reads it, and nobody minds."""
        is_read = any(channel in self._calls[i].reads for i in made.unended)
        return not is_read and (channel in made.left_off or self._state.layout.graph.channel(channel).discard_unread)

    def _discard(self, iteration: int, channels: Iterable[str]) -> None:
        new = {c for c in channels if (c, iteration) not in self._state.discarded}
        self._state.discarded.update((c, iteration) for c in new)
        for queue in [
            q for name, q in self._state.queues.items() if name[0] in new and name[1] == iteration and name[3] >= -1
        ]:
            self._apply(self._engine.abandon(queue))
