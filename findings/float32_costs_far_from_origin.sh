#!/usr/bin/env bash
# POT, torchcfm and ott-jax in float32: transport of points far from the origin is wrong, without a warning.
#
# Guess:         a translation of both clouds changes no plan and no cost, up to the rounding of the points
#                (1e-3 at an offset of 10,000).
# What happens:  at 10,000, for clouds of size 1 whose squared W2 is about 2: ot.dist and ot.emd2 return 0;
#                torchcfm's "optimal" pairs cost nearly as much as random pairs; ott-jax says "converged"
#                and returns a cost of about -1e26. Squared distances are computed as |x|^2 + |y|^2 - 2 x.y,
#                where large terms cancel.
# Why it matters: raw coordinates (positions in a map, times, counts of 16 bits) have such offsets.
# Remedy:        subtract one mean from both clouds, or use float64.
# Versions:      POT 0.9.7.post1, torchcfm 1.0.7, torch 2.13.0, ott-jax 0.6.0, jax 0.10.2
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 pot==0.9.7.post1 ott-jax==0.6.0 jax==0.10.2 &&
  "$folder/venv/bin/pip" install --quiet --no-deps torchcfm==1.0.7 || exit 2
cd "$folder" && JAX_PLATFORMS=cpu venv/bin/python - <<'PY'
import importlib.util
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import ot
import torch
from ott.geometry.pointcloud import PointCloud
from ott.solvers import linear

# the package imports more than its plans need, so load the one file
place = Path(importlib.util.find_spec("torchcfm").origin).parent
package = types.ModuleType("torchcfm")
package.__path__ = [str(place)]
sys.modules["torchcfm"] = package
from torchcfm.optimal_transport import OTPlanSampler

warnings.simplefilter("error")
rng = np.random.default_rng(0)
x, y = rng.normal(size=(256, 2)), rng.normal(size=(256, 2)) + 1
random_pairs = ot.dist(x, y).mean()
sampler = OTPlanSampler("exact")
measured = {}
for offset in (0, 1_000, 10_000):
    a, b = (x + offset).astype(np.float32), (y + offset).astype(np.float32)
    exact = ot.emd2([], [], ot.dist(a.astype(float), b.astype(float)))
    plan = sampler.get_map(torch.tensor(a), torch.tensor(b))
    pairs = (plan * ot.dist(x, y)).sum()
    solution = linear.solve(PointCloud(a, b, epsilon=0.5))
    measured[offset] = (
        exact,
        float(ot.emd2([], [], ot.dist(a, b))),
        pairs,
        float(solution.reg_ot_cost),
    )
    print(f"offset {offset:6}: squared W2 {exact:.3f}, POT {measured[offset][1]:.3f}", end="")
    print(f", torchcfm's pairs {pairs:.3f} (random {random_pairs:.3f})", end="")
    print(f", ott-jax {measured[offset][3]:.3g} (converged: {bool(solution.converged)})")
near, far = measured[0], measured[10_000]
is_right = abs(near[1] / near[0] - 1) < 1e-3 and abs(near[2] / near[0] - 1) < 1e-3
is_wrong = far[1] == 0 and far[2] > 0.5 * (far[0] + random_pairs) and far[3] < 0
sys.exit(not (is_right and abs(far[0] / near[0] - 1) < 1e-2 and is_wrong))
PY
