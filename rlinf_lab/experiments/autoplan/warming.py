"""What a process does that may become a host soon. It has imported what workers need when it is told which."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module


def warm_up(modules: Sequence[str], env: str | None) -> None:
    """Import ``modules``, and the simulator of the id ``env``. No environment is made: some hold a port or a licence.
    """
    for module in modules:
        import_module(module)
    if env is not None:
        from rlinf_lab.vecenv import environment

        environment(env).spec(None)
