"""How phases hand over: what is finished, and the networks in its checkpoints."""

from typing import NamedTuple

import torch
from torch import nn

from nsgf.config.resume_rules import FROZEN_IN_SAMPLING, contradictions
from nsgf.config.schema import PHASES, Config, PhaseName
from nsgf.data import data_shape
from nsgf.models import build_network
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.system.errors import UserError
from nsgf.system.seeding import derive_seed


class Pending(NamedTuple):
    """What is left to train of a run."""

    phases: list[PhaseName]
    """Phases to train, in order."""
    restarts: list[PhaseName]
    """Those of them that are finished and shall start anew."""


class Trained(NamedTuple):
    """A network and how far its training got."""

    network: nn.Module
    progress: str
    """Updates done of those configured when it was saved, e.g. ``300 of 100000``."""


def pending_phases(config: Config, run: RunFolder, first: PhaseName | None = None) -> Pending:
    """What training a run with this configuration has to do.

    Args:
        config: the experiment.
        run: the run folder.
        first: start with this phase: those before must be finished; from it on, what is half done
            goes on and what is finished starts anew.

    Raises:
        UserError: a checkpoint contradicts the configuration, or a phase before ``first`` is not
            finished.
    """
    pending, restarts = [], []
    begin = config.phases.index(first) if first else len(config.phases)
    for number, phase in enumerate(config.phases):
        done = _is_finished(config, run, phase)
        if not done and number < begin and first:
            raise UserError(
                f"--resume-phase {begin + 1}: phase {phase} of {run.path} is not finished; "
                "use --resume"
            )
        if done and number >= begin:
            restarts.append(phase)
        if not done or number >= begin:
            pending.append(phase)
    later = [phase for phase in PHASES[1:] if run.checkpoint_file(phase).exists()]
    if config.nsf.source == "nsgf" and "nsgf" in pending and set(later) - set(restarts):
        raise UserError(
            f"nsgf.iterations = {config.nsgf.iterations}: phase 1 would change under {later}, "
            "whose lines start from its output (nsf.source: nsgf); --resume-phase 1 trains all anew"
        )
    return Pending(pending, restarts)


def _is_finished(config: Config, run: RunFolder, phase: PhaseName) -> bool:
    file = run.checkpoint_file(phase)
    if not file.exists():
        return False
    header = checkpoint.read_header(file)
    checkpoint.check_phase(file, header, phase)
    done = int(header["step"]) >= getattr(config, phase).iterations
    found = contradictions(header["config"], config, running=None if done else phase, phase=phase)
    if found:
        raise UserError(f"cannot resume {file}: " + "; ".join(found))
    return done


def new_network(config: Config, phase: PhaseName, device: torch.device) -> nn.Module:
    """A phase's network with its own seeded start."""
    seed, shape = derive_seed(config.seed, phase, "init"), data_shape(config.data.name)
    return build_network(phase, config.model, shape, seed).to(device)


def load_network(
    config: Config, run: RunFolder, phase: PhaseName, weights: str, device: torch.device
) -> Trained:
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
    file = run.checkpoint_file(phase)
    payload, remark = checkpoint.load_good(file)
    checkpoint.check_phase(file, payload, phase)
    found = contradictions(payload["config"], config, FROZEN_IN_SAMPLING, phase=phase)
    if found:
        raise UserError(f"cannot use {file}: " + "; ".join(found))
    model = build_network(phase, config.model, data_shape(config.data.name), seed=0)
    try:
        model.load_state_dict(payload["ema" if weights == "ema" else "model"])
        progress = f"{payload['step']} of {payload['config'][phase]['iterations']}{remark}"
    except (RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"checkpoint {file} does not fit the network ({error})") from error
    return Trained(model.to(device).eval().requires_grad_(False), progress)
