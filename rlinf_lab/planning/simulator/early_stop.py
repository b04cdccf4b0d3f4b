"""In virtual time: where the rest of a stream is not wanted and nobody reads it any more, calls that put into it end.

The rules of `runtime.host.channels.stream_end`, as far as a plan tells: a call whose value another one takes goes on to
its end. That the loop returns a value, or that ranks may meet, is not known here; such calls are foretold to end,
though they go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from rlinf_lab.planning.engine.engine import Engine
from rlinf_lab.planning.simulator.ranks import Iteration, Rank
from rlinf_lab.planning.simulator.scripts import SimCall
from rlinf_lab.workflow.graph import WorkflowGraph

Instructions = list[tuple[int, int, int, int]]


class Unwanted:
    """Of all iterations. ``calls``: of one, by position. ``queues``: by (channel, iteration, shard, key); ``apply``:
    carries out what the engine says.

    ``discarded``: the streams, as (channel, iteration).
    """

    def __init__(
        self, graph: WorkflowGraph, calls: Sequence[SimCall], engine: Engine,
        queues: Mapping[tuple[str, int, int, int], int],
        apply: Callable[[Instructions], None],
    ) -> None:  # fmt: skip
        self._graph, self._calls, self._engine, self._queues, self._apply = graph, calls, engine, queues, apply
        self.discarded: set[tuple[str, int]] = set()
        self._wanted = {i for call in calls for i in call.after}

    def look(self, iteration: int, made: Iteration) -> None:
        """A call has ended, or the loop: where no reader is left, though somebody may still put, what is blocked goes
        on.
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

    def relieve(self, iteration: int, open_: Mapping[int, Iteration], positions: Sequence[int]) -> Instructions:
        """Nothing moves: what the engine makes room by. Channels that only a call which the loop cannot make now would
        read on get none while anything else helps. ``positions``: of the calls that the loop of this iteration has
        made."""
        made = open_.get(iteration)
        stranded: set[str] = set()
        if made is not None and not made.all_known:
            stranded = {
                c
                for i in positions
                for c in self._calls[i].reads
                if (c, iteration) not in self.discarded and self._may_go(c, made)
            }
        spared = {
            queue: name[0] for name, queue in self._queues.items() if name[0] in stranded and name[1] == iteration
        }
        found = self._engine.relieve(spared=spared)
        if not found:
            self._discard(iteration, sorted({name for queue, name in spared.items() if self._engine.is_full(queue)}))
        return found

    def ends(self, p: Rank, open_: Mapping[int, Iteration]) -> bool:
        """Whether a call that is about to put ends, for nobody reads anything that it writes, and no other call takes
        its value; what it has not read is then not wanted, either."""
        if (
            p.call is None
            or p.number in self._wanted
            or not all((c, p.iteration) in self.discarded for c in p.call.writes)
        ):
            return False
        open_[p.iteration].left_off.update(p.call.reads)
        return True

    def asked_by(self, p: Rank, open_: Mapping[int, Iteration]) -> tuple[Callable[[], int], Callable[[str], bool]]:
        """What the scripts of a rank may ask about channels: see `Turn`."""
        return partial(getattr, p, "first"), partial(self.is_wanted, p, open_)

    def is_wanted(self, p: Rank, open_: Mapping[int, Iteration], channel: str) -> bool:
        """Whether anybody may still read what its call puts there."""
        if p.number not in self._wanted:
            self.ends(p, open_)
        return (channel, p.iteration) not in self.discarded

    def _may_go(self, channel: str, made: Iteration) -> bool:
        """Nobody reads it, and nobody minds."""
        is_read = any(channel in self._calls[i].reads for i in made.unended)
        return not is_read and (channel in made.left_off or self._graph.channel(channel).discard_unread)

    def _discard(self, iteration: int, channels: Iterable[str]) -> None:
        new = {c for c in channels if (c, iteration) not in self.discarded}
        self.discarded.update((c, iteration) for c in new)
        for queue in [
            q for name, q in self._queues.items() if name[0] in new and name[1] == iteration and name[3] >= -1
        ]:
            self._apply(self._engine.abandon(queue))

    def retire(self, iteration: int) -> None:
        self.discarded.difference_update([s for s in self.discarded if s[1] == iteration])
