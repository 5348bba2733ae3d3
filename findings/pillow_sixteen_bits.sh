#!/usr/bin/env bash
# Pillow: pictures of 16 bits that open without an error and have wrong values.
#
# Guess:         a picture that Pillow opens has the values of the file, or their upper 8 bits.
# What happens:  - TIFF, RGB, planes stored apart, not compressed: noise. The same file with deflate is right.
#                - TIFF, grey, MinIsWhite: the stored numbers, so a negative. With 8 bits it is inverted, as
#                  it should be.
#                - JPEG 2000, RGB: values round up and wrap, so white (65535) becomes 0.
# Why it matters: microscopes, satellites and scanners write such files. A network then trains on noise or
#                negatives, and no message says so.
# Versions:      Pillow 13.0.0, tifffile 2026.3.3, imagecodecs 2026.3.6 (which write the files and read
#                them right)
# Exit code:     0: as described; 1: the behaviour changed; 2: the packages cannot be installed
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" &&
  "$folder/venv/bin/pip" install --quiet pillow==13.0.0 tifffile==2026.3.3 imagecodecs==2026.3.6 numpy==2.4.6 || exit 2
cd "$folder" && venv/bin/python - <<'PY'
import sys

import imagecodecs
import numpy as np
import tifffile
from PIL import Image

ramp = np.linspace(0, 65535, 32).astype(np.uint16)
grey = np.tile(ramp, (32, 1))
colour = np.stack([grey, grey.T, np.full_like(grey, 65535)])


def error(file, expected):
    """Mean difference of Pillow's picture to the upper 8 bits of the values of the file."""
    values = np.asarray(Image.open(file)).astype(float)
    scale = 256 if values.max() > 255 else 1
    return float(np.abs(values / scale - expected / 256).mean())


def planes(name, **options):
    tifffile.imwrite(name, colour, photometric="rgb", planarconfig="separate", **options)
    assert (tifffile.imread(name) == colour).all()
    return error(name, np.moveaxis(colour, 0, -1))


apart = planes("apart.tif")
compressed = planes("compressed.tif", compression="deflate")
print(f"TIFF in planes: error {apart:.1f} of 255; with deflate {compressed:.1f}")

tifffile.imwrite("white.tif", 65535 - grey, photometric="miniswhite")
negative = error("white.tif", grey)
tifffile.imwrite("white8.tif", (255 - (grey >> 8)).astype(np.uint8), photometric="miniswhite")
inverted = error("white8.tif", grey)
print(f"TIFF, MinIsWhite: error {negative:.1f} of 255; with 8 bits {inverted:.1f}")

white = np.full((32, 32, 3), 65535, np.uint16)
encoded = imagecodecs.jpeg2k_encode(white, level=0, reversible=True, codecformat="jp2")
assert (imagecodecs.jpeg2k_decode(encoded) == white).all()
open("white.jp2", "wb").write(encoded)
pixel = Image.open("white.jp2").getpixel((0, 0))
print(f"JPEG 2000: white is {pixel}")

is_wrong = apart > 30 and negative > 60 and pixel == (0, 0, 0)
sys.exit(not (is_wrong and compressed < 1 and inverted < 1))
PY
