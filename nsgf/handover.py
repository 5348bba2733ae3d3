"""How phases hand over: what is finished, and the networks in its checkpoints."""

import torch
from torch import nn

from nsgf import checkpoint
from nsgf.checkpoint import RunFolder
from nsgf.config import Config, PhaseName
from nsgf.data import data_shape
from nsgf.errors import UserError
from nsgf.models import build_network
from nsgf.validation import FROZEN_IN_SAMPLING, contradictions


def pending_phases(config: Config, run: RunFolder) -> list[PhaseName]:
    """Configured phases without a finished checkpoint in the run.

    Raises:
        UserError: a checkpoint contradicts the configuration.
    """
    pending: list[PhaseName] = []
    for phase in config.phases:
        file = run.checkpoint_file(phase)
        if not file.exists():
            pending.append(phase)
            continue
        payload = checkpoint.load(file)
        done = checkpoint.is_done(payload, getattr(config, phase).iterations)
        found = contradictions(payload["config"], config, running=None if done else phase)
        if found:
            raise UserError(f"cannot resume {file}: " + "; ".join(found))
        if not done:
            pending.append(phase)
    return pending


def load_network(
    config: Config, run: RunFolder, phase: PhaseName, weights: str, device: torch.device
) -> nn.Module:
    """A phase's trained network, in eval mode and without gradients.

    Args:
        config: the experiment, compared with the checkpoint.
        run: the run folder.
        phase: which network.
        weights: ``ema`` or ``last``.
        device: where to put it.

    Raises:
        UserError: no checkpoint, or one of another architecture.
    """
    payload = checkpoint.load(run.checkpoint_file(phase))
    found = contradictions(payload["config"], config, FROZEN_IN_SAMPLING)
    if found:
        raise UserError(f"cannot use {run.checkpoint_file(phase)}: " + "; ".join(found))
    model = build_network(phase, config.model, data_shape(config.data.name), seed=0)
    model.load_state_dict(payload["ema" if weights == "ema" else "model"])
    return model.to(device).eval().requires_grad_(False)
