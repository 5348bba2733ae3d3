#!/usr/bin/env bash
# geomloss.SamplesLoss("energy") and p=1: distances below 1e-4 count as 1e-4.
#
# Guess:         the energy distance is homogeneous: points 100,000 times smaller have a value 100,000
#                times smaller, in float64 to many digits.
# What happens:  at a scale of 1e-4 the value is 23 % too low, at 1e-5 it is exactly 0, and so is the gradient.
#                SamplesLoss("sinkhorn", p=1) has the same limit.
# Also:          the value is E|x - y| - E|x - x'| / 2 - E|y - y'| / 2, half of the energy distance.
#                scipy.stats.energy_distance returns the root of the energy distance.
# Why it matters: data in metres, volts or shares often have this size. A loss of 0 looks like success.
# Remedy:        standardise the columns first.
# Versions:      geomloss 0.3.1, torch 2.13.0, scipy 1.17.1
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 geomloss==0.3.1 numpy==2.4.6 scipy==1.17.1 || exit 2
cd "$folder" && venv/bin/python - <<'PY'
import sys

import torch
from geomloss import SamplesLoss
from scipy.stats import energy_distance

torch.manual_seed(0)
x = torch.randn(200, 1, dtype=torch.float64)
y = torch.randn(200, 1, dtype=torch.float64) + 1
losses = {
    "energy": lambda scale: SamplesLoss("energy", backend="tensorized"),
    "sinkhorn, p=1": lambda scale: SamplesLoss(
        "sinkhorn", p=1, blur=scale / 100, scaling=0.9, backend="tensorized"
    ),
}
measured = {}
for name, loss in losses.items():
    for scale in (1, 1e-2, 1e-4, 1e-5):
        points = (x * scale).requires_grad_()
        value = loss(scale)(points, y * scale)
        (gradient,) = torch.autograd.grad(value, points)
        measured[name, scale] = float(value.detach()) / scale, float(gradient.norm())
        print(f"{name}, scale {scale}: value / scale {measured[name, scale][0]:.4f}", end="")
        print(f", gradient {measured[name, scale][1]:.4f}")
root = energy_distance(x[:, 0], y[:, 0])
half = measured["energy", 1][0]
print(f"scipy {root:.4f}, root of twice the value of geomloss {(2 * half) ** 0.5:.4f}")
is_zero = all(measured[name, 1e-5] == (0, 0) for name in losses)
is_low = 0.5 < measured["energy", 1e-4][0] / half < 0.98
sys.exit(not (is_zero and is_low and abs(root - (2 * half) ** 0.5) < 1e-4))
PY
