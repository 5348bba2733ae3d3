#!/usr/bin/env bash
# Installs nsgf, trains NSGF++ on scikit-learn's 8x8 digits, and shows where the results are.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh" fidelity  # evaluate needs it for the measures of digits

start=$SECONDS
"$PYTHON_VENV" -m nsgf train --exp digits
trained=$((SECONDS - start))
"$PYTHON_VENV" -m nsgf sample --exp digits
"$PYTHON_VENV" -m nsgf evaluate --exp digits
"$PYTHON_VENV" -m nsgf report --exp digits

run=$(ls -dt runs/digits-[0-9]*/ | head -n 1)
run=${run%/}
echo
echo "trained in $trained s"
echo "sample grid:        $run/samples/grid.png"
echo "trajectory picture: $run/samples/trajectory.png"
echo "metrics:            $run/metrics.json"
echo "all on one page:    $run/report.html"
