#!/usr/bin/env bash
# Make .venv-vllm: vLLM on CPU and what rlinf_lab needs beside it, exactly as constraints-vllm.txt lists it (3 GB, 2 to 6 minutes).
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf 'rlinf_lab: %s\n' "$*" >&2; }

python=${PYTHON:-python3.11}
command -v "$python" >/dev/null || { say "the pins of vLLM on CPU are for Python 3.11, and $python was not found. Next: PYTHON=/path/to/python3.11 make env-vllm"; exit 1; }
free_gb=$(df --output=avail -BG . | tail -n 1 | tr -dc 0-9)
[ "$free_gb" -ge 8 ] || { say "vLLM needs 8 GB of disk while it is installed, and $free_gb GB are free. Next: make room, or leave vLLM out."; exit 1; }
say "installing vLLM on CPU into .venv-vllm (2 to 6 minutes)"
[ -x .venv-vllm/bin/python ] || "$python" -m venv .venv-vllm
.venv-vllm/bin/python -m pip install -q --no-deps --no-compile -r constraints-vllm.txt 2> >(grep -v '^WARNING: Location' >&2)
.venv-vllm/bin/python -m pip install -q --no-deps -e . 2> >(grep -v '^WARNING: Location' >&2)
say "ready"
