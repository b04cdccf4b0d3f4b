"""A connection between two hosts has ended, as one of them says. Mostly the other has died, and the driver hears that by itself; it says so then.

Where both go on answering the driver, the network between them is cut, or what carried their stream has been killed. The session has ended by that: what was
on its way is lost. Until the driver has spoken the host that lost the other interrupts nobody: calls that end by it would be taken for calls that are done.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from rlinf_lab.errors import ExecutorError

if TYPE_CHECKING:
    from rlinf_lab.runtime.host import Host

SECONDS = 5.0  # in which the driver hears of a death by itself


def heard(host: Host, here: str, peer: str) -> None:
    """Under the mutex, at the driver's host: ``here`` does not hear ``peer`` any more."""
    if not _is_known(host, here, peer):
        timer = threading.Timer(SECONDS, _decide, (host, here, peer))
        timer.daemon = True
        timer.start()


def _is_known(host: Host, here: str, peer: str) -> bool:
    return host.stopping or bool({here, peer} & host.dead)


def _decide(host: Host, here: str, peer: str) -> None:
    with host._mutex:
        if _is_known(host, here, peer):
            return
        assert host.loop is not None
        host.loop.break_off(
            ExecutorError(
                f"Host {host._who_lives_at(here)} has lost its connection to host {host._who_lives_at(peer)}, and both still answer here: the network "
                f"between their nodes is cut, one of these is going down, or the process that carried their messages was killed. The session has "
                f"ended by that. Next: lab.check(flow, plan, ...) says which nodes reach each other; then run again."
            )
        )
    host.flush()
