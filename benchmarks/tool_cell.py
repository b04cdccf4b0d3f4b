"""Eight responses, four of which call a tool: decode steps until all are answered.

A step takes 4 ms for one or for eight, a tool 30 ms. Taken one by one and only when nothing else runs, what comes back costs steps of
its own; taken as it comes, fewer; with a step put off until it is there, as few as the longest response has tokens, in the same time.
"""

from __future__ import annotations

from harness import Case

from rlinf_lab.planning.simulator.tool_cell import ToolCell

TURNS = [(10, 2 + 3 * p) if p % 2 else (12 + 3 * p,) for p in range(8)]
"""tokens before the call and after it"""
BY_COUNT = ToolCell(step_s=0.004, tool_s=0.03, by_count=True)


def cases(smoke: bool) -> list[Case]:
    rows = []
    for tools in (1, 4):
        as_it_comes = ToolCell(step_s=0.004, tool_s=0.03, tools=tools)
        planned = as_it_comes.best(TURNS)
        times, plain, worst = (cell.simulate(TURNS) for cell in (planned, as_it_comes, BY_COUNT))
        note = f"{times.seconds:.3f} s in virtual time; {plain.seconds:.3f} s as it comes, {worst.seconds:.3f} s by count"
        rows.append(
            Case(
                f"tool_cell, {tools} tool{'s' * (tools > 1)} at once", "decode steps", lambda t=times: float(t.steps), {
                    "by count": lambda w=worst: float(w.steps), "as it comes": lambda p=plain: float(p.steps),
                }, "<= 35", "value", 1, note,
            )
        )  # fmt: skip
    return rows
