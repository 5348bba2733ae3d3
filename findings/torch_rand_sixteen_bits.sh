#!/usr/bin/env bash
# torch.rand in bfloat16: 0.2 % of the draws are exactly 0, or exactly 1 after a cast.
#
# Guess:         torch.rand(n, dtype=torch.bfloat16) is 0 about as rarely as in float32 (1 in 10 million),
#                and torch.rand(n).bfloat16() stays below 1, as the documentation of rand says.
# What happens:  0.2 % of the draws are exactly 0 (float16: 0.02 %), and 0.2 % of the converted draws are exactly 1.
#                Every fourth or fifth batch of 128 has such a draw. 1,000 time steps that are drawn as
#                (1000 * torch.rand(n, dtype=torch.bfloat16)).long() have only 500 different values.
# Why it matters: 16-bit training draws times of flows and diffusions in this way. At 0 or 1, terms such as 1 / t,
#                1 / (1 - t), log t and logit t are infinite.
# Remedy:        draw times in float32, and keep them in float32.
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
n = 128 * 10_000
shares = {}
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    drawn, cast = torch.rand(n, dtype=dtype), torch.rand(n).to(dtype)
    zeros, ones = float((drawn == 0).double().mean()), float((cast == 1).double().mean())
    batches = float((drawn.view(-1, 128) == 0).any(1).double().mean())
    steps = len((1000 * drawn).long().unique())
    print(f"{dtype}: zeros {zeros:.6f}, ones after a cast {ones:.6f}", end="")
    print(f", batches of 128 with a zero {batches:.3f}, different steps of 1,000: {steps}")
    shares[dtype] = zeros, ones, batches, steps
zeros, ones, batches, steps = shares[torch.bfloat16]
is_exact = shares[torch.float32][0] < 1e-5 and shares[torch.float32][1] == 0
is_coarse = 0.001 < zeros < 0.004 and 0.001 < ones < 0.004 and batches > 0.1 and steps < 600
sys.exit(not (is_exact and is_coarse))
PY
