#!/usr/bin/env bash
# torchvision: to_pil_image and save_image write different bytes for one tensor.
#
# Guess:         floats in [0, 1] become the nearest of 256 levels, and a picture that was normalised to
#                [-1, 1] and back has the bytes of its file.
# What happens:  to_pil_image truncates, as x.mul(255).byte() does: generated pictures are half a level darker
#                than with save_image, and a quarter of the levels of a real picture become one lower if the
#                picture is converted to [-1, 1] and back. save_image and v2.ToDtype(torch.uint8, scale=True) are right.
# Why it matters: FID and precision compare saved samples with real files; a shift of half a level on one side
#                only is a property of the writer, not of the model.
# Remedy:        save_image, or to_pil_image(v2.functional.to_dtype(x, torch.uint8, scale=True)).
# Versions:      torchvision 0.29.1, torch 2.14.1
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet torch==2.14.1 torchvision==0.29.1 numpy==2.4.6 || exit 2
cd "$folder" && venv/bin/python - <<'PY'
import io
import sys

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import functional, v2
from torchvision.utils import save_image


def saved(picture):
    file = io.BytesIO()
    save_image(picture, file, format="png")
    return np.asarray(Image.open(file)).transpose(2, 0, 1)


writers = {
    "to_pil_image": lambda picture: np.asarray(functional.to_pil_image(picture)).transpose(2, 0, 1),
    "save_image": saved,
    "v2.ToDtype": lambda picture: v2.ToDtype(torch.uint8, scale=True)(picture).numpy(),
}
levels = np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 256, 256))
real = functional.to_tensor(np.ascontiguousarray(levels.transpose(1, 2, 0)))
half = [0.5, 0.5, 0.5]
round_trip = functional.normalize(real, half, half) * 0.5 + 0.5
generated = torch.rand(3, 256, 256, generator=torch.Generator().manual_seed(0))
measured = {}
for name, write in writers.items():
    lost = float((write(round_trip) != levels).mean())
    shift = float((write(generated) - 255 * generated.numpy()).mean())
    print(f"{name}: levels changed by the way through [-1, 1] {lost:.3f}", end="")
    print(f", mean shift of floats {shift:+.3f} levels")
    measured[name] = lost, shift
lost, shift = measured.pop("to_pil_image")
are_right = all(wrong == 0 and abs(mean) < 0.01 for wrong, mean in measured.values())
sys.exit(not (are_right and 0.15 < lost < 0.35 and -0.51 < shift < -0.49))
PY
