#!/usr/bin/env bash
# geomloss.ot.solve: the gradient is twice the derivative of the value.
#
# Guess:         for the entropic cost, d value / d C is the transport plan (envelope theorem).
# What happens:  for geomloss.ot.solve, autograd returns twice the plan. For solve_sample, it returns a
#                gradient in x that is twice the central difference of the value.
# Also:          solve_sample has the cost |x - y|^2 without 1/2, and blur means reg = 2 blur^2. So its
#                value is twice that of geomloss.SamplesLoss("sinkhorn", p=2, blur=blur, debias=False).
# Versions:      geomloss 0.3.1, torch 2.13.0
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 geomloss==0.3.1 numpy==2.4.6 || exit 2
cd "$folder" && venv/bin/python -W ignore - <<'PY'
import sys

import torch
from geomloss import SamplesLoss, ot

torch.manual_seed(0)
x = torch.randn(7, 2, dtype=torch.float64)
y = torch.randn(9, 2, dtype=torch.float64) + 1
blur = 0.7
reg = 2 * blur**2
steps = 2000

cost = (x[:, None] - y).square().sum(2).requires_grad_()
solution = ot.solve(cost, reg=reg, max_iter=steps)
(gradient,) = torch.autograd.grad(solution.value, cost)
plan = solution.plan.detach()
matrix_ratio = float((gradient * plan).sum() / plan.square().sum())
print(f"solve: mass of the plan {float(plan.sum()):.6f}, gradient in C / plan {matrix_ratio:.4f}")


def value(points):
    return ot.solve_sample(points, y, blur=blur, max_iter=steps).value


points = x.clone().requires_grad_()
(gradient,) = torch.autograd.grad(value(points), points)
step = torch.zeros_like(x)
step[0, 0] = 1e-4
difference = float(value(x + step) - value(x - step)) / 2e-4
point_ratio = float(gradient[0, 0]) / difference
print(f"solve_sample: gradient in x / central difference {point_ratio:.4f}")

loss = SamplesLoss("sinkhorn", p=2, blur=blur, debias=False, scaling=0.99, backend="tensorized")
value_ratio = float(value(x)) / float(loss(x, y))
print(f"value of solve_sample(blur) / value of SamplesLoss(blur): {value_ratio:.4f}")

ratios = (matrix_ratio, point_ratio, value_ratio)
sys.exit(not all(abs(ratio - 2) < 0.02 for ratio in ratios))
PY
