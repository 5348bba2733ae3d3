"""The base class of flows, and shared code of the solvers.

Conventions of the whole package: the cost is C(x, y) = 1/2 |x - y|^2, the regularization is eps =
blur^2, and all points have equal weights. S_eps is the debiased Sinkhorn divergence. The velocity
that decreases S_eps(mu, mu*) is

    v(x) = grad f_{mu,mu}(x) - grad f_{mu,mu*}(x)                 (f: entropic OT potentials)

so that x + eta v moves the particles of mu towards mu*. A *flow* is the simulation of one
mini-batch. A *trajectory* is the path of one particle. A *solve* is the solution of one transport
problem (x, y). Each step of a flow needs one solve.

B: number of flows; N: number of particles x; M: number of targets y; D: number of coordinates.
Images are flattened to D = C*H*W.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from nsgf.system.errors import UserError, list_names, wrong_setting
from nsgf.system.process import exact_products

Array = Tensor | np.ndarray[Any, Any]
"""Type of the points that a caller passes to the Python functions."""


@dataclass
class SolverReport:
    """Counts and errors of a solver since it was built."""

    solves: int = 0
    """Number of solved transport problems (x, y), one per flow and step."""
    iterations: float = 0.0
    """Mean number of updates per solve, including annealing; 0 if the solver does not count
    updates."""
    worst_error: float | None = None
    """Largest L1 error of a plan's marginals; None if the solver does not measure it."""
    unconverged: int = 0
    """Number of solves that reached the limit of iterations before the tolerance."""

    def record(self, iterations: Tensor, errors: Tensor, converged: Tensor) -> None:
        """Add B solves; all arguments are (B,)."""
        totals = [iterations.sum().double(), errors.max().double(), (~converged).sum().double()]
        updates, worst, unconverged = torch.stack(totals).tolist()
        spent = self.iterations * self.solves + updates
        self.solves += len(iterations)
        self.iterations = spent / self.solves
        self.worst_error = max(worst, self.worst_error or 0.0)
        self.unconverged += int(unconverged)

    def __str__(self) -> str:
        text = f"{self.solves} transport problems"
        if self.worst_error is not None:
            text += f", {self.iterations:.0f} updates each, marginal errors up to "
            text += f"{self.worst_error:.1e}, {self.unconverged} not converged"
        return text


@dataclass(eq=False)
class Flow(ABC):
    """A flow of particles towards targets, and the solver that computes its velocity."""

    title: ClassVar[str]
    """Name of the flow in cards and pages."""
    card_prefix: ClassVar[str] = ""
    """Text that model cards put before the name of the paper's method if the paper does not use
    this flow."""
    uses: ClassVar[tuple[str, ...]] = ()
    """Settings of the section ``sinkhorn`` that the flow takes as arguments."""
    shows: ClassVar[tuple[str, ...]] = ()
    """Attributes that ``str(flow)`` shows."""
    arrives: ClassVar[bool] = False
    """Whether the last harmonic step brings the particles to the targets."""

    report: SolverReport = field(default_factory=SolverReport, init=False)

    def __str__(self) -> str:
        """Return the title of the flow and its settings as text."""
        settings = " and ".join(map(self.setting_text, self.shows))
        return f"{self.title} with {settings}" if settings else self.title

    def setting_text(self, name: str) -> str:
        """Return a setting in ``shows`` as text."""
        return f"{name} {getattr(self, name):g}"

    @staticmethod
    def matrix_entries(n: int, m: int) -> int:
        """Return the number of entries of the largest matrix for n particles and m targets."""
        return max(n, m) ** 2

    def at_steps(self, steps: int) -> "list[Flow]":
        """Return the flow for each step. All these flows share one report."""
        return [self] * steps

    @abstractmethod
    def velocity(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the velocities of the particles of B flows, float32, without gradients.

        x (B, N, D), y (B, M, D) -> v (B, N, D). Raise UserError if the solver fails.
        """

    def start(self, x: Tensor, y: Tensor, steps: int) -> "Particles":
        """Return the particles x (B, N, D), ready for their first step towards y (B, M, D)."""
        near_x, near_y, origin = around_mean(x, y)
        return Particles(iter(self.at_steps(steps)), near_x.float(), near_y.float(), origin)


@dataclass(eq=False)
class BlurredFlow(Flow):
    """A flow of entropic transport with regularization eps = blur^2.

    If ``first_blur`` is set, the blur falls from ``first_blur`` in the first step to ``blur`` in
    the last step. The ratio of successive blurs is constant. The first steps then follow a smooth
    plan, which differs little between mini-batches. The last steps resolve details of the data that
    a larger blur hides.
    """

    blur: float
    """Blur of the last step, in units of the data."""
    first_blur: float | None = field(default=None, kw_only=True)
    """Blur of the first step; None: ``blur``."""

    def setting_text(self, name: str) -> str:
        if name == "blur" and self.first_blur is not None:
            return f"blur falling from {self.first_blur:g} to {self.blur:g}"
        return super().setting_text(name)

    def at_steps(self, steps: int) -> list[Flow]:
        if self.first_blur is None:
            return [self] * steps
        ratio = self.first_blur / self.blur
        last = max(steps - 1, 1)
        flows: list[Flow] = []
        for step in range(steps):
            blur = self.blur * ratio ** ((steps - 1 - step) / last)
            flow = replace(self, blur=blur, first_blur=None)
            flow.report = self.report
            flows.append(flow)
        return flows


@dataclass
class Particles:
    """The particles of B flows between two steps. A subclass may store more values for the next
    solve."""

    flows: Iterator[Flow]
    """The flows of the remaining steps."""
    x: Tensor
    y: Tensor
    origin: Tensor
    """Mean of the targets, which is subtracted from x and y.  (B, 1, D)"""

    def move(self, eta: float) -> Tensor:
        """Move the particles to X + eta v(X), and return these positions.  (B, N, D)"""
        self.x = self.x + eta * next(self.flows).velocity(self.x, self.y)
        return self.origin + self.x


def to_tensor(name: str, points: Array) -> Tensor:
    """Return the argument ``name`` as a tensor. Raise UserError if it has masked values."""
    try:
        return points if isinstance(points, Tensor) else torch.tensor(to_array(points))
    except ValueError as error:
        raise UserError(f"{name}: {error}") from error


def positive_number(name: str, value: Any, *, is_whole: bool = False, most: int = 10**9) -> Any:
    """Return the argument ``name`` as a Python number. Raise UserError unless it is a finite number
    > 0 of Python, numpy or torch. A whole number must be at most ``most``."""
    number = math.nan
    # texts, nan, inf and None raise these errors
    with suppress(ValueError, OverflowError, TypeError):
        number = int(value) if is_whole else float(value)
    if number != value or not 0 < number < math.inf or (is_whole and number > most):
        kind = f"a whole number <= {most} and" if is_whole else "a number"
        text = repr(value) if isinstance(value, str) else value
        raise wrong_setting(name, text, f"must be {kind} > 0")
    return number


def to_array(values: Any) -> np.ndarray[Any, Any]:
    """Return a tensor, an array or numbers as a contiguous array in this machine's byte order.
    bfloat16, which numpy lacks, becomes float32. Objects become numbers if they are numbers or
    lists of equal length. Raise ValueError for sparse arrays, objects and masked values."""
    refuse_masks(values)
    name = type(values).__name__
    if hasattr(values, "obsm") and hasattr(values, "X"):
        raise ValueError(
            f"{name} has several arrays; pass one, such as x.X or x.obsm['X_pca'] (a sparse one as "
            "x.X.toarray())"
        )
    if hasattr(values, "toarray") and hasattr(values, "nnz"):
        size = math.ceil(8 * math.prod(values.shape) / 2**20)
        raise ValueError(f"{name} is sparse; pass x.toarray(), which may need {size:,} MiB")
    if isinstance(values, Tensor):
        if values.layout != torch.strided:
            raise ValueError("the tensor is sparse; pass x.to_dense()")
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    try:
        array = np.asarray(values)
    except ValueError as error:
        reason = "rows of different lengths" if "inhomogeneous" in str(error) else str(error)
        raise ValueError(f"{name}: {reason}, must be an array of numbers") from error
    if array.dtype.kind == "O" and array.ndim:
        array = numbers_of_objects(array)
    if array.dtype.kind == "O":
        kinds = {type(cell).__name__ for cell in array.flat} - {"int", "float", "NoneType"}
        raise ValueError(
            f"{name} holds objects ({list_names(sorted(kinds))}), must be an array of numbers; of "
            "a DataLoader pass loader.dataset, of a dict or of rows with names one array, such as "
            "data['x']"
        )
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def numbers_of_objects(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array of objects as numbers or texts, with NaN for None. An array with cells of
    another type stays unchanged. Lists of equal length become a new last dimension."""
    with suppress(ValueError):  # lists of different lengths stay objects
        array = np.array(array.tolist())
    if array.dtype.kind == "O":
        with suppress(TypeError, ValueError):
            array = array.astype(np.float64)
    return array


def refuse_masks(values: Any) -> None:
    """Raise ValueError if an array, or an array in a list, has masked values."""
    if isinstance(values, list | tuple):
        for part in values:
            refuse_masks(part)
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError("has masked values; leave them out, or pass x.filled(VALUE)")


def as_clouds(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return particles (B, N, *shape) and targets (B, M, *shape) as (B, N, D) and (B, M, D). The
    dtype is float64 if an argument is float64, otherwise float32. Raise UserError if the clouds are
    empty, are not finite, or have different shapes."""
    if x.ndim < 3 or y.ndim < 3 or x.shape[2:] != y.shape[2:] or len(x) != len(y):
        raise UserError(
            f"particles {tuple(x.shape)} and targets {tuple(y.shape)} must be (flows, N, *shape) "
            "and (flows, M, *shape) with the same shape"
        )
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    flat_x = x.flatten(2).to(dtype)
    flat_y = y.flatten(2).to(dtype)
    if not (x.numel() and y.numel() and (flat_x.sum() + flat_y.sum()).isfinite()):
        raise UserError("particles or targets are empty or not finite")
    return flat_x, flat_y


def around_mean(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the clouds (B, N, D) and (B, M, D) minus the mean of y, and this mean (B, 1, D).

    Far from the origin, float32 has too few digits for distances between points."""
    origin = y.mean(1, keepdim=True)
    return x - origin, y - origin, origin


def half_squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Return C_ij = 1/2 |x_i - y_j|^2 (B, N, M) of clouds (B, N, D) and (B, M, D).

    The function uses one matrix product, and no tensor (N, M, D). The product loses digits for
    clouds far from the origin, so callers first subtract the mean of y from both clouds."""
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
    with exact_products(), torch.autocast(device.type, enabled=False):
        yield
