"""The phases of the methods that NSGF is compared with, trained by the same loop.

peer     flow matching: straight lines or bridges from noise to data
reflow   the peer's network once more, on the ends of its own paths (2-rectified flow)
"""

import torch
from torch import Tensor

from nsgf.data import Data
from nsgf.handover import load_network, new_network
from nsgf.seeding import derive_seed
from nsgf.session import Session
from nsgf.training.loop import fit
from nsgf.training.peers import PeerTrainer, ReflowTrainer, reflow_ends


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
    """Reflow: starts from the peer's averaged weights, as published (Liu et al. 2023)."""
    config = session.config
    teacher = load_network(config, session.run, "peer", "ema", session.device).network
    student = new_network(config, "reflow", session.device)
    student.load_state_dict(teacher.state_dict())
    steps = config.reflow.ode_steps

    @torch.no_grad()
    def carry(x: Tensor) -> Tensor:
        for step in range(steps):
            t = torch.full((len(x),), step / steps, device=x.device)
            x = x + teacher(x, t) / steps
        return x

    session.tracker.say(f"reflow: {config.reflow.pairs} paths of {steps} steps")
    ends = reflow_ends(
        data.source("reflow"),
        carry,
        config.reflow.pairs,
        config.sampling.batch_size,
        session.device,
    )
    fit("reflow", ReflowTrainer(student, ends, derive_seed(config.seed, "reflow")), session)
