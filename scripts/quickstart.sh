#!/usr/bin/env bash
# Installs nsgf, trains on scikit-learn's 8x8 digits with a short recipe (half as many updates of
# half the batch; `train --exp digits` is the full one), and names the page of the results last.
set -euo pipefail
echo "quickstart: installs nsgf (2 to 7 GB, once), trains on 1,797 images for about five minutes on
two cores, and ends with the path of a page, report.html. Run it again at any time."
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh" features  # evaluate needs it for the measures of digits

"$PYTHON_VENV" -m nsgf train --exp digits --batch-size 64 --nsgf.iterations 200 \
    --nsf.iterations 700 --nsf.starts 8192 --lr 2e-3 --optim.ema_decay 0.99
for command in sample evaluate report; do
    "$PYTHON_VENV" -m nsgf "$command" --exp digits
done
