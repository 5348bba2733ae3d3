"""Folders of images: what is found, how it is decoded, what is refused."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nsgf.config.schema import DataConfig
from nsgf.data import folder as module
from nsgf.data.folder import find_images, holds_images, look_at_images, read_images, read_labels
from nsgf.system.errors import UserError
from tests.data.own_files import write_images


def settings(path: Path, **other) -> DataConfig:
    return DataConfig(name="images", path=str(path), **{"size": 8, **other})


def looked(path: Path, **other) -> DataConfig:
    """Settings with what is found there."""
    config = settings(path, **other)
    return replace(config, found=look_at_images(config).found)


def write_all(path: Path, image: Image.Image, name: str = "{:03}.png", count: int = 16) -> Path:
    """The same image many times."""
    path.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        image.save(path / name.format(number))
    return path


def only_pixels(path: Path, **other) -> torch.Tensor:
    """Of a folder of equal images, the image.  uint8, (C, 8, 8)"""
    images = read_images(looked(path, **other))
    assert (images == images[0]).all()
    return images[0]


def test_images_are_found_in_the_order_of_their_names(tmp_path):
    write_images(tmp_path / "b", 8)
    write_images(tmp_path / "a" / "deep", 8, suffix=".JPG")
    for name in ("notes.txt", ".hidden.png"):
        (tmp_path / name).write_bytes(b"x")
    write_images(tmp_path / ".cache", 3)
    files, others = find_images(tmp_path)
    names = [f"{number:03}" for number in range(8)]
    assert [str(file) for file in files] == [
        *(f"a/deep/{name}.JPG" for name in names),
        *(f"b/{name}.png" for name in names),
    ]
    assert others == 1


def test_links_in_a_circle_end(tmp_path):
    write_images(tmp_path / "own", 16)
    (tmp_path / "own" / "self").symlink_to(tmp_path / "own")
    (tmp_path / "own" / "ring").symlink_to("ring")
    write_images(tmp_path / "elsewhere", 4)
    (tmp_path / "own" / "linked").symlink_to(tmp_path / "elsewhere")
    files, _ = find_images(tmp_path / "own")
    assert len(files) == 20
    assert Path("linked/000.png") in files


@pytest.mark.parametrize("size", [8, 12])
def test_what_is_found_is_what_is_read(size, tmp_path):
    config = looked(write_images(tmp_path, 20), size=size)
    assert (config.found.samples, config.found.shape) == (20, [3, size, size])
    images = read_images(config)
    assert images.dtype == torch.uint8
    assert images.shape == (20, 3, size, size)
    assert len(images.flatten(1).unique(dim=0)) == 20


def halves(width: int, height: int) -> Image.Image:
    """Blue, with a red margin of a quarter at both ends of the longer side."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 2] = 255
    ends = (slice(0, width // 4), slice(-(width // 4), None))
    for end in ends:
        pixels[:, end] = (255, 0, 0)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("upright", [False, True])
def test_images_are_cut_or_stretched(upright, tmp_path):
    image = halves(32, 16)
    write_all(tmp_path, image.transpose(Image.Transpose.ROTATE_90) if upright else image)
    cut = only_pixels(tmp_path, fit="crop")
    assert int(cut[0].max()) < 30 < 220 < int(cut[2].min())  # the filter sees a little beyond
    stretched = only_pixels(tmp_path, fit="stretch").float()
    red = stretched[0].mean(1 if upright else 0)
    assert red[0] > 240 > 10 > red[3]
    assert red[-1] > 240


def test_photos_are_turned_as_their_camera_says(tmp_path):
    image = Image.new("RGB", (8, 8))
    image.paste((255, 255, 255), (0, 0, 8, 4))  # the upper half
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    tmp_path.mkdir(exist_ok=True)
    for number in range(16):
        image.save(tmp_path / f"{number}.png", exif=exif)
    pixels = only_pixels(tmp_path)
    assert int(pixels[:, :4].max()) == 0
    assert int(pixels[:, 4:].min()) == 255


def constant(mode: str, color) -> Image.Image:
    return Image.new(mode, (8, 8), color)


DECODED = {  # an image of one colour, and the values of the channels
    "grey": (constant("L", 7), [7]),
    "bits": (constant("1", 1), [255]),
    "colour": (constant("RGB", (1, 2, 3)), [1, 2, 3]),
    "16 bits": (Image.fromarray(np.full((8, 8), 0x80FF, np.uint16)), [0x80]),
    "transparent": (constant("RGBA", (9, 9, 9, 0)), [255, 255, 255]),
    "half transparent": (constant("RGBA", (0, 0, 0, 51)), [204, 204, 204]),
    "grey and transparent": (constant("LA", (0, 0)), [255]),
}


@pytest.mark.parametrize("kind", DECODED)
def test_modes_are_decoded(kind, tmp_path):
    image, values = DECODED[kind]
    pixels = only_pixels(write_all(tmp_path, image))
    assert pixels.shape[0] == len(values)
    assert pixels.float().mean((1, 2)).tolist() == pytest.approx(values, abs=1)


def test_transparent_palettes_show_white(tmp_path):
    image = Image.new("P", (8, 8), 0)
    image.putpalette([200, 0, 0])
    write_all(tmp_path / "opaque", image)
    assert only_pixels(tmp_path / "opaque")[:, 0, 0].tolist() == [200, 0, 0]
    (tmp_path / "clear").mkdir()
    for number in range(16):
        image.save(tmp_path / "clear" / f"{number}.png", transparency=0)
    assert only_pixels(tmp_path / "clear")[:, 0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_of_32_bits_are_refused(mode, tmp_path):
    write_all(tmp_path, constant(mode, 10**6), "{}.tif")
    with pytest.raises(UserError, match=r"0\.tif is no usable image .* must have 8 or 16"):
        read_images(looked(tmp_path))


def test_colour_is_what_the_files_have(tmp_path):
    write_images(tmp_path / "grey", 16, "L")
    write_images(tmp_path / "both" / "grey", 8, "L")
    write_images(tmp_path / "both" / "colour", 8)
    assert looked(tmp_path / "grey").found.shape == [1, 8, 8]
    seen = look_at_images(settings(tmp_path / "both"))
    assert seen.found.shape == [3, 8, 8]
    assert "data.color: rgb, as 8 images have colour and 8 have none" in " ".join(seen.notes)
    assert looked(tmp_path / "both", color="grey").found.shape == [1, 8, 8]
    assert looked(tmp_path / "grey", color="rgb").found.shape == [3, 8, 8]
    grey = read_images(looked(tmp_path / "grey", color="rgb"))
    assert torch.equal(grey[:, 0], grey[:, 2])


def test_subfolders_are_classes(tmp_path):
    config = looked(write_images(tmp_path, 33, classes=3))
    assert config.found.classes == 3
    files, _ = find_images(tmp_path)
    assert read_labels(config).tolist() == [int(file.parts[0][-1]) for file in files]


@pytest.mark.parametrize(
    ("count", "classes", "more", "why"),
    [
        (20, 0, "", "images that lie outside of subfolders have no class"),
        (20, 1, "", "all images are of one class, class0"),
        (20, 3, "", "class class2 has 6 images and needs 10"),
        (30, 2, "beside", "images that lie outside of subfolders have no class"),
    ],
)
def test_too_few_labels_are_none(count, classes, more, why, tmp_path):
    write_images(tmp_path, count, classes=classes)
    if more:
        write_images(tmp_path, 1)
    seen = look_at_images(settings(tmp_path))
    assert seen.found.classes == 0
    assert seen.notes[-1] == f"evaluation.classifier: off, {why}"


def test_folders_without_images_are_refused(tmp_path):
    def refused(path: Path) -> str:
        with pytest.raises(UserError) as refusal:
            find_images(path)
        return str(refusal.value)

    assert "no such folder; name a folder of images with --data.path DIR" in refused(tmp_path / "x")
    assert "no images in it (and 0 other files), must be at least 16" in refused(tmp_path)
    write_images(tmp_path, 15)
    (tmp_path / "a.txt").write_text("x")
    assert "15 images in it (and 1 other files)" in refused(tmp_path)
    assert "is a file; points are --exp points" in refused(tmp_path / "a.txt")
    (tmp_path / "ring").symlink_to("ring")
    assert "no such folder" in refused(tmp_path / "ring")


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"


@pytest.mark.parametrize("content", [b"", b"hello", POSTSCRIPT])
def test_what_is_no_image_is_named_before_anything_is_decoded(content, tmp_path):
    """Of Pillow's other formats some start programs."""
    write_images(tmp_path, 16)
    (tmp_path / "007.png").write_bytes(content)
    with pytest.raises(UserError, match=r"007\.png is no usable image \(none of PNG, JPEG"):
        look_at_images(settings(tmp_path))


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_truncated_images_are_named(suffix, tmp_path):
    write_images(tmp_path, 16, suffix=suffix)
    file = tmp_path / f"007{suffix}"
    file.write_bytes(file.read_bytes()[: -file.stat().st_size // 3])
    with pytest.raises(UserError, match=rf"007\{suffix} is no usable image .*; remove it, or save"):
        read_images(looked(tmp_path))


def test_unreadable_images_are_named(tmp_path, monkeypatch):
    write_images(tmp_path, 16)

    def read_bytes(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(UserError, match=r"000\.png is no usable image .*Permission denied"):
        look_at_images(settings(tmp_path))


def change(path: Path, how: str) -> None:
    first, second = path / "000.png", path / "001.png"
    if how == "pixel":
        pixels = np.array(Image.open(first))
        pixels[0, 0] ^= 255
        Image.fromarray(pixels).save(first)
    elif how == "name":
        first.rename(path / "0.png")
    elif how == "swapped":
        content = first.read_bytes()
        second.replace(first)
        second.write_bytes(content)
    elif how == "fewer":
        first.unlink()
    else:
        Image.new("RGB", (9, 9)).save(path / "new.png")


@pytest.mark.parametrize("how", ["pixel", "name", "swapped", "fewer", "more"])
def test_other_images_than_before_are_refused(how, tmp_path):
    write_images(tmp_path, 20)
    config = looked(tmp_path)
    change(tmp_path, how)
    with pytest.raises(UserError, match="holds other images than the run was begun with"):
        read_images(config)


def test_the_same_images_elsewhere_are_the_same(tmp_path):
    config = looked(write_images(tmp_path / "a", 20))
    images = read_images(config)
    os.rename(tmp_path / "a", tmp_path / "b")
    assert torch.equal(read_images(replace(config, path=str(tmp_path / "b"))), images)


def test_images_that_do_not_fit_into_memory_are_refused(tmp_path, monkeypatch):
    config = looked(write_images(tmp_path, 20))
    monkeypatch.setattr(module, "available_bytes", lambda: 20 * 3 * 64)
    read_images(config)
    monkeypatch.setattr(module, "available_bytes", lambda: 20 * 3 * 64 - 1)
    with pytest.raises(UserError, match=r"data\.size = 8: 20 images need 3\.8 KB .* smaller"):
        read_images(config)


def test_folders_of_images_are_known_for_a_hint(tmp_path):
    assert not holds_images(tmp_path / "nowhere")
    assert not holds_images(tmp_path)
    write_images(tmp_path, 1, classes=1)
    assert holds_images(tmp_path)
    assert holds_images(tmp_path / "class0")


def test_large_photos_are_decoded_as_coarsely_as_they_are_needed(tmp_path):
    """JPEG can leave out what nobody would see: the picture must stay, where it was."""
    ramp = np.linspace(0, 255, 400)
    pixels = np.stack([np.broadcast_to(ramp, (300, 400)), *[np.full((300, 400), 90)] * 2], -1)
    image = Image.fromarray(pixels.astype(np.uint8))
    write_all(tmp_path / "jpg", image, "{}.jpg")
    write_all(tmp_path / "png", image)
    coarse, fine = (only_pixels(tmp_path / kind).float() for kind in ("jpg", "png"))
    assert float((coarse - fine).abs().max()) < 6
    assert coarse[0, 0, 0] < 60 < 190 < coarse[0, 0, -1]
