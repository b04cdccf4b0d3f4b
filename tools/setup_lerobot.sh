#!/usr/bin/env bash
# Make .venv-lerobot: lerobot on CPU, exactly as constraints-lerobot.txt lists it (2 GB, 2 to 6 minutes).
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf 'rlinf_lab: %s\n' "$*" >&2; }

python=${PYTHON:-python3.11}
command -v "$python" >/dev/null || { say "the pins of lerobot are for Python 3.11, and $python was not found. Next: PYTHON=/path/to/python3.11 make env-lerobot"; exit 1; }
free_gb=$(df --output=avail -BG . | tail -n 1 | tr -dc 0-9)
[ "$free_gb" -ge 5 ] || { say "lerobot needs 5 GB of disk while it is installed, and $free_gb GB are free. Next: make room, or leave lerobot out."; exit 1; }
say "installing lerobot into .venv-lerobot (2 to 6 minutes)"
[ -x .venv-lerobot/bin/python ] || "$python" -m venv .venv-lerobot
.venv-lerobot/bin/python -m pip install -q --no-deps --no-compile -r constraints-lerobot.txt 2> >(grep -v '^WARNING: Location' >&2)
.venv-lerobot/bin/python -m pip install -q --no-deps -e . 2> >(grep -v '^WARNING: Location' >&2)
say "ready"
