"""Workers that take as many items as they ask for, not a plan's batches. ``inbox.get(6)`` is a group to plans: they
wait for as many, as a run does, and send no fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rlinf_lab.planning.fit.samples import Observed, inputs
from rlinf_lab.planning.profile.profile import RankRule, WorkerProfile


def asked_for(runs: Sequence[Observed], worker: str) -> int:
    """Items that a worker asks for at a time. The same number in all runs, other than their plans' batches; 1 where it
    takes what comes, or nobody can tell."""
    channel = _only_input(runs[0], worker)
    if not channel:
        return 1
    seen, told = set[int](), False
    for run in runs:
        micro_batch, room = (
            run.plan.micro_batches.get(channel, 0),
            run.plan.capacities.get(channel, run.graph.channel(channel).capacity),
        )
        for sizes in _sizes(run, worker, channel):
            seen.update(sizes[:-1])
            told |= bool(sizes[:-1]) and sizes[0] not in (micro_batch, room)
    return min(seen) if told and len(seen) == 1 else 1


def are_groups(
    runs: Sequence[Observed], worker: str, size: int, items: int, workers: Mapping[str, WorkerProfile]
) -> bool:
    """Whether plans can count what a worker asks for as groups of an iteration's ``items``. A generator's are of one
    key; and a source that may have several ranks would be counted in whole groups of each, though they share items one
    by one."""
    channel, graph = _only_input(runs[0], worker), runs[0].graph
    if not graph.channel(channel).is_fifo or items % size or round(runs[0].items(channel)) != items:
        return False
    return not any(
        workers[p].kind == "generation" or (not inputs(graph, p) and _may_have_several(workers[p].ranks))
        for p in graph.producers(channel)
    )


def _only_input(run: Observed, worker: str) -> str:
    """The channel of single items that alone feeds a worker outside all cells. It is empty where there is none."""
    graph, fed = run.graph, inputs(run.graph, worker)
    spec = graph.channel(fed[0]) if len(fed) == 1 and not any(worker in cell for cell in graph.cells) else None
    alone = (
        spec is not None
        and len(graph.consumers(spec.name)) == 1
        and not spec.whole
        and not spec.keyed
        and spec.group == 1
    )
    return spec.name if spec is not None and alone else ""


def _sizes(run: Observed, worker: str, channel: str) -> Iterator[list[int]]:
    yield from (
        sizes for turn in run.every_turn(worker) if (sizes := [n for n, _ in turn.moments.taken.get(channel, ())])
    )


def _may_have_several(rule: RankRule) -> bool:
    return any(rule.allows(rule.devices_per_rank * n) for n in range(2, 9))
