#!/usr/bin/env bash
# torch: reading the precision of matrix products raises after the newer setting was used.
#
# Guess:         torch.get_float32_matmul_precision() returns "highest", "high" or "medium", whatever a
#                program has set before. So a library can read it, change it and set it back.
# What happens:  after torch.backends.cuda.matmul.fp32_precision = "tf32", the newer setting, it raises
#                RuntimeError, on a machine without a card too. Conversely
#                torch.set_float32_matmul_precision("high") changes the newer setting.
# Why it matters: solvers of transport need exact products (TF32 has 10 bits) inside programs that train
#                with TF32.
# Versions:      torch 2.13.0
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 || exit 2
cd "$folder" && venv/bin/python -W ignore - <<'PY'
import sys

import torch

torch.set_float32_matmul_precision("high")
followed = torch.backends.cuda.matmul.fp32_precision
print(f'after set_float32_matmul_precision("high") the newer setting is {followed!r}')
torch.set_float32_matmul_precision("highest")
torch.backends.cuda.matmul.fp32_precision = "tf32"
try:
    read = torch.get_float32_matmul_precision()
except RuntimeError as error:
    read = None
    print(f"get_float32_matmul_precision raises: {str(error).splitlines()[0][:100]}")
else:
    print(f"get_float32_matmul_precision returns {read!r}")
sys.exit(not (followed == "tf32" and read is None))
PY
