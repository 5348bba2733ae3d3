#!/usr/bin/env bash
# torch.randn on a CPU: the first numbers depend on how many are drawn.
#
# Guess:         with one seed, torch.randn(1000) equals the first 1,000 of torch.randn(2000), as it is for
#                torch.rand and for numpy.
# What happens:  up to 16 numbers at the end of a size that is no multiple of 16 are different. Sizes below
#                16 use another algorithm, and have no number in common. Drawing in parts of 100 changes nearly
#                all numbers.
# Why it matters: "the same noise" of two batch sizes, of a table of 1,000 and one of 2,000 samples, or of a larger
#                and a smaller picture is not the same.
# Remedy:        draw sizes (rows x columns) that are multiples of 16, or draw once and slice.
# Versions:      torch 2.13.0, numpy 2.4.6
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 || exit 2
cd "$folder" && venv/bin/python - <<'PY'
import sys

import numpy as np
import torch


def normal(count):
    return torch.randn(count, generator=torch.Generator().manual_seed(0))


def uniform(count):
    return torch.rand(count, generator=torch.Generator().manual_seed(0))


def numpy_normal(count):
    return torch.tensor(np.random.default_rng(0).standard_normal(count))


def changed(draw, few, many):
    """Return how many of the first numbers differ between both sizes."""
    return int((draw(few) != draw(many)[:few]).sum())


counts = {}
for few, many in ((8, 16), (1000, 2000), (1008, 2000)):
    counts[few] = [changed(draw, few, many) for draw in (normal, uniform, numpy_normal)]
    print(f"first {few} of {many}: torch.randn {counts[few][0]} different, ", end="")
    print(f"torch.rand {counts[few][1]}, numpy {counts[few][2]}")
generator = torch.Generator().manual_seed(0)
parts = torch.cat([torch.randn(100, generator=generator) for _ in range(10)])
in_parts = int((parts != normal(1000)).sum())
print(f"1,000 in ten parts: {in_parts} different from 1,000 at once")
is_changed = counts[8][0] == 8 and 0 < counts[1000][0] <= 16 and in_parts > 100
sys.exit(
    not (is_changed and counts[8][1:] == counts[1000][1:] == [0, 0] and counts[1008] == [0, 0, 0])
)
PY
