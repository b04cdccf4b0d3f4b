"""A connection between two hosts has ended, as one of them says. Mostly the other has died, and the driver hears that by itself; it says so then.

Where both go on answering the driver, the network between them is cut, or what carried their stream has been killed. The session has ended by that: what was
on its way is lost. Until the driver has spoken the host that lost the other interrupts nobody: calls that end by it would be taken for calls that are done.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from rlinf_lab.errors import ExecutorError

if TYPE_CHECKING:
    from rlinf_lab.runtime.host.host import Host

SECONDS = 7.0  # in which the driver hears of a death by itself: of a node that falls silent one link may hear five later than another (`links.PROBES`)


def heard(host: Host, here: str, peer: str) -> None:
    """Under the mutex, at the driver's host: ``here`` does not hear ``peer`` any more. Both may say so."""
    name = f"cut off: {' and '.join(sorted((here, peer)))}"
    if not _is_known(host, here, peer) and all(thread.name != name for thread in host._threads):
        thread = threading.Thread(target=_wait_and_decide, args=(host, here, peer), name=name, daemon=True)
        host._threads.append(thread)  # which ends, at the latest, when the host is stopped
        thread.start()


def _is_known(host: Host, here: str, peer: str) -> bool:
    return host.stopping or bool({here, peer} & host.dead)


def _wait_and_decide(host: Host, here: str, peer: str) -> None:
    with host._ready:
        if host._ready.wait_for(lambda: _is_known(host, here, peer), SECONDS):
            return
    with host._mutex:
        if _is_known(host, here, peer):
            return
        assert host.loop is not None
        host.loop.break_off(
            ExecutorError(
                f"Host {host._who_lives_at(here)} has lost its connection to host {host._who_lives_at(peer)}, and the driver has not heard that either "
                f"died: the network between their nodes is cut, one of these is going down, or the process that carried their messages was killed. The "
                f"session has ended by that. Next: lab.check(flow, plan, ...) says which nodes reach each other; then run again."
            )
        )
    host.flush()
