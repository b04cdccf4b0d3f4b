"""Programs with a Ray of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path


def output_of(folder: Path, program: str, *arguments: str, **environment: str) -> str:
    """What it has said when it has ended well, within four minutes."""
    (path := folder / "program.py").write_text(textwrap.dedent(program))
    around = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | environment
    done = subprocess.run([sys.executable, str(path), *arguments], capture_output=True, text=True, timeout=240, env=around)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout.strip()
