"""Own images, in folders and in arrays: what is found, how it is decoded, what is refused."""

import shutil
from collections import Counter
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

from nsgf.cli.arguments import parse
from nsgf.commands.evaluate import evaluate_run
from nsgf.commands.sample import sample_run
from nsgf.commands.train import train
from nsgf.config.layers import drop_machine_settings
from nsgf.config.schema import DataConfig
from nsgf.data.images import to_unit_range
from nsgf.experiment import Experiment
from nsgf.run import checkpoint
from nsgf.settings.choices import for_images
from nsgf.system.errors import UserError
from nsgf.user_data import find_target, load_data
from nsgf.user_data import images as module
from nsgf.user_data.files import split_rows
from nsgf.user_data.images import (
    class_numbers,
    find_images,
    find_parts,
    image_bytes,
    inspect_images,
    read_images,
    read_labels,
)
from tests.conftest import shipped
from tests.user_data import user_files
from tests.user_data.user_files import write_images


def settings(path, size=8, **other):
    return DataConfig(name="images", path=str(path), size=size, **other)


def inspected(path, size=8, **other):
    return user_files.inspected("images", path, size=size, **other)


def write_all(path, image, **options):
    """The same image 16 times."""
    path.mkdir(parents=True, exist_ok=True)
    for number in range(16):
        image.save(path / f"{number:03}.png", **options)
    return path


def only_pixels(path):
    """Of 16 times the same image, the image.  uint8, (C, 8, 8)"""
    Image.linear_gradient("L").save(path / "another.png")  # images of one colour are refused
    images = read_images(inspected(path))[:-1]
    assert (images == images[0]).all()
    return images[0]


def test_images_are_found_in_the_order_of_their_names(tmp_path):
    own = write_images(tmp_path / "own" / "b", 8).parent
    write_images(own / "a" / "deep", 8, suffix=".JPG")
    write_images(own / ".cache", 3)
    (own / "__MACOSX").mkdir()
    for name in ("notes.txt", ".hidden.png", "__MACOSX/._000.png"):
        (own / name).write_bytes(b"x")
    (own / "broken.png").symlink_to("nowhere")
    (own / "linked").symlink_to(write_images(tmp_path / "elsewhere", 4))
    write_images(own / "c", 1, suffix=".avif")
    names = [f"{number:03}" for number in range(8)]
    expected = [f"a/deep/{name}.JPG" for name in names] + [f"b/{name}.png" for name in names]
    expected += ["c/000.avif", *(f"linked/{name}.png" for name in names[:4])]
    images, others = find_images(own)
    assert [str(file) for file in images] == expected
    assert others == {".txt": 1}
    assert len(read_images(inspected(own))) == len(expected)


def test_links_to_a_folder_above_are_not_followed(tmp_path):
    own = write_images(tmp_path / "own", 20, classes=2)
    before = find_images(own)[0]
    for link, to in {"up": "..", "class0/root": "..", "class1/self": "."}.items():
        (own / link).symlink_to(to)
    assert find_images(own)[0] == before


def test_folders_that_link_to_each_other_are_followed_once(tmp_path):
    """Each class also has the images of the other one, and no path leads through both links."""
    own = write_images(tmp_path / "own", 20, classes=2)
    (own / "class0" / "peer").symlink_to("../class1")
    (own / "class1" / "peer").symlink_to("../class0")
    folders = Counter(str(file.parent) for file in find_images(own)[0])
    assert folders == dict.fromkeys(("class0", "class0/peer", "class1", "class1/peer"), 10)


def test_the_middle_square_is_cut_out(tmp_path):
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, 8:24, 2] = 255  # blue
    pixels[:, :8, 0] = pixels[:, 24:, 0] = 255  # red margins
    image = Image.fromarray(pixels)
    for name, shown in (("flat", image), ("tall", image.transpose(Image.Transpose.ROTATE_90))):
        cut = only_pixels(write_all(tmp_path / name, shown))
        assert int(cut[0].max()) < 30 < 220 < int(cut[2].min())  # the filter sees a little beyond


def test_photos_are_turned_as_their_camera_says(tmp_path):
    image = Image.new("RGB", (8, 8))
    image.paste((255, 255, 255), (0, 0, 8, 4))  # the upper half
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    pixels = only_pixels(write_all(tmp_path, image, exif=exif))
    assert int(pixels[:, :4].max()) == 0
    assert int(pixels[:, 4:].min()) == 255


def constant(mode, color):
    image = Image.new(mode, (8, 8), color)
    if mode == "P":
        image.putpalette([200, 0, 0])
    return image


@pytest.mark.parametrize(
    ("image", "options", "values"),
    [
        (constant("L", 7), {}, [7]),  # grey
        (Image.fromarray(np.full((8, 8), 0x80FF, np.uint16)), {}, [0x80]),  # 16 bits
        (constant("RGBA", (0, 0, 0, 51)), {}, [204] * 3),  # half transparent
        (constant("P", 0), {}, [200, 0, 0]),  # palette
        (constant("P", 0), {"transparency": 0}, [255] * 3),  # transparent palette
    ],
)
def test_modes_are_decoded(image, options, values, tmp_path):
    """Images of one colour, with the values of their channels.

    Past mistake: Pillow cuts 16-bit pixels at 255 and guesses among all formats, PostScript
    included. Images were white, and a picture could start a program.
    """
    pixels = only_pixels(write_all(tmp_path, image, **options))
    assert pixels.shape[0] == len(values)
    assert pixels.float().mean((1, 2)).tolist() == pytest.approx(values, abs=1)


def write_pages(folder, count):
    """Add TIFF files of two pages."""
    images = [Image.effect_noise((8, 8), 50) for _ in range(2 * count)]
    for number in range(count):
        first, second = images[number::count]
        first.save(folder / f"pages{number}.tif", save_all=True, append_images=[second])


def write_channels(folder, count):
    """Add TIFF files of red, green, blue and infrared."""
    for number in range(count):
        noise = Image.merge("RGBX", [Image.effect_noise((8, 8), 50) for _ in range(4)])
        noise.save(folder / f"channels{number}.tif")


TWELVE_BITS = np.linspace(0, 4095, 64).astype(np.uint16).reshape(8, 8)


@pytest.mark.parametrize(
    ("write", "note"),
    [
        (
            lambda own: (write_images(own) / "b.HEIC").write_bytes(b"x"),
            "left out 1 other files: 1 .heic",
        ),
        (lambda own: write_images(write_images(own, classes=2) / "few", 3), "(few has 3)"),
        (lambda own: write_images(own / "train", classes=2), "{own}/train"),
        (lambda own: write_pages(write_images(own), 3), "3 files have several pages"),
        (lambda own: write_channels(write_images(own), 2), "2 files have more channels"),
        (lambda own: write_images(write_images(own / "Test") / "../Train"), "{own}/Train"),
        (lambda own: write_images(write_images(own / "a/val").parent / "train"), "{own}/a/train"),
        (lambda own: write_all(own, Image.fromarray(TWELVE_BITS)), "4095"),
        (
            lambda own: shutil.copy(write_images(own) / "000.png", own / "b.png"),
            "1 images are copies",
        ),
        (
            lambda own: np.savez(own.with_suffix(".npz"), images=PIXELS[[*range(16), 3, 3]]),
            "2 images are copies",
        ),
        (lambda own: np.savez(own.with_suffix(".npz"), images=PIXELS % 16), "up to 15 of 255"),
    ],
)
def test_a_line_says_what_is_left_out_or_changed(write, note, tmp_path):
    write(own := tmp_path / "own")
    (place,) = tmp_path.iterdir()
    config = replace(settings(place), size=8 if place.is_dir() else "auto")
    assert note.format(own=own) in " ".join(inspect_images(config)[1])
    assert len(inspect_images(settings(write_images(tmp_path / "usual")))[1]) == 1
    deep = write_all(tmp_path / "deep", Image.fromarray(16 * TWELVE_BITS))
    assert "multiply" not in str(inspect_images(settings(deep))[1])


@pytest.mark.parametrize(
    ("sizes", "side", "is_said"),
    [
        ([(4, 4)], 4, False),
        ([(64, 64)], 64, False),
        ([(25, 25)], 24, True),  # what a network can halve down to 16 or less
        ([(63, 63)], 60, True),
        ([(16, 16), (18, 18)], 32, True),
        ([(16, 12)], 32, True),
        ([(65, 65)], 32, True),
        ([(3, 3)], 32, True),
    ],
)
@pytest.mark.parametrize("wanted", [None, "auto", 8])
def test_squares_of_one_size_keep_it(sizes, side, is_said, wanted, tmp_path):
    """Past mistake: Runs were written into the folder of images that they train on. Their
    pictures became data, and the run could not be resumed.
    """
    for number in range(16):
        Image.effect_noise(sizes[number % len(sizes)], 50).save(tmp_path / f"{number}.png")
    found, notes = inspect_images(settings(tmp_path, wanted))
    if wanted == 8:
        side = 8
        is_said = False
    assert found.shape == [1, side, side]
    assert (f"scaled to {side} x {side}" in str(notes)) is is_said
    words = ["train", "--exp=images", f"--data.path={tmp_path}", f"--out-dir={tmp_path}/runs"]
    with pytest.raises(UserError, match=r"^out_dir = "):  # its pictures would be data
        parse(words)
    for_images(16, *found.shape)  # not refused


def test_images_have_colour_unless_all_are_grey(tmp_path):
    write_images(tmp_path / "grey", 16, "L")
    assert inspected(tmp_path / "grey").found.shape == [1, 8, 8]
    write_images(tmp_path / "colour", 8)
    config = inspected(tmp_path, 12)
    assert (config.found.samples, config.found.shape) == (24, [3, 12, 12])
    assert read_images(config).shape == (24, 3, 12, 12)


def cut(suffix):
    Image.linear_gradient("L").save(whole := BytesIO(), suffix)
    return whole.getvalue()[:-300]


def tiff(pixels, **tags):
    options = {int(number[1:]): value for number, value in tags.items()}
    Image.fromarray(pixels.reshape(8, 8)).save(whole := BytesIO(), "TIFF", tiffinfo=options)
    return whole.getvalue()


BROKEN = {
    "empty.png": b"",
    "text.png": b"hello",
    # of Pillow's other formats some start programs
    "postscript.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n\nshowpage\n",
    "cut.png": cut("PNG"),
    "cut.jpg": cut("JPEG"),
    "floats.tif": tiff(np.arange(64, dtype="f4")),
    "negative.tif": tiff(np.arange(64, dtype="u2"), _262=0),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_images_are_named_or_left_out(name, tmp_path):
    """Past mistake: One letter of Pillow's mode decided how pixels are read. Float and 32-bit
    images became black, white or wrapped.
    """
    (write_images(tmp_path, 16, "L") / name).write_bytes(BROKEN[name])
    with pytest.raises(UserError, match=rf"^data\.path = .*{name} "):
        read_images(inspected(tmp_path))
    assert inspected(tmp_path, skip_broken=True).found.broken == [name]


@pytest.mark.parametrize("change", ["swapped", "removed"])
def test_other_images_than_before_are_refused(change, tmp_path):
    config = inspected(write_images(tmp_path / "a", 20))
    images, place = read_images(config), (tmp_path / "a").rename(tmp_path / "b")
    moved = replace(config, path=str(place))
    assert torch.equal(read_images(moved), images)
    first, second = (place / name for name in ("000.png", "001.png"))
    if change == "swapped":
        first.rename(place / "0.png")
        second.rename(first)
        (place / "0.png").rename(second)
    else:
        first.unlink()
    with pytest.raises(UserError, match=r"^data\.path = .*other images"):
        read_images(moved)


def test_checksum_is_that_of_earlier_versions(tmp_path):
    """Else no earlier run would find its images again."""
    for number in range(16):
        (tmp_path / f"{number}.ppm").write_bytes(b"P6 1 1 255\n" + bytes([number] * 3))
    assert inspected(tmp_path).found.checksum == "809e886fa3b1"


def test_images_that_do_not_fit_into_memory_are_refused(tmp_path, monkeypatch):
    config = inspected(write_images(tmp_path, 20))
    monkeypatch.setattr(module, "available_bytes", lambda: 20 * 3 * 64)
    read_images(config)
    monkeypatch.setattr(module, "available_bytes", lambda: 20 * 3 * 64 - 1)
    with pytest.raises(UserError, match=r"^data\.size = 8"):
        read_images(config)


def test_a_run_without_broken_images_finds_the_same_ones_again(tmp_path):
    write_images(tmp_path, 24, classes=2)
    images, labels = read_images(inspected(tmp_path)), read_labels(inspected(tmp_path))
    broken = {"class0/000.png": b"", "class1/005.png": None}  # None: cut off
    for name, content in broken.items():
        file = tmp_path / name
        file.write_bytes(file.read_bytes()[:-60] if content is None else content)
    config = inspected(tmp_path, skip_broken=True)
    assert (config.found.samples, config.found.broken) == (22, list(broken))
    (note, *_) = inspect_images(config)[1]
    assert all(part in note for part in ("2 broken", *broken))
    shared = drop_machine_settings(replace(shipped("digits"), data=config)).data
    assert "000.png" not in str(shared)  # names of files stay on the machine
    kept = [i for i in range(24) if i not in (0, 14)]
    for one in (config, replace(shared, path=config.path)):
        assert torch.equal(read_images(one), images[kept])
        assert torch.equal(read_labels(one), labels[kept])


# --- classes ---


@pytest.mark.parametrize(
    ("folders", "parts"),
    [
        ("train test", "train test"),
        ("Testing/a Training/a Training/b", "Training Testing"),
        ("validation train test", "train validation test"),
        ("valid test", "valid test"),
        ("seg_test/seg_test/sea seg_train/seg_train/sea", "seg_train seg_test"),
        ("train2017 val2017", "train2017 val2017"),
        ("testA testB trainA trainB", "trainA testA"),
        ("DIV2K_train_HR DIV2K_valid_HR", "DIV2K_train_HR DIV2K_valid_HR"),
        ("trainset testset", "trainset testset"),
        ("TRAINING VALIDATION", "TRAINING VALIDATION"),
        ("b/test b/train test train", "train test"),
        ("Masks images", "images Masks"),
        ("imgs segmentation", "imgs segmentation"),
        ("input target", "input target"),
        ("LR HR", "LR HR"),
        ("train_images test_images train_masks", "train_images test_images"),
        ("pets/annotations/trimaps pets/images", "pets/images pets/annotations"),
        ("train/images train/labels", "train/images train/labels"),
        ("bus train tram", ""),
        ("train_station test_tube image_1", ""),
        ("trainer tester imagery maskless", ""),
        ("retrain retest", ""),
        ("a/train b/test", ""),
        (".", ""),
    ],
)
def test_parts_of_a_data_set_are_recognised_by_their_names(folders, parts):
    files = [Path(folder) / "0.png" for folder in folders.split()]
    for order in (files, files[::-1]):
        assert [str(folder) for folder in find_parts(order)] == parts.split()


def test_parts_of_a_data_set_are_no_classes(tmp_path):
    """Past mistake: Every pair of subfolders was taken for classes, and test images were trained
    on as class "test".
    """
    for part in ("cat/train", "cat/test", "dog"):
        write_images(tmp_path / part, 24, classes=2)
    assert inspected(tmp_path).found.class_names == ["cat", "dog"]
    assert inspected(tmp_path / "cat").found.classes == 0
    assert inspected(tmp_path / "cat" / "train").found.class_names == ["class0", "class1"]


@pytest.mark.parametrize(
    ("count", "classes", "beside", "found"),
    [(20, 0, 0, 0), (20, 1, 0, 0), (29, 3, 0, 0), (33, 3, 0, 3), (30, 2, 1, 0)],
)
def test_subfolders_with_ten_images_and_none_outside_are_classes(
    count, classes, beside, found, tmp_path
):
    """As for torchvision."""
    write_images(tmp_path, count, classes=classes)
    write_images(tmp_path, beside)
    config = inspected(tmp_path)
    assert config.found.classes == found
    if found:
        files, expected = find_images(tmp_path)[0], ImageFolder(tmp_path)
        assert [str(tmp_path / file) for file in files] == [file for file, _ in expected.samples]
        assert read_labels(config).tolist() == expected.targets


def test_names_that_print_alike_are_different_classes(tmp_path):
    names = ["a b", "a  b", "a\u200bb", "a\\u200bb"]
    for name in names:
        write_images(tmp_path / name, 10)
    target = find_target(inspected(tmp_path, conditional=True))
    assert sorted(map(target.class_number, target.class_names)) == [0, 1, 2, 3]
    assert "".join(target.class_names).isprintable()
    array_names, numbers = class_numbers(np.repeat(names, 10), 40)
    assert (array_names, len({*numbers})) == ([*target.class_names], 4)


def test_subfolders_name_the_classes(tmp_path):
    """Past mistake: A class name that is a number was also read as a position: `--label 3` drew
    class 9.
    """
    for name in ("ship", "horse", "10"):
        write_images(tmp_path / name, 10)
    config = inspected(tmp_path, conditional=True)
    target = find_target(config)
    assert target.class_names == ("10", "horse", "ship")
    numbers = {"horse": 1, "10": 0, 10: 0, "2": None, 2: None, "cow": None, "-1": None}
    assert {label: target.class_number(label) for label in numbers} == numbers
    facts = replace(config.found, class_names=["cat", "horse", "ship"])
    target = find_target(replace(config, found=facts))
    numbers = {"horse": 1, "2": 2, 2: 2, "3": None, "-1": None}
    assert {label: target.class_number(label) for label in numbers} == numbers
    assert find_target(replace(config, conditional=False)).class_names == ()


# --- arrays ---

PIXELS = np.random.default_rng(0).integers(256, size=(40, 3, 12, 12), dtype=np.uint8)
FLOATS = PIXELS / 127.5 - 1
LABELS = np.arange(40) % 3
WIDE = np.concatenate([PIXELS, PIXELS[:, :1]], axis=1)[..., :8]  # 4 channels of 12 x 8 pixels


def config_of(folder, *flags, **arrays):
    file = folder / "own.npz"
    np.savez(file, **arrays)
    return parse(["train", "--exp=images", f"--data.path={file}", *flags]).config


@pytest.mark.parametrize("sides", [(66, 28), (28, 66)])
def test_images_that_cannot_be_halved_often_enough_are_refused(sides, tmp_path):
    """33 x 14 pixels, after one halving, are too many for attention, and 33 is odd."""
    images = np.random.default_rng(0).integers(256, size=(16, 3, *sides), dtype=np.uint8)
    with pytest.raises(UserError, match=f"images of {sides[0]} x {sides[1]} .*halving"):
        config_of(tmp_path, images=images)


def test_labels_become_classes(tmp_path):
    names = np.array(["cat", "ant", "dog"])[LABELS]
    config = config_of(tmp_path, "--data.conditional=true", images=PIXELS, labels=names)
    assert (config.data.found.classes, config.nsf.coupling) == (3, "independent")
    assert find_target(config.data).class_names == ("ant", "cat", "dog")
    sample = load_data(config.data, 0).target_by_class("x").sample(3)
    of_ants = to_unit_range(torch.from_numpy(PIXELS[LABELS == 1]))
    assert (sample[0] == of_ants).flatten(1).all(1).any()
    np.savez(tmp_path / "own.npz", images=PIXELS, labels=names[::-1])
    with pytest.raises(UserError, match=r"data\.path .* other images"):
        load_data(config.data, 0)
    held_out = split_rows(replace(config.data, held_out=0.5), 40)[1]
    names = np.where(np.isin(np.arange(40), held_out), "cat", "dog")
    flags = ("--data.conditional=true", "--data.held_out=0.5")
    config = config_of(tmp_path, *flags, images=PIXELS, labels=names)
    with pytest.raises(UserError, match=r"data\.conditional .*data\.held_out = 0\.5"):
        load_data(config.data, 0)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (PIXELS, PIXELS),  # as they are
        (PIXELS.transpose(0, 2, 3, 1), PIXELS),  # guided-diffusion
        (PIXELS[:, 0], PIXELS[:, :1]),  # grey
        (WIDE, WIDE),  # four channels, not square
        (WIDE[:, :2].transpose(0, 2, 3, 1), WIDE[:, :2]),  # two channels, last
        ((FLOATS * (1 + 1e-7)).astype(">f4"), PIXELS),  # rounded, other byte order
    ],
)
def test_images_are_read_as_others_store_them(stored, expected, tmp_path):
    config = config_of(tmp_path, arr_0=stored)
    assert (config.data.size, config.data.found.classes) == (12, 0)
    assert torch.equal(load_data(config.data, 0).images, torch.from_numpy(expected))


@pytest.mark.parametrize("stored", [PIXELS, FLOATS])
def test_an_array_alone_is_the_file_with_only_that_array(stored, tmp_path):
    """The same images and checksum; bytes stay in the file."""
    expected = config_of(tmp_path, images=stored).data
    np.save(file := tmp_path / "own.npy", stored)
    config = parse(["train", "--exp=images", f"--data.path={file}"]).config.data
    images = load_data(config, 0).images
    assert config.found == expected.found
    assert torch.equal(images, load_data(expected, 0).images)
    if stored.dtype == np.uint8:  # what changes in the file changes in memory
        with file.open("r+b") as stream:
            stream.seek(-1, 2)
            stream.write(bytes([255 - stored.flat[-1]]))
        assert images.flatten()[-1] == 255 - stored.flat[-1]


@pytest.mark.parametrize("rows", [40, 20])
def test_a_mapped_file_that_changes_ends_training_after_a_checkpoint(rows, tmp_path):
    """Reading beyond the end of a shorter file would end the process.

    Past mistake: A mapped file was checked at the start only. Training used changed data, or the
    process was killed.
    """
    np.save(file := tmp_path / "own.npy", PIXELS)
    flags = ["--exp=images", f"--data.path={file}", "--method=icfm", "--smoke", "--device=cpu"]
    config = parse(["train", *flags, f"--out-dir={tmp_path}"]).config
    seen = []

    def change(_, step, *rest):
        seen.append(step)
        if step == 2:
            np.save(file, 255 - PIXELS[:rows])

    with pytest.raises(UserError, match=r"^data\.path = .*own\.npy: has changed"):
        train(Experiment(config), on_log=change)
    (saved,) = tmp_path.glob("images*/checkpoints/*.pt")
    assert (seen, checkpoint.load(saved)["step"]) == ([1, 2], 2)
    with pytest.raises(UserError, match=r"data\.path .* other images"):
        load_data(config.data, 0)


def test_a_held_out_part_of_a_mapped_array_must_fit_into_memory(tmp_path, monkeypatch):
    np.save(file := tmp_path / "own.npy", PIXELS)
    flags = ["train", "--exp=images", f"--data.path={file}", "--data.held_out=0.4"]
    config = parse(flags).config.data
    data = load_data(config, 0)
    assert (data.count, data.measured().count) == (24, 16)
    monkeypatch.setattr(module, "available_bytes", lambda: 100)
    with pytest.raises(UserError, match=r"data\.held_out = 0\.4: .*hold out 0"):
        load_data(config, 0)
    assert load_data(replace(config, held_out=0.0), 0).count == 40


def test_images_of_any_height_and_width_are_trained_on_and_drawn(tmp_path):
    flags = ("--smoke", "--device=cpu", f"--out-dir={tmp_path}", "--method=nsgf++")
    config = config_of(tmp_path, *flags, images=WIDE)
    assert config.model.unet.mult == [1, 2]  # 12 x 8, 6 x 4
    run = train(Experiment(config))
    sample_run(Experiment(config), run, out=str(tmp_path / "x.npz"))
    assert np.load(tmp_path / "x.npz")["x"].shape == (4, 4, 12, 8)
    sample_run(Experiment(config), run, out=f"{tmp_path / 'folder'}/")
    assert Image.open(tmp_path / "folder" / "000000.png").size == (8, 12)
    assert "first 3 of 4 channels" in " ".join(inspect_images(config.data)[1])
    assert evaluate_run(Experiment(config), run, lambda _: None)[1]["w2"] > 0


def test_labels_belong_to_the_images_whose_name_begins_alike(tmp_path):
    """Those of MedMNIST have a second axis.

    Past mistake: Labels of a file were looked up by one fixed name, and test images got the
    labels of training images.
    """
    arrays = {"images": PIXELS, "labels": LABELS, "x_test": PIXELS[20:]}
    arrays |= {"test_images": PIXELS[::-1], "test_labels": 2 - LABELS[:, None]}
    for key, expected in {"images": LABELS, "test_images": 2 - LABELS, "x_test": None}.items():
        config = config_of(tmp_path, f"--data.key={key}", **arrays).data
        assert torch.equal(read_images(config), torch.from_numpy(arrays[key].copy()))
        assert config.found.classes == (0 if expected is None else 3)
        if expected is not None:
            assert read_labels(config).tolist() == expected.tolist()


@pytest.fixture
def unusable(tmp_path):
    """A folder of things that are no set of images."""
    write_images(tmp_path / "few", 15)
    shutil.make_archive(str(tmp_path / "few"), "zip", tmp_path / "few")
    write_all(tmp_path / "plain", constant("RGB", (1, 2, 3)))
    for name, array in {"black": np.zeros_like(PIXELS), "one": PIXELS[0], "own": PIXELS}.items():
        np.savez(tmp_path / f"{name}.npz", images=array)
    np.savez(tmp_path / "two.npz", x=PIXELS, y=PIXELS)
    return tmp_path


@pytest.mark.parametrize(
    ("place", "how", "words"),
    [
        ("nowhere", {}, r"data\.path = .*no such folder"),
        ("few.zip", {}, r"data\.path = .*few\.zip: a file; .*unpack"),
        ("few/000.png", {}, r"data\.path = .*000\.png: a file"),
        ("few", {}, r"data\.path = .*15 images"),
        ("plain", {}, r"data\.path = .*equal"),
        ("black.npz", {"size": None}, r"data\.path = .*equal"),
        ("one.npz", {"size": None}, r"data\.path = .*one\.npz: .*images"),
        ("own.npz", {"size": 8}, r"data\.size = 8: must be 12"),
        ("two.npz", {"size": None, "key": "z"}, r"data\.key.NAME, one of x, y"),
    ],
)
def test_what_is_no_set_of_images_is_refused(place, how, words, unusable):
    with pytest.raises(UserError, match=words):
        inspect_images(replace(settings(unusable / place), **how))


@pytest.mark.parametrize(
    ("read", "values", "words"),
    [
        (image_bytes, PIXELS.astype("f4"), r"float32 from 0 to 255.* images\.to\(torch\.uint8\)"),
        (image_bytes, PIXELS.astype(int), r"int64 from 0 to 255.* images\.to\(torch\.uint8\)"),
        (image_bytes, PIXELS / 255, r"float64 from 0 to 1.* 2\.0 \* images - 1"),
        (image_bytes, PIXELS > 9, "of bool, must be .* of uint8"),
        (class_numbers, np.eye(3)[LABELS], r"use labels\.argmax\(1\)"),
        (class_numbers, LABELS[:9], "one for each of 40 images"),
        (class_numbers, LABELS / 1, "float64, must be whole numbers or names"),
        (class_numbers, LABELS + 1, "1, 2, 3, must be whole numbers from 0 on"),
        (class_numbers, 0 * LABELS, "one class only"),
        (class_numbers, np.arange(40) // 39, "1 images of class 1, must be 10"),
    ],
)
def test_each_cause_has_its_own_words(read, values, words):
    """Past mistake: The messages of several causes were joined, and users read "or" where they
    had been told the cause. Join messages only where cause and remedy are the same.
    """
    with pytest.raises(ValueError, match=words):
        read(values, *[40] * (read is class_numbers))
