#!/usr/bin/env bash
# Everything that must hold: format, lint, types, the site, unit tests, then end-to-end tests.
# --all adds the slow ones (fuzzing and torture); other arguments go to the last pytest.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh" test

export OMP_NUM_THREADS=1  # threads that spin for each other on a busy machine cost a factor of ten
unit="not e2e and not slow"
e2e="e2e and not slow"
examples=quick
if [ "${1:-}" = --all ]; then
    shift
    unit="not e2e"
    e2e="e2e"
    examples=all
fi

"$PYTHON_VENV" -m ruff format --check .
"$PYTHON_VENV" -m ruff check .
"$PYTHON_VENV" -m mypy
NO_MKDOCS_2_WARNING=1 "$PYTHON_VENV" -m mkdocs build --quiet --strict
"$PYTHON_VENV" -m pytest -q -n 2 --hypothesis-profile "$examples" --dist loadfile -m "$unit" --durations 5
"$PYTHON_VENV" -m pytest -q -n 2 --hypothesis-profile "$examples" --dist loadfile -m "$e2e" --durations 5 "$@"
