"""The order in which a cell's members work in each step, and its rounds. The steps of an iteration are simulated as so
many rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_lab.planning.profile.profile import Profile

MAX_ROUNDS = 64  # of an iteration at most; more steps are bundled


def order(profile: Profile, members: Sequence[str]) -> list[str]:
    """The order in which a cell's members work in a step. It follows the edges from the head."""
    found = [head(profile, members)]
    for name in found:  # grows meanwhile
        found += dict.fromkeys(
            e.consumer
            for e in profile.edges
            if e.producer == name and e.consumer in members and e.consumer not in found
        )
    return found


def head(profile: Profile, members: Sequence[str]) -> str:
    """Who begins a step: a simulator, if there is one."""
    return next((m for m in members if profile.workers[m].kind == "simulator"), members[0])


def rounds(profile: Profile, members: Sequence[str]) -> int:
    """Each stands for as many steps as are bundled."""
    return max(1, min(MAX_ROUNDS, round(min(profile.workers[m].calls for m in members))))


def is_ring(profile: Profile, members: Sequence[str]) -> bool:
    """Whether all wait for each other in every step."""
    return sum(e.producer in members and e.consumer in members for e in profile.edges) <= len(members)
