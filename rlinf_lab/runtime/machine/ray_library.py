"""Ray, without what its import does to the process."""

from __future__ import annotations

import sys
import threading
from typing import Any

_LOCK = threading.Lock()


def load_ray() -> Any:
    """The module ``ray``. Its first import replaces ``sys.excepthook``; here what was there is put back."""
    with _LOCK:  # runs start in the background, two at once perhaps
        before, new = sys.excepthook, "ray" not in sys.modules
        import ray

        if new:
            sys.excepthook = before
        return ray
