"""Sampling with the trained networks: Algorithm 2 (NSGF) and Algorithm 4 (NSGF++).

A leg is a stage of sampling. The method (:mod:`nsgf.phases`) determines the legs and their order.

Time runs from 0 to 1 on every leg. NFE is the number of calls of all networks per sample.

B: batch size; *shape: shape of one sample.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from nsgf.config.schema import FlowConfig, Names, SamplingConfig
from nsgf.data import Target, class_labels
from nsgf.method import Observer, Velocity, nsgf_steps, time_step
from nsgf.models import AffineStartNetwork
from nsgf.sampling.solvers import SOLVERS, integrate
from nsgf.sinkhorn.base import Array, to_tensor
from nsgf.system.errors import UserError, suggest
from nsgf.system.output import Log, show
from nsgf.system.process import exact_products
from nsgf.system.seeding import torch_defaults
from nsgf.training.precision import DTYPES, Precision, precision_context


class InferenceNetwork(nn.Module):
    """A network in eval mode that computes in a given precision, with float32 inputs and outputs.

    If a batch does not fit into the card's memory, the class computes it in parts. The solver
    dopri5 still chooses its steps for the whole batch, so it takes the same steps on any card.
    """

    def __init__(
        self,
        model: nn.Module,
        precision: Precision,
        log: Log = show,
    ) -> None:
        """Wrap ``model``, and cast the weights of its layers in place, because autocast would cast
        them in each call. ``log`` is called with a line when a batch does not fit."""
        super().__init__()
        self.model = model
        self._log = log
        self.precision = precision
        self._most: int | None = None
        """Largest number of samples per call that fits into memory; None: no limit is known."""
        for layer in model.modules() if precision != "fp32" else ():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.to(DTYPES[precision])
        self.eval()

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the network's output (B, ...) for inputs (B, ...). Raise UserError if the card's
        memory is too small for a single sample."""
        before = self._most
        size = before or max(1, len(inputs[0]))
        while True:
            parts = zip(*(part.split(size) for part in inputs), strict=True)
            try:
                with precision_context(self.precision, inputs[0].device):
                    answers = [self.model(*part).float() for part in parts]
                break
            except torch.cuda.OutOfMemoryError as error:
                if size <= 1:
                    raise UserError(
                        f"card memory is full, even with one sample; use {suggest('device', 'cpu')}"
                    ) from error
            # leaving the except block has freed its tensors
            size = -(-min(size, len(inputs[0])) // 2)
            self._most = size
            torch.cuda.empty_cache()
        if self._most != before:
            self._log(f"the card's memory is full; continuing with {size} samples at a time")
        return answers[0] if len(answers) == 1 else torch.cat(answers)


Network = Callable[..., Tensor]


@dataclass
class Samples:
    """The samples of one or several calls of a sampler."""

    x: Tensor
    """Samples, (B, *shape)."""
    nfe: float
    """Mean number of network calls per sample."""
    tau: Tensor | None = None
    """Times at which the samples entered the straight flow, in [0, 1), (B,); None: time 0."""
    path: list[Tensor] = field(default_factory=list)
    """The start and the state after each step, each (B, *shape); empty without ``keep_path``."""
    marks: list[str] = field(default_factory=list)
    """Name of each state of the path. Examples: ``start``, ``NSGF 1/2`` after the first of two NSGF
    steps, ``straight flow 3/10`` after three of ten straight steps."""
    pixels: Tensor | None = None
    """All samples as uint8 images, (N, C, H, W), if the caller requests bytes. In this case, x has
    only the first samples."""
    labels: Tensor | None = None
    """Classes of the samples, int64, (B,); None if the networks take no classes."""
    finite: bool = True
    """Whether all values of all samples are finite and not extremely large."""


@dataclass(eq=False)
class Leg(ABC):
    """A stage of sampling, which uses one network or none."""

    title: ClassVar[str] = ""
    """Name of the leg's steps in pictures."""
    steps: ClassVar[str] = ""
    """Name of the setting in ``sampling`` for the number of steps; empty: one step."""
    calls: ClassVar[int] = 1
    """Number of network calls per step. Subclasses may override :meth:`calls_per_step` instead."""
    reads: ClassVar[Names] = ()
    """Settings of ``sampling`` that no other kind of leg reads."""

    network: Network
    sampling: SamplingConfig
    flow: FlowConfig
    classes: int = 0
    """Number of classes K; 0: the network takes no labels."""
    evaluations: int = 0
    """Number of samples that went through the network."""

    @abstractmethod
    def carry(self, samples: Samples, observe: Observer) -> None:
        """Move the states ``samples.x`` along this leg, and call ``observe`` after each step.

        ``samples.tau`` has the times at which the samples enter the straight flow; None: time 0."""

    @classmethod
    def calls_per_step(cls, solver: str) -> int | None:
        """Return the number of network calls per step with this ``sampling.solver``. The number is
        for sampling without guidance. Return None for an adaptive solver."""
        return cls.calls

    @property
    def count(self) -> int:
        """Number of steps of this leg. The default number of NSGF steps is T."""
        if not self.steps:
            return 1
        return getattr(self.sampling, self.steps) or self.flow.steps

    @property
    def expected_calls(self) -> int | None:
        """Number of network calls per sample; None if the number depends on the samples."""
        calls = self.calls_per_step(self.sampling.solver)
        if calls is None:
            return None
        return calls * self.count * calls_per_velocity(self.sampling, self.classes)

    def velocity(self, labels: Tensor | None) -> Velocity:
        """Return the network as a function of x and t, for samples with these labels (B,).

        With classes, the velocity is a + w (b - a) (Ho and Salimans 2022). Here a is the network's
        output without the class, b is its output with the class, and w is ``sampling.guidance``. If
        w = 1, one call is enough."""
        if labels is None:
            return self._call
        weight = self.sampling.guidance
        none = torch.full_like(labels, self.classes)

        def guided(x: Tensor, t: Tensor) -> Tensor:
            answer = self._call(x, t, labels)
            if weight == 1:
                return answer
            free = self._call(x, t, none)
            return free + weight * (answer - free)

        return guided

    def _call(self, *inputs: Tensor) -> Tensor:
        self.evaluations += len(inputs[0])
        return self.network(*inputs)


class ODELeg(Leg):
    """A stage that takes steps along an ODE, which ends at time 1."""

    @property
    def start(self) -> float:
        """Time at which the ODE starts."""
        return 0.0

    def slope(self, labels: Tensor | None) -> Velocity:
        """Return dx/dt of the ODE, for samples with these labels (B,)."""
        return self.velocity(labels)


class NSGFSteps(ODELeg):
    """NSGF steps: Algorithm 2 with v_theta. If the number of steps grows, the result approaches the
    solution of the ODE dx/ds = L v_theta(x, s). L is the length of the flow on the network's
    clock."""

    title = "NSGF"
    steps = "nsgf_steps"
    reads = ("nsgf_steps",)

    @property
    def length(self) -> float:
        """Length L of the flow: T eta, or 1 for harmonic steps."""
        return self.flow.steps * time_step(self.flow.steps, self.flow.step_size)

    def carry(self, samples: Samples, observe: Observer) -> None:
        h = self.length / self.count
        samples.x = nsgf_steps(self.velocity(samples.labels), samples.x, self.count, h, observe)

    def slope(self, labels: Tensor | None) -> Velocity:
        velocity = self.velocity(labels)
        length = self.length
        return lambda x, t: length * velocity(x, t)


class AffineStart(Leg):
    """Map noise to the starts of a straight flow, without a network call."""

    title = "affine"
    calls = 0

    def __init__(self, network: Network, *settings: Any) -> None:
        """``network`` is the network of the straight flow, which contains the affine map."""
        self.model: AffineStartNetwork = network.model  # type: ignore[attr-defined]
        super().__init__(self.model.start, *settings)

    def carry(self, samples: Samples, observe: Observer) -> None:
        samples.x = self.network(samples.x)
        if observe:
            observe(samples.x)


class EntryTimes(Leg):
    """Algorithm 4: predict when each sample enters the straight flow, tau = t_phi(x)."""

    expected_calls = 1  # the predictor uses no guidance

    def carry(self, samples: Samples, observe: Observer) -> None:
        samples.tau = self._call(samples.x)


class StraightFlow(ODELeg):
    """Follow u_delta to time 1. The start time is ``sampling.tau``. If ``sampling.tau`` is not set,
    each sample starts at the tau from the predictor. Without a predictor, all samples start at
    0."""

    title = "straight flow"
    steps = "straight_steps"
    reads = ("tau", "solver", "straight_steps", "spacing", "omega", "tolerance")

    def carry(self, samples: Samples, observe: Observer) -> None:
        x = samples.x
        velocity = self.velocity(samples.labels)
        if (tau := self.sampling.tau) is not None:
            samples.tau = x.new_full((len(x),), tau)
        start = start_times(x) if samples.tau is None else samples.tau
        samples.x = integrate(velocity, x, start, self.sampling, observe)

    @property
    def start(self) -> float:
        return self.sampling.tau or 0.0

    @classmethod
    def calls_per_step(cls, solver: str) -> int | None:
        return SOLVERS[solver].calls

    @property
    def expected_calls(self) -> int | None:
        return super().expected_calls if self.sampling.omega is None else None


class OneCall(Leg):
    """G(x) = g(x, 0)."""

    title = "one call"

    def carry(self, samples: Samples, observe: Observer) -> None:
        x = samples.x
        samples.x = self.velocity(samples.labels)(x, start_times(x))
        if observe:
            observe(samples.x)


class ResidualCall(OneCall):
    """G(x) = x + g(x, 0). The training of g starts from a velocity network."""

    def velocity(self, labels: Tensor | None) -> Velocity:
        network = super().velocity(labels)
        return lambda x, t: x + network(x, t)


SAMPLING_SETTINGS = {*NSGFSteps.reads, *StraightFlow.reads}
"""Settings of ``sampling`` that only some legs read."""


class FlowSampler:
    """Map samples of mu0 to samples of mu*, leg by leg."""

    def __init__(self, legs: Sequence[Leg], target: Target) -> None:
        self.legs = list(legs)
        self.sampling = self.legs[0].sampling
        """Settings of sampling. They are equal for all legs."""
        self.target = target

    @torch_defaults()
    @exact_products()
    @torch.no_grad()
    def __call__(
        self, x: Array, labels: ArrayLike | None = None, *, keep_path: bool = False
    ) -> Samples:
        """
        Args:
            x: samples of mu0, (B, *shape), B > 0. The samples are converted to float32 and moved to
                the networks' device.
            labels: classes of the samples, (B,), as integers in [0, K - 1] or as names; None:
                :meth:`labels` of the positions 0 to B - 1.
            keep_path: whether to return all intermediate states.

        Raises:
            UserError: samples or labels are not valid, or the networks take no classes.
        """
        x = self.read_samples(x)
        x = x.to(self._device(x), torch.float32)
        count = len(x)
        labels = self.read_labels(labels, count)
        labels = None if labels is None else labels.to(x.device)
        samples = Samples(x=x, nfe=0, labels=labels)
        if keep_path:
            samples.path = [x]
            samples.marks = ["start"]
        # count the calls in copies of the legs, because several threads may sample at once
        for leg in map(copy, self.legs):
            leg.evaluations = 0
            leg.carry(samples, samples.path.append if keep_path else None)
            samples.nfe += leg.evaluations
            new = len(samples.path) - len(samples.marks)
            samples.marks += [f"{leg.title} {step}/{new}" for step in range(1, new + 1)]
        samples.nfe /= count
        return samples

    def read_samples(self, x: Array) -> Tensor:
        """Return samples as a tensor. Raise UserError unless x has the shape (B, *shape) with B >
        0, and real numbers."""
        x = to_tensor("x", x)
        shape = self.target.shape
        if x.shape[1:] != shape or not x.numel() or x.is_complex():
            sizes = ", ".join(map(str, shape))
            raise UserError(
                f"x is {tuple(x.shape)}, {x.dtype}: must be (B, {sizes}) with B > 0, real numbers"
            )
        return x

    def read_labels(self, labels: ArrayLike | None, count: int) -> Tensor | None:
        """Return the classes of ``count`` samples, int64, (count,). If ``labels`` is None, take
        :meth:`labels` of the first positions. Return None if the networks take no classes. Raise
        UserError if labels are not valid, or have no effect."""
        usual = self.labels(range(count))
        if usual is None:
            if labels is not None:
                raise UserError("labels: have no effect without data.conditional; leave them out")
            return None
        labels = usual if labels is None else self._class_numbers(labels)
        classes = self.target.classes
        numbers = torch.arange(classes, device=labels.device)
        if labels.shape != (count,) or not torch.isin(labels, numbers).all():
            raise UserError(
                f"labels: must be {count} whole numbers from 0 to {classes - 1}, or names"
            )
        return labels.long()

    def _device(self, x: Tensor) -> torch.device:
        """Return the device of the networks, or of x if there are no weights."""
        networks = [leg.network for leg in self.legs if isinstance(leg.network, nn.Module)]
        weights = [part for network in networks for part in network.parameters()]
        return weights[0].device if weights else x.device

    def _class_numbers(self, labels: ArrayLike) -> Tensor:
        """Return labels as numbers. A name becomes the number of its class, and an unknown name
        becomes -1."""
        if isinstance(labels, Tensor):
            return labels
        numbers = []
        for label in np.asarray(labels).tolist():
            number = self.target.class_number(label) if isinstance(label, str) else label
            numbers.append(-1 if number is None else number)
        return torch.as_tensor(numbers)

    def labels(self, positions: range) -> Tensor | None:
        """Return the classes of the samples at these positions, int64, (n,). All samples have the
        class ``sampling.label``. If ``sampling.label`` is null, the classes take turns. Return None
        if the networks take no classes."""
        classes = self.target.classes
        label = self.target.class_number(self.sampling.label)
        if not classes:
            return None
        if label is not None:
            return torch.full((len(positions),), label, dtype=torch.int64)
        return class_labels(positions, classes).long()

    def with_settings(self, sampling: SamplingConfig) -> "FlowSampler":
        """Return a sampler with the same networks and these settings of sampling."""
        legs = [copy(leg) for leg in self.legs]
        for leg in legs:
            leg.sampling = sampling
        return FlowSampler(legs, self.target)

    @property
    def expected_nfe(self) -> int | None:
        """Number of network calls per sample. With dopri5 or ``omega``, the number varies, and the
        result is None."""
        calls = [leg.expected_calls for leg in self.legs]
        return None if None in calls else sum(calls)  # type: ignore[arg-type]


def start_times(x: Tensor) -> Tensor:
    """Return time 0 for each sample, float32, (B,)."""
    return torch.zeros(len(x), dtype=torch.float32, device=x.device)


def calls_per_velocity(sampling: SamplingConfig, classes: int) -> int:
    """Return the number of network calls for one velocity: two with guidance, else one."""
    return 2 if classes and sampling.guidance != 1 else 1
