"""Gets that took less than the micro-batch that was asked for. No more fitted into the channel, or nobody put any more.

A micro-batch of more items than its bounded channel holds is cut short: the engine hands the get what is there when
somebody's put does not fit any more. A span says neither the micro-batch nor the bound, so both are told from times and
from what others took. Without, gains that are told from spans alone are off by 4 % of the run where micro-batches are
larger than their channels, instead of 0.1 %.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.timeline.critical.flows import Indices, arrows, paired
from rlinf_lab.timeline.record.batch import SpanArray
from rlinf_lab.timeline.record.span import SpanKind


def cut_short(spans: SpanArray) -> tuple[Indices, Indices]:
    """Row numbers of gets and puts, pair by pair. The get could not end before the put began, and took all that its
    channel holds.

    Of channels in which that was seen at least once (a get that waited was over just when the put began, long after the
    last of its own items) and nothing speaks against it (a get that was over before the next put); all of their gets
    that another put came after in the iteration.
    """
    puts, gets = paired(spans, _next)
    start, end, channel = spans["start"], spans["end"], spans["channel"]
    own = spans["start"].copy()  # of each get: when the last of its items was put
    put, get = arrows(spans)
    np.maximum.at(own, get, end[put])
    came, over = start[puts], end[gets]
    before = own[gets]
    # In a real run the get hears of it a little later: it must be nearer to the put that came than to its own last
    # item.
    seen = (over > start[gets]) & (came > before) & (came <= over) & (over - came < came - before)
    kinds = np.unique(channel[gets][seen])
    against = np.unique(channel[gets][came > over])
    mine = np.isin(channel[gets], np.setdiff1d(kinds, against))
    return gets[mine], puts[mine]


def takes_the_rest(spans: SpanArray) -> NDArray[np.bool_]:
    """Whether each row is a get that had to wait until nobody put any more. It got nothing, or what was left of a
    micro-batch.

    That is the last of its channel in the iteration, if it got less than others did, or cannot get its micro-batch, or
    came before and left long after its items.
    """
    gets = spans["kind"] == SpanKind.GET
    found = gets & (spans["items"] == 0)
    some = np.flatnonzero(gets & (spans["items"] > 0) & (spans["flow"] >= 0) & (spans["channel"] >= 0))
    if not some.size:
        return found
    some = some[np.lexsort((spans["flow"][some], spans["iteration"][some], spans["channel"][some]))]
    channel, iteration, items = (spans[field][some] for field in ("channel", "iteration", "items"))
    micro_batch = np.zeros(int(channel.max()) + 1, np.int64)
    np.maximum.at(micro_batch, channel, items)
    put, get = arrows(spans)
    own = spans["start"].copy()
    np.maximum.at(own, get, spans["end"][put])
    cut = np.isin(channel, spans["channel"][cut_short(spans)[0]])
    last = np.append((channel[1:] != channel[:-1]) | (iteration[1:] != iteration[:-1]), True)
    found[some] = last & ((items < micro_batch[channel]) | cut | (spans["end"][some] > own[some]))
    return found


def _next(spans: SpanArray, puts: Indices, gets: Indices) -> tuple[Indices, Indices]:
    """Each get with the put of the item that follows on its own."""
    puts = puts[np.argsort(spans["flow"][puts], kind="stable")]
    first, after = spans["flow"][puts], spans["flow"][gets] + spans["items"][gets]
    at = np.minimum(np.searchsorted(first, after), len(puts) - 1)
    there = first[at] == after
    return puts[at[there]], gets[there]
