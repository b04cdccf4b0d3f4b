"""``python -m rlinf_lab``: the same as ``rlinf-lab``."""

from __future__ import annotations

import sys

from rlinf_lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
