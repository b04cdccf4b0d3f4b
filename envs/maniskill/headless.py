"""ManiSkill without a Vulkan device.

State observations need no picture, but building a task asks for render materials.

SAPIEN's render material is replaced by a plain holder of attributes and the builders' visuals are left out, before ManiSkill is imported.
Physics is untouched.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

_PROBE = "import sapien.render as r; r.RenderMaterial(); print('vulkan')"
_KNOWN = "RLINF_LAB_VULKAN"  # inherited by child processes, so that one probe serves all ranks


def has_vulkan() -> bool:
    """Whether SAPIEN finds a rendering device. Asked once, in a process of its own: a failure can end the process."""
    if _KNOWN not in os.environ:
        try:
            done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=60)
            found = done.returncode == 0 and "vulkan" in done.stdout
        except subprocess.TimeoutExpired:
            found = False
        os.environ[_KNOWN] = "1" if found else "0"
    return os.environ[_KNOWN] == "1"


class PlainMaterial:
    """Takes any attribute and keeps it."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.startswith("set_"):
            return lambda *args, **kwargs: None
        return None


def do_without_vulkan() -> None:
    """Replace what asks for a rendering device. Must run before ``mani_skill`` is imported."""
    import sapien
    from sapien.wrapper.actor_builder import ActorBuilder

    sapien.render.RenderMaterial = PlainMaterial
    for name in dir(ActorBuilder):
        if name.startswith("add_") and "visual" in name:
            setattr(ActorBuilder, name, lambda self, *args, **kwargs: self)
