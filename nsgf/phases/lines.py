"""Straight lines from noise to data, which both the straight flow and the time predictor learn.

Shapes: B batch, *shape one sample.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nsgf.config.schema import Config, FlowConfig
from nsgf.data import Data, PointSampler, Sampler, Times, data_shape
from nsgf.phases.base import Phase, Preparation, timed_samples
from nsgf.phases.nsgf import NSGF
from nsgf.run.session import Session
from nsgf.sampling.network import InferenceNetwork
from nsgf.sampling.sampler import nsgf_steps
from nsgf.sampling.solvers import Velocity
from nsgf.sinkhorn.schedule import flow_time
from nsgf.system.errors import UserError
from nsgf.system.hardware import wide_float
from nsgf.system.seeding import derive_seed
from nsgf.training.task import Task

SIMPLEX_ITERATIONS = 10_000_000
"""Limit of POT's exact solver; its own ends before the optimum from about 2,500 points on."""
Transport = Callable[[Tensor], Tensor]
"""NSGF steps as a function of their start, (B, *shape) -> (B, *shape), without gradients."""


class LineTask(Task):
    """Random points of straight lines from X0 to X1, the input of phases 2 and 3.

    X0 is a sample of mu0, or with ``nsf.source: nsgf`` what the NSGF steps make of it; X1 is a
    sample of mu*; with ``nsf.coupling: ot`` both are re-paired within the mini-batch, of several
    processes each within its share. The pairs are found on the CPU, for which a card has to wait.
    """

    def __init__(
        self,
        model: nn.Module,
        source: Sampler,
        target: Sampler,
        seed: int,
        *,
        coupling: str = "independent",
        transport: Transport | None = None,
    ) -> None:
        self.model, self.coupling, self.transport = model, coupling, transport
        self._streams = (source, target, PointSampler(Times(), derive_seed(seed, "times")))

    @classmethod
    def of(cls, phase: Phase, session: Session, data: Data) -> "LineTask":
        """The task of a run's phase, with random streams of the phase's own.

        Raises:
            UserError: the lines start from the NSGF steps, and NSGF is not trained.
        """
        config = session.config
        return cls(
            phase.start(config, session.device),
            data.source(phase.name),
            data.target(phase.name),
            derive_seed(config.seed, phase.name),
            coupling=config.nsf.coupling,
            transport=nsgf_transport(session) if config.nsf.source == "nsgf" else None,
        )

    def draw(self, positions: range) -> tuple[Tensor, ...]:
        """A sample of mu0 (B, *shape), one of mu* (B, *shape), and t ~ U[0, 1) (B,)."""
        return tuple(stream.at(positions) for stream in self._streams)

    def points(self, noise: Tensor, end: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """
        Returns:
            X0 and X1 as they are paired, and (1 - t) X0 + t X1; each (B, *shape).
        """
        start = self.transport(noise) if self.transport else noise
        if self.coupling == "ot":
            end = end[ot_coupling(start, end)]
        return start, end, interpolate(start, end, t)


def nsgf_transport(session: Session) -> Transport:
    """The trained NSGF steps (Algorithm 2), from the checkpoint of phase 1.

    Raises:
        UserError: NSGF is not trained.
    """
    config, device = session.config, session.device
    model = NSGF().load(config, session.run, "ema", device).network
    return _steps_of(InferenceNetwork(model, config, device, session.tracker.log), config.flow)


def _steps_of(velocity: Velocity, flow: FlowConfig) -> Transport:
    @torch.no_grad()
    def transport(x: Tensor) -> Tensor:
        return nsgf_steps(velocity, x, steps=flow.steps, flow_time=flow_time(flow))

    return transport


def line_preparations(
    phase: Phase, config: Config, device: torch.device
) -> tuple[Preparation, ...]:
    """What the lines of all batches take before the network that learns them is called."""
    optim, shape, parts = phase.optim(config), data_shape(config.data.name), []
    if config.nsf.source == "nsgf":
        noise = torch.randn(timed_samples(config, device, optim.batch_size), *shape, device=device)
        velocity = InferenceNetwork(NSGF().start(config, device).eval(), config, device)
        transport = _steps_of(velocity, config.flow)
        units = optim.iterations * optim.batch_size / len(noise)
        parts.append(Preparation(f"{phase.name}, NSGF steps", lambda: transport(noise), units))
    if config.nsf.coupling == "ot":
        ends = torch.randn(2, optim.batch_size, *shape, device=device)
        pair = Preparation(f"{phase.name}, pairs", lambda: ot_coupling(*ends), optim.iterations)
        parts.append(pair)
    return tuple(parts)


def interpolate(start: Tensor, end: Tensor, t: Tensor) -> Tensor:
    """(1 - t) X0 + t X1 for X0 and X1 (B, *shape) and t (B,).  (B, *shape)"""
    weight = t.view(-1, *[1] * (start.ndim - 1))
    return (1 - weight) * start + weight * end


def ot_coupling(start: Tensor, end: Tensor) -> Tensor:
    """Exact optimal transport between two clouds (n, *shape), squared Euclidean cost: indices into
    ``end``, a permutation; row i of ``start`` goes to ``end[index[i]]``.  (n,)

    Raises:
        UserError: the batch is too large for the solver.
    """
    import ot

    wide = wide_float(start.device)
    cost = torch.cdist(start.flatten(1).to(wide), end.flatten(1).to(wide)).square()
    # uniform weights: a permutation divided by n
    plan, log = ot.emd([], [], cost.cpu().numpy(), numItermax=SIMPLEX_ITERATIONS, log=True)
    if log["warning"]:
        raise UserError(
            f"nsf.coupling = ot: no optimal pairs for a batch of {len(cost)} ({log['warning']}); "
            "use a smaller nsf.batch_size and predictor.batch_size, or nsf.coupling independent"
        )
    return torch.from_numpy(plan.argmax(axis=1)).to(end.device)
