#!/usr/bin/env bash
# torchdiffeq, adaptive solvers: one tolerance for the batch, so the error of a sample grows with the batch.
#
# Guess:         rtol and atol bound the error of each row, as if each row were solved separately. A batch takes the
#                steps that its hardest row needs.
# What happens:  the error that is compared with the tolerance is the root mean square over the batch. A hard
#                row beside n - 1 easy rows may have an error that is sqrt(n) times as large. For one hard row the
#                error is 3e-5 by itself, 3e-4 in a batch of 10, and 3e-3 in a batch of 1,000 (rtol = atol =
#                1e-5), and the number of network calls falls from 404 to 224.
# Why it matters: samples, likelihoods and "NFE of dopri5" depend on the batch size of the evaluation.
# Remedy:        a fixed number of steps; or one batch size in all comparisons and a smaller tolerance.
# Versions:      torchdiffeq 0.2.5, torch 2.13.0
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 torchdiffeq==0.2.5 numpy==2.4.6 || exit 2
cd "$folder" && venv/bin/python - <<'PY'
import math
import sys

import torch
from torchdiffeq import odeint


def error_and_calls(easy_rows):
    """Return the error of the row y = exp(sin(8 pi t)) beside slow rows, and the calls."""
    turns = torch.tensor([4.0] + easy_rows * [0.1], dtype=torch.float64)
    frequency = 2 * math.pi * turns[:, None]
    calls = 0

    def velocity(t, y):
        nonlocal calls
        calls += 1
        return frequency * torch.cos(frequency * t) * y

    start = torch.ones(1 + easy_rows, 1, dtype=torch.float64)
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    last = odeint(velocity, start, ends, method="dopri5", rtol=1e-5, atol=1e-5)[-1]
    return abs(float(last[0]) - math.exp(math.sin(float(frequency[0])))), calls


measured = []
for rows in (1, 10, 100, 1000):
    error, calls = error_and_calls(rows - 1)
    print(f"{rows:4} rows: error of the hard row {error:.1e}, calls {calls}")
    measured.append((error, calls))
is_growing = measured[1][0] > 3 * measured[0][0] and measured[3][0] > 30 * measured[0][0]
sys.exit(not (is_growing and measured[3][1] < measured[0][1]))
PY
