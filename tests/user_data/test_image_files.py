"""Pixels of single image files, compared with tifffile and with the arrays that were written."""

import struct
import zlib
from base64 import b64decode
from io import BytesIO
from itertools import product

import numpy as np
import pytest
from PIL import Image

from nsgf.user_data.image_files import (
    has_more_channels,
    has_more_pictures,
    image_pixels,
    open_image,
)

SIDE = 24
ORIENTATIONS = {
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.transpose(1, 0, 2),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: x[::-1, ::-1].transpose(1, 0, 2),
    8: lambda x: np.rot90(x),
}


def pixels_of(content):
    """The pixels of a file on white, in colour: (SIDE, SIDE, 3)"""
    return image_pixels(open_image(content), 3, SIDE).permute(1, 2, 0).numpy()


def random_pixels(*shape, bits=8):
    kind = np.uint8 if bits <= 8 else np.uint16
    return np.random.default_rng(0).integers(2**bits, size=shape).astype(kind)


def encoded(image, kind, **options):
    image.save(content := BytesIO(), kind, **options)
    return content.getvalue()


def tiff_library():
    pytest.importorskip("imagecodecs", reason="the extra `test` has it")
    return pytest.importorskip("tifffile")


def tiff(pixels, **options):
    """The content of a TIFF."""
    tiff_library().imwrite(content := BytesIO(), pixels, metadata=None, **options)
    return content.getvalue()


def with_tag(content, code, *values):
    """The TIFF, little-endian, with other values of one of its tags."""
    with tiff_library().TiffFile(BytesIO(content)) as file:
        tag = file.pages[0].tags[code]
        start = tag.valueoffset
    data = b"".join(
        [struct.pack("<H", x) if tag.dtype == 3 else struct.pack("<II", x, 1) for x in values]
    )
    return content[:start] + data + content[start + len(data) :]


def renumbered(content, code, new):
    """The TIFF, little-endian, with another number of a tag of one short integer."""
    entry = struct.pack("<HHI", code, 3, 1)
    assert content.count(entry) == 1
    return content.replace(entry, struct.pack("<HHI", new, 3, 1))


def tagged(code, value, *pixels, **options):
    """A TIFF with a tag of one short integer that tifffile may not write."""
    content = tiff(*pixels, extratags=[(65000, 3, 1, value, True)], **options)
    return renumbered(content, 65000, code)


def expected(content):
    """The same as :func:`pixels_of`, by tifffile and the rules of the TIFF specification."""
    with tiff_library().TiffFile(BytesIO(content)) as file:
        page = file.pages[0]
        samples = page.asarray()
    if page.planarconfig == 2:
        samples = np.moveaxis(samples, 0, -1)
    samples = np.atleast_3d(samples).astype(float)
    values = samples * 255 / (2**page.bitspersample - 1)
    photometric = page.photometric.name
    count = {"RGB": 3, "SEPARATED": 4}.get(photometric, 1)
    colour = values[..., :count]
    if photometric == "MINISWHITE":
        colour = 255 - colour
    elif photometric == "SEPARATED":
        colour = (255 - colour[..., :3]) * (255 - colour[..., 3:]) / 255
    elif photometric == "PALETTE":
        colour = np.moveaxis(page.colormap[:, samples[..., 0].astype(int)], 0, -1) / 257
    if page.extrasamples and (alpha := page.extrasamples[0].value):
        opacity = values[..., count : count + 1] / 255
        colour = colour * (opacity if alpha == 2 else 1) + 255 * (1 - opacity)
    return colour


# --- TIFF ---

KINDS = {  # photometric interpretation, samples per pixel, extra samples
    "grey": ("minisblack", 1, []),
    "white is 0": ("miniswhite", 1, []),
    "colour": ("rgb", 3, []),
    "palette": ("palette", 1, []),
    "inks": ("separated", 4, []),
    "alpha": ("rgb", 4, ["unassalpha"]),
    "multiplied": ("rgb", 4, ["assocalpha"]),
    "infrared": ("rgb", 4, ["unspecified"]),
    "grey alpha": ("minisblack", 2, ["unassalpha"]),
    "grey multiplied": ("minisblack", 2, ["assocalpha"]),
    "two channels": ("minisblack", 2, ["unspecified"]),
    "five channels": ("minisblack", 5, ["unspecified"] * 4),
}
TYPES = {"u1": [1, 2, 4, 8], "u2": [12, 16], "u4": [32], "i1": [8], "i2": [16]}
TYPES |= {"f2": [16], "f4": [32], "f8": [64]}
READ = {
    1: ["grey", "white is 0"],
    2: ["grey", "white is 0"],
    4: ["grey", "white is 0"],
    8: [name for name in KINDS if name not in ("grey multiplied", "five channels")],
    16: ["grey", "colour", "inks", "alpha", "multiplied", "infrared"],
}
"""By bits per sample, the kinds of unsigned numbers that are not refused."""


def layouts(samples, number, bits):
    """Options of tifffile for where samples are."""
    packed = [None, "zlib"]
    if number in ("u1", "u2"):
        packed += ["lzw", "packbits"]
    if bits not in (8, 16, 32, 64):
        packed = [None]
    for order, planar, compression, tile in product(
        "<>", ["contig", "separate"][:samples], packed, [None, (16, 16)]
    ):
        for predictor in {False, compression in ("zlib", "lzw")}:
            yield {
                "byteorder": order,
                "planarconfig": planar if samples > 1 else None,
                "compression": compression,
                "tile": tile,
                "predictor": predictor,
                "rowsperstrip": None if tile else 7,
            }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("number", "bits"), [(number, bits) for number, all_bits in TYPES.items() for bits in all_bits]
)
def test_a_tiff_has_the_pixels_of_tifffile_or_is_refused(kind, number, bits):
    """Past mistake: An image that opened without an error counted as decoded correctly. Networks
    trained on negatives and noise of 16-bit pictures.
    """
    photometric, samples, extra = KINDS[kind]
    pixels = np.random.default_rng(0).random((SIDE, SIDE, samples))
    if kind.endswith("multiplied"):
        pixels[..., :-1] *= pixels[..., -1:]
    if number[0] != "f":
        pixels = np.floor(pixels * 2**bits) - 2 ** (bits - 1) * (number[0] == "i")
    else:
        pixels[0, 0] = np.nan
    pixels = pixels.astype(number)
    options = {"photometric": photometric, "extrasamples": extra}
    if kind == "palette":
        if (number, bits) != ("u1", 8):
            pytest.skip("tifffile does not write it")
        options["colormap"] = random_pixels(3, 256, bits=16)
    if bits in (1, 2, 4, 12):
        options["bitspersample"] = bits
    differences = []
    refused = []
    for layout in layouts(samples, number, bits):
        is_apart = layout["planarconfig"] == "separate"
        stored = np.moveaxis(pixels, -1, 0) if is_apart else pixels.squeeze()
        content = tiff(stored, **options, **layout)
        try:
            differences.append(np.abs(pixels_of(content) - expected(content)).max())
        except Exception:
            refused.append(is_apart)
    assert max(differences, default=0) <= 3  # colours without alpha are rounded
    if number[0] == "u" and kind in READ.get(bits, ()):
        assert all(refused)  # only planes stored apart
    elif kind not in ("two channels", "five channels"):
        assert not differences


@pytest.mark.parametrize("compression", ["tiff_lzw", "packbits", "tiff_adobe_deflate", "jpeg"])
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK", "YCbCr", "1", "RGBA", "I;16"])
def test_usual_compressions_of_tiff_are_read(compression, mode):
    image = Image.linear_gradient("L").resize((SIDE, SIDE))
    colour = Image.merge("RGB", [image, image.rotate(90), image.rotate(180)])
    image = image if mode == "I;16" else colour.convert(mode)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image, np.uint16) * 257)
    if compression == "jpeg" and mode in ("1", "RGBA", "I;16"):
        pytest.skip("JPEG does not have it")
    difference = pixels_of(encoded(image, "TIFF", compression=compression)) * 1.0
    shown = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if mode == "I;16" else image
    difference -= np.asarray(shown.convert("RGB"))
    assert np.abs(difference).max() <= (12 if compression == "jpeg" else 2)


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_tiff_is_turned_once(orientation, compression):
    pixels = random_pixels(SIDE, SIDE, 3)
    extratags = [(274, 3, 1, orientation, True)]
    content = tiff(pixels, photometric="rgb", compression=compression, extratags=extratags)
    assert np.array_equal(pixels_of(content), ORIENTATIONS[orientation](pixels))


def grey(photometric="minisblack", **options):
    return tiff(random_pixels(SIDE, SIDE), photometric=photometric, **options)


def ycc():
    return encoded(Image.new("YCbCr", (SIDE, SIDE), (50, 60, 70)), "TIFF")


def pages(first, second, subifds=0):
    """A TIFF of two pages, or of a page below another. 1: a page is a small copy of another."""
    options = {"photometric": "minisblack", "metadata": None}
    with tiff_library().TiffWriter(content := BytesIO()) as file:
        file.write(random_pixels(SIDE, SIDE), subfiletype=first, subifds=subifds, **options)
        file.write(random_pixels(SIDE, SIDE), subfiletype=second, **options)
    return content.getvalue()


GREY = random_pixels(SIDE, SIDE)
COLOUR = random_pixels(SIDE, SIDE, 3)
COLOUR_MAP = random_pixels(3, 256, bits=16)
WRONG = {
    "no meaning": lambda: renumbered(grey(), 262, 65000),
    "Lab": lambda: with_tag(tiff(COLOUR, photometric="rgb"), 262, 8),
    "colour map of bytes": lambda: grey("palette", colormap=COLOUR_MAP >> 8),
    "short colour map": lambda: with_tag(grey("palette", colormap=COLOUR_MAP), 258, 4),
    "other inks": lambda: tagged(332, 2, random_pixels(SIDE, SIDE, 4), photometric="separated"),
    "YCbCr with fewer colours": lambda: with_tag(ycc(), 530, 2, 2),
    "YCbCr of television": lambda: with_tag(ycc(), 532, 16, 235, 128, 240, 128, 240),
    "planes with reversed bits": lambda: tagged(
        266, 2, random_pixels(3, SIDE, SIDE), photometric="rgb", planarconfig="separate"
    ),
    "a plane where 0 is white": lambda: tagged(284, 2, GREY, photometric="miniswhite"),
    "alpha in a plane": lambda: tiff(
        random_pixels(2, SIDE, SIDE),
        photometric="minisblack",
        planarconfig="separate",
        extrasamples=["unassalpha"],
        compression="zlib",
    ),
    "differences": lambda: tagged(317, 2, GREY, photometric="minisblack"),
    "differences, packed": lambda: grey(compression="packbits", predictor=True),
    "volume": lambda: tagged(32997, 2, GREY, photometric="minisblack"),
    "preview": lambda: pages(1, 0),
    "preview above": lambda: pages(1, 0, subifds=1),
    "transparent colour of 4 bits": lambda: low_bits_png(bits=4, key=1),
    "transparent colour of 16 bits": lambda: encoded(
        Image.fromarray(random_pixels(SIDE, SIDE, bits=16)), "PNG", transparency=9
    ),
    # white, which Pillow decodes to black
    "JPEG 2000 of 16 bits": lambda: b64decode(
        "/0//UQAvAAAAAAAEAAAABAAAAAAAAAAAAAAABAAAAAQAAAAAAAAAAAADDwEBDwEBDwEB/1IADAAAAAEBAAQEAAH/XAAE"
        "QID/ZAAlAAFDcmVhdGVkIGJ5IE9wZW5KUEVHIHZlcnNpb24gMi41LjT/kAAKAAAAAAAYAAH/k8/8MBAUAFyvgID/2Q=="
    ),
    "floats": lambda: b"Pf 24 24 -1.0\n" + bytes(4 * SIDE**2),
}


@pytest.mark.parametrize("case", WRONG)
def test_files_that_pillow_decodes_to_wrong_values_are_refused(case):
    content = WRONG[case]()
    image = Image.open(BytesIO(content))  # no error
    with pytest.raises(ValueError, match=f"^{image.format} with "):
        open_image(content)


def test_an_unknown_file_is_refused_without_an_address_in_memory():
    with pytest.raises(ValueError, match="damaged") as caught:
        open_image(b"text")
    assert "0x" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        ycc,
        lambda: pages(0, 1),
        lambda: grey(subfiletype=1),
        lambda: tagged(317, 1, GREY, photometric="minisblack"),
    ],
)
def test_harmless_tags_are_not_refused(content):
    difference = pixels_of(content()) - np.asarray(Image.open(BytesIO(content())).convert("RGB"))
    assert not difference.any()


# --- other formats ---


def low_bits_png(bits, key):
    """A grey PNG of zeros with so many bits, in which a value is transparent."""

    def chunk(kind, data):
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, bits, 0, 0, 0, 0)),
            chunk(b"tRNS", struct.pack(">H", key)),
            chunk(b"IDAT", zlib.compress(bytes(SIDE * (SIDE * bits // 8 + 1)))),
            chunk(b"IEND", b""),
        ]
    )


@pytest.mark.parametrize(
    ("mode", "options"), [("1", {}), ("L", {}), ("P", {}), ("P", {"bits": 4}), ("RGB", {})]
)
def test_a_transparent_colour_of_a_png_becomes_white(mode, options):
    image = Image.linear_gradient("L").resize((SIDE, SIDE)).convert("RGB")
    image = image.quantize(16) if options else image.convert(mode)
    key = image.getpixel((3, 3))
    hidden = np.asarray(image) == np.array(key)
    hidden = hidden.all(-1) if hidden.ndim == 3 else hidden
    expected = np.where(hidden[..., None], 255, np.asarray(image.convert("RGB")))
    assert np.array_equal(pixels_of(encoded(image, "PNG", transparency=key, **options)), expected)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF", "AVIF", "MPO"])
def test_only_the_first_of_several_pictures_is_used(kind):
    first, *rest = [Image.new("RGB", (SIDE, SIDE), (70 * n, 0, 0)) for n in range(3)]
    single = open_image(encoded(first, "JPEG" if kind == "MPO" else kind))
    assert not has_more_pictures(single)
    content = encoded(first, kind, save_all=True, append_images=rest)
    assert pixels_of(content).max() < 5
    assert has_more_pictures(open_image(content))
    if kind == "GIF":  # its second frame is damaged
        length = len(encoded(first, kind))
        assert has_more_pictures(open_image(content[: length + 10]))


@pytest.mark.parametrize(
    ("channels", "photometric", "is_more"),
    [(2, "minisblack", True), (3, "rgb", False), (4, "rgb", True), (5, "separated", True)],
)
def test_channels_that_are_left_out_are_noticed(channels, photometric, is_more):
    extra = ["unspecified"] if is_more else []
    content = tiff(random_pixels(SIDE, SIDE, channels), photometric=photometric, extrasamples=extra)
    assert has_more_channels(open_image(content)) == is_more
    assert np.abs(pixels_of(content) - expected(content)).max() <= 1


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "PPM", "WEBP", "AVIF", "TIFF"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_cut_file_is_refused(kind, share):
    content = encoded(Image.fromarray(random_pixels(64, 64, 3)), kind)
    pixels_of(content)
    with pytest.raises(Exception):  # noqa: B017, PT011
        pixels_of(content[: int(len(content) * share)])
