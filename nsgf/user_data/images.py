"""The user's images, from a folder, a .npz file or a .npy file. Pillow decodes the images of a
folder into one uint8 tensor.

Images of a folder are sorted by name. Subfolders on the first level are the classes, as in
torchvision's ImageFolder. Images may also lie in deeper folders. Without classes, all images may
lie in the folder itself. A .npz file has the array ``images``, or the array that ``data.key``
names. For classes it also has ``labels`` (N,). A .npy file of uint8 (N, C, H, W) stays on the disk,
and may be larger than memory.
"""

import hashlib
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import SOURCE_FILE, STANDARD, DataConfig, DataFacts
from nsgf.data.images import ImageSet, to_bytes
from nsgf.system.errors import UserError, list_names, one_line, suggest, wrong_setting
from nsgf.system.hardware import available_bytes
from nsgf.system.output import format_bytes
from nsgf.user_data.files import (
    ARRAYS,
    LEAST,
    LEAST_OF_CLASS,
    Inspection,
    check_same_data,
    data_path,
    load_arrays,
    number_classes,
    reading_source,
    saved_facts,
    split_rows,
)
from nsgf.user_data.image_files import (
    FORMATS,
    GREY,
    has_more_channels,
    has_more_pictures,
    image_pixels,
    open_image,
)

CHANNELS = range(1, 5)
"""Allowed numbers of channels of images in a file."""
LEAST_SIDE = 4
"""Smallest side in pixels of images that keep their size."""
MOST_SIDE = 64
"""Largest side in pixels of images in a folder that keep their size."""
USUAL_SIDE = 32
"""Side in pixels to which images are scaled if they do not keep their size."""
DATA_PARTS = (
    ("training|train", "validation|valid|val|dev", "testing|test|evaluation|eval"),
    (
        "JPEGImages|images?|imgs?|inputs?|LR",
        "Segmentation(?:Class|Object|s)?|annotations?|masks?|labels?|gt|targets?|HR",
    ),
)
"""Words in the names of folders that mark parts of a data set. If a data set has folders for
several words of one row, the program proposes the leftmost word's folder for training."""
SLACK = 1e-3
"""Floats may lie at most this far outside of [-1, 1]. The value is a fraction of the step between
two bytes."""


def find_images(
    root: Path, broken: Collection[str] = (), least: int = LEAST
) -> tuple[list[Path], Counter[str]]:
    """Return the sorted relative paths of the images below a folder, without hidden and broken
    images. Also count the other files, for each file ending. Follow links, except a link to a
    folder that contains the link. Raise UserError if there are fewer than ``least``
    images."""
    from PIL import Image

    if not root.is_dir():
        reason = "a file" if root.is_file() else "no such folder"
        raise wrong_setting(
            "data.path",
            root,
            f"{reason}; name a folder of images (unpack an archive first), a file .npz or .npy, or "
            f"a file of points with {suggest('exp', 'points')}",
        )
    home = root.resolve()
    endings = {end for end, kind in Image.registered_extensions().items() if kind in FORMATS}
    images = []
    left_out = Counter[str]()
    for base, folders, names in os.walk(home, followlinks=True):
        folder = Path(base)
        above = {os.path.realpath(parent) for parent in (folder, *folder.parents)}
        visible = [name for name in folders if not name.startswith(".")]
        folders[:] = [name for name in visible if os.path.realpath(folder / name) not in above]
        files = [folder / name for name in names if not name.startswith(".")]
        for file in filter(Path.is_file, files):
            ending = file.suffix.lower()
            path = file.relative_to(home)
            if ending not in endings:
                left_out[ending or "without ending"] += 1
            elif one_line(path.as_posix()) not in broken:
                images.append(path)
    if len(images) < least:
        raise wrong_setting(
            "data.path",
            root,
            f"{len(images)} images in it, must be {least} or more of {', '.join(FORMATS)}",
        )
    return sorted(images, key=lambda file: file.parts), left_out


def find_parts(files: list[Path]) -> list[Path]:
    """Return sibling folders that look like parts of one data set, such as train and test, or
    images and masks. The first folder is the part that the program proposes for training. The names
    of the folders differ only in the word for the part, as in seg_train and seg_test, or train2017
    and val2017. Return an empty list if there are no such folders."""
    innermost = {file.parent for file in files}
    folders = innermost.union(*(folder.parents for folder in innermost))
    for words in DATA_PARTS:
        alike = defaultdict[tuple[Path, str], dict[int, Path]](dict)
        for folder in sorted(folders, key=lambda folder: (len(folder.parts), folder)):
            for number, word in enumerate(words):
                remainder, count = re.subn(
                    rf"(?<![A-Za-z])(?i:{word})(?:set)?(?![a-z])", "", folder.name
                )
                if count:
                    alike[folder.parent, remainder].setdefault(number, folder)
        for parts in alike.values():
            if len(parts) > 1:
                return [parts[number] for number in sorted(parts)]
    return []


def is_array(config: DataConfig) -> bool:
    """Whether ``data.path`` is a file of arrays, and not a folder."""
    return data_path(config).suffix.lower() in ARRAYS


def inspect_images(config: DataConfig) -> Inspection:
    """Describe the images of ``data.path``. For a folder, decode only some of the images.

    Raises:
        UserError: the folder or file does not exist, or its content cannot be used as images.
    """
    inspect = _inspect_array if is_array(config) else _inspect_folder
    facts, different, notes = inspect(config)
    channels = facts.shape[0]
    if broken := facts.broken:
        notes.append(f"left out {len(broken)} broken images: {list_names(broken, 5)}")
    if different < facts.samples:
        notes.append(f"{facts.samples - different} images are copies of others")
    notes.append(
        f"{facts.samples} images of {config.path}, {' x '.join(map(str, facts.shape))}, "
        f"{format_bytes(facts.samples * math.prod(facts.shape))}"
    )
    if channels in (2, 4):
        notes.append(
            f"pictures and features show only the first {channels - 1} of {channels} channels"
        )
    if classes := facts.class_names:
        notes.append(f"{len(classes)} classes: {list_names(classes)}")
    return facts, tuple(f"data: {note}" for note in notes)


def inspect_source_images(config: DataConfig) -> Inspection:
    """Describe the images of the source. ``config`` is the section ``data`` with the facts about
    the target. The images get the size and the channels of the target.

    Raises:
        UserError: the images cannot be used, the images of a file and the target differ in size, or
            the classes and the target's classes differ.
    """
    target = saved_facts(config)
    with reading_source(config) as section:
        if not is_array(section):
            section = replace(section, size=target.shape[1])
        facts, notes = inspect_images(section)
        if is_array(section) and facts.shape != target.shape:
            raise wrong_setting(
                "data.path",
                section.path,
                f"images {facts.shape}, must be {target.shape} (channels, height, width) as those "
                "of the target",
            )
        if config.conditional and facts.class_names != target.class_names:
            raise wrong_setting(
                "data.path",
                section.path,
                f"classes {list_names(facts.class_names or ['none'])}, must be those of the target "
                f"({list_names(target.class_names or ['none'])}), or use "
                f"{suggest('data.conditional', 'false')}",
            )
    lines = (f"source: {note.removeprefix('data: ')}" for note in notes)
    return replace(facts, shape=target.shape), tuple(lines)


def _refuse_plain(config: DataConfig, images: Iterator[Any]) -> None:
    """Raise UserError if all pixels of all images, each (C, H, W), are equal."""
    first = next(images)
    colour = first[:, :1, :1]
    if all((image == colour).all() for image in chain([first], images)):
        raise wrong_setting("data.path", config.path, "all pixels of all images are equal")


def _inspect_array(config: DataConfig) -> tuple[DataFacts, int, list[str]]:
    """Return a description of a file, the number of different images, and lines for the user."""
    images, _, names, checksum = _read_arrays(config)
    count, *shape = images.shape
    if config.size not in (None, "auto", shape[1]):
        raise wrong_setting("data.size", config.size, f"must be {shape[1]}, as in {config.path}")
    _refuse_plain(config, iter(images))
    different = len({hash(image.tobytes()) for image in images})
    notes = []
    if (highest := images.max()) < 2**7:
        notes.append(f"values up to {highest} of 255: dark images; use the whole range")
    return DataFacts(count, shape, checksum, len(names), class_names=names), different, notes


class _ImageFacts(NamedTuple):
    """Facts about an image file."""

    is_grey: bool
    highest: int
    """Largest value of 16-bit pixels; 0 for images of 8 bits."""
    size: tuple[int, int]
    """(width, height) in pixels."""
    has_more_channels: bool
    """Whether the program leaves out channels of the file."""
    has_more_pictures: bool
    """Whether the program leaves out pictures of the file."""
    hash: int
    """Hash of the content of the file."""


class _FolderFacts(NamedTuple):
    """Facts about the image files of a folder."""

    files: list[Path]
    """Paths of the images that can be read, relative to the folder."""
    images: list[_ImageFacts]
    broken: list[str]
    """Paths of the images that cannot be read."""
    left_out: Counter[str]
    """Number of files that are no images, by ending."""
    checksum: str


def _inspect_folder(config: DataConfig) -> tuple[DataFacts, int, list[str]]:
    """Return a description of a folder, the number of different images, and lines for the user."""
    root = data_path(config)
    folder = _read_folder(root, config.skip_broken)
    files = folder.files
    sizes = {image.size for image in folder.images}
    notes = []
    side = config.size
    if side is None or side == "auto":
        side = _common_side(sizes) or USUAL_SIDE
        if sizes != {(side, side)}:
            notes.append(
                f"images are scaled to {side} x {side} pixels (use {suggest('data.size')} for "
                "another size)"
            )

    def decode(file: Path) -> Any:
        with _naming_broken(root, file):
            return image_pixels(open_image((root / file).read_bytes()), 3, side)

    _refuse_plain(config, map(decode, files))
    notes += _notes_of_folder(folder)
    classes, class_notes = _find_classes(root, files)
    facts = DataFacts(
        samples=len(files),
        shape=[1 if all(image.is_grey for image in folder.images) else 3, side, side],
        checksum=folder.checksum,
        classes=len(classes),
        class_names=classes,
        broken=folder.broken,
    )
    different = len({image.hash for image in folder.images})
    return facts, different, notes + class_notes


def _read_folder(root: Path, skip_broken: bool) -> _FolderFacts:
    """Read each image file of a folder. With ``skip_broken``, also decode the images, and leave out
    broken images. Without ``skip_broken``, raise UserError for the first file that cannot be
    opened."""
    digest = hashlib.sha256()
    images = []
    broken = []
    files, left_out = find_images(root)
    for file in files:
        try:
            with _naming_broken(root, file):
                content = (root / file).read_bytes()
                image = _image_facts(content, decodes=skip_broken)
        except UserError:
            if not skip_broken:
                raise
            broken.append(one_line(file.as_posix()))
            continue
        _add_to_digest(digest, file, content)
        images.append(image)
    if broken:
        files, _ = find_images(root, broken)
    return _FolderFacts(files, images, broken, left_out, digest.hexdigest()[:12])


def _image_facts(content: bytes, *, decodes: bool) -> _ImageFacts:
    """Return the facts about an image file. With ``decodes``, also decode the pixels, and raise an
    error if they are damaged."""
    image = open_image(content)
    is_grey = image.mode[0] in GREY
    highest = int(np.max(image)) if image.mode[0] == "I" else 0
    size = image.size
    more_channels = has_more_channels(image)
    if decodes:
        image_pixels(image, 3, USUAL_SIDE)
    return _ImageFacts(
        is_grey, highest, size, more_channels, has_more_pictures(image), hash(content)
    )


def _notes_of_folder(folder: _FolderFacts) -> list[str]:
    """Return lines about files that are left out, about parts of files that are left out, and about
    dark images."""
    notes = []
    left_out = folder.left_out
    if left_out:
        counts = [f"{count} {ending}" for ending, count in left_out.most_common()]
        notes.append(f"left out {left_out.total()} other files: {list_names(counts)}")
    highest = max(image.highest for image in folder.images)
    if 0 < highest < 2**15:
        notes.append(
            f"16-bit values up to {highest}: dark images; multiply them by {(2**16 - 1) // highest}"
        )
    if count := sum(image.has_more_pictures for image in folder.images):
        notes.append(f"{count} files have several pages or frames: only the first is used")
    if count := sum(image.has_more_channels for image in folder.images):
        notes.append(f"{count} files have more channels than grey, RGB or CMYK: left out")
    return notes


def _find_classes(root: Path, files: list[Path]) -> tuple[list[str], list[str]]:
    """Return the names of the subfolders if the subfolders are classes, else no names. Also return
    lines for the user. Subfolders are classes if each subfolder has enough images, no image lies
    outside of the subfolders, and the subfolders are not parts of a data set such as train and
    test."""
    notes = []
    parts = find_parts(files)
    if parts:
        notes.append(
            f"{list_names([part.as_posix() for part in parts])} look like parts of one data set, "
            f"not like classes: all {len(files)} images are trained on; for one part say "
            f"{suggest('data.path', root / parts[0])}"
        )
    counts = Counter(file.parts[0] for file in files if len(file.parts) > 1)
    outside = len(files) - counts.total()
    if not counts or (parts and len(parts[0].parts) == 1):
        return [], notes
    least = min(counts, key=counts.__getitem__)
    if len(counts) == 1 or counts[least] < LEAST_OF_CLASS or outside:
        notes.append(
            f"subfolders are not used as classes: must be 2 or more of {LEAST_OF_CLASS} or more "
            f"images ({least} has {counts[least]}) and no image outside ({outside} are); for "
            f"classes in {least} say {suggest('data.path', root / least)}"
        )
        return [], notes
    return [repr(name)[1:-1] for name in sorted(counts)], notes  # printable


def _common_side(sizes: set[tuple[int, int]]) -> int | None:
    """Return the side of images that are all squares of one size. The side is rounded down, so that
    at most two halvings give a whole number of at most 16. Return None if sizes differ, or if
    images are large or tiny."""
    side, height = min(sizes)
    if len(sizes) > 1 or side != height or not LEAST_SIDE <= side <= MOST_SIDE:
        return None
    unit = 4 if side > 32 else 2 if side > 16 else 1
    return side // unit * unit


def _usable(config: DataConfig) -> list[Path]:
    """Return the paths of the images of the folder, without broken images. An exported run does not
    list its broken images, so inspect its folder again."""
    broken = saved_facts(config).broken
    if broken is None and config.skip_broken:
        broken = _inspect_folder(config)[0].broken
    return find_images(data_path(config), broken or ())[0]


def image_set(config: DataConfig) -> ImageSet:
    """Return the record of the images of ``data.path``, from the facts in ``data.found``. Raise
    UserError if ``data.size`` differs from the size in ``data.found``."""
    facts = saved_facts(config)
    channels, height, width = facts.shape
    if config.size not in (None, "auto", height):
        raise wrong_setting("data.size", config.size, f"must be {height} as when the run was begun")
    file = Path(config.path or "").expanduser()
    is_array = file.suffix.lower() in ARRAYS
    return ImageSet(
        name=config.name,
        shape=(channels, height, width),
        read_images=read_images,
        read_labels=read_labels,
        has_test=config.held_out > 0,
        class_names=tuple(facts.class_names or ()),
        uses=frozenset({"path", "size", "flip", "skip_broken", "held_out", "key"}),
        sources=(STANDARD, SOURCE_FILE),
        unread=frozenset({"skip_broken"}) if is_array else frozenset(),
        mapped=file if file.suffix.lower() == ".npy" and not config.held_out else None,
    )


def read_images(config: DataConfig, held_out: bool = False) -> Tensor:
    """Return the training images of ``data.path``, or the held-out images.  uint8, (N, C, S, S)

    Raises:
        UserError: an image is broken, or the images have changed since the run began.
    """
    facts = saved_facts(config)
    chosen = split_rows(config, facts.samples)[held_out]
    stays_in_file = is_array(config) and not config.held_out
    needed = len(chosen) * math.prod(facts.shape)
    free = available_bytes()
    if needed > free and not stays_in_file:
        raise UserError(
            f"data.size = {config.size}, data.held_out = {config.held_out:g}: {len(chosen)} images "
            f"need {format_bytes(needed)} of main memory, {format_bytes(free)} are free; use a "
            "smaller size of a folder, or hold out 0 of a file .npy"
        )
    if is_array(config):
        arrays, *_, checksum = _read_arrays(config)
        check_same_data(config, checksum)
        images = torch.from_numpy(arrays)
        return images if stays_in_file else images[chosen]
    channels, size, _ = facts.shape
    root = data_path(config)
    digest = hashlib.sha256()
    images = torch.empty(len(chosen), *facts.shape, dtype=torch.uint8)
    rows = dict(zip(chosen.tolist(), images, strict=True))
    for number, file in enumerate(_usable(config)):
        with _naming_broken(root, file):
            content = (root / file).read_bytes()
            image = open_image(content)  # open_image does not decode the pixels yet
            if number in rows:
                rows[number].copy_(image_pixels(image, channels, size))
        _add_to_digest(digest, file, content)
    check_same_data(config, digest.hexdigest()[:12])
    return images


def read_labels(config: DataConfig, held_out: bool = False) -> Tensor:
    """Return the class of each image of :func:`read_images`. Classes are numbered in the order of
    their names.  (N,)"""
    if is_array(config):
        labels: Any = _read_arrays(config)[1]
    else:
        labels = np.unique([file.parts[0] for file in _usable(config)], return_inverse=True)[1]
    return torch.from_numpy(labels)[split_rows(config, len(labels))[held_out]]


@contextmanager
def _naming_broken(root: Path, file: Path) -> Iterator[None]:
    """Context that turns errors of reading an image file into a UserError with a remedy."""
    try:
        yield
    except Exception as error:  # Pillow raises many types of errors
        raise wrong_setting(
            "data.path",
            root,
            f"{file} cannot be read as one of "
            f"{', '.join(FORMATS)} ({one_line(error)}); remove it, convert it to an 8-bit PNG, "
            f"or say {suggest('data.skip_broken', 'true')}",
        ) from error


def _add_to_digest(digest: Any, file: Path, content: bytes) -> None:
    """Add name and content of an image file to a checksum."""
    name = file.as_posix().encode("utf-8", "surrogateescape")
    digest.update(b"%d %s %d " % (len(name), name, len(content)))
    digest.update(content)


def _read_arrays(config: DataConfig) -> tuple[np.ndarray, np.ndarray | None, list[str], str]:
    """Return the images of a file, uint8, (N, C, H, W), their classes, (N,), the names of the
    classes, and the checksum of images and classes."""
    try:
        images, labels = load_arrays(config)
        images = image_bytes(images)
        names = list[str]()
        classes = None
        if labels is not None:
            names, classes = class_numbers(labels, len(images))
    except Exception as error:  # numpy raises many types for damaged and foreign files
        raise wrong_setting("data.path", data_path(config), one_line(error)) from error
    digest = hashlib.sha256(repr(images.shape).encode())
    for image in images:  # one by one, because memory may be too small for all images
        digest.update(image.tobytes())
    digest.update(b"" if classes is None else classes.tobytes())
    return images, classes, names, digest.hexdigest()[:12]


def image_bytes(images: np.ndarray, least: int = LEAST) -> np.ndarray:
    """Return images as bytes (N, C, H, W). ``images`` has the shape (N, C, H, W), (N, H, W, C) or
    (N, H, W), and holds bytes or floats in [-1, 1]. Raise ValueError if shape, type or range is
    wrong, or if N < ``least``."""
    layouts = [images, np.moveaxis(images, -1, 1)] if images.ndim == 4 else [images[:, None]]
    fitting = [
        layout
        for layout in layouts
        if layout.ndim == 4 and layout.shape[1] in CHANNELS and min(layout.shape[2:]) >= LEAST_SIDE
    ]
    if not fitting or images.dtype.kind not in "iuf" or len(images) < least:
        raise ValueError(
            f"images {images.shape} of {images.dtype}, must be (N, C, H, W) or (N, H, W, C), "
            f"N >= {least}, C 1 to 4, H and W >= {LEAST_SIDE}, of uint8 or floats in [-1, 1]"
        )
    images = np.ascontiguousarray(fitting[0])
    if images.dtype == np.uint8:
        return images
    low = images.min()
    high = images.max()
    is_float = images.dtype.kind == "f"
    if not (is_float and -1 - SLACK <= low < 0 and high <= 1 + SLACK):  # also refuses nan
        raise ValueError(
            f"{images.dtype} from {low:g} to {high:g}, must be uint8, or floats in [-1, 1] with "
            "some below 0; use images.to(torch.uint8) for 0 to 255, or 2.0 * images - 1 for [0, 1]"
        )
    return to_bytes(torch.from_numpy(images.astype(np.float32))).numpy()  # accepts any byte order


def class_numbers(labels: np.ndarray, count: int) -> tuple[list[str], np.ndarray]:
    """Return the sorted names of the K classes, and the class of each image as a number from 0 to
    K - 1, int64, (N,). ``count``: number of images N. Raise ValueError for invalid labels, or if a
    class has too few images."""
    if labels.shape == (count, 1):  # MedMNIST has labels of this shape
        labels = labels[:, 0]
    values = np.unique(labels)
    wrong = ""
    if labels.ndim == 2 and len(labels) == count:
        wrong = f"{labels.shape}, perhaps one-hot; use labels.argmax(1)"
    elif labels.shape != (count,):
        wrong = f"{labels.shape}, must be one for each of {count} images"
    elif labels.dtype.kind not in "iuU":
        wrong = f"{labels.dtype}, must be whole numbers or names"
    elif labels.dtype.kind != "U" and values.tolist() != list(range(len(values))):
        wrong = f"{list_names([*map(str, values)])}, must be whole numbers from 0 on without gaps"
    if wrong:
        raise ValueError(f"labels: {wrong}")
    try:
        return number_classes(labels, "images")
    except ValueError as error:
        raise ValueError(f"labels: {error}") from error
