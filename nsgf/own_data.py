"""A user's own data on the command line: what is found at ``data.path``, and what is chosen for it.

The rules stand here and in docs/own-data.md alone. They choose once, for a new run: what is found
and chosen is saved with it, so a run that goes on, or is sampled, chooses nothing again. Files
and flags win over the rules.
"""

from dataclasses import asdict
from typing import Any

from nsgf.config.files import Content, build, inherited, merged, nested
from nsgf.config.schema import Config, FoundConfig
from nsgf.system.errors import UserError

OWN: dict[str, str] = {"images": "DIR", "points": "FILE"}
"""``data.name`` of own data, and what ``--data.path`` names."""
POOL_VALUES, START_VALUES = 2**29, 2**28
"""Numbers that a pool and the walked starts may have: 2 and 1 GiB in float32."""
MANY = 10_000
"""Images from which on networks are as large as the shipped ones for such images."""
LARGEST_END = 16
"""Pixels of a side at which a UNet may end: attention in its middle takes their fourth power."""


def with_own_data(
    method: Content, base: Content, flags: Content, *, is_new: bool = True
) -> tuple[Content, Content, tuple[str, ...]]:
    """Both layers of settings with what is chosen for own data below the lower one, and what was
    found in the upper one, and lines about it; those for other data, and of a run, which has
    chosen, as they are.

    Args:
        method: the settings of the method's file, below what is chosen.
        base: the settings of a file or of a run, each phase with its own values.
        flags: those of the command line.
        is_new: whether a run is begun. Its file may be the settings of another run, of which other
            data keep what was chosen, not what was found.

    Raises:
        UserError: ``data.path`` is missing, or what is there cannot be trained on.
    """
    if flags.get("data", {}).get("found"):
        raise UserError("--data.found: is filled in by the program; leave it out")
    if is_new and {"path", "size", "fit", "color"} & set(flags.get("data", {})):
        own = {key: value for key, value in base.get("data", {}).items() if key != "found"}
        base = {**base, "data": own}
    data = merged(base, flags).get("data", {})
    if data.get("name") not in OWN or data.get("found", {}).get("checksum"):
        return merged(method, base), flags, ()
    from nsgf.checks import check_places  # loads torch, as looking does
    from nsgf.data.own import LOOKS

    config = build(Config, merged(merged(method, base), flags))
    check_places(config)
    name, path = config.data.name, config.data.path
    if path is None:
        raise UserError(f"data.path = null: name the {name} to train on, --data.path {OWN[name]}")
    seen = LOOKS[name](config.data)
    given = merged(base, flags).get("model", {}).get("unet", {}).get("mult")
    chosen, data = _chosen(config, seen.found, given), {"found": asdict(seen.found)}
    if name == "images":
        channels, size, _ = seen.found.shape or []
        data |= {"size": size, "fit": config.data.fit or "crop"}
        data |= {"color": "grey" if channels == 1 else "rgb"}
    below = merged(merged(method, inherited(nested(chosen))), base)
    note = f"chosen for them: {_in_words(chosen)}; --print-config shows all, your own settings win"
    return below, merged(flags, {"data": data}), (*seen.notes, note)


def _chosen(config: Config, found: FoundConfig, mult: list[int] | None) -> dict[str, Any]:
    """Settings by dotted key, but for those that would have no effect."""
    samples, shape = found.samples or 0, found.shape or []
    if len(shape) == 1:
        return for_points(samples, *shape)
    chosen = for_images(samples, shape[0], shape[1], mult)
    if config.nsf.coupling != "ot":
        del chosen["nsf.coupling_batch"]
    if config.nsf.source == "prior" or config.nsf.coupling == "semidiscrete":
        del chosen["nsf.starts"]
    if not config.peer.coupling_batch:
        del chosen["peer.coupling_batch"]
    return {**chosen, "evaluation.classifier": bool(found.classes)}


def for_points(samples: int, dim: int) -> dict[str, Any]:
    """Settings for so many points of ``dim`` standardised coordinates, by dotted key."""
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
    """Settings for so many images of ``size`` x ``size`` pixels, by dotted key; ``mult`` are the
    levels of the network that are given.

    Raises:
        UserError: a network cannot halve that side often enough.
    """
    sides = _sides(size)
    if mult:
        sides = sides[: len(mult)]
    elif sides[-1] > LARGEST_END:
        raise UserError(
            f"data.size = {size}: can be halved to {sides[-1]} pixels alone, must come to "
            f"{LARGEST_END} or fewer; the nearest that does is {_nearest_size(size)}"
        )
    n, values = min(128, samples), channels * size**2
    # the wider networks are for sets that they cannot learn by heart so soon
    width, many = (32 if size < 32 else 64 if size < 64 else 128), samples >= MANY
    return {
        "optim.batch_size": n,
        "sinkhorn.batch_size": n,
        "sinkhorn.blur": 0.5 if size < 32 else 1.0,
        "pool.num_batches": _flows(25_600, n, 3 * values),
        "model.unet.channels": width if many else max(32, width // 2),
        "model.unet.res_blocks": 2 if many and size >= 32 else 1,
        "model.unet.mult": mult or [1, *[2] * (len(sides) - 1)],
        "model.unet.attention": [side for side in sides[1:] if 8 <= side <= 16],
        "model.unet.head_channels": 32,  # divides whatever GroupNorm allows
        "model.predictor_channels": [32, 64, 128, 256][: size.bit_length() - 1],
        "nsf.coupling_batch": min(1024, samples),
        "nsf.starts": min(65_536, START_VALUES // values),
        "peer.coupling_batch": min(1024, samples),
    }


def _sides(size: int) -> list[int]:
    """Pixels of a side on each level of a network that halves as often as it can, down to 4."""
    sides = [size]
    while sides[-1] % 2 == 0 and sides[-1] >= 8:
        sides.append(sides[-1] // 2)
    return sides


def _nearest_size(size: int) -> int:
    sizes = range(4, min(2 * size, 1024) + 1)
    fitting = (other for other in sizes if _sides(other)[-1] <= LARGEST_END)
    return min(fitting, key=lambda other: abs(other - size))


def _flows(trajectories: int, particles: int, values: int) -> int:
    """Flows of so many particles that make the trajectories of a pool, or as many of them as
    POOL_VALUES allow, where each trajectory has ``values``."""
    return max(1, -(-min(trajectories, POOL_VALUES // values) // particles))


def _in_words(chosen: dict[str, Any]) -> str:
    """Network and batches, as keys and values."""
    shown = (
        *("model.unet.channels", "model.unet.mult", "model.mlp.width", "optim.batch_size"),
        *("sinkhorn.batch_size", "pool.num_batches", "nsf.coupling_batch"),
    )
    return ", ".join(f"{key} {chosen[key]}" for key in shown if key in chosen)
