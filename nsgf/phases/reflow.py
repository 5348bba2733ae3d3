"""The phases of the methods that NSGF is compared with, trained by the same loop.

peer     flow matching: straight lines or bridges from noise to data
reflow   the peer's network once more, on the ends of its own paths (2-rectified flow)
"""

import torch
from torch import Tensor, nn

from nsgf.data import Data
from nsgf.phases.flow_matching import PeerTrainer, ReflowTrainer, reflow_ends
from nsgf.run.resume import load_network, new_network
from nsgf.run.session import Session
from nsgf.sampling.sampler import nsgf_steps
from nsgf.system.seeding import derive_seed
from nsgf.training.loop import fit


def train_peer(session: Session, data: Data) -> None:
    """I-CFM, OT-CFM, SB-CFM or rectified flow, through torchcfm.

    Raises:
        UserError: torchcfm is not installed.
    """
    config = session.config
    trainer = PeerTrainer(
        new_network(config, "peer", session.device),
        data.source("peer"),
        data.target("peer"),
        config.peer,
        derive_seed(config.seed, "peer"),
    )
    fit("peer", trainer, session)


def train_reflow(session: Session, data: Data) -> None:
    """Reflow: starts from the peer's averaged weights, as published (Liu et al. 2023).

    The paths are walked again when an interrupted reflow goes on, to the same ends.

    Raises:
        Stopped: asked to, while the paths are walked.
        UserError: the peer is not trained.
    """
    config = session.config
    teacher = load_network(config, session.run, "peer", "ema", session.device).network
    student = new_network(config, "reflow", session.device)
    student.load_state_dict(teacher.state_dict())
    ends = _paths(session, data, teacher)
    del teacher  # its memory is the student's from here on
    fit("reflow", ReflowTrainer(student, ends, derive_seed(config.seed, "reflow")), session)


def _paths(session: Session, data: Data, teacher: nn.Module) -> tuple[Tensor, Tensor]:
    """Starts and ends of the teacher's paths, each (reflow.pairs, *shape)."""
    reflow = session.config.reflow

    @torch.no_grad()
    def carry(x: Tensor) -> Tensor:
        return nsgf_steps(teacher, x, steps=reflow.ode_steps, flow_time=1.0)

    session.tracker.log(f"reflow: {reflow.pairs} paths of {reflow.ode_steps} steps")
    return reflow_ends(data.source("reflow"), carry, reflow.pairs, session.device, session.stop)
