"""Which gets were over because the next put found no room: a chunk of more items than its bounded channel holds is cut short.

The engine hands such a get what is there when somebody else's put does not fit any more. A span says neither the chunk nor the bound, so it is told
from times: nobody came before the next put began, and somebody who had waited came just then, long after the last of his own items.
"""

from __future__ import annotations

import numpy as np

from rlinf_lab.timeline.batch import SpanArray
from rlinf_lab.timeline.flows import Indices, arrows, paired


def cut_short(spans: SpanArray) -> tuple[Indices, Indices]:
    """Row numbers of gets and puts, pair by pair: the get could not end before the put began, and took all that its channel holds.

    Of channels in which that was seen at least once and nothing speaks against it; all of their gets that another put came after in the iteration.
    """
    puts, gets = paired(spans, _next)
    start, end, channel = spans["start"], spans["end"], spans["channel"]
    own = spans["start"].copy()  # of each get: when the last of its items was put
    put, get = arrows(spans)
    np.maximum.at(own, get, end[put])
    came, over = start[puts], end[gets]
    before = own[gets]
    # In a real run the get hears of it a little later: it must be nearer to the put that came than to its own last item.
    seen = (over > start[gets]) & (came > before) & (came <= over) & (over - came < came - before)
    kinds = np.unique(channel[gets][seen])
    against = np.unique(channel[gets][came > over])
    mine = np.isin(channel[gets], np.setdiff1d(kinds, against))
    return gets[mine], puts[mine]


def _next(spans: SpanArray, puts: Indices, gets: Indices) -> tuple[Indices, Indices]:
    """Each get with the put of the item that follows on its own."""
    puts = puts[np.argsort(spans["flow"][puts], kind="stable")]
    first, after = spans["flow"][puts], spans["flow"][gets] + spans["items"][gets]
    at = np.minimum(np.searchsorted(first, after), len(puts) - 1)
    there = first[at] == after
    return puts[at[there]], gets[there]
