#!/usr/bin/env bash
# geomloss.SamplesLoss("sinkhorn", reach=...): the value is right, the gradient is too small.
#
# Guess:         the gradient of an unbalanced Sinkhorn loss is the derivative of its value.
# What happens:  the gradient is the derivative times (rho + eps/2) / (rho + eps), with eps = blur^2
#                and rho = reach^2: three quarters of the derivative if reach = blur. Without
#                reach the gradient is right.
# Why:           UnbalancedWeight has a method `backward` with the factor rho + eps. It is a
#                torch.nn.Module, whose `backward` autograd never calls.
# Check:         one point of mass 1 at x and one at y. A plan of mass m costs
#                m C + (eps + 2 rho) (m log m - m + 1) with C = |x - y|^2 / 2, so m = exp(-C / (eps + 2 rho)),
#                the value is (eps + 2 rho) (1 - m), and its derivative in x is m (x - y).
# Versions:      geomloss 0.3.1, torch 2.13.0
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 geomloss==0.3.1 numpy==2.4.6 || exit 2
cd "$folder" && venv/bin/python - <<'PY'
import math
import sys

import torch
from geomloss import SamplesLoss

blur = 0.5
eps = blur**2
x = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
y = torch.tensor([[0.6, 0.3]], dtype=torch.float64)
cost = float((x - y).square().sum()) / 2
x.requires_grad_()
same = True
for reach in (0.25, 0.5, 1.0, 4.0):
    rho = reach**2
    loss = SamplesLoss("sinkhorn", p=2, blur=blur, reach=reach, scaling=0.99, backend="tensorized")
    value = loss(x, y)
    (gradient,) = torch.autograd.grad(value, x)
    mass = math.exp(-cost / (eps + 2 * rho))
    value_ratio = float(value.detach()) / ((eps + 2 * rho) * (1 - mass))
    gradient_ratio = float(gradient[0, 0] / (mass * (x - y).detach()[0, 0]))
    expected = (rho + eps / 2) / (rho + eps)
    print(
        f"reach {reach}: value / exact {value_ratio:.4f}, gradient / exact {gradient_ratio:.4f}, "
        f"(rho + eps/2) / (rho + eps) {expected:.4f}"
    )
    same &= abs(value_ratio - 1) < 0.002 and abs(gradient_ratio - expected) < 0.002
sys.exit(not same)
PY
