"""One process wakes another: an eventfd. Who waits looks again and again for some microseconds first, for falling asleep and waking take longer than a step.

Where that is of no use, because steps are long or another process needs the processor, it is left for a while: a spin that ends in vain is counted.
"""

from __future__ import annotations

import os
import select
import time

SPIN_SECONDS = 150e-6
IN_VAIN = 3  # spins, after which
REST = 500  # waits sleep at once


class Bell:
    """Rings are counted: `wait` gives how many there were since the last one. ``spins``: whether there is a processor to spare."""

    def __init__(self, descriptor: int | None = None, spins: bool = False) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC) if descriptor is None else descriptor
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLIN)
        self._spins, self._in_vain, self._rest = spins, 0, 0

    def ring(self) -> None:
        os.eventfd_write(self.descriptor, 1)

    def spin(self) -> None:
        """Keep the processor until it rings, for a short time at most. Or not, see above."""
        if not self._spins:
            return
        if self._rest:
            self._rest -= 1
            return
        end = time.perf_counter() + SPIN_SECONDS
        while time.perf_counter() < end:
            if self._poll.poll(0):
                self._in_vain = 0
                return
        self._in_vain += 1
        if self._in_vain == IN_VAIN:
            self._in_vain, self._rest = 0, REST

    def wait(self) -> int:
        self.spin()
        return os.eventfd_read(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)
