"""Ray, without what its import does to the process."""

from __future__ import annotations

import sys
from typing import Any


def load_ray() -> Any:
    """The module ``ray``. Its first import replaces ``sys.excepthook``; here what was there is put back."""
    if "ray" in sys.modules:
        return sys.modules["ray"]
    before = sys.excepthook
    import ray

    sys.excepthook = before
    return ray
