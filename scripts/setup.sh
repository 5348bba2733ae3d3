#!/usr/bin/env bash
# Makes .venv in the repository and installs nsgf into it, once. Usage: . scripts/setup.sh EXTRA
# Sourced by quickstart.sh and test.sh; leaves $PYTHON_VENV.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extra="${1:-}"
PYTHON_VENV=.venv/bin/python
stamp=".venv/installed${extra:+-$extra}"

find_python() {
    local name
    for name in "${PYTHON:-}" python3 python3.12 python3.13 python3.11 python3.10 python3.14 python; do
        if [ -n "$name" ] && "$name" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "no Python 3.10 to 3.14 found; name one with PYTHON=/path/to/python" >&2
    exit 2
}

if [ ! -x "$PYTHON_VENV" ]; then
    base=$(find_python)
    "$base" -m venv .venv
fi
if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
    echo "installing into .venv (about two minutes the first time)"
    "$PYTHON_VENV" -m pip install --quiet --disable-pip-version-check --editable ".${extra:+[$extra]}"
    if [ "$extra" = test ]; then  # torchcfm's matchers need none of the 45 packages it asks for
        "$PYTHON_VENV" -m pip install --quiet --disable-pip-version-check --no-deps "torchcfm>=1.0.7"
    fi
    touch "$stamp"
fi
