#!/usr/bin/env bash
# torchcfm's Sinkhorn and unbalanced pairs: independent pairs, or pairs of one point, in place of OT pairs.
#
# Guess:         OTPlanSampler("sinkhorn", reg=2 sigma^2), the plan of SB-CFM, comes closer to the exact plan as
#                sigma falls; OTPlanSampler("unbalanced") at its defaults pairs near points.
# What happens:  for noise and 8gaussians the pairs are near the exact ones at sigma = 1 and 0.5. At 0.2 all pairs have the
#                same source point. At 0.1 and below, and for "unbalanced", the plan is uniform: the pairs are
#                independent, so the training is I-CFM. In 784 dimensions this happens at sigma = 1 already.
# Why:           POT's kernel exp(-C / reg) underflows. A plan of mass below 1e-8 is replaced by the uniform one,
#                with a warning. A plan of a little more mass is scaled to 1.
# Why it matters: training runs without an error, but a comparison of SB-CFM with OT-CFM then compares I-CFM with OT-CFM.
# Remedy:        compare the cost of the pairs with the exact plan's, or take the exact plan.
# Versions:      torchcfm 1.0.7, POT 0.9.7.post1, torch 2.13.0
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 pot==0.9.7.post1 &&
  "$folder/venv/bin/pip" install --quiet --no-deps torchcfm==1.0.7 || exit 2
cd "$folder" && OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'PY'
import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import torch

# the package imports more than its plans need, so load the one file
place = Path(importlib.util.find_spec("torchcfm").origin).parent
package = types.ModuleType("torchcfm")
package.__path__ = [str(place)]
sys.modules["torchcfm"] = package
from torchcfm.optimal_transport import OTPlanSampler

torch.manual_seed(0)
n = 256
angle = torch.randint(8, (n,)) * torch.pi / 4
eight = 5 * torch.stack([angle.cos(), angle.sin()], dim=1) + 0.3 * torch.randn(n, 2)
strokes = 2 * (torch.rand(n, 784) < 0.2).float() - 1


def pairs(x, y, sampler):
    """Return the mean squared length of pairs, and how many source points they have."""
    np.random.seed(0)
    i, j = sampler.sample_map(sampler.get_map(x, y), 4 * n)
    return float((x[i] - y[j]).square().sum(1).mean()), len(np.unique(i))


measured = {}
for name, y in {"8gaussians": eight, "784 dimensions": strokes}.items():
    x = torch.randn_like(y)
    independent = float(torch.cdist(x, y).square().mean())
    samplers = {"exact": OTPlanSampler("exact"), "unbalanced": OTPlanSampler("unbalanced")}
    for sigma in (1.0, 0.5, 0.2, 0.1):
        samplers[sigma] = OTPlanSampler("sinkhorn", reg=2 * sigma**2)
    for kind, sampler in samplers.items():
        cost, sources = pairs(x, y, sampler)
        measured[name, kind] = cost / independent, sources
        kind = kind if isinstance(kind, str) else f"sinkhorn, sigma {kind}"
        print(f"{name}, {kind}: cost / cost of independent pairs {cost / independent:.2f}", end="")
        print(f"; {sources} of {n} source points")


def is_independent(*key):
    return abs(measured[key][0] - 1) < 0.03 and measured[key][1] > 200


is_right = measured["8gaussians", "exact"][0] < 0.7 and measured["8gaussians", 0.5][0] < 0.7
is_collapsed = measured["8gaussians", 0.2][1] < 20
plane_independent = all(is_independent("8gaussians", kind) for kind in ("unbalanced", 0.1))
are_independent = plane_independent and is_independent("784 dimensions", 1.0)
sys.exit(not (is_right and is_collapsed and are_independent))
PY
