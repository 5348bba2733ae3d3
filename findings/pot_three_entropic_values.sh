#!/usr/bin/env bash
# POT: one entropic plan has three values, depending on the function.
#
# Guess:         for one cost and one reg, ot.sinkhorn2, ot.solve(...).value and ot.solve_batch(...).value agree.
# What happens:  the plans agree, the values do not. sinkhorn2 returns <C, P>; solve adds reg times the
#                Kullback-Leibler divergence of P to the product of the weights; solve_batch adds reg times
#                the sum of P log P, so its value may be negative.
# Why it matters: a loss or a distance that moves from one call to the other changes by reg log(n m),
#                6 reg for 20 and 20 points, and "entropic OT cost" in a table may be any of the three.
# Remedy:        compare value_linear; solve_batch(reg_type="kl") agrees with solve.
# Versions:      POT 0.9.7.post1, numpy 2.4.6
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet pot==0.9.7.post1 numpy==2.4.6 || exit 2
cd "$folder" && venv/bin/python - <<'PY'
import sys

import numpy as np
import ot

rng = np.random.default_rng(0)
n, reg = 20, 0.5
cost = ot.dist(rng.normal(size=(n, 2)), rng.normal(size=(n, 2)) + 1)
single = ot.solve(cost, reg=reg)
batch = ot.solve_batch(cost[None], reg=reg, max_iter=5000, tol=1e-9)
batch_kl = ot.solve_batch(cost[None], reg=reg, max_iter=5000, tol=1e-9, reg_type="kl")
linear = float(ot.sinkhorn2([], [], cost, reg))
values = linear, float(single.value), float(batch.value[0]), float(batch_kl.value[0])
difference = n * np.abs(single.plan - batch.plan[0]).max()
print(f"largest difference of the plans {difference:.1e} of a row's mass")
print(f"sinkhorn2 {values[0]:.4f}, solve {values[1]:.4f}, solve_batch {values[2]:.4f}", end="")
print(f", solve_batch with reg_type='kl' {values[3]:.4f}")
shift = reg * np.log(n * n)
print(f"solve - solve_batch {values[1] - values[2]:.4f}; reg log(n n) = {shift:.4f}")
is_linear = abs(single.value_linear - linear) < 1e-4 and abs(batch.value_linear[0] - linear) < 1e-4
is_shifted = abs(values[1] - values[2] - shift) < 1e-3 and abs(values[1] - values[3]) < 1e-3
sys.exit(not (difference < 1e-4 and is_linear and is_shifted and values[1] > linear + 0.1))
PY
