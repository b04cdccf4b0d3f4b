"""What may be asked of an engine beside its decisions. It tells who waits for what, and who is on which device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlinf_lab.planning.engine.devices import Devices
from rlinf_lab.planning.engine.state import Channel, Process


class Looks:
    """Changes nothing. Processes, channels and devices by number."""

    def __init__(self, processes: Sequence[Process], channels: Mapping[int, Channel], devices: Devices) -> None:
        self._processes, self._channels, self._devices = processes, channels, devices

    def depth(self, channel: int) -> int:
        return self._channels[channel].depth

    def waiting_at(self, channel: int) -> tuple[int, int]:
        """How many wait for items, and how many for room."""
        queue = self._channels[channel]
        return len(queue.getters), len(queue.putters)

    def is_putting(self, process: int) -> bool:
        return self._processes[process].state == "put"

    def is_getting(self, process: int) -> bool:
        return self._processes[process].state == "get"

    def is_full(self, channel: int) -> bool:
        """Putters wait at this channel."""
        return bool(self._channels[channel].putters)

    def waiting(self) -> list[tuple[int, str, int]]:
        """(process, "get" | "put" | "lock", channel or device) of everything that waits."""
        rows = [(g[0].index, "get", i) for i, q in self._channels.items() for g in q.getters]
        rows += [(g[0].index, "put", i) for i, q in self._channels.items() for g in q.putters]
        rows += [(p.index, "lock", d) for d, waiting in enumerate(self._devices.queue) for p in waiting]
        return rows

    def is_waiting(self) -> bool:
        """Whether anything waits at a channel or for a device."""
        return any(q.getters or q.putters for q in self._channels.values()) or any(self._devices.queue)

    def is_present(self, process: int) -> bool:
        """Whether it is on its devices and stays there, or has them and comes."""
        return self._devices.is_present(self._processes[process])

    def is_room_for_all(self, process: int) -> bool:
        """Whether a process fits on its devices with all others, as far as is known."""
        return self._devices.is_room_for_all(self._processes[process])

    def holder(self, device: int) -> int | None:
        holder = self._devices.holder[device]
        return None if holder is None else holder.index
