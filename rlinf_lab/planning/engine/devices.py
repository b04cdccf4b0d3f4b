"""The engine's devices: who has them, waits for them, and keeps memory on them."""

from __future__ import annotations

from rlinf_lab.planning.engine.instructions import OFFLOAD, ONLOAD, RESUME, Instructions
from rlinf_lab.planning.engine.shared_memory import Overlaps
from rlinf_lab.planning.engine.state import LOCK_KEY, Process


class Devices:
    """``memory``: units per device; ``None`` means that everything fits. ``out``: where instructions are added.

    By device: its ``holder``, the ``queue`` of who waits for it, and whether somebody needs it together with others
    (``in_worker_groups``). ``touched``: devices of which `grant` shall look who gets them.
    """

    def __init__(self, devices: int, memory: int | None, out: Instructions) -> None:
        self._memory, self._out = memory, out
        self.holder: list[Process | None] = [None] * devices
        self.queue: list[list[Process]] = [[] for _ in range(devices)]
        self.in_worker_groups = [False] * devices
        self.touched: set[int] = set()
        self.overlaps = Overlaps()
        self._used = [0] * devices
        self._residents: list[list[Process]] = [[] for _ in range(devices)]
        self._users: list[list[Process]] = [[] for _ in range(devices)]
        self._arrivals = 0
        self._evicting: dict[Process, list[Process]] = {}
        self._cells: dict[int, list[Process]] = {}

    def add(self, process: Process, cell: int | None = None) -> None:
        """``cell``: as of `Engine.add_process`."""
        if cell is not None:
            process.mates = self._cells.setdefault(cell, process.mates)
            process.mates.append(process)
        if self._memory is None or not process.devices:
            process.resident = True
        for device in process.devices:
            users = self._users[device]
            users.append(process)
            self.in_worker_groups[device] |= len(process.devices) > 1
            if len(users) > 1:
                for user in users:
                    user.alone = False

    def line_up(self, p: Process) -> bool:
        """It wants its devices, and has them where nobody else may hold them. That is the usual case of a spatial plan,
        also where it needs none (True); else it waits for them.
        """
        if p.alone and p.resident:
            for device in p.devices:
                self.holder[device] = p
            p.granted = p.holding = True
            p.state = "run"
            return True
        p.state = "lock"
        self._arrivals += 1
        p.lock_key = (p.iteration, p.priority, self._arrivals, p.index)
        for device in p.devices:
            self.queue[device].append(p)
        return False

    def want(self, p: Process) -> None:
        if self.line_up(p):
            self._out.append((RESUME, p.index, p.lo, p.hi))
        else:
            self.touched.update(p.devices)

    def go_on(self, p: Process) -> None:
        """With the devices that it has, or as soon as it has them."""
        if p.granted:
            p.state = "run"
            self._out.append((RESUME, p.index, p.lo, p.hi))
        else:
            self.want(p)

    def release(self, p: Process) -> None:
        if p.granted:
            p.granted = p.holding = False
            for device in p.devices:
                self.holder[device] = None
            if not p.alone:
                self.touched.update(p.devices)

    def withdraw(self, p: Process) -> None:
        """It does not wait for its devices any more."""
        for device in p.devices:
            if p in self.queue[device]:
                self.queue[device].remove(p)
                self.touched.add(device)

    def vacate(self, p: Process) -> None:
        """It has left its devices, without an order."""
        p.offloadable = True
        # else the report that it has left is on its way
        if self._memory is not None and p.devices and p.resident and p not in self._evicting:
            self._leave(p)

    def _leave(self, p: Process) -> None:
        p.resident = False
        for device in p.devices:
            self._used[device] -= p.size
            self._residents[device].remove(p)

    # --- who gets them -----------------------------------------------------------------------------------
    def grant(self) -> None:
        """Touched devices go to who is first in line."""
        touched = self.touched
        while touched:
            devices = sorted(touched) if len(touched) > 1 else list(touched)
            touched.clear()
            worker_groups = []
            for device in devices:
                if self.queue[device] and self.holder[device] is None:
                    if self.in_worker_groups[device]:
                        worker_groups.append(device)
                    else:
                        self._grant_one(device)
            if worker_groups:
                candidates = {p.index: p for d in worker_groups for p in self.queue[d]}
                self._arbitrate(sorted(candidates.values(), key=LOCK_KEY))

    def _grant_one(self, device: int) -> None:
        """A device that nobody needs together with another one: its first in line gets it."""
        waiting = self.queue[device]
        p = waiting[0] if len(waiting) == 1 else min(waiting, key=LOCK_KEY)
        waiting.remove(p)
        self.holder[device] = p
        p.granted = True
        self._switch(p)

    def _arbitrate(self, candidates: list[Process]) -> None:
        """Whole sets or nothing. One that must wait keeps its devices from those behind it, so that nobody starves."""
        kept: set[int] = set()
        for p in candidates:
            if any(
                self.holder[d] is not None or d in kept or (len(self.queue[d]) > 1 and self._ahead(p, d))
                for d in p.devices
            ):
                kept.update(p.devices)
                continue
            for device in p.devices:
                self.holder[device] = p
                self.queue[device].remove(p)
            p.granted = True
            self._switch(p)

    def _ahead(self, p: Process, device: int) -> bool:
        return any(q.lock_key < p.lock_key for q in self.queue[device])

    # --- coming and leaving ------------------------------------------------------------------------------
    def _switch(self, p: Process) -> None:
        """The devices are p's. Bring p onto them, moving out the longest-resident ones that are in the way."""
        if p.resident and not p.working:
            self.resume(p)
            return
        p.state = "switch"
        victims: list[Process] = []
        for device in p.devices:
            used = self._used[device] - sum(v.size for v in victims if device in v.devices)
            wanted = self._wanted(p, device)
            for other in self._residents[device]:
                if (
                    self._memory is None
                    or used
                    + wanted
                    - self.overlaps.saved([*(r for r in self._residents[device] if r not in victims), p])
                    <= self._memory
                ):
                    break
                # who takes nothing is not in the way
                if other.size and other not in victims and other is not p and other.offloadable and not other.granted:
                    victims.append(other)
                    used -= other.size
        for victim in victims:
            waiting = self._evicting.setdefault(victim, [])
            if not waiting:
                self._out.append((OFFLOAD, victim.index, 0, 0))
            waiting.append(p)
        if victims or self._is_waiting(p):
            return
        if p.resident:
            self.resume(p)
        else:
            self._bring(p)

    def _wanted(self, p: Process, device: int) -> int:
        """Units that must be free on a device for p. They are its own, and those of its cell that are not there yet,
        where the cell fits at all.
        """
        there, own = self._residents[device], 0 if p.resident else p.size
        if not p.resident and p.mates and self._memory is not None:
            sizes = [(q.size, q in there) for q in p.mates if device in q.devices]
            if sum(size for size, _ in sizes) <= self._memory:
                own = sum(size for size, is_there in sizes if not is_there)
        return own + p.working

    def _is_waiting(self, p: Process) -> bool:
        return any(p in waiting for waiting in self._evicting.values())

    def _bring(self, p: Process) -> None:
        for device in p.devices:
            self._used[device] += p.size
            self._residents[device].append(p)
        self._out.append((ONLOAD, p.index, 0, 0))

    def onloaded(self, p: Process) -> None:
        p.resident = True
        self.resume(p)

    def offloaded(self, p: Process) -> None:
        self._leave(p)
        for waiting in self._evicting.pop(p, ()):
            if not self._is_waiting(waiting):
                self._switch(waiting)

    def resume(self, p: Process) -> None:
        p.holding = True
        p.state = "run"
        self._out.append((RESUME, p.index, p.lo, p.hi))

    # --- looking -----------------------------------------------------------------------------------------
    def is_present(self, p: Process) -> bool:
        """Whether it is on its devices and stays there, or has them and comes."""
        return p.granted or (p.resident and p not in self._evicting)

    def is_room_for_all(self, p: Process) -> bool:
        """Whether a process and all others of its devices fit there together. Whoever of them works; what they share
        counts once, as far as that is known."""
        fit = self.overlaps.fit
        return all(fit(self._users[d], p, self._memory) for d in p.devices)
