"""What the user is told that is no error and hardly meant; each once."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from rlinf_lab.planning.plan.device import Device
from rlinf_lab.runtime.host.state import messages, parts

_CURVES, _NEXT = "curves of GPUs of ", ". Next:"


class Remarks:
    """At the driver's host. Written under its mutex."""

    def __init__(self, post: parts.Post) -> None:
        self.untold: deque[str] = deque()
        self._all: dict[str, str] = {}  # by what they are about
        post.on(messages.Remarked, self._add)

    def _add(self, message: messages.Remarked) -> None:
        """``at_once``: to the log, for no iteration may end before it is mended."""
        if message.about in self._all:
            return
        self._all[message.about] = message.text
        if message.at_once:
            logging.getLogger("rlinf_lab").warning(message.text)
        else:
            self.untold.append(message.text)

    def all(self) -> list[str]:
        """In their order."""
        return list(self._all.values())

    def missing_curves(self) -> dict[str, str]:
        """Why GPUs of the plan have no curves of their load, by host."""
        found = {k.removeprefix(_CURVES): v for k, v in dict(self._all).items() if k.startswith(_CURVES)}
        return {name: text.split(f"{name!r}: ", 1)[1].split(_NEXT)[0] for name, text in found.items()}


def remark_of_curves(host: str, devices: Iterable[str], problem: str) -> tuple[str, str] | None:
    """What a sampler's problem is about, and in words. None where there are no GPUs among these devices."""
    if not any(Device.parse(name).kind == "cuda" for name in devices):
        return None
    advice = "nothing, the run needs none; `rlinf-lab doctor` looks at the driver."
    return _CURVES + host, f"Curves of GPUs are missing on host {host!r}: {problem}{_NEXT} {advice}"
