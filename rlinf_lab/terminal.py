"""The live view of the demo in a terminal; on anything else (a log file) a line every few seconds."""

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
        self._phase: Any = None
        self._limit = 1
        self._last = 0.0
        self._bubbles: Any = None

    def begin(self, demo: Any, plans: list[Any]) -> None:
        config, names = demo.config, ", ".join(demo.devices)
        self.console.print(f"[bold]rlinf_lab demo[/]  {config.env}, PPO, seed {config.seed}, executor {config.executor}, devices {names}")
        plain = "one device, so there is only the temporal plan: it is kept throughout, and the prediction for it is checked"
        choice = plain if len(plans) == 1 else f"candidate plans: {', '.join(p.name for p in plans)}"
        self.console.print(f"{choice}; results go to {demo.folder}/\n")

    def phase(self, phase: Any, demo: Any) -> None:
        self._phase, self._limit = phase, demo.ppo.updates
        self.console.print(f"[bold]plan {phase.plan.name}[/]  (starting the hosts)")
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()

    def update(self, phase: Any) -> None:
        ended = phase.run.state in ("finished", "failed", "stopped")
        now = time.monotonic()
        if self._live is not None and (ended or now - self._last > REFRESH_SECONDS):
            self._last = now
            self._live.update(self._picture(phase))
            if ended:
                self._live.stop()
                self._live = None
        elif self._live is None and not ended and now - self._last > QUIET_SECONDS:
            self._last = now
            self.console.print(self._line(phase), highlight=False, soft_wrap=True)
        if ended:
            self.console.print(f"  {self._line(phase)}", highlight=False, soft_wrap=True)

    def choice(self, predictions: dict[str, float], best: Any) -> None:
        self.console.print("\npredicted by the simulator from the measured run:")
        table = Table(box=None, padding=(0, 2))
        table.add_column("plan")
        table.add_column("seconds an iteration", justify="right")
        table.add_column("")
        for name, seconds in sorted(predictions.items(), key=lambda item: item[1]):
            mark = "[bold green]chosen[/]" if name == best.name and len(predictions) > 1 else ""
            table.add_row(name, f"{seconds:.3f}", mark)
        self.console.print(table)

    def end(self, demo: Any, summary: dict[str, Any]) -> None:
        before, after = summary["success_rate_before"], summary["success_rate_after"]
        beside = " and ".join(name for name in ("learning_curve.png", "policy.mp4") if (demo.folder / name).exists())
        text = (
            f"greedy success on fresh seeds: {before:.0%} before, [bold]{after:.0%}[/] after, {summary['env_steps']:,} environment steps\n"
            f"{summary['seconds']:.0f} s in all, {summary['steps_per_second']:,.0f} steps/s while training\n"
            f"iteration under {summary['plan']!r}: predicted {summary['iteration_seconds_predicted']:.3f} s, "
            f"measured {summary['iteration_seconds_measured']:.3f} s (temporal: {summary['iteration_seconds_temporal']:.3f} s)\n"
            f"film: {demo.film}\n\n"
            f"[bold]open next[/]  {demo.folder}/timeline-2-{summary['plan']}.html in a browser; "
            f"{beside} beside it;\n           `make lab` for the same run in a notebook, live"
        )
        self.console.print(Panel(text, title="done", title_align="left", border_style="green" if after >= 0.95 else "yellow"))

    # --- drawing -------------------------------------------------------------------------------------------
    def _line(self, phase: Any) -> str:
        rows = phase.training
        if not len(rows):
            return f"{phase.plan.name}: {phase.run.state}, {phase.run.elapsed_seconds:.0f} s"
        last = rows.tail(4).mean(numeric_only=True)
        return (
            f"{phase.plan.name}: iteration {len(rows)}, {int(rows['env_steps'].iloc[-1]):,} steps, "
            f"success {last.get('success_rate', float('nan')):.0%}, return {last.get('return', float('nan')):.0f}, {last['seconds']:.3f} s an iteration"
        )

    def _picture(self, phase: Any) -> Any:
        run, rows = phase.run, phase.training
        done = int(rows["env_steps"].iloc[-1] / (rows["env_steps"].iloc[0] or 1)) if len(rows) else 0
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(self._limit, min(done, self._limit), width=36)
        head.add_row(f"[bold]{run.state}[/]", bar, f"update {done} of at most {self._limit}", f"{run.elapsed_seconds:.0f} s")
        body = Table.grid(padding=(0, 2))
        for column, style in (("success_rate", "green"), ("return", "cyan")):
            if column in rows and len(rows):
                values = rows[column].dropna().tolist()
                line = spark(values, 0.0, 1.0 if column == "success_rate" else None)
                body.add_row(column.replace("_", " "), Text(line, style=style), f"{values[-1]:.2f}" if values else "")
        for device, share in run.timeline.utilisation().items():
            body.add_row(f"{device} busy", Text("█" * round(36 * share) + "░" * (36 - round(36 * share)), style="blue"), f"{share:.0%}")
        causes = run.timeline.bubbles()
        text = "  ".join(f"{row.cause} {row.share:.0%}" for row in causes.itertuples() if row.share >= 0.005)
        body.add_row("bubbles", text or "none", "")
        return Panel(Group(head, body), title=f"plan {phase.plan.name}", title_align="left")


def spark(values: list[float], low: float, high: float | None, width: int = 36) -> str:
    """The last values as one line of block characters."""
    values = values[-width:]
    top = max(values) if high is None else high
    bottom = min([low, *values]) if high is None else low
    span = (top - bottom) or 1.0
    return "".join(SPARKS[max(0, min(8, round(8 * (v - bottom) / span)))] for v in values)
