"""Settings that must not change when a run is resumed, or when its networks are used.

:attr:`nsgf.phases.base.Phase.follows` lists what a checkpoint depends on. The schema marks leaves
that may change although their section may not (``FREE_ON_RESUME``).
"""

from collections.abc import Collection
from typing import Any

from nsgf.config.leaves import default_of, is_free, leaves
from nsgf.config.schema import Config, PhaseName

UNFREEZE = {"iterations"}
"""Leaves of the running phase that may change in the middle of it."""


def contradictions(
    saved: dict[str, Any],
    config: Config,
    frozen: Collection[str],
    running: PhaseName | None = None,
) -> list[str]:
    """Return the settings of ``config`` that a run with the settings ``saved`` cannot take over.

    Args:
        saved: the configuration in a checkpoint, nested plain values.
        config: the configuration of this command.
        frozen: sections and dotted leaves that must agree.
        running: the phase that goes on in its middle, whose optimization is fixed too.

    Returns:
        One text per contradiction, with both values.
    """
    texts = []
    for key, value, item in leaves(config):
        section, _, name = key.partition(".")
        fixed = section in frozen or key in frozen
        fixed |= section == running and name not in UNFREEZE
        before = _lookup(saved, key, default_of(item))
        if isinstance(before, dict):  # data.found of earlier versions holds null for other data
            before = before if before.get("samples") else {}
        if fixed and not is_free(item) and before != value:
            texts.append(f"{key}: the checkpoint has {before}, this command {value}")
    return texts


def _lookup(nested: dict[str, Any], key: str, default: Any) -> Any:
    """Return the value at a dotted key; a setting that is newer than the file has its default."""
    *sections, name = key.split(".")
    node: Any = nested
    for section in sections:
        node = node.get(section, {}) if isinstance(node, dict) else {}
    return node.get(name, default) if isinstance(node, dict) else default
