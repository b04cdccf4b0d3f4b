#!/usr/bin/env bash
# Make .venv and install the package with everything the tests and the demo need: the pip section of environment.yml, as conda would
# hand it to pip. No root; a few minutes the first time. `tools/setup.sh --section` prints that section and does nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
read -ra section <<<"$(sed -n '/- pip:/,$ s/^ *- \(-.*\)$/\1/p' environment.yml | tr '\n' ' ')"
if [ "${1:-}" = --section ]; then
  printf '%s\n' "${section[@]}"
  exit
fi
say() { printf 'rlinf_lab: %s\n' "$*" >&2; }

python=${PYTHON:-}
if [ -z "$python" ]; then
  for candidate in python3.11 python3.12 python3.13 python3; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      python=$candidate
      break
    fi
  done
fi
[ -n "$python" ] || { say "Python 3.11 or newer is needed and was not found. Next: install it, or PYTHON=/path/to/python make ..."; exit 1; }

# uv does not read pip's configuration: hand it the places where pip would look for wheels.
with_uv() {
  local links
  links=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}
  [ -d .venv ] || uv venv --quiet --python "$python" .venv
  UV_FIND_LINKS=$links uv pip install --quiet --python .venv/bin/python --compile-bytecode "${section[@]}"
}
with_pip() {
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  # Without pip in it, an environment that uv began is completed first.
  .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip -q
  .venv/bin/python -m pip install -q "${section[@]}" 2> >(grep -v '^WARNING: Location' >&2)
}

say "installing into .venv with $("$python" --version) (2 to 6 minutes the first time)"
if command -v uv >/dev/null; then
  with_uv || { say "uv could not install; trying pip"; with_pip; }
else
  with_pip
fi
say "ready"
