#!/usr/bin/env bash
# torchdiffeq, method "explicit_adams": smaller steps, larger errors.
#
# Guess:         with half the step size the error of a multistep method falls, by 2 to the power of
#                its order, until rounding is reached.
# What happens:  on y' = -y from 0 to 1 in float64, the error is 2e-4 with steps of 1/10, and grows to
#                several tenths with steps of 1/80. rk4 at the same steps goes from 3e-7 to 8e-11.
# Remedy:        use "rk4", "dopri5" or "implicit_adams"; check a solver by halving its steps.
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

ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
errors = {}
for method in ("explicit_adams", "implicit_adams", "rk4"):
    errors[method] = []
    for steps in (10, 20, 40, 80):
        start = torch.ones(1, dtype=torch.float64)
        end = odeint(
            lambda t, y: -y, start, ends, method=method, options={"step_size": 1 / steps}
        )[-1]
        errors[method].append(abs(float(end) - math.exp(-1)))
    print(f"{method:15}", "  ".join(f"{error:.1e}" for error in errors[method]))
adams, rk4 = errors["explicit_adams"], errors["rk4"]
sys.exit(not (adams[3] > 100 * adams[0] and rk4[3] < 0.01 * rk4[0]))
PY
