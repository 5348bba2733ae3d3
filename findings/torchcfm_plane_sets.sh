#!/usr/bin/env bash
# torchcfm.utils: 8gaussians has three times the variance that its code names, and the noise of
# moons lies along the diagonal.
#
# Guess:         sample_8gaussians, which calls eight_normal_sample(n, 2, scale=5, var=0.1), draws
#                Gaussians of variance 0.1; sample_moons draws scikit-learn's moons, noise 0.2, by 3x - 1.
# What happens:  a Gaussian has variance 0.316 = sqrt(0.1) in each coordinate, because the square root
#                is passed on as a covariance. The moons are torchdyn's: the noise is one uniform number
#                in [0, 0.2) for both coordinates of a point.
# Why it matters: published W2 of OT-CFM and related methods in the plane are distances to these sets.
# Versions:      torchcfm 1.0.7, torchdyn 1.0.6, torch 2.13.0
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 POT==0.9.7.post1 scikit-learn==1.9.1 matplotlib==3.11.2 &&
  "$folder/venv/bin/pip" install --quiet --no-deps torchcfm==1.0.7 torchdyn==1.0.6 || exit 2
cd "$folder" && venv/bin/python - <<'PY'
import math
import sys

import numpy as np
import torch
from torchcfm.utils import sample_8gaussians, sample_moons

torch.manual_seed(0)
np.random.seed(0)
points = sample_8gaussians(20_000)
angles = torch.arange(8) * (math.pi / 4)
centres = 5 * torch.stack([angles.cos(), angles.sin()], dim=1)
variance = float((points - centres[torch.cdist(points, centres).argmin(1)]).var())
print(f"8gaussians: variance of a part {variance:.3f}; named .1; its root {math.sqrt(0.1):.3f}")

half = 10_000
arc = np.linspace(0, np.pi, half)
upper = np.stack([np.cos(arc), np.sin(arc)], axis=1)
lower = np.array([1, 0.5]) - upper
noise = (sample_moons(2 * half).numpy() + 1) / 3 - np.concatenate([upper, lower])
difference = np.abs(noise[:, 0] - noise[:, 1]).max()
print(f"moons: noise from {noise.min():.4f} to {noise.max():.4f}")
print(f"moons: largest difference between the noise of both coordinates {difference:.1e}")
is_uniform = noise.min() > -1e-5 and 0.199 < noise.max() < 0.20001
sys.exit(not (0.30 < variance < 0.33 and is_uniform and difference < 1e-5))
PY
