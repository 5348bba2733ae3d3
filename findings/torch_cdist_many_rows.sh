#!/usr/bin/env bash
# torch.cdist in float32: with a 26th row the distances lose their digits.
#
# Guess:         torch.cdist(x, x) has zeros on its diagonal, a point is its nearest neighbour, and a 26th
#                point does not change the distances between the first 25 points.
# What happens:  from 26 rows on, squared distances are computed as |x|^2 + |y|^2 - 2 x.y, where large terms
#                cancel. For points of size 0.5 around 100, the diagonal is no longer 0, and with 500 points
#                nine of ten nearest neighbours are wrong. A copy of a picture of 784 pixels in [0, 1] is up to
#                0.01 away from the picture.
# Why it matters: precision and recall, the search for copies of training data, the energy distance and kernels
#                all depend on small distances.
# Remedy:        compute_mode="donot_use_mm_for_euclid_dist", float64, or subtract the mean first.
# Versions:      torch 2.13.0
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 || exit 2
cd "$folder" && venv/bin/python - <<'PY'
import sys

import torch

torch.manual_seed(0)
points = 100 + 0.5 * torch.rand(500, 2)


def neighbours(distances):
    return distances.clone().fill_diagonal_(torch.inf).argmin(1)


few, more = torch.cdist(points[:25], points[:25]), torch.cdist(points[:26], points[:26])
print(f"largest of the diagonal: 25 rows {float(few.diag().max()):.4f}", end="")
print(f", 26 rows {float(more.diag().max()):.4f}")
change = float((more[:25, :25] - few).abs().max())
print(f"largest change of a distance between the 25 by the 26th row {change:.4f}")

exact = neighbours(torch.cdist(points.double(), points.double()))
wrong = float((neighbours(torch.cdist(points, points)) != exact).double().mean())
mode = "donot_use_mm_for_euclid_dist"
remedied = float(
    (neighbours(torch.cdist(points, points, compute_mode=mode)) != exact).double().mean()
)
print(f"500 rows: wrong nearest neighbours {wrong:.3f}; with {mode} {remedied:.3f}")

pictures = torch.rand(100, 784)
copies = float(torch.cdist(pictures, pictures).diag().max())
print(f"largest distance of a picture of 784 pixels to its copy {copies:.4f}")
is_zero = float(few.diag().max()) == 0 and remedied < 0.02
is_wrong = float(more.diag().max()) > 1e-3 and change > 1e-3 and wrong > 0.5 and copies > 1e-3
sys.exit(not (is_zero and is_wrong))
PY
