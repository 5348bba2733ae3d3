"""Shared code of the solvers.

Conventions, here and in the whole package: cost C(x, y) = 1/2 |x - y|^2, regularization
eps = blur^2, uniform weights, S_eps the debiased Sinkhorn divergence. The velocity that decreases
S_eps(mu, mu*) is

    v(x) = grad f_{mu,mu}(x) - grad f_{mu,mu*}(x)                 (f: entropic OT potentials)

so that x + eta v moves the particles of mu towards mu*. A *flow* is the simulation of one
mini-batch, a *trajectory* the path of one particle, a *solve* one transport problem (x, y). Each
step of a flow needs one solve.

Shapes: B flows, N particles x, M targets y, D coordinates; images are flattened to D = C*H*W.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.masked import MaskedTensor

from nsgf.config.schema import MANY, FlowConfig
from nsgf.config.values import to_plain
from nsgf.system.errors import UserError, name_setting, one_line

Array = Tensor | np.ndarray[Any, Any]
"""Points that a caller of the Python functions may pass."""


@dataclass
class SolverReport:
    """Counts and errors of a solver since it was built."""

    flows: int = 0
    """Number of flows started."""
    solves: int = 0
    """Number of transport problems (x, y) solved: one per flow and step."""
    iterations: float = 0.0
    """Mean number of updates per solve, with those of annealing; 0 if the solver counts none."""
    worst_error: float | None = None
    """Largest L1 error of a plan's marginals; None if the solver does not measure it."""
    unconverged: int = 0
    """Number of solves that reached the limit of iterations before the tolerance."""

    def record(self, iterations: Tensor, errors: Tensor, converged: Tensor) -> None:
        """Add B solves; all arguments are (B,)."""
        found = [iterations.sum(), errors.max(), (~converged).sum()]
        updates, worst, left = torch.stack([value.double() for value in found]).tolist()
        spent = self.iterations * self.solves + updates
        self.solves += len(iterations)
        self.iterations = spent / self.solves
        self.worst_error = max(worst, self.worst_error or 0.0)
        self.unconverged += int(left)

    def __str__(self) -> str:
        text = f"{self.solves} transport problems"
        if self.worst_error is not None:
            text += f", {self.iterations:.0f} updates each, marginal errors up to "
            text += f"{self.worst_error:.1e}, {self.unconverged} not converged"
        return text


class FlowSolver(Protocol):
    """Run Sinkhorn gradient flows."""

    report: SolverReport

    def flows(self, x: Tensor, y: Tensor, etas: Sequence[float]) -> Tensor:
        """Run Algorithm 1 for B independent flows: X^{t+1} = X^t + eta_t v(X^t), eta_t in etas.

        Return the positions X^0 .. X^T (B, N, T+1, *shape), float32, of particles X^0
        (B, N, *shape) with targets y (B, M, *shape).

        Raises:
            ValueError: the clouds are empty, not finite or of different shapes.
        """


REAL = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool}
REAL |= {torch.float16, torch.bfloat16, torch.float32, torch.float64}
"""Types of the values that :func:`to_tensor` takes."""


def to_tensor(name: str, points: Array) -> Tensor:
    """Return the argument ``name`` as a tensor. Raise UserError if it holds no numbers."""
    try:
        refuse_masks(points)
        x = points if isinstance(points, Tensor) else torch.tensor(to_array(points))
    except Exception as error:  # objects of a caller may raise any type
        raise UserError(f"{name}: must be a tensor or an array ({one_line(error)})") from error
    if x.dtype not in REAL or x.layout != torch.strided or x.is_nested or x.is_meta:
        kind = f"{x.dtype}, {x.layout}, {x.device}"
        raise UserError(f"{name}: {kind}, must be a dense tensor of real numbers")
    return x


def positive_number(name: str, value: Any, *, is_whole: bool = False) -> Any:
    """Return the argument ``name`` as a Python number. Raise UserError unless it is a finite number
    > 0, of Python, numpy or torch."""
    number = to_plain(value)
    kinds, most = ((int,), MANY) if is_whole else ((int, float), sys.float_info.max)
    if type(number) not in kinds or not 0 < number <= most:
        kind = "a whole number" if is_whole else "a number"
        raise UserError(f"{name_setting(name, value)}: must be {kind} > 0")
    return kinds[-1](number)


def to_array(values: Any) -> np.ndarray[Any, Any]:
    """Return a tensor, an array or numbers as a contiguous array in this machine's byte order.
    bfloat16, which numpy lacks, becomes float32. Raise ValueError for objects and masked values."""
    refuse_masks(values)
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    array = np.asarray(values)
    if array.dtype.kind == "O":
        raise ValueError(
            f"{type(values).__name__} holds objects, must be an array of numbers; of a DataLoader "
            "pass loader.dataset, of a dict or of rows with names one array, such as data['x']"
        )
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def refuse_masks(values: Any) -> None:
    """Raise ValueError if an array, a tensor, or one in a list has masked values."""
    if isinstance(values, list | tuple):
        for part in values:
            refuse_masks(part)
    is_array = isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values)
    if is_array or isinstance(values, MaskedTensor):
        raise ValueError("has masked values; leave them out, or pass x.filled(VALUE)")


def as_clouds(x: Tensor, y: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return particles (B, N, *shape) and targets (B, M, *shape) as (B, N, D) and (B, M, D). Raise
    ValueError if they are empty, not finite or of different shapes."""
    if x.ndim < 3 or y.ndim < 3 or x.shape[2:] != y.shape[2:] or len(x) != len(y):
        raise ValueError(
            f"particles {tuple(x.shape)} and targets {tuple(y.shape)} must be (flows, N, *shape) "
            "and (flows, M, *shape) with the same shape"
        )
    if not x.numel() or not y.numel():
        raise ValueError(f"empty cloud: particles {tuple(x.shape)}, targets {tuple(y.shape)}")
    flat_x, flat_y = x.flatten(2).to(dtype), y.flatten(2).to(dtype)
    if not (flat_x.sum() + flat_y.sum()).isfinite():
        raise ValueError("particles or targets are not finite")
    return flat_x, flat_y


def half_squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Return C_ij = 1/2 |x_i - y_j|^2 (B, N, M) of clouds (B, N, D) and (B, M, D).

    This is one matrix product, without an (N, M, D) tensor. It loses digits for clouds far from the
    origin, so callers subtract the mean of y from both."""
    norms = [torch.linalg.vector_norm(z, dim=2).square() for z in (x, y)]
    cost = torch.baddbmm(norms[1].unsqueeze(1), x, y.mT, beta=0.5, alpha=-1)
    return cost.add_(0.5 * norms[0].unsqueeze(2)).clamp_(min=0.0)


def box_diameter(x: Tensor, y: Tensor) -> Tensor:
    """Return the diagonal of the bounding box of both clouds (..., N, D) and (..., M, D)."""
    low = torch.minimum(x.amin(-2), y.amin(-2))
    high = torch.maximum(x.amax(-2), y.amax(-2))
    return (high - low).norm(dim=-1)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Disable autocast and TF32, which would round away small differences of costs."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def step_sizes(flow: FlowConfig) -> list[float]:
    """Return eta_0 .. eta_{T-1} of X^{t+1} = X^t + eta_t v(X^t).

    The exact flow reaches its target only after infinite time. Constant steps eta stop at time
    T eta. Harmonic steps 1/T, 1/(T-1), ..., 1 follow the same curve on the clock
    s = 1 - exp(-time), up to s = 1. With exact transport the particles then move on straight lines
    at constant speed (McCann 1997). They arrive in the last step. The network learns dX/ds.
    """
    if flow.schedule == "harmonic":
        return [1 / (flow.steps - step) for step in range(flow.steps)]
    return [flow.eta] * flow.steps


def gaussian_part(flow: FlowConfig) -> float:
    """Return the part of the way to a Gaussian target that the flow covers, in [0, 1]. Step t
    covers the part eta_t of the remaining way: 1 - (1 - eta_0) ... (1 - eta_{T-1})."""
    return 1 - math.prod(1 - eta for eta in step_sizes(flow))


def time_step(flow: FlowConfig) -> float:
    """Return the length of each step on the network's clock."""
    return 1 / flow.steps if flow.schedule == "harmonic" else flow.eta


def flow_time(flow: FlowConfig) -> float:
    """Return the length of the whole flow on the network's clock: 1, or T eta."""
    return 1.0 if flow.schedule == "harmonic" else flow.steps * flow.eta
