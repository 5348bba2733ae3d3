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

pip_install() {
    "$PYTHON_VENV" -m pip install --quiet --disable-pip-version-check "$@"
}

wants_cpu_build() {  # torch for Linux has CUDA libraries of 5 GB, except at this index
    cpu_index=https://download.pytorch.org/whl/cpu
    [ "$(uname)" = Linux ] && ! nvidia-smi >/dev/null 2>&1 && "$PYTHON_VENV" -c \
        "from urllib.request import urlopen; urlopen('$cpu_index/torch/', timeout=10)" 2>/dev/null
}

if [ ! -x "$PYTHON_VENV" ]; then
    base=$(find_python)
    "$base" -m venv .venv
fi
if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
    echo "installing into .venv: a few minutes; 7 GB, or 2 GB where torch's CPU build can be used"
    if wants_cpu_build; then pip_install --index-url "$cpu_index" torch torchvision; fi
    pip_install --editable ".${extra:+[$extra]}"
    # torchcfm needs none of the 45 packages it asks for, except torchdyn for its 2D sets
    if [ "$extra" = test ]; then pip_install --no-deps "torchcfm>=1.0.7" "torchdyn>=1.0.6"; fi
    touch "$stamp"
fi
