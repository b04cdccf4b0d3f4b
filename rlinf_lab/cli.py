"""The shell's way in: ``rlinf-lab demo``, ``rlinf-lab doctor``."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from rlinf_lab.demo import DemoConfig
from rlinf_lab.errors import RlinfLabError


@dataclass(frozen=True)
class Doctor:
    """What works on this machine, and the command that mends the rest."""

    json: bool = False
    """print JSON instead of a table"""


@dataclass(frozen=True)
class Demo(DemoConfig):
    """Train a robot arm under two plans (one on a single core) with a live view; leaves runs/demo-<time>/."""


Command = Annotated[Demo, tyro.conf.subcommand("demo")] | Annotated[Doctor, tyro.conf.subcommand("doctor")]


def main(arguments: list[str] | None = None) -> int:
    """Entry point of ``rlinf-lab``. Returns the exit status; errors of ours are printed without a traceback."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    command = tyro.cli(Command, prog="rlinf-lab", args=arguments)
    try:
        return demo(command) if isinstance(command, Demo) else doctor(command)
    except RlinfLabError as error:
        print(f"rlinf-lab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nrlinf-lab: interrupted; everything was stopped.", file=sys.stderr)
        return 130


def demo(command: Demo) -> int:
    from rlinf_lab.demo import Demo as DemoRun
    from rlinf_lab.runtime.ray_executor import shutdown
    from rlinf_lab.terminal import TerminalView

    try:
        DemoRun(command, TerminalView()).run()
    finally:
        shutdown()
    return 0


def doctor(command: Doctor) -> int:
    from rlinf_lab.doctor import doctor as examine

    report = examine()
    print(report.to_json() if command.json else report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
