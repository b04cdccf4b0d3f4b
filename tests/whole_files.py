"""How pytest-xdist hands out the tests (`--dist loadgroup`): groups as they are marked, else whole files.

What a file's tests share (imports that take seconds, fixtures of the module, what was parsed or searched for once) is then there once, and not once in each
process that a test of it has come to.
"""

from __future__ import annotations

from xdist.scheduler import LoadGroupScheduling

#: Rooms whose files import the same large libraries.
TOGETHER = ("tests/generation/", "tests/simulators/")
#: Rooms whose tests start a long process each, and share nothing.
APART = ("tests/benchmarks/", "tests/notebooks/")


def scope(nodeid: str) -> str:
    """What goes to one process as a whole."""
    if nodeid.rfind("@") > nodeid.rfind("]"):
        return nodeid.rsplit("@", 1)[1]
    if nodeid.startswith(APART):
        return nodeid
    return next((room for room in TOGETHER if nodeid.startswith(room)), nodeid.partition("::")[0])


class WholeFiles(LoadGroupScheduling):
    """In the order of the collection, which `conftest` has sorted."""

    def __init__(self, config, log=None) -> None:
        config.option.loadscopereorder = False  # else by the number of tests, which says little about what they take
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)
