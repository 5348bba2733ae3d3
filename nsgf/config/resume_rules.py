"""What must not change when a run is resumed, or when its networks are used.

A leaf that may change although its section may not is marked in the schema (``FREE_ON_RESUME``).
"""

from typing import Any

from nsgf.config.leaves import default_of, is_free, leaves
from nsgf.config.schema import PEER_PHASES, Config, PhaseName

FROZEN_IN_TRAINING = ("seed", "data", "sinkhorn", "flow", "pool", "model")
FROZEN_IN_SAMPLING = ("data", "flow", "model")
OF_THE_FLOW = {"sinkhorn", "flow", "pool"}
"""Sections that the methods NSGF is compared with do not use."""
LINES = {"nsf.source", "nsf.coupling"}
PATHS_OF_PEERS = {"peer.method", "peer.sigma"}
LEARNT_FROM: dict[PhaseName, set[str]] = {
    "nsf": LINES,
    "predictor": LINES,
    "peer": PATHS_OF_PEERS,
    "reflow": PATHS_OF_PEERS | {"reflow.pairs", "reflow.ode_steps"},
}
"""What a phase's samples are made of; also phases 2 and 3 must agree in it."""
UNFREEZE = {"iterations"}
"""Leaves of the running phase that may change in the middle of it."""


def contradictions(
    saved: dict[str, Any],
    config: Config,
    frozen: tuple[str, ...] = FROZEN_IN_TRAINING,
    running: PhaseName | None = None,
    phase: PhaseName = "nsgf",
) -> list[str]:
    """Settings of ``config`` that a run begun with the settings ``saved`` cannot take over.

    Args:
        saved: the configuration in a checkpoint, nested plain values.
        config: the configuration of this command.
        frozen: sections that must agree.
        running: the phase that goes on in its middle, whose optimization is fixed too.
        phase: the phase that the checkpoint is of.

    Returns:
        One text per contradiction, with both values.
    """
    texts = []
    for key, value, item in leaves(config):
        section, _, name = key.partition(".")
        fixed = section in frozen and not (phase in PEER_PHASES and section in OF_THE_FLOW)
        fixed |= section == running and name not in UNFREEZE
        fixed |= key in LEARNT_FROM.get(phase, ())
        before = _lookup(saved, key, default_of(item))
        if fixed and not is_free(item) and before != value:
            texts.append(f"{key}: the checkpoint has {before}, this command {value}")
    return texts


def _lookup(nested: dict[str, Any], key: str, default: Any) -> Any:
    """The value at a dotted key; what was saved before there was such a setting has its default."""
    *sections, name = key.split(".")
    node: Any = nested
    for section in sections:
        node = node.get(section, {}) if isinstance(node, dict) else {}
    return node.get(name, default) if isinstance(node, dict) else default
