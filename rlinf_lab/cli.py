"""The shell's way in: ``rlinf-lab train``, ``resume``, ``evaluate``, ``runs``, ``compare``, ``demo``, ``doctor``, ``plan``, ``simulate``, ``trace``."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rlinf_lab.demo import DemoConfig
from rlinf_lab.errors import RlinfLabError, UnknownNameError
from rlinf_lab.experiment_commands import Compare, Evaluate, ListRuns, Resume, Train, in_shell, words, words_first
from rlinf_lab.experiment_commands import resume as resume_by_flags
from rlinf_lab.experiment_commands import train as train_by_flags
from rlinf_lab.planning_commands import PlanCommand, SimulateCommand, in_flags

if TYPE_CHECKING:
    from rlinf_lab.timeline import Timeline


@dataclass(frozen=True)
class Doctor:
    """What works on this machine, and the command that mends the rest."""

    json: bool = False
    """print JSON instead of a table"""


@dataclass(frozen=True)
class Demo(DemoConfig):
    """Train a robot arm under a plan that it finds by itself. With a live view; leaves runs/demo-<time>/."""


@dataclass(frozen=True)
class Trace:
    """Where the time of a run went, from its file.

    One of ours (Parquet, Arrow, Chrome JSON), or Chrome trace JSON of torch's profiler, Ray or RLinf.
    """

    file: Annotated[Path, tyro.conf.Positional]
    """a file, a run's folder, or that of a recorder that was killed"""

    summary: bool = True
    """print lanes, busy devices, bubbles by cause and the critical path"""

    json: bool = False
    """print the summary as JSON"""

    to: tuple[Path, ...] = ()
    """also write it as .html (interactive, needs no kernel), .json or .gz (Perfetto), .parquet, .svg or .png"""


Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Resume, tyro.conf.subcommand("resume")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[ListRuns, tyro.conf.subcommand("runs")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
    | Annotated[Trace, tyro.conf.subcommand("trace")]
    | Annotated[PlanCommand, tyro.conf.subcommand("plan")]
    | Annotated[SimulateCommand, tyro.conf.subcommand("simulate")]
)


#: Of each command, one that is complete.
EXAMPLES = {
    "train": "rlinf-lab train ppo CartPole-v1 --total-timesteps 100000",
    "resume": "rlinf-lab resume runs/cartpole --total-timesteps 200000", "evaluate": "rlinf-lab evaluate runs/cartpole",
    "runs": "rlinf-lab runs", "compare": "rlinf-lab compare runs/one runs/other",
    "demo": "rlinf-lab demo", "doctor": "rlinf-lab doctor", "trace": "rlinf-lab trace run.parquet",
    "plan": "rlinf-lab plan --profile profile.json --devices 64", "simulate": "rlinf-lab simulate --profile profile.json --devices 64",
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Entry point of ``rlinf-lab``. Returns the exit status; errors of ours are printed without a traceback."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print_anything()
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return _answered(given)
    except BrokenPipeError:  # whoever reads the output has seen enough (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is flushed at the end goes there
        return 141
    except KeyboardInterrupt:
        stopped()
        print("\nrlinf-lab: interrupted; everything was stopped.", file=sys.stderr)
        return 130


def stopped() -> None:
    """End what was begun, which the exit would wait for. A second Ctrl+C gives that up."""
    exits = sys.modules.get("rlinf_lab.experiments.exits")  # where it is not loaded there is nothing
    if exits is not None:
        with contextlib.suppress(KeyboardInterrupt):
            exits.stop_all()


def _answered(given: list[str]) -> int:
    """The exit status of a command."""
    command: Any = None
    try:
        if given[:1] in (["train"], ["resume"]) and words(given[1:]):
            by_flags = train_by_flags if given[0] == "train" else resume_by_flags
            return by_flags(given[1:])  # its flags are those of the algorithm
        if given[:1] == ["compare"]:
            given = ["compare", *words_first(given[1:])]
        command = tyro.cli(Command, prog="rlinf-lab", args=given)
    except RlinfLabError as error:
        print(f"rlinf-lab: {in_shell(str(error))}", file=sys.stderr)
        return 2
    except SystemExit as ended:
        if ended.code:  # what is wrong has been said; 0: somebody asked for help
            print(_next(given), file=sys.stderr)
        raise
    try:
        if isinstance(command, PlanCommand):
            if isinstance(command, SimulateCommand) and command.out is not None:
                _known_ending(command.out)  # before everything is planned and simulated
            return command.run(write_timeline)
        if isinstance(command, (Evaluate, ListRuns, Compare)):
            return command.run()
        return demo(command) if isinstance(command, Demo) else doctor(command) if isinstance(command, Doctor) else trace(command)
    except RlinfLabError as error:
        translated = in_flags if isinstance(command, PlanCommand) else in_shell
        print(f"rlinf-lab: {translated(str(error))}", file=sys.stderr)
        return 2


def _next(arguments: Sequence[str]) -> str:
    """What to type instead of arguments that are no command."""
    if any(a.split("=")[0] == "--chunks" for a in arguments):
        return "Next: --micro-batches, as --chunks is called now."
    name = next(iter(arguments[:1] if arguments[:1] and not arguments[0].startswith("-") else words(arguments)), "")
    if name not in EXAMPLES:
        name = next(iter(difflib.get_close_matches(name, EXAMPLES, n=1)), "")
    said = " ".join([name, *_whose_options(name, arguments)])
    return f"Next: {EXAMPLES[name]} (all options: rlinf-lab {said} --help)." if name else f"Next: {EXAMPLES['doctor']} (all commands: rlinf-lab --help)."


def _whose_options(name: str, arguments: Sequence[str]) -> list[str]:
    """The algorithm or the folder that options of ``name`` depend on. What was typed, where it was typed."""
    if name not in ("train", "resume"):
        return []
    return words(arguments[1:])[:1] or EXAMPLES[name].split()[2:3]


def print_anything() -> None:
    """Print signs that the terminal's encoding lacks as escapes. ASCII under cron and ssh lacks many names."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def demo(command: Demo) -> int:
    from rlinf_lab.demo import Demo as DemoRun
    from rlinf_lab.terminal import TerminalView

    try:
        DemoRun(command, TerminalView()).run()
    finally:
        if command.executor == "ray":
            from rlinf_lab.runtime.executors.ray_start import shutdown

            shutdown()
    return 0


def trace(command: Trace) -> int:
    from rlinf_lab.timeline import Timeline

    for path in command.to:
        _known_ending(path)
    timeline = Timeline.open(command.file)
    for path in command.to:
        write_timeline(timeline, path)
    if command.summary or command.json:
        summary = timeline.summary()
        print(summary.to_json() if command.json else summary)
    return 0


#: Of files that a timeline can be written to.
ENDINGS = (".html", ".json", ".gz", ".parquet", ".svg", ".png")


def write_timeline(timeline: Timeline, path: Path) -> None:
    """In the format that the ending names."""
    from rlinf_lab.widgets import timeline_html

    writers: dict[str, Callable[[Path], object]] = {
        ".html": lambda p: timeline_html(timeline, p, p.stem), ".json": timeline.to_perfetto, ".gz": timeline.to_perfetto,
        ".parquet": timeline.to_parquet, ".svg": timeline.to_svg, ".png": timeline.to_png,
    }  # fmt: skip
    _known_ending(path)
    writers[path.suffix](path)


def _known_ending(path: Path) -> None:
    if path.suffix not in ENDINGS:
        raise UnknownNameError.of("ending of a timeline's file", path.suffix, ENDINGS)


def doctor(command: Doctor) -> int:
    from rlinf_lab.checkup import doctor as examine

    report = examine()
    print(report.to_json() if command.json else report)
    return 0 if report.ok else 1
