"""Settings that are chosen for a user's own data, from what is found at ``data.path``.

The rules stand only here and in docs/own-data.md. They choose once, for a new run: what is found
and chosen is saved with it, so that a resumed or sampled run chooses nothing again. Settings of
files and flags win over the rules.
"""

import math
from collections.abc import Callable
from typing import Any

from nsgf.config.files import Content, build, inherited, merged, nested
from nsgf.config.schema import Config
from nsgf.data import INSPECTORS
from nsgf.data.own import Found, read_found
from nsgf.system.errors import UserError

POOL_VALUES, START_VALUES = 2**29, 2**28
"""Largest numbers of values in a pool and in cached starts: 2 and 1 GiB in float32."""
MANY = 10_000
"""Number of images from which on networks are as large as those for shipped sets of their size."""
LARGEST_END = 16
"""Largest side in pixels of a UNet's last level: attention there costs its fourth power."""


def with_own_data(
    method: Content,
    base: Content,
    flags: Content,
    check: Callable[[Config], None],
    *,
    is_new: bool = True,
) -> tuple[Content, Content, tuple[str, ...]]:
    """Inspect a new run's own data and choose settings for it.

    Args:
        method: settings of the method's file, which the chosen ones override.
        base: settings of a file or of a run, each phase with its own values.
        flags: settings of the command line; for a further method of a comparison with what was
            found for the first.
        check: raises UserError for settings with which ``data.path`` cannot be read.
        is_new: whether a run is begun. With the settings of another run and other data it keeps
            what was chosen, not what was found.

    Returns:
        ``base`` on top of what is chosen, ``flags`` with what was found, and lines about both.
        Nothing changes for other data and for runs that exist.

    Raises:
        UserError: ``data.path`` is missing, or what is there cannot be trained on.
    """
    if is_new and {"path", "size"} & set(flags.get("data", {})):
        own = {key: value for key, value in base.get("data", {}).items() if key != "found"}
        base = {**base, "data": own}
    name = merged(base, flags).get("data", {}).get("name")
    if name not in INSPECTORS or base.get("data", {}).get("found"):
        return merged(method, base), flags, ()
    config = build(Config, merged(merged(method, base), flags))
    check(config)
    if config.data.path is None:
        raise UserError(f"data.path = null: name the {name} to train on with --data.path")
    known = (read_found(config.data), ()) if config.data.found else None
    found, notes = known or INSPECTORS[name](config.data)
    mult = merged(base, flags).get("model", {}).get("unet", {}).get("mult")
    chosen = _chosen(config, found, mult)
    data: dict[str, Any] = {"found": found._asdict()}
    if name == "images":
        data["size"] = found.shape[1]
    below = merged(merged(method, inherited(nested(chosen))), base)
    shown = ", ".join(f"{key} {value}" for key, value in chosen.items())
    notes += (f"chosen for them: {shown}; settings of your own win",)
    return below, merged(flags, {"data": data}), notes


def _chosen(config: Config, found: Found, mult: list[int] | None) -> dict[str, Any]:
    """Return the chosen settings by dotted key, without those that would have no effect."""
    samples, shape = found.samples, found.shape
    if len(shape) == 1:
        return for_points(samples, *shape)
    chosen = for_images(samples, shape[0], shape[1], mult)
    if config.nsf.coupling != "ot":
        del chosen["nsf.coupling_batch"]
    if config.nsf.source == "prior":
        del chosen["nsf.starts"]
    if not config.peer.coupling_batch:
        del chosen["peer.coupling_batch"]
    return {**chosen, "evaluation.classifier": bool(found.classes)}


def for_points(samples: int, dim: int) -> dict[str, Any]:
    """Return settings by dotted key for ``samples`` points of ``dim`` standardised coordinates."""
    n = min(1024, samples)
    return {
        "optim.batch_size": min(256, samples),
        "sinkhorn.batch_size": n,
        # distances grow with the root of dim; 0.1 in the plane is what 0.25 is to the shipped sets
        "sinkhorn.blur": round(0.07 * dim**0.5, 3),
        "pool.num_batches": _flows(102_400, n, 11 * dim),
        "model.mlp.width": 256 if dim <= 16 else 512 if dim <= 128 else 1024,
    }


def for_images(
    samples: int, channels: int, size: int, mult: list[int] | None = None
) -> dict[str, Any]:
    """Return settings by dotted key for images of ``size`` x ``size`` pixels.

    Args:
        samples: number of images.
        channels: 1 or 3.
        size: pixels of a side.
        mult: levels of the network, if the user gives them.

    Raises:
        UserError: a network cannot halve that side often enough.
    """
    sides = _sides(size)
    if mult:
        sides = sides[: len(mult)]
    elif sides[-1] > LARGEST_END:
        raise UserError(
            f"data.size = {size}: can only be halved to {sides[-1]} pixels, must come to "
            f"{LARGEST_END} or fewer, as 28, 32, 48, 96 and 224 do"
        )
    n, values = min(128, samples), channels * size**2
    # small sets get narrow networks, which learn them by heart later
    width, many = (32 if size < 32 else 64 if size < 64 else 128), samples >= MANY
    width = width if many else max(32, width // 2)
    levels = mult or [1, *[2] * (len(sides) - 1)]
    return {
        "optim.batch_size": n,
        "sinkhorn.batch_size": n,
        "sinkhorn.blur": 0.5 if size < 32 else 1.0,
        "pool.num_batches": _flows(25_600, n, 3 * values),
        "model.unet.channels": width,
        "model.unet.res_blocks": 2 if many and size >= 32 else 1,
        "model.unet.mult": levels,
        "model.unet.attention": [side for side in sides[1:] if 8 <= side <= 16],
        "model.unet.heads": width // 32 * math.gcd(*(levels[1:] or levels)),  # of 32 channels
        "model.predictor_channels": [32, 64, 128, 256][: size.bit_length() - 1],
        "nsf.coupling_batch": min(1024, samples),
        "nsf.starts": min(65_536, START_VALUES // values),
        "peer.coupling_batch": min(1024, samples),
    }


def _sides(size: int) -> list[int]:
    """Return the side in pixels on each level of a network that halves as often as it can."""
    sides = [size]
    while sides[-1] % 2 == 0 and sides[-1] >= 8:
        sides.append(sides[-1] // 2)
    return sides


def _flows(trajectories: int, particles: int, values: int) -> int:
    """Return the number of flows in a pool of so many trajectories, or of as many as POOL_VALUES
    allow; each trajectory has ``values`` values."""
    return max(1, -(-min(trajectories, POOL_VALUES // values) // particles))
