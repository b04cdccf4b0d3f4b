"""``python -m rlinf_lab``, and what the command ``rlinf-lab`` calls."""

from __future__ import annotations

import sys


def main() -> int:
    """The exit status of a command. To import what it needs takes seconds, in which Ctrl+C is one line, too."""
    try:
        from rlinf_lab.cli import main as answer
    except KeyboardInterrupt:
        print("\nrlinf-lab: interrupted; nothing had begun.", file=sys.stderr)
        return 130
    return answer()


if __name__ == "__main__":
    sys.exit(main())
