#!/usr/bin/env bash
# Everything that must hold: format, lint, types, unit tests, then the end-to-end tests.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh" test

"$PYTHON_VENV" -m ruff format --check .
"$PYTHON_VENV" -m ruff check .
"$PYTHON_VENV" -m mypy
"$PYTHON_VENV" -m pytest -q -n 2 -m "not e2e" --durations 5
"$PYTHON_VENV" -m pytest -q -n 2 --dist loadfile -m e2e --durations 5 "$@"
