#!/usr/bin/env bash
# Make .venv-warp: MuJoCo Warp, mjlab and what rlinf_lab needs beside them, exactly as constraints-warp.txt lists it (2 GB, 2 to 5 minutes).
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf 'rlinf_lab: %s\n' "$*" >&2; }

python=${PYTHON:-python3.11}
command -v "$python" >/dev/null || { say "the pins of MuJoCo Warp are for Python 3.11, and $python was not found. Next: PYTHON=/path/to/python3.11 make env-warp"; exit 1; }
free_gb=$(df --output=avail -BG . | tail -n 1 | tr -dc 0-9)
[ "$free_gb" -ge 5 ] || { say "MuJoCo Warp needs 5 GB of disk while it is installed, and $free_gb GB are free. Next: make room, or leave it out."; exit 1; }
say "installing MuJoCo Warp into .venv-warp (2 to 5 minutes)"
[ -x .venv-warp/bin/python ] || "$python" -m venv .venv-warp
.venv-warp/bin/python -m pip install -q --no-deps -r constraints-warp.txt 2> >(grep -v '^WARNING: Location' >&2)
.venv-warp/bin/python -m pip install -q --no-deps -e . 2> >(grep -v '^WARNING: Location' >&2)
say "ready"
