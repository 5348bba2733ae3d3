"""Choose settings for a user's data when a run begins.

The choice depends on the number and the shape of the samples. docs/own-data.md describes the rules.
Settings in files and flags override the choice.
"""

from dataclasses import replace

from nsgf.config.layers import FACTS_OF_DATA, SETTINGS, Layer, spread_optim
from nsgf.config.schema import SOURCE_FILE, Config
from nsgf.config.values import format_layer
from nsgf.system.errors import UserError, suggest
from nsgf.system.hardware import pick_device
from nsgf.user_data.files import saved_facts, split_rows
from nsgf.user_data.images import inspect_images, inspect_source_images
from nsgf.user_data.points import inspect_points, inspect_source_points

INSPECTORS = {"images": inspect_images, "points": inspect_points}
"""Functions that inspect a user's data and return ``data.found``, by ``data.name``."""
SOURCE_INSPECTORS = {"images": inspect_source_images, "points": inspect_source_points}
"""Functions that inspect a user's source and return its description, by ``data.name``."""
POOL_VALUES = 2**29
"""Largest number of values in a pool: 2 GiB in float32."""
START_VALUES = 2**28
"""Largest number of values in cached starts: 1 GiB."""
MANY_IMAGES = 10_000
"""With this number of images or more, the network is as large as for a shipped set of this image
size."""
LARGEST_END = 16
"""Largest side in pixels of a square image in the UNet's last level. The cost of attention grows
with side^4."""
CHEAP = 8
"""On a machine without a card, the program chooses attention only for levels of at most this height
in pixels."""

OPTIONAL = ("nsf.coupling_batch", "nsf.starts", "peer.coupling_batch")
"""Settings that only some methods use. The program chooses a value only if the method sets the
setting."""


def choose_settings(config: Config) -> tuple[Layer, Layer, tuple[str, ...]]:
    """Inspect a user's data for a new run, and choose settings for the run.

    ``config`` has the checked values of all layers. In a comparison, only the first call inspects
    the data. Later calls find the facts in ``config``.

    Returns:
        The chosen settings, the facts about the data, and lines about both for the user. Files and
        flags override the chosen settings. Nothing overrides the facts.
    """
    data = config.data
    facts, notes = (saved_facts(data), ()) if data.found else INSPECTORS[data.name](data)
    if data.source == SOURCE_FILE and facts.source is None:
        source, lines = SOURCE_INSPECTORS[data.name](replace(data, found=facts))
        facts = replace(facts, source=source)
        notes = (*notes, *lines)
    samples = len(split_rows(data, facts.samples)[0])
    choose = for_points if len(facts.shape) == 1 else for_images
    chosen = {
        key: value
        for key, value in choose(samples, *facts.shape).items()
        if key not in OPTIONAL or SETTINGS[key].get(config) is not None
    }
    layer: Layer = {FACTS_OF_DATA: facts}
    if data.name == "images":
        layer["data.size"] = facts.shape[1]
        if pick_device(config.device).type == "cpu":  # small networks learn more in the same time
            chosen["model.unet.attention"] = [
                height for height in chosen["model.unet.attention"] if height <= CHEAP
            ]
            if "generator" not in config.phases:  # a generator needs large batches
                chosen |= {"optim.batch_size": min(32, samples), "optim.lr": 1e-3}
    text = format_layer(chosen)
    notes += (f"chosen for them: {text}; your own settings and {suggest('smoke')} win",)
    return spread_optim(chosen), layer, notes


def for_points(samples: int, dim: int) -> Layer:
    """Choose settings for standardised points. Keys are dotted. ``samples``: number of points;
    ``dim``: coordinates of a point."""
    n = min(1024, samples)
    return {
        "optim.batch_size": min(256, samples),
        "sinkhorn.batch_size": n,
        # distances grow with sqrt(dim). For dim 2, the blur is 0.1 in standardised units, which is
        # 0.25 in the units of the shipped 2D sets
        "sinkhorn.blur": round(0.07 * dim**0.5, 3),
        "pool.num_batches": -(-min(102_400, POOL_VALUES // (11 * dim)) // n),
        "model.mlp.width": 256 if dim <= 16 else 512 if dim <= 128 else 1024,
    }


def for_images(samples: int, channels: int, height: int, width: int) -> Layer:
    """Choose settings for images. Keys are dotted. ``samples``: number of images. Raise UserError
    if the UNet cannot halve the sides of the images often enough."""
    levels = 1  # levels of the UNet; the sides are halved from level to level
    while not (height | width) % 2**levels and min(height, width) >> levels >= 4:
        levels += 1
    areas = {height >> level: height * width >> 2 * level for level in range(levels)}
    end = height >> levels - 1
    if areas[end] > LARGEST_END**2:
        raise UserError(
            f"data: images of {height} x {width} must come to {LARGEST_END} pixels or fewer by "
            f"halving, as 28, 32, 48, 96 and 224 do; scale them, or for a folder choose "
            f"{suggest('data.size')}"
        )
    n = min(128, samples)
    values = channels * height * width
    # choose a narrow network for a small set, because narrow networks overfit later
    size = max(height, width)
    wide = 32 if size < 32 else 64 if size < 64 else 128
    many = samples >= MANY_IMAGES
    if not many:
        wide = max(32, wide // 2)
    return {
        "optim.batch_size": n,
        "optim.lr": 5e-4,
        "sinkhorn.batch_size": n,
        "sinkhorn.blur": 0.5 if size < 32 else 1.0,
        "pool.num_batches": -(-min(25_600, POOL_VALUES // (3 * values)) // n),
        "model.unet.channels": wide,
        "model.unet.res_blocks": 2 if many and size >= 32 else 1,
        "model.unet.mult": [1, *[2] * (levels - 1)],
        "model.unet.attention": [side for side in [*areas][1:] if 8**2 <= areas[side] <= 16**2],
        "model.unet.heads": wide // 32 * min(2, levels),  # each head has 32 channels
        "nsf.coupling_batch": min(1024, samples),
        "nsf.starts": min(65_536, START_VALUES // values),
        "peer.coupling_batch": min(1024, samples),
    }
