"""Which channels nobody on this host will read any more in an iteration, though producers may still put into them."""

from __future__ import annotations

from collections import Counter


class Readers:
    """Counts the reading calls that have ended, rank by rank. Every method runs under the host's mutex."""

    def __init__(self) -> None:
        self._expected: dict[tuple[int, str], int] = {}
        self._ended: Counter[tuple[int, str]] = Counter()

    def expect(self, iteration: int, channel: str, calls: int) -> bool:
        """So many ranks here read the channel, and no more; whether all have ended."""
        self._expected[iteration, channel] = calls
        return self._ended[iteration, channel] >= calls

    def end(self, iteration: int, channel: str) -> bool:
        """One of them has ended; whether it was the last."""
        self._ended[iteration, channel] += 1
        return self._ended[iteration, channel] == self._expected.get((iteration, channel))

    def admit(self, iteration: int, channel: str) -> bool:
        """One more than were counted; not when all have ended."""
        key = iteration, channel
        if key in self._expected and self._ended[key] >= self._expected[key]:
            return False
        self._ended[key] -= 1
        return True

    def retire(self, iteration: int) -> None:
        self._expected = {k: n for k, n in self._expected.items() if k[0] > iteration}
        self._ended = Counter({k: n for k, n in self._ended.items() if k[0] > iteration})
