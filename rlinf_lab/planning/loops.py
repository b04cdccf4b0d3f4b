"""The script of a workflow's loop, as a finished run shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlinf_lab.planning.engine import ALL
from rlinf_lab.planning.recorded import LoopRecorded
from rlinf_lab.planning.scripts import Script, Turn, call, get, put, wait
from rlinf_lab.workflow.graph import LoopStep, WorkflowGraph


def loop_script(graph: WorkflowGraph, loops: Sequence[LoopRecorded]) -> Callable[[Turn], Script]:
    """What the loop does: its calls in order, and between them what it did itself; the recorded iterations in turn."""

    def loop(turn: Turn) -> Script:
        made = 0
        for step, items in loops[turn.iteration % len(loops)].steps:
            for number in range(made, step.before):
                yield call(number)
            made = step.before
            if step.kind == "wait":
                yield wait(step.call, step.part)
            elif step.kind == "put":
                yield put(step.channel, sum(items))
            else:
                yield from _gets(step, items)
        for number in range(made, len(graph.program)):
            yield call(number)

    return loop


def _gets(step: LoopStep, items: Sequence[int]) -> Script:
    """The gets of one step of the loop."""
    if step.items is None and items[-1] == 0:  # until the end, in the chunks of whatever plan
        while (yield get(step.channel)):
            pass
        return
    for _ in items:
        yield get(step.channel, ALL if step.items == "all" else step.items if isinstance(step.items, int) else None)
