#!/usr/bin/env bash
# Installs nsgf, trains NSGF++ on scikit-learn's 8x8 digits, and names the page of the results last.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh" fidelity  # evaluate needs it for the measures of digits

for command in train sample evaluate report; do
    "$PYTHON_VENV" -m nsgf "$command" --exp digits
done
