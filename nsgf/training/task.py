"""The trainers of NSGF++: each states its network and what the network regresses, nothing else.

Every phase is a regression: the network sees the inputs of a :class:`Batch` and shall answer its
target. Sample i of a phase's batches follows from the run's seed and i alone, so a batch is named
by positions and can be drawn ahead, again, or in parts.

Shapes: B batch, *shape one sample.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from nsgf.config.schema import NSFConfig
from nsgf.data import PointSampler, RandomIndices, Sampler, Times
from nsgf.pool import TrajectoryPool
from nsgf.system.seeding import derive_seed


class Batch(NamedTuple):
    """One regression problem."""

    inputs: tuple[Tensor, ...]
    """What the network is called with, each (B, ...)."""
    target: Tensor
    """What it shall answer, (B, ...)."""

    def split(self, parts: int) -> list["Batch"]:
        """At most ``parts`` batches, equally large but for the last."""
        if parts == 1:
            return [self]
        size = -(-len(self.target) // parts)
        inputs = zip(*(part.split(size) for part in self.inputs), strict=True)
        return [
            Batch(part, target)
            for part, target in zip(inputs, self.target.split(size), strict=True)
        ]


class Trainer(Protocol):
    """What the step loop needs of a phase."""

    model: nn.Module

    def draw(self, positions: range) -> tuple[Tensor, ...]:
        """Everything random of the samples at these positions; may run in another thread."""
        ...

    def batch(self, *drawn: Tensor) -> Batch:
        """The regression problem made of :meth:`draw`'s tensors, then on the network's device."""
        ...


class NSGFTrainer:
    """Phase 1: v_theta(X^t, t/T) regresses the pool's velocities (Algorithm 1)."""

    def __init__(self, model: nn.Module, pool: TrajectoryPool, seed: int) -> None:
        """
        Args:
            model: v_theta.
            pool: where pairs come from, uniformly with replacement.
            seed: the run's seed.
        """
        self.model, self.pool = model, pool
        self._indices = PointSampler(RandomIndices(), derive_seed(seed, "nsgf", "batches"))

    def draw(self, positions: range) -> tuple[Tensor, ...]:
        return self.pool.pairs(self._indices.at(positions))

    def batch(self, *drawn: Tensor) -> Batch:
        x, v, t = drawn
        return Batch((x, t), v)


Transport = Callable[[Tensor], Tensor]
"""NSGF steps as a function of their start, (B, *shape) -> (B, *shape), without gradients."""


class StraightLine:
    """Random points of straight lines from X0 to X1, the input of phases 2 and 3.

    X0 is a sample of mu0, or with ``nsf.source: nsgf`` what the NSGF steps make of it; X1 is a
    sample of mu*; with ``nsf.coupling: ot`` both are re-paired within the mini-batch, of several
    processes each within its share. The pairs are found on the CPU, for which a card has to wait.
    """

    def __init__(
        self,
        source: Sampler,
        target: Sampler,
        config: NSFConfig,
        transport: Transport | None,
        seed: int,
    ) -> None:
        """
        Args:
            source: sampler of mu0.
            target: sampler of mu*.
            config: ``nsf.source`` and ``nsf.coupling``.
            transport: the trained NSGF steps, needed with ``nsf.source: nsgf``.
            seed: seed of the times.
        """
        if (config.source == "nsgf") != (transport is not None):
            raise ValueError("nsf.source: nsgf needs the NSGF steps, prior must not have them")
        self.config, self.transport = config, transport
        self._streams = (source, target, PointSampler(Times(), derive_seed(seed, "times")))

    def draw(self, positions: range) -> tuple[Tensor, ...]:
        """A sample of mu0 (B, *shape), one of mu* (B, *shape), and t ~ U[0, 1) (B,)."""
        return tuple(stream.at(positions) for stream in self._streams)

    def points(self, noise: Tensor, end: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """
        Returns:
            X0 and X1 as they are paired, and (1 - t) X0 + t X1; each (B, *shape).
        """
        start = self.transport(noise) if self.transport else noise
        if self.config.coupling == "ot":
            end = end[ot_coupling(start, end)]
        return start, end, interpolate(start, end, t)


def interpolate(start: Tensor, end: Tensor, t: Tensor) -> Tensor:
    """(1 - t) X0 + t X1 for X0 and X1 (B, *shape) and t (B,).  (B, *shape)"""
    weight = t.view(-1, *[1] * (start.ndim - 1))
    return (1 - weight) * start + weight * end


class _LineTrainer:
    """A network trained on points of straight lines."""

    def __init__(self, model: nn.Module, line: StraightLine) -> None:
        self.model, self.line = model, line

    def draw(self, positions: range) -> tuple[Tensor, ...]:
        return self.line.draw(positions)


class NSFTrainer(_LineTrainer):
    """Phase 2: u_delta(x, t) regresses X1 - X0 (Algorithm 3, part 2)."""

    def batch(self, *drawn: Tensor) -> Batch:
        noise, end, t = drawn
        start, end, x = self.line.points(noise, end, t)
        return Batch((x, t), end - start)


class TimePredictorTrainer(_LineTrainer):
    """Phase 3: t_phi(x) regresses t (Algorithm 3, part 3)."""

    def batch(self, *drawn: Tensor) -> Batch:
        noise, end, t = drawn
        _, _, x = self.line.points(noise, end, t)
        return Batch((x,), t)


def ot_coupling(start: Tensor, end: Tensor) -> Tensor:
    """Exact optimal transport between two equally large clouds, squared Euclidean cost.

    Args:
        start: (n, *shape).
        end: (n, *shape).

    Returns:
        Indices into ``end``, a permutation: row i of ``start`` goes to ``end[index[i]]``.  (n,)
    """
    import ot

    cost = torch.cdist(start.flatten(1).double(), end.flatten(1).double()).square()
    plan = ot.emd([], [], cost.cpu().numpy())  # uniform weights: a permutation divided by n
    return torch.from_numpy(plan.argmax(axis=1)).to(end.device)
