"""Phase ``generator``: G(z) = g(z, 0) or z + g(z, 0), from noise to data with one network call.

    x = G(z)                                       samples of the network as it is
    V = T(x -> y) - T(x -> x')                     where the Sinkhorn flow takes them
    loss = mean |x - stopgrad(x + eta V)|^2        in units of the mean cost between x and y

The velocity of NSGF's first phase trains the network that answers at once instead of one that is
asked along the way (W-Flow, arXiv 2605.11755; drifting models, arXiv 2602.04770).

With ``data.conditional`` a batch is made of K + 1 groups, a sample of each in turn, and transport
stays within them: samples that are told class c < K are drawn to real ones of that class, those
that are told K, no class, to real ones of all. No label has to be left out for guidance.

Shapes: B batch, M real samples of it, G groups, *shape one sample.
"""

import torch
from torch import Tensor, nn

from nsgf.config.schema import Config
from nsgf.data import Data, class_labels
from nsgf.phases.base import Phase, PhasePlan, Preparation, example_labels
from nsgf.phases.beginning import beginning
from nsgf.phases.groups import group_problems, grouped, groups_of, in_turn, targets_of
from nsgf.phases.nsgf import NSGF
from nsgf.phases.spaces import Spaces, pixels, space_shapes, spaces_of
from nsgf.run.folder import RunFolder
from nsgf.run.session import Session
from nsgf.sampling.sampler import OneCall
from nsgf.sinkhorn.drift import Drift, mean_cost
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from nsgf.training.task import Answer, Batch, Task


class GeneratorTask(Task):
    """G is moved to where its own samples drift."""

    divisible = False

    def __init__(
        self, model: nn.Module, data: Data, config: Config, spaces: Spaces = pixels
    ) -> None:
        self.model, self._config, self._spaces = model, config.generator, spaces
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
        """|eta V|^2 / 2 as a share of the mean cost between generated and real samples, summed over
        the spaces. With ``normalize`` divided by its root, which has the gradient of V / rms(V),
        whose own loss would always be the same. Not a number where samples are not finite.

        Raises:
            UserError: a blur is too small for float32.
        """
        noise, answer = batch.inputs[0], forward(*batch.inputs)
        made = noise + answer if self._config.residual else answer
        if not made.isfinite().all():
            return made.sum() * float("nan")
        with torch.no_grad():
            real = self._spaces(batch.target)
        loss = sum(map(self._loss_in, self._spaces(made), real), torch.zeros_like(made[0].sum()))
        return loss / loss.detach().sqrt().clamp_min(1e-12) if self._config.normalize else loss

    def _loss_in(self, made: Tensor, real: Tensor) -> Tensor:
        """The loss in one space, of (B, ...) and (M, ...)."""
        x, y = grouped(made.detach(), self._groups), grouped(real, self._groups)
        try:
            v = in_turn(self._drift.velocity(x, y))
        except ValueError as error:  # of finite samples there is one cause
            raise UserError(
                f"generator.blurs = {self._config.blurs}: too small for the distances of float32; "
                "use larger ones"
            ) from error
        way = made - (made.detach() + self._config.eta * v)
        return way.flatten(1).square().sum(1).mean() / 2 / mean_cost(x, y)

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
    divisible = False
    takes_classes = True
    follows = (*Phase.follows, "generator.init", "generator.residual")

    def task(self, session: Session, data: Data) -> Task:
        """
        Raises:
            UserError: what it is to begin as is missing, or labels are.
        """
        config, device = session.config, session.device
        own, model = config.generator, self.start(config, device)
        if own.init == "nsgf":
            velocity = NSGF().load(config, session.run, "ema", device).network
            model.load_state_dict(velocity.state_dict())
        if own.init_run and not session.run.has_checkpoint(self.name):
            found = beginning(self, config, own.init_run)
            model.load_state_dict(found.network.state_dict())
        return GeneratorTask(model, data, config, spaces_of(session, data))

    def example(self, size: int, shape: tuple[int, ...], classes: int = 0) -> Batch:
        noise, labels = torch.randn(size, *shape), example_labels(size, classes)
        return Batch((noise, torch.zeros(size), *labels), torch.randn(size, *shape))

    def plan(
        self, config: Config, device: torch.device, run: RunFolder | None, world: World
    ) -> PhasePlan:
        """
        Raises:
            UserError: a process would not have two halves of each group.
        """
        for problem in group_problems(config, world.size):
            raise UserError(problem)
        own, groups = config.generator, groups_of(config)
        sizes = (own.batch_size, targets_of(own))
        n, m = (count // (2 * groups * world.size) for count in sizes)
        count = 4 * groups * len(own.blurs) * len(space_shapes(config))
        each = f"{count} transport problems, {n} x {m} and {n} x {n}"
        where = f" in each of {world.size} processes" if world.size > 1 else ""
        return PhasePlan((f"generator: an update solves {each}{where}",))

    def beginning(self, config: Config) -> tuple[str, ...]:
        if not (folder := config.generator.init_run):
            return ()
        found = beginning(self, config, folder)
        return (f"generator: begins as {found.phase} of {folder}, {found.progress}",)

    def needs(self, config: Config) -> tuple[Phase, ...]:
        return (NSGF(),) if config.generator.init == "nsgf" else ()

    def shared_counts(self, config: Config) -> dict[str, int]:
        """Pairs of them: each process needs two halves."""
        own = config.generator
        counts = {"batch_size": own.batch_size, "targets": targets_of(own)}
        return {f"half of generator.{key}": count // 2 for key, count in counts.items()}

    def preparations(self, config: Config, device: torch.device) -> tuple[Preparation, ...]:
        own, drift, clouds = config.generator, drift_of(config), []
        for shape in space_shapes(config):
            made, real = (
                grouped(torch.randn(count, *shape, device=device), groups_of(config))
                for count in (own.batch_size, targets_of(own))
            )
            clouds.append((made, real))

        def unit() -> list[Tensor]:
            return [drift.velocity(made, real) for made, real in clouds]

        return (Preparation("generator, transport", unit, own.iterations),)


def drift_of(config: Config) -> Drift:
    """The configured velocity of generated samples."""
    own = config.generator
    return Drift(own.blurs, own.tolerance, own.max_iterations, relative=own.relative)
