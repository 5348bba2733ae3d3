"""Log densities of samples, by the change of variables along the ODEs of sampling.

    log p(x) = log p0(z) - log |det A| - sum over the ODEs of int div u(x(t), t) dt

The program follows the ODEs from x at time 1 back to a sample z of mu0. The density p0 of mu0 is
known (Chen et al. 2018). A is the matrix of an affine start. Without an affine start, the term with
A is absent. In few dimensions, the divergence is exact. In many dimensions, it is estimated by e^T
(du/dx) e with random signs e (Hutchinson 1990, Grathwohl et al. 2019).

p is the density for exact solutions of the ODEs. Samples that are drawn in few steps have another
density. The gap measures this difference. It is the distance between x and the sample that the
sampler draws from z in few steps.

N: number of samples; B: batch size; K: number of probes; D: number of values of a sample;
*shape: shape of one sample.
"""

import math
from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor

from nsgf.config.schema import Shape
from nsgf.data import PointSet
from nsgf.data.images import to_unit_range
from nsgf.method import Velocity, straight_steps
from nsgf.models import AffineStartNetwork
from nsgf.run.progress import count_progress
from nsgf.sampling.sampler import AffineStart, FlowSampler, Leg, ODELeg
from nsgf.sampling.solvers import rk4_step
from nsgf.system.errors import UserError
from nsgf.system.process import exact_products
from nsgf.system.seeding import make_generator

EXACT_DIM = 16
"""Largest number D of values for the exact divergence, which needs D backward passes."""
ODE_STEPS = 50
"""Default number of Runge-Kutta steps for each ODE, with 4 network calls each."""
PROBES = 8
"""Default number of probes, each with one backward pass for each network call."""
BITS_STEPS = 40
"""Number of Runge-Kutta steps for bits per dimension."""
LEVELS = 127.5
"""Number of levels of a byte per unit of an image. The values of images lie in [-1, 1]."""
METHODS_WITH_DENSITY = "nsgf, nsgf++h, affine, icfm, otcfm, otcfm+, sbcfm, 1rf or 2rf"
SINGULAR = 1e-6
"""An affine start is invertible if its smallest singular value, divided by the largest, is at least
this number."""


class LogProb(NamedTuple):
    """Logarithms of densities, float64, on the CPU."""

    value: Tensor
    """Natural logarithm of the density of each sample, (N,)."""
    error: Tensor
    """Standard error of each value that comes from the random probes, (N,); 0 if the divergence is
    exact. It does not include the error of the ODE solver."""
    gap: Tensor
    """Distance between each sample and the sample that the run draws from the same z with the
    settings of sampling, (N,). The distance is the root mean square over the D values, in units of
    networks. If it is not small, samples of the run do not have this density."""


def has_density(legs: Sequence[type[Leg]]) -> bool:
    """Whether the program can compute a density for samples of these legs."""
    return all(issubclass(leg, ODELeg | AffineStart) for leg in legs)


def log_prob(
    sampler: FlowSampler,
    law: PointSet,
    x: Tensor,
    labels: Tensor | None,
    device: torch.device,
    *,
    steps: int = ODE_STEPS,
    probes: int = PROBES,
    seed: int = 0,
    progress: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return logarithms of densities in the units of networks, and the gaps that :class:`LogProb`
    describes.  float64, on the CPU, (N, K) and (N,)

    Each of the K columns of logarithms comes from one probe. The mean over the columns estimates
    the logarithm of the density without bias. If D <= EXACT_DIM, the divergence is exact and there
    is one column.

    Args:
        sampler: networks in float32.
        law: distribution mu0.
        x: samples in the units of networks, (N, *shape).
        labels: classes of the samples, int64, (N,); None: the networks take no classes.
        steps: number of Runge-Kutta steps for each ODE.
        probes: number of probes K if D > EXACT_DIM.
        seed: seed of the probes, which also depend on the batch size.
        progress: whether to show the progress.

    Raises:
        UserError: the samples have no density.
    """
    if not has_density([type(leg) for leg in sampler.legs]):
        raise UserError(
            "log_prob: sampling of this run is no ODE, so its density is not known; use a run of "
            f"{METHODS_WITH_DENSITY}"
        )
    assert law.log_density is not None
    size = sampler.sampling.batch_size
    firsts = range(0, len(x), size)
    values = []
    gaps = []
    for first in count_progress(firsts, "densities", "batch") if progress else firsts:
        batch = x[first : first + size].to(device, torch.float64)
        batch_labels = None if labels is None else labels[first : first + size].to(device)
        divergence = Divergence(law.shape, probes, make_generator(seed, "probes", first))
        noise, change = _follow_legs_back(sampler, batch, batch_labels, steps, divergence)
        density = law.log_density(noise).unsqueeze(1) - change
        values.append(density.cpu())
        difference = sampler(noise, batch_labels).x - batch
        gaps.append(difference.flatten(1).square().mean(1).sqrt().cpu())
    return torch.cat(values), torch.cat(gaps)


def summarise(values: Tensor, gap: Tensor) -> LogProb:
    """Return the mean of ``values`` (N, K) over the K probes, its standard error, and the gap. With
    a single column, the error is 0."""
    count = values.shape[1]
    error = values.std(1) / math.sqrt(count) if count > 1 else torch.zeros_like(values[:, 0])
    return LogProb(values.mean(1), error, gap)


def bits_per_dim(
    sampler: FlowSampler,
    law: PointSet,
    images: Tensor,
    labels: Tensor | None,
    device: torch.device,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Return the bits per dimension of images (N, C, H, W), uint8, and the gaps of
    :class:`LogProb`. float64, on the CPU, each (N,)

    With uniform noise u in [0, 1), a byte b becomes y = b + u - 1/2. The unit of b and y is one
    level of the 256 levels. The network sees x = y / 127.5 - 1, so each byte has the same position
    as in training. The result is -log2 p(y) / D = log2 127.5 - log p(x) / (D log 2). Its mean is an
    upper bound of the bits per dimension of the discrete images (Theis et al. 2016).
    """
    generator = make_generator(seed, "dequantise")
    noise = torch.rand(images.shape, generator=generator, dtype=torch.float64) - 0.5
    x = to_unit_range(images).double() + noise / LEVELS
    # one probe per image is enough, because the spread over the images includes the probe's error
    values, gaps = log_prob(
        sampler, law, x, labels, device, steps=BITS_STEPS, probes=1, seed=seed, progress=True
    )
    return math.log2(LEVELS) - values[:, 0] / (math.log(2) * images[0].numel()), gaps


class Divergence:
    """The divergence of a velocity, exact or estimated, for states of one shape."""

    def __init__(self, shape: Shape, probes: int, generator: torch.Generator) -> None:
        """``shape``: shape of one sample. ``probes``: number K of estimates if D > EXACT_DIM.
        ``generator``: CPU generator of the probes."""
        self._dim = math.prod(shape)
        self.is_exact = self._dim <= EXACT_DIM
        """Whether the divergence is exact."""
        self.columns = 1 if self.is_exact else probes
        """Number of values for each sample."""
        self._generator = generator

    def __call__(self, velocity: Velocity, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return u(x, t) (B, *shape), and its divergence or K estimates, float64, (B, K)."""
        vectors = self._vectors(x)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            # some velocities do not depend on x, and have no gradient. With the last term, the
            # gradient is 0
            answer = velocity(x, t) + 0 * x
            values = []
            for number, vector in enumerate(vectors, 1):
                is_last = number == len(vectors)
                (gradient,) = torch.autograd.grad(answer, x, vector, retain_graph=not is_last)
                values.append((gradient * vector).flatten(1).sum(1))
        terms = torch.stack(values, dim=1).double()
        if self.is_exact:
            terms = terms.sum(1, keepdim=True)
        return answer.detach(), terms

    def _vectors(self, x: Tensor) -> Tensor:
        """Return the D unit vectors, or K vectors of new random signs, for states x (B, *shape).
        (K, B, *shape)"""
        if self.is_exact:
            units = torch.eye(self._dim, dtype=torch.float32, device=x.device)
            return units.view(self._dim, 1, *x.shape[1:]).expand(self._dim, *x.shape)
        size = (self.columns, *x.shape)
        bits = torch.randint(2, size, generator=self._generator, dtype=torch.int8)
        return bits.to(x.device, torch.float32).mul_(2).sub_(1)


@exact_products()
@torch.no_grad()
def _follow_legs_back(
    sampler: FlowSampler,
    x: Tensor,
    labels: Tensor | None,
    steps: int,
    divergence: Divergence,
) -> tuple[Tensor, Tensor]:
    """Return the samples z of mu0 from which the legs lead to x (B, *shape), and log |det dx/dz|.
    float64, (B, *shape) and (B, K)"""
    change = torch.zeros(len(x), divergence.columns, dtype=torch.float64, device=x.device)
    for leg in reversed([copy(leg) for leg in sampler.legs]):
        if isinstance(leg, AffineStart):
            x, log_det = undo_affine(leg.model, x)
            change = change + log_det
        elif isinstance(leg, ODELeg):
            x, integral = follow_back(leg.slope(labels), leg.start, x, steps, divergence)
            change = change + integral
    return x, change


def follow_back(
    velocity: Velocity, start: float, x: Tensor, steps: int, divergence: Divergence
) -> tuple[Tensor, Tensor]:
    """Follow dx/dt = velocity(x, t) from states x (B, *shape) at time 1 back to the time ``start``.
    Return the states, and the integrals of the divergence over time.  float64, (B, *shape) and
    (B, K)

    The solver follows states and integrals together. Its variable is s from 0 to 1, with t = 1 - s
    (1 - start). Each evaluation draws new probes, so the errors of the probes average out over the
    steps.
    """
    dim = x[0].numel()
    length = 1 - start

    def slope(state: Tensor, s: Tensor) -> Tensor:
        point = state[:, :dim].float().view(x.shape)
        answer, values = divergence(velocity, point, 1 - length * s)
        return length * torch.cat([-answer.flatten(1).double(), values], dim=1)

    zeros = torch.zeros(len(x), divergence.columns, dtype=torch.float64, device=x.device)
    state = torch.cat([x.double().flatten(1), zeros], dim=1)
    begin = torch.zeros(len(x), dtype=torch.float32, device=x.device)
    state = straight_steps(slope, state, begin, steps, 1.0, None, rk4_step)
    return state[:, :dim].view(x.shape), state[:, dim:]


def undo_affine(model: AffineStartNetwork, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the noise z (B, *shape) for which the starts are x = z A + b, and return log |det A|.
    Raise UserError if the map is not invertible."""
    matrix = model.matrix.double()
    sizes = torch.linalg.svdvals(matrix)
    if sizes[-1] < SINGULAR * sizes[0]:
        raise UserError(
            "log_prob: the affine start maps noise to fewer dimensions, because some values of the "
            "data follow from the others; there is no density"
        )
    rows = torch.linalg.solve(matrix, x.flatten(1) - model.shift, left=False)
    return rows.view(x.shape), sizes.log().sum()
