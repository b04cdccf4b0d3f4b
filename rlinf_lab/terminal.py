"""The live view of the demo in a terminal. On anything else (a log file) a line every few seconds."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

SPARKS = " ▁▂▃▄▅▆▇█"
QUIET_SECONDS = 3.0
REFRESH_SECONDS = 0.4


class TerminalView:
    """Told by `Demo` what happens; draws it."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._live: Live | None = None
        self._phases = 0
        self._last = 0.0
        self._chosen = self._over = False

    def begin(self, demo: Any) -> None:
        """Which task, on which devices."""
        config, names = demo.config, ", ".join(demo.devices if len(demo.devices) <= 8 else [*demo.devices[:7], "…", demo.devices[-1]])
        self.console.print(f"[bold]rlinf_lab demo[/]  {config.env}, PPO, seed {config.seed}, executor {config.executor}, devices {names}")
        one = len(demo.devices) == 1
        said = "one device: there is nothing to choose" if one else "the first iterations are measured, then the run plans itself"
        self.console.print(f"{said}; results go to {demo.folder}/\n", soft_wrap=True)

    def update(self, demo: Any) -> None:
        """A look at the run."""
        run = demo.training
        self._say_news(run)
        ended = run.state in ("finished", "failed", "stopped")
        now = time.monotonic()
        if self.console.is_terminal and not ended and self._live is None:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        if self._live is not None and (ended or now - self._last > REFRESH_SECONDS):
            self._last = now
            self._live.update(picture(run))
            if ended:
                self._live.stop()
                self._live = None
        elif self._live is None and not ended and now - self._last > QUIET_SECONDS:
            self._last = now
            self._say(line(run))
        if ended and not self._over:
            self._over = True
            self._say(f"  {line(run)}")

    def end(self, demo: Any, summary: dict[str, Any]) -> None:
        """What came of it, and what to open."""
        before, after = summary["success_rate_before"], summary["success_rate_after"]
        beside = " and ".join(name for name in ("learning_curve.png", "policy.mp4") if (demo.folder / name).exists())
        page = sorted(demo.folder.glob("timeline-*.html"))[-1]
        text = (
            f"greedy success on fresh seeds: {before:.0%} before, [bold]{after:.0%}[/] after, {summary['env_steps']:,} environment steps\n"
            f"{summary['seconds']:.0f} s in all, {summary['steps_per_second']:,.0f} steps/s while training\n"
            f"{told(summary)}\n"
            f"film: {demo.film}\n\n"
            f"[bold]open next[/]  {page} in a browser; {beside} beside it;\n           `make lab` for the same run in a notebook, live"
        )
        self.console.print(Panel(text, title="done", title_align="left", border_style="green" if after >= 0.95 else "yellow"))

    def _say_news(self, run: Any) -> None:
        """A new plan, and old, predicted, measured and gain as they become known."""
        for phase in run.phases[self._phases :]:
            self._say(f"[bold]plan {phase.plan.name}[/]  on {', '.join(phase.plan.devices)}")
        self._phases = len(run.phases)
        choice = None if run.auto is None else run.auto.choice
        if choice is not None and not self._chosen:
            self._chosen = True
            self.console.print(choice_table(choice))

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)


def told(summary: dict[str, Any]) -> str:
    """Old, predicted, measured and gain of the plan, or why there was nothing to choose."""
    seconds = summary["iteration_seconds"]
    if seconds is None:
        return f"plan {summary['plan']!r}: {summary['why']}"
    if seconds["predicted"] is None:
        return f"plan {summary['plan']!r} was kept, {seconds['old']:.3f} s an iteration; {summary['why']}"
    measured = "not measured" if seconds["measured"] is None else f"measured {seconds['measured']:.3f} s"
    return (
        f"an iteration: old plan {seconds['old']:.3f} s, new plan {summary['plan']!r} predicted {seconds['predicted']:.3f} s, {measured}, "
        f"[bold]gain {seconds['gain']:.2f}×[/]"
    )


def choice_table(choice: Any) -> Group:
    """The old plan and the best ones that were found, in seconds an iteration."""
    table = Table(box=None, padding=(0, 2))
    table.add_column("plan")
    table.add_column("seconds an iteration", justify="right")
    table.add_column("")
    table.add_row(choice.old.name, f"{choice.measured_s:.3f}", "measured" if choice.changes else "measured, [bold green]kept[/]")
    new = choice.new.name.removeprefix("auto ")
    for planned in list(choice.plans or ())[:4]:
        mark = "[bold green]chosen[/]" if choice.changes and planned.name == new else ""
        table.add_row(planned.name, f"{planned.seconds:.3f}", f"predicted {mark}".strip())
    return Group(Text("\nfrom the measured iterations:"), table, Text(choice.reason))


def line(run: Any) -> str:
    """How far it is."""
    rows = run.metrics
    if run.run.state == "starting" or not len(rows):
        return f"{run.plan.name}: {run.run.state}, {run.run.elapsed_seconds:.0f} s"
    last = rows.tail(4).mean(numeric_only=True)
    return (
        f"{run.plan.name}: iteration {len(rows)}, {int(rows['env_steps'].iloc[-1]):,} steps, success {last.get('success_rate', float('nan')):.0%}, "
        f"return {last.get('return', float('nan')):.0f}, {last.get('seconds', float('nan')):.3f} s an iteration"
    )


def picture(run: Any) -> Any:
    """The panel that is drawn anew while the run goes on."""
    rows, limit = run.metrics, run.config.updates
    head = Table.grid(padding=(0, 2))
    head.add_row(f"[bold]{run.state}[/]", ProgressBar(limit, run.iteration, width=36), f"update {run.iteration} of at most {limit}")
    body = Table.grid(padding=(0, 2))
    for column, style in (("success_rate", "green"), ("return", "cyan")):
        if column in rows and len(rows):
            values = rows[column].dropna().tolist()
            body.add_row(column.replace("_", " "), Text(spark(values, 0.0, 1.0 if column == "success_rate" else None), style=style), f"{values[-1]:.2f}" if values else "")
    for device, share in run.timeline.utilisation().items():
        body.add_row(f"{device} busy", Text("█" * round(36 * share) + "░" * (36 - round(36 * share)), style="blue"), f"{share:.0%}")
    causes = run.timeline.bubbles()
    text = "  ".join(f"{row.cause} {row.share:.0%}" for row in causes.itertuples() if row.share >= 0.005)
    body.add_row("bubbles", text or "none", "")
    return Panel(Group(head, body), title=f"plan {run.plan.name}", title_align="left")


def spark(values: list[float], low: float, high: float | None, width: int = 36) -> str:
    """The last values as one line of block characters."""
    values = values[-width:]
    if not values:
        return ""
    top = max(values) if high is None else high
    bottom = min([low, *values]) if high is None else low
    span = (top - bottom) or 1.0
    return "".join(SPARKS[max(0, min(8, round(8 * (v - bottom) / span)))] for v in values)
