#!/usr/bin/env bash
# ema_pytorch: EMA(model, beta=...) gives equal averages for .999 and .9999, and differs from torch's EMA.
#
# Guess:         EMA(model, beta=0.999).update() after each step is the usual average with decay 0.999, as
#                torch.optim.swa_utils.get_ema_multi_avg_fn(0.999) computes it.
# What happens:  the first 100 calls copy the weights, then only every tenth call averages, with a decay that
#                grows as 1 - (1 + step)^(-2/3) and reaches 0.999 after 32,000 calls, 0.9999 after a million. So
#                beta 0.999 and 0.9999 give equal averages for 10,000 steps. torch's average has no such start.
#                For a weight that rises from 0 to 1 in 100 steps, torch's average is 0.06, and ema_pytorch's 0.91.
# Why it matters: in short trainings, "EMA 0.9999" means different methods in two codes.
# Remedy:        state the warm-up with the decay. EMA(model, beta=b, min_value=b, update_every=1, update_after_step=0)
#                is near torch's.
# Versions:      ema-pytorch 0.8.3, torch 2.13.0
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 ema-pytorch==0.8.3 || exit 2
cd "$folder" && OMP_NUM_THREADS=1 venv/bin/python - <<'PY'
import sys

import torch
from ema_pytorch import EMA
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


@torch.no_grad()
def averages(steps, decay):
    """Return the averages of a weight that rises: torch, ema_pytorch, constant decay."""
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.zero_()
    torch_ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    package_ema = EMA(model, beta=decay)
    constant_ema = EMA(model, beta=decay, min_value=decay, update_every=1, update_after_step=0)
    for step in range(1, steps + 1):
        model.weight.fill_(step / steps)
        torch_ema.update_parameters(model)
        package_ema.update()
        constant_ema.update()
    models = torch_ema.module, package_ema.ema_model, constant_ema.ema_model
    return [float(model.weight) for model in models]


measured = {}
for steps in (100, 1000, 10_000):
    for decay in (0.999, 0.9999):
        measured[steps, decay] = averages(steps, decay)
        print(f"{steps} steps, decay {decay}: torch {measured[steps, decay][0]:.3f}", end="")
        print(f", ema_pytorch {measured[steps, decay][1]:.3f}", end="")
        print(f", with a constant decay {measured[steps, decay][2]:.3f}")
is_equal = all(
    measured[steps, 0.999][1] == measured[steps, 0.9999][1] for steps in (100, 1000, 10_000)
)
is_unlike = measured[100, 0.999][0] < 0.1 < 0.9 < measured[100, 0.999][1]
is_near = all(abs(values[2] - values[0]) < 0.02 for values in measured.values())
sys.exit(not (is_equal and is_unlike and is_near))
PY
