"""The three trainers: each states its network, its batch and its loss, and nothing else.

Shapes: B batch, *shape one sample.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from nsgf.config import NSFConfig
from nsgf.data import Sampler
from nsgf.pool import PoolBatch, Prefetch, TrajectoryPool
from nsgf.seeding import make_generator


class Trainer(Protocol):
    """What the step loop needs of a phase."""

    model: nn.Module

    def loss(self, batch_size: int) -> Tensor:
        """Loss of a fresh batch, a scalar on the network's device."""
        ...

    def random_state(self) -> dict[str, Any]:
        """State of the phase's random streams, tensors and plain values."""
        ...

    def set_random_state(self, state: dict[str, Any]) -> None:
        """Continue the streams from :meth:`random_state`."""
        ...


class NSGFTrainer:
    """Phase 1: v_theta(X^t, t/T) regresses the pool's velocities (Algorithm 1)."""

    def __init__(
        self,
        model: nn.Module,
        pool: TrajectoryPool,
        seed: int,
        device: torch.device,
        *,
        prefetch: bool = False,
    ) -> None:
        """
        Args:
            model: v_theta.
            pool: where pairs come from.
            seed: the run's seed.
            device: where the network is.
            prefetch: draw batches ahead in a thread, the same ones; :meth:`close` ends it.
        """
        self.model, self.pool, self.device = model, pool, device
        self.generator = make_generator(seed, "nsgf", "batches")
        pin = device.type == "cuda"
        self._prefetch = Prefetch(pool.sample, self.generator, pin=pin) if prefetch else None

    def loss(self, batch_size: int) -> Tensor:
        batch = self._draw(batch_size)
        x, v, t = (part.to(self.device, non_blocking=part.is_pinned()) for part in batch)
        return functional.mse_loss(self.model(x, t), v)

    def _draw(self, batch_size: int) -> PoolBatch:
        if self._prefetch is None:
            return self.pool.sample(batch_size, self.generator)
        return self._prefetch.next(batch_size)

    def random_state(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def set_random_state(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])
        if self._prefetch is not None:
            self._prefetch.rewind()

    def close(self) -> None:
        """End the thread that draws ahead, if there is one."""
        if self._prefetch is not None:
            self._prefetch.close()


Transport = Callable[[Tensor], Tensor]
"""NSGF steps as a function of their start, (B, *shape) -> (B, *shape), without gradients."""


class StraightLine:
    """Random points of straight lines from X0 to X1, the input of phases 2 and 3.

    X0 is a sample of mu0, or with ``nsf.source: nsgf`` what the NSGF steps make of it; X1 is a
    sample of mu*; with ``nsf.coupling: ot`` both are re-paired within the mini-batch.
    """

    def __init__(
        self,
        source: Sampler,
        target: Sampler,
        config: NSFConfig,
        transport: Transport | None,
        seed: int,
        device: torch.device,
    ) -> None:
        """
        Args:
            source: sampler of mu0.
            target: sampler of mu*.
            config: ``nsf.source`` and ``nsf.coupling``.
            transport: the trained NSGF steps, needed with ``nsf.source: nsgf``.
            seed: seed of the times.
            device: where the networks are.
        """
        if (config.source == "nsgf") != (transport is not None):
            raise ValueError("nsf.source: nsgf needs the NSGF steps, prior must not have them")
        self.source, self.target, self.config = source, target, config
        self.transport, self.device = transport, device
        self.generator = make_generator(seed, "times")

    def sample(self, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """X0 (B, *shape), X1 (B, *shape), t ~ U[0, 1] (B,) and x = (1 - t) X0 + t X1."""
        start = self.source.sample(n).to(self.device)
        end = self.target.sample(n).to(self.device)
        if self.transport is not None:
            start = self.transport(start)
        if self.config.coupling == "ot":
            end = end[optimal_pairs(start, end)]
        t = torch.rand(n, generator=self.generator).to(self.device)
        weight = t.view(-1, *[1] * (start.ndim - 1))
        return start, end, t, (1 - weight) * start + weight * end

    def random_state(self) -> dict[str, Any]:
        return {
            "source": self.source.position,
            "target": self.target.position,
            "generator": self.generator.get_state(),
        }

    def set_random_state(self, state: dict[str, Any]) -> None:
        self.source.position, self.target.position = state["source"], state["target"]
        self.generator.set_state(state["generator"])


class _LineTrainer:
    """A network trained on points of straight lines."""

    def __init__(self, model: nn.Module, line: StraightLine) -> None:
        self.model, self.line = model, line

    def random_state(self) -> dict[str, Any]:
        return self.line.random_state()

    def set_random_state(self, state: dict[str, Any]) -> None:
        self.line.set_random_state(state)


class NSFTrainer(_LineTrainer):
    """Phase 2: u_delta(x, t) regresses X1 - X0 (Algorithm 3, part 2)."""

    def loss(self, batch_size: int) -> Tensor:
        start, end, t, x = self.line.sample(batch_size)
        return functional.mse_loss(self.model(x, t), end - start)


class TimePredictorTrainer(_LineTrainer):
    """Phase 3: t_phi(x) regresses t (Algorithm 3, part 3)."""

    def loss(self, batch_size: int) -> Tensor:
        _, _, t, x = self.line.sample(batch_size)
        return functional.mse_loss(self.model(x), t)


def optimal_pairs(start: Tensor, end: Tensor) -> Tensor:
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
