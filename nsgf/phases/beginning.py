"""Weights to begin with: those of a velocity network that another run has trained."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from nsgf.config.resume_rules import contradictions
from nsgf.config.schema import Config, PhaseName
from nsgf.data import shape_and_classes
from nsgf.phases.base import Phase
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.system.errors import UserError, one_line

FROM_NOISE: tuple[PhaseName, ...] = ("reflow", "peer", "nsf", "nsgf")


class Beginning(NamedTuple):
    """A trained network that takes noise at time 0."""

    phase: PhaseName
    progress: str
    network: nn.Module


def beginning(phase: Phase, config: Config, folder: str) -> Beginning:
    """The network of ``phase`` with averaged weights of the run in ``folder``, on the CPU: those
    of its reflow or peer, of its straight flow where that starts from noise, else of NSGF.

    Raises:
        UserError: there is no such run, it has none of these, or one that does not fit.
    """
    key = f"generator.init_run = {folder}"
    try:
        run = RunFolder.open(Path(folder).expanduser())
        for name in (name for name in FROM_NOISE if run.has_checkpoint(name)):
            payload, remark = checkpoint.load_good(run.checkpoint_file(name))
            if name == "nsf" and payload["config"]["nsf"]["source"] != "prior":
                continue
            if texts := contradictions(payload["config"], config, ("data", "model")):
                raise UserError(f"its {name} is of other data or another network: {texts[0]}")
            with torch.device("cpu"):
                network = phase.network(config.model, *shape_and_classes(config.data))
            network.load_state_dict(payload["ema"])
            return Beginning(name, f"after update {payload['step']}{remark}", network)
    except UserError as error:
        raise UserError(f"{key}: {error}") from error
    except (RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{key}: its {name} does not fit the network ({one_line(error)[:100]}); name another"
        ) from error
    raise UserError(f"{key}: no network there that starts from noise; train one, or say null")
