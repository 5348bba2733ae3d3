"""Phase ``generator``: G(z) = g(z, 0) or z + g(z, 0), from noise to data with one network call.

    x = G(z)                                       generated samples
    V(x) = T(x -> y) - T(x -> x')                  their velocity in the Sinkhorn flow
    loss = mean |x - stopgrad(x + V)|^2            in units of the mean cost between x and y

The velocity of NSGF trains a network that samples with one call (W-Flow, arXiv 2605.11755; drifting
models, arXiv 2602.04770). T is the barycentric map of an entropic plan from generated samples x to
real samples y, or to generated samples x' from different noise. With x in place of x', the plan
would mostly pair each particle with itself. T(x -> x) would be close to x, and V would pull
particles to local means of the data. y and x' are both independent of x, so the errors of the two
maps are similar and cancel.

With K classes (``data.conditional``), the i-th sample of a batch is in group i mod (K + 1).
Transport stays within each group. Samples with label c < K move to real samples of class c. Samples
with label K (no class) move to real samples of all classes. So guidance does not need dropped
labels.

B: batch size, or number of problems; N: number of generated samples; M: number of real samples;
G: number of groups; *shape: shape of one sample.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nsgf.config.schema import GeneratorConfig
from nsgf.data import Data, class_labels
from nsgf.phases.base import Phase, starting_network
from nsgf.phases.nsgf import NSGF
from nsgf.run.folder import RunFolder
from nsgf.sinkhorn.batched import BatchedSolver
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from nsgf.training.loop import Diverged
from nsgf.training.task import Batch, Drawn, NetworkCall, Session, Task


@torch.no_grad()
def drift(solvers: Sequence[BatchedSolver], generated: Tensor, real: Tensor) -> Tensor:
    """Return V (B, N, *shape), float32, for generated samples (B, N, *shape) and real samples
    (B, M, *shape) of B independent problems. V is 0 for the last sample if N is odd.

    The first half of the samples serves as x' for the second half, and the second half for the
    first. The unit of the solvers' blurs is the square root of the mean cost between x and y. This
    cost changes while a network learns. V is averaged over the solvers. Raise UserError if samples
    are not finite, or if a blur is too small for float32.
    """
    unit = mean_cost(generated, real).sqrt()
    # (2B, N/2, *shape): the first halves of all problems, then the second halves
    x, y = (
        torch.cat((cloud.float() / unit)[:, : cloud.shape[1] // 2 * 2].chunk(2, dim=1))
        for cloud in (generated, real)
    )
    partner = x.roll(len(x) // 2, dims=0)
    total = torch.zeros_like(x)
    for solver in solvers:
        # the solver returns T(x -> y) - T(x -> x); in the difference, T(x -> x) cancels
        if y.shape == x.shape:  # solve all problems in one call
            both = solver.velocity(torch.cat([x, x]), torch.cat([y, partner]))
            to_y, to_x = both.chunk(2)
        else:
            to_y = solver.velocity(x, y)
            to_x = solver.velocity(x, partner)
        total += (to_y - to_x).view(x.shape)
    halves = (total * (unit / len(solvers))).chunk(2)
    velocity = torch.zeros_like(generated, dtype=torch.float32)
    velocity[:, : 2 * x.shape[1]] = torch.cat(halves, dim=1)
    return velocity


def mean_cost(x: Tensor, y: Tensor) -> Tensor:
    """Return the mean of 1/2 |x - y|^2 over all pairs of x (B, N, *shape) and y (B, M, *shape). If
    the mean is 0, return 1. scalar"""
    origin = y.mean((0, 1))
    a = (x - origin).flatten(2).float()
    b = (y - origin).flatten(2).float()
    squares = a.square().sum(2).mean() + b.square().sum(2).mean()
    products = (a.mean(1) * b.mean(1)).sum(1).mean()
    cost = (squares / 2 - products).clamp_min(0)
    return torch.where(cost > 0, cost, torch.ones_like(cost))


class GeneratorTask(Task):
    """Train G so that its samples move along the Sinkhorn velocity."""

    divisible = False

    def __init__(
        self, model: nn.Module, data: Data, config: GeneratorConfig, is_residual: bool
    ) -> None:
        """``is_residual``: whether G(z) is z + g(z, 0) instead of g(z, 0)."""
        self.model = model
        self._config = config
        self._is_residual = is_residual
        self._noise = data.source_by_class("generator", mixed=True)
        self.solvers = [BatchedSolver(blur, config.tolerance) for blur in config.blurs]
        self._groups = data.classes + 1  # the last group has no class
        self._real = data.target_by_class("generator", mixed=True)

    def draw(self, positions: range) -> Drawn:
        """Return z (B, *shape), y (M, *shape), and labels (B,) if there are classes."""
        size = self._config.batch_size
        targets = self._config.targets or size
        bounds = [position * targets // size for position in (positions.start, positions.stop)]
        labels = (class_labels(positions, self._groups),) if self._groups > 1 else ()
        return self._noise.at(positions), self._real.at(range(*bounds)), *labels

    def batch(self, *drawn: Tensor) -> Batch:
        noise, real, *labels = drawn
        start = torch.zeros(len(noise), dtype=torch.float32, device=noise.device)
        return Batch((noise, start, *labels), real)

    def loss(self, forward: NetworkCall, batch: Batch) -> Tensor:
        """Return mean |V|^2 / 2, divided by the mean cost between generated and real samples. If
        samples are not finite, return nan. V needs no step size, because Adam normalizes gradients.

        Raises:
            Diverged: a blur is too small for float32.
        """
        generated = forward(*batch.inputs)
        if self._is_residual:
            generated = batch.inputs[0] + generated
        if not generated.isfinite().all():
            return generated.sum() * float("nan")
        clouds = generated.detach(), batch.target  # sample i is in group i mod G
        x, y = (cloud.unflatten(0, (-1, self._groups)).transpose(0, 1) for cloud in clouds)
        try:
            v = drift(self.solvers, x, y).transpose(0, 1).flatten(0, 1)
        except UserError as error:  # the samples are finite, so the blur is the cause
            raise Diverged(
                f"generator.blurs = {self._config.blurs}: too small for float32"
            ) from error
        way = generated - (generated.detach() + v)
        return way.flatten(1).square().sum(1).mean() / 2 / mean_cost(x, y)

    def remarks(self) -> tuple[str, ...]:
        return tuple(f"blur {solver.blur:g}: {solver.report}" for solver in self.solvers)


class Generator(Phase):
    """Train G with Sinkhorn velocities."""

    name = "generator"
    title = "one-call generator"
    follows = (*Phase.follows, "phases")

    def task(self, session: Session, data: Data) -> Task:
        teacher = self.with_kind(NSGF) if self.needs() else None
        model = starting_network(self, session, teacher)
        return GeneratorTask(model, data, self.config.generator, is_residual=bool(teacher))

    def plan(self, device: torch.device, run: RunFolder | None, world: World) -> tuple[str, int]:
        """Raise UserError if a process cannot divide each group into two equal halves."""
        config = self.config.generator
        groups = self.target.classes + 1
        unit = 2 * groups * world.size
        for key, count in (("batch_size", config.batch_size), ("targets", config.targets)):
            if count and (count % unit if groups > 1 else count < unit):
                raise UserError(
                    f"generator.{key} = {count}: must be >= {unit}, with classes a multiple: two "
                    f"halves, for {groups - 1} classes and for no class, in each of {world.size} "
                    f"processes; the nearest is {nearest_multiple(count, unit)}"
                )
        return "", 0

    def needs(self) -> tuple[type[Phase], ...]:
        return (NSGF,) if NSGF.name in self.config.phases else ()


def nearest_multiple(count: int, unit: int) -> int:
    """Return the positive multiple of ``unit`` that is nearest to ``count``."""
    return max(1, (count + unit // 2) // unit) * unit
