"""Phase ``generator``: G(z) = z + g(z, 0), from noise to data with one network call.

    x = G(z)                                       samples of the network as it is
    V = T(x -> y) - T(x -> x')                     where the Sinkhorn flow takes them
    loss = mean |x - stopgrad(x + eta V)|^2

The velocity of NSGF's first phase trains the network that answers at once instead of one that is
asked along the way (W-Flow, arXiv 2605.11755; drifting models, arXiv 2602.04770).

With ``data.conditional`` a batch is made of K + 1 groups, a sample of each in turn, and transport
stays within them: samples that are told class c < K are drawn to real ones of that class, those
that are told K, no class, to real ones of all. No label has to be left out for guidance.

Shapes: B batch, M real samples of it, G groups, *shape one sample.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from nsgf.config.schema import Config, GeneratorConfig
from nsgf.data import Data, class_labels, data_classes, data_shape
from nsgf.data.classes import nearest_multiple
from nsgf.phases.base import Phase, PhasePlan, Preparation, example_labels
from nsgf.run.folder import RunFolder
from nsgf.run.session import Session
from nsgf.sampling.sampler import OneCall
from nsgf.sinkhorn.drift import Drift
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from nsgf.training.task import Answer, Batch, Task


class GeneratorTask(Task):
    """G is moved to where its own samples drift."""

    divisible = False

    def __init__(self, model: nn.Module, data: Data, config: Config) -> None:
        self.model, self._config = model, config.generator
        self._noise, self._drift = data.source("generator"), drift_of(config)
        self._groups = groups_of(config)
        is_told = self._groups > 1
        self._real = (
            data.target_by_class("generator", mixed=True) if is_told else data.target("generator")
        )

    def draw(self, positions: range) -> tuple[Tensor, ...]:
        """z (B, *shape) and y (M, *shape), with classes labels (B,) too."""
        whole, targets = self._config.batch_size, targets_of(self._config)
        places = [position * targets // whole for position in (positions.start, positions.stop)]
        labels = (class_labels(positions, self._groups),) if self._groups > 1 else ()
        return self._noise.at(positions), self._real.at(range(*places)), *labels

    def batch(self, *drawn: Tensor) -> Batch:
        noise, real, *labels = drawn
        return Batch((noise, torch.zeros(len(noise), device=noise.device), *labels), real)

    def loss(self, forward: Answer, batch: Batch) -> Tensor:
        """mean |eta V|^2. With ``normalize`` divided by its root, which has the gradient of
        V / rms(V), whose own loss would always be the same, and the value eta rms(V). Not a number
        where samples are not finite.

        Raises:
            UserError: a blur is too small for float32.
        """
        made = batch.inputs[0] + forward(*batch.inputs)
        if not made.isfinite().all():
            return made.sum() * float("nan")
        try:
            x, y = (grouped(part, self._groups) for part in (made.detach(), batch.target))
            v = self._drift.velocity(x, y).transpose(0, 1).flatten(0, 1)
        except ValueError as error:
            raise UserError(f"generator.blurs = {self._config.blurs}: {error}") from error
        loss = (made - (made.detach() + self._config.eta * v)).square().mean()
        return loss / loss.detach().sqrt().clamp_min(1e-12) if self._config.normalize else loss

    def remarks(self) -> tuple[str, ...]:
        lines = []
        for blur, report in zip(self._config.blurs, self._drift.reports, strict=True):
            if report.solves:
                lines.append(
                    f"blur {blur:g}: {report.solves} transport problems, {report.iterations:.0f} "
                    f"updates each, marginal errors up to {report.worst_error:.1e}, "
                    f"{report.unconverged} cut off"
                )
        return tuple(lines)


class Generator(Phase):
    """G learns to be where the Sinkhorn flow would take its samples."""

    name = "generator"
    leg = OneCall
    follows = (*Phase.follows, "sinkhorn.tolerance", "sinkhorn.max_iterations")

    def task(self, session: Session, data: Data) -> Task:
        return GeneratorTask(self.start(session.config, session.device), data, session.config)

    def example(self, size: int, shape: tuple[int, ...], classes: int = 0) -> Batch:
        noise, labels = torch.randn(size, *shape), example_labels(size, classes)
        return Batch((noise, torch.zeros(size), *labels), torch.randn(size, *shape))

    def plan(
        self, config: Config, device: torch.device, run: RunFolder | None, world: World
    ) -> PhasePlan:
        own, groups = config.generator, groups_of(config)
        for problem in group_problems(config, world.size):
            raise UserError(problem)
        sizes = (own.batch_size, targets_of(own))
        n, m = (count // (2 * groups * world.size) for count in sizes)
        each = f"{4 * groups * len(own.blurs)} transport problems, {n} x {m} and {n} x {n}"
        where = f" in each of {world.size} processes" if world.size > 1 else ""
        return PhasePlan((f"generator: an update solves {each}{where}",))

    def shared_counts(self, config: Config) -> dict[str, int]:
        """Pairs of them: each process needs two halves."""
        own = config.generator
        counts = {"batch_size": own.batch_size, "targets": targets_of(own)}
        return {f"half of generator.{key}": count // 2 for key, count in counts.items()}

    def preparations(self, config: Config, device: torch.device) -> tuple[Preparation, ...]:
        own, shape, drift = config.generator, data_shape(config.data), drift_of(config)
        made, real = (
            grouped(torch.randn(count, *shape, device=device), groups_of(config))
            for count in (own.batch_size, targets_of(own))
        )
        unit = partial(drift.velocity, made, real)
        return (Preparation("generator, transport", unit, own.iterations, exact=True),)


def targets_of(config: GeneratorConfig) -> int:
    """Real samples of an update."""
    return config.targets or config.batch_size


def groups_of(config: Config) -> int:
    """Groups within which samples are transported: K + 1 with K classes, else all together."""
    return data_classes(config.data) + 1


def grouped(samples: Tensor, groups: int) -> Tensor:
    """Samples of the groups in turn, (B, *shape), group by group.  (G, B / G, *shape)"""
    return samples.unflatten(0, (-1, groups)).transpose(0, 1)


def group_problems(config: Config, processes: int = 1) -> Iterator[str]:
    """Why the batches of so many processes cannot be made of two halves of each group."""
    own, groups = config.generator, groups_of(config)
    unit = 2 * groups * processes
    where = f" and {processes} processes" if processes > 1 else ""
    for key, count in (("batch_size", own.batch_size), ("targets", targets_of(own))):
        if groups > 1 and count % unit:
            yield (
                f"generator.{key} = {count}: must be a multiple of {unit} with {groups - 1} "
                f"classes{where}, two halves for each and for none; the nearest is "
                f"{nearest_multiple(count, unit)}"
            )
            return


def drift_of(config: Config) -> Drift:
    """The configured velocity of generated samples."""
    own = config.generator
    return Drift(config.sinkhorn, own.blurs, relative=own.relative)
