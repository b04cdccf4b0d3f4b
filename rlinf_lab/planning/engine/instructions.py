"""What a driver reports to the engine, and what the engine tells it to do."""

from __future__ import annotations

from enum import IntEnum

Instructions = list[tuple[int, int, int, int]]


class Event(IntEnum):
    """What a driver reports. The numbers are the order within one instant and one process."""

    START = 0  # (process, START, iteration, 1 if it needs its devices now else 0)
    PUT = 1  # (process, PUT, channel, n)
    # n < 0: at most -n, a plan's micro-batch; n == ALL: its share of everything, at the end; n == ALL + w: until they
    # weigh w; n <= NOW: what is there (`state.NOW`); 0: no more
    GET = 2  # (process, GET, channel, n)
    DONE = 3  # (process, DONE, -1, 0)
    OFFLOADED = 4
    ONLOADED = 5
    ASIDE = 6  # (process, ASIDE, -1, 0): it waits for the other ranks of its worker, and others may have its devices


class Do(IntEnum):
    """What the driver must carry out, in the order given."""

    STORE = 0  # (STORE, process, channel, first): the put's items enter the channel from sequence number ``first``
    BOUND = 1  # (BOUND, process, lo, hi): input or room is there, the process now waits for its devices
    RESUME = 2  # (RESUME, process, lo, hi): go on, with items [lo, hi) of the channel it asked
    OFFLOAD = 3  # (OFFLOAD, process, 0, 0): leave the devices, then report OFFLOADED
    ONLOAD = 4  # (ONLOAD, process, 0, 0): come to the devices, then report ONLOADED
    FINISHED = 5  # (FINISHED, process, 0, 0): the call has ended
    EXTEND = 6  # (EXTEND, -1, channel, n): let each blocked remote producer send n items more
    # (DIVIDE, -1, channel, n): what is there becomes n equal shares, one for each position in a call (`Process.part`)
    DIVIDE = 7
    MEET = 8  # (MEET, process, 0, 0): it has come to a meeting; `Engine.come_back` when all have


# Looking a member of an enumeration up costs as much as half a decision.
START, PUT, GET, DONE, OFFLOADED, ONLOADED, ASIDE = map(int, Event)
STORE, BOUND, RESUME, OFFLOAD, ONLOAD, FINISHED, EXTEND, DIVIDE, MEET = map(int, Do)
