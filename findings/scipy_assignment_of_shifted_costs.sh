#!/usr/bin/env bash
# scipy.optimize.linear_sum_assignment: constants of rows and columns change no result, but its time.
#
# Guess:         the time depends only on the size. Subtracting a constant from a row or a column of the
#                costs changes neither the assignment nor the time.
# What happens:  for squared distances of 1,024 points of noise to eight clusters it takes about 18
#                times as long as for the same costs minus rough potentials (row and column constants
#                of a few Sinkhorn updates in float32). The clusters alone cost a factor of about 4
#                against a Gaussian target. The assignment is the same each time.
# Remedy:        subtract such constants first; keep the costs in float64.
# Versions:      scipy 1.17.1, numpy 2.4.6
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet scipy==1.17.1 numpy==2.4.6 || exit 2
cd "$folder" && OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 venv/bin/python - <<'PY'
import statistics
import sys
import time

import numpy as np
from scipy.optimize import linear_sum_assignment

rng = np.random.default_rng(0)
n = 1024
noise = rng.normal(size=(n, 2))
angle = rng.integers(8, size=n) * np.pi / 4
clusters = 5 * np.stack([np.cos(angle), np.sin(angle)], 1) + 0.3 * rng.normal(size=(n, 2))


def squares(x, y):
    return ((x[:, None] - y[None]) ** 2).sum(2)


def shifted(costs):
    """Subtract the potentials of some Sinkhorn updates, whose regularization falls."""
    centred = (costs - costs.mean(1, keepdims=True) - costs.mean(0) + costs.mean()).astype("f4")
    g = np.zeros(n, "f4")
    for share in (0.1, 0.03, 0.01, 0.003):
        eps = share * centred.std()
        for _ in range(20):
            low = (centred - g).min(1, keepdims=True)
            f = low - eps * np.log(np.exp((g + low - centred) / eps).sum(1, keepdims=True))
            low = (centred - f).min(0)
            g = low - eps * np.log(np.exp((f + low - centred) / eps).sum(0))
    reduced = costs - (g.astype(float) + costs.mean(0))
    reduced -= reduced.min(1, keepdims=True)
    return reduced - reduced.min(0)


def solve(costs):
    """Return the assignment, and the median processor seconds of three solves."""
    seconds = []
    for _ in range(3):
        start = time.process_time()
        columns = linear_sum_assignment(costs)[1]
        seconds.append(time.process_time() - start)
    return columns, statistics.median(seconds)


costs = squares(noise, clusters)
plain, plain_seconds = solve(costs)
again, shifted_seconds = solve(shifted(costs))
_, gaussian_seconds = solve(squares(noise, rng.normal(size=(n, 2))))
print(f"clusters {plain_seconds:.3f} s, the same minus potentials {shifted_seconds:.3f} s,")
print(f"a Gaussian target {gaussian_seconds:.3f} s; equal assignments: {(plain == again).all()}")
sys.exit(not ((plain == again).all() and plain_seconds > 5 * shifted_seconds))
PY
