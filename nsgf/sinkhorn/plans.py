"""Transport plans of many flows, and products with them, for the batched solver.

In units of the blur, a plan P is the softmax over j of x_i . y_j + h_j, with the potential g and
h_j = g_j - 1/2 |y_j|^2. The rows of P sum to 1 for any h. At the optimum, the columns also have
equal sums. Three ideas make the computation fast:

1. Sinkhorn updates scale the rows and columns of a computed plan, by two products of a matrix and a
   vector. When the factors become large, h absorbs them, and the plan is computed again.
2. When particles with many coordinates move, the inner products are updated, not computed again.
3. A plan with few entries above the rounding error is applied as a sparse matrix.

B: number of flows; N: number of particles x; M: number of targets y; D: number of coordinates.
The potentials h and g have the shape (B, M).
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

SELF_UPDATES = 10
"""Number of updates for Q. Each update divides the error by 5, and 10 updates reach the rounding of
float32."""
SELF_POWERS = [
    1 / (1.5 + 0.5 * math.cos(math.pi * (k + 0.5) / SELF_UPDATES)) for k in range(SELF_UPDATES)
]
"""Exponents of the updates for Q: 1 / the roots of the Chebyshev polynomial on [1, 2]."""
LOWEST_ENTRY = 1e-26
"""Smallest entry of a plan. Denormal numbers would make each product several times slower."""
SMALL = 1e6
"""Largest factor of a row or column. When a factor exceeds this limit, h absorbs the factors."""
HIDDEN = 1e-13
"""Columns whose sum is below this fraction of the mean column sum are updated in the log domain."""
NEGLIGIBLE = 1e-8
"""Entries of a plan below this limit do not change v, because float32 rounds at 6e-8."""
FEW = 1 / 16
"""A sparse product is faster if at most this fraction of a plan's entries is above NEGLIGIBLE."""
ONE_HOT_SHARE = 1 - 1e-7
"""Q counts as the identity if all diagonal entries are above this limit, because float32 drops the
remaining entries."""


@dataclass
class Memory:
    """Matrices to reuse, because allocating a matrix takes as long as filling it."""

    like: Tensor
    """A tensor with the type and device of the matrices."""
    _matrices: dict[str, Tensor] = field(default_factory=dict)

    def get(self, name: str, *shape: int) -> Tensor:
        """Return a tensor of this shape. It still holds the values of the last use of ``name``."""
        size = math.prod(shape)
        if name not in self._matrices or self._matrices[name].numel() < size:
            self._matrices[name] = self.like.new_empty(size)
        return self._matrices[name][:size].view(shape)


class Clouds:
    """Clouds x (B, N, D) and y (B, M, D) near the origin, in units of the blur.

    If D > N + M, the clouds of a flow have inner products as additional columns: [x | x . y | x .
    x] and [y | y . y | y . x]. The velocity then has the same columns as x.
    """

    def __init__(self, x: Tensor, y: Tensor, steps: int = 1) -> None:
        self.memory = Memory(x)
        (self._n, self._dim) = x.shape[1:]
        m = y.shape[1]
        self._left = x
        self._right = y
        self._products = slice(self._dim, self._dim + m)
        self._is_wide = steps > 1 and self._dim > self._n + m
        self.norm_y = 0.5 * torch.linalg.vector_norm(y, dim=2).square()
        if self._is_wide:
            inner = x @ y.mT
            self._left = torch.cat([x, inner, x @ x.mT], 2)
            self._right = torch.cat([y, y @ y.mT, inner.mT], 2)
        self.x = self._left[:, :, : self._dim]
        """The particles (B, N, D). :meth:`move` changes them."""

    def last_potential(self) -> Tensor:
        """Return the potential of y against itself. Along the flow, the potential of x and y
        converges to this potential. Return 0 if computing this potential would take more time than
        it saves.  (B, M)"""
        y = self._right
        if y.shape[1] > self._n:
            return torch.zeros_like(self.norm_y)
        inner = y[:, :, self._products] if self._is_wide else y @ y.mT
        return self._self_plan(inner)[1]

    def start_step(self) -> tuple[Tensor, Tensor]:
        """Compute Q, which depends only on x. Return the potential (B, N) and the error (B,) of
        Q."""
        x = self._left
        own_inner = x[:, :, self._products.stop :]
        if not self._is_wide:
            out = self.memory.get("self", len(x), self._n, self._n)
            own_inner = torch.bmm(x, x.mT, out=out)
        self._inner: Tensor | None = None
        # rounding in the updates of inner products may make a value negative
        self.norm_x = (0.5 * own_inner.diagonal(dim1=1, dim2=2)).clamp_min_(0.0)
        self._own_plan, potential, error = self._self_plan(own_inner)
        self.own = x  # Q x, with all columns
        if self._own_plan is not None:
            self.own = torch.bmm(self._own_plan, x, out=self.memory.get("own", *x.shape))
        return potential, error

    def plan(self, h: Tensor, live: list[int], scale: float = 1.0) -> "Plan":
        """Return the plans of the flows with the indices `live`: the softmax of scale (x . y +
        h)."""
        if self._inner is None:
            self._inner = self._left[:, :, self._products]
            if not self._is_wide:
                out = self.memory.get("inner", len(h), self._n, h.shape[1])
                self._inner = torch.bmm(self._left, self._right.mT, out=out)
        return Plan(self._inner, h, live, self.memory, scale)

    def _self_plan(self, inner: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return Q (B, N, N), the potential (B, N) and the error (B,) of Q, for the inner products
        (B, N, N) of a cloud. If Q (the plan from x to itself) is the identity, return None for Q.

        The kernel exp(-1/2 |x_i - x_j|^2) is positive definite, so averaged updates converge from
        any start. The kernel has diagonal 1, so the softmax has diagonal 1 / row sums."""
        n = inner.shape[1]
        norm = 0.5 * inner.diagonal(dim1=1, dim2=2).unsqueeze(1)
        kernel = torch.sub(inner, norm, out=self.memory.get("self", *inner.shape))
        torch.softmax(kernel, 2, out=kernel)
        share = kernel.diagonal(dim1=1, dim2=2).unsqueeze(1).clone()
        if share.amin() > ONE_HOT_SHARE:
            potential = torch.full_like(share[:, 0], 0.5 * math.log(n))
            return None, potential, torch.zeros_like(share[:, 0, 0])
        rows = kernel.clamp_min_(LOWEST_ENTRY).mT
        w = share.sqrt()
        for power in SELF_POWERS:
            w *= torch.bmm(w, rows).mul_(w).div_(share).pow_(-power)
        row = torch.bmm(w, rows)
        error = (row * w / share - 1).abs().mean((1, 2))
        return kernel.mul_(w).div_(row.mT), w.log().squeeze(1) + 0.5 * math.log(n), error

    def velocity(self, plan: "Plan", ready: list[int], at: list[int]) -> tuple[Tensor, list[float]]:
        """Compute v = P y - Q x for some flows. `at`: flow indices in the batch; `ready`: indices
        of the same flows in the plan. Return v of all flows, with all columns, and the root mean
        square of |v_i| of each flow in `at`."""
        v = self.memory.get("velocity", *self.own.shape)
        matrix = plan.normalized(ready)
        _subtract(matrix, self._right, self.own, at, v)
        if not self._is_wide:
            squares = torch.linalg.vector_norm(some_of(v, at), dim=(1, 2)).square() / self._n
            return v, squares.sqrt().tolist()
        x = v[:, :, self._products.stop :].mT
        x = x if self._own_plan is None else self._own_plan @ x
        squares = self.memory.get("squares", len(v), self._n, self._n)
        _subtract(matrix, v[:, :, self._products].mT, x, at, squares)
        total = some_of(squares.diagonal(dim1=1, dim2=2).mean(1), at)
        return v, total.clamp_min(0.0).sqrt().tolist()

    def scale(self, factor: float) -> None:
        """Multiply all points by a factor."""
        for rows in (self._left, self._right):
            rows[:, :, : self._dim] *= factor
            rows[:, :, self._dim :] *= factor**2  # inner products
        self.norm_y *= factor**2

    def move(self, v: Tensor, eta: float) -> None:
        """Move the particles by eta v."""
        self._left.add_(v, alpha=eta)
        if self._is_wide:
            y = self._products
            x = slice(self._products.stop, None)
            squares = self.memory.get("squares", len(v), self._n, self._n)
            self._left[:, :, x].add_(v[:, :, x].mT, alpha=eta).add_(squares, alpha=eta**2)
            self._right[:, :, x] = self._left[:, :, y].mT


def some_of(values: Tensor, at: list[int]) -> Tensor:
    """Return values[at]. If `at` holds all indices, return values without a copy."""
    return values if len(at) == values.shape[0] else values[at]


def with_some(values: Tensor, at: list[int], new: Tensor) -> Tensor:
    """Write ``new`` to values[at], and return values. If `at` holds all indices, return ``new``."""
    if len(at) == values.shape[0]:
        return new
    values[at] = new
    return values


def _subtract(plan: Tensor, y: Tensor, x: Tensor, at: list[int], out: Tensor) -> None:
    """Write plan @ y - x to `out`, for the flows with the indices `at`. `plan` has only these
    flows."""
    if plan.device.type == "cpu" and y.shape[2] > y.shape[1]:
        for matrix, k in zip(plan, at, strict=True):
            is_kept = matrix > NEGLIGIBLE
            if int(is_kept.sum()) < FEW * is_kept.numel():
                matrix = (matrix * is_kept).to_sparse()
            torch.addmm(x[k], matrix, y[k], beta=-1, out=out[k])
    elif len(at) == len(y):
        torch.baddbmm(x, plan, y, beta=-1, out=out)
    else:
        out[at] = torch.baddbmm(x[at], plan, y[at], beta=-1)


class Plan:
    """Plans of the flows with the indices `live`. A plan is the softmax of scale (x . y + h), with
    factors u for the rows and v for the columns. The rows of a softmax sum to 1. At the optimum,
    each column sums to N/M."""

    per_flow: tuple[str, ...] = ("_kernel", "_row", "_h", "_u", "_v")
    """Names of the tensors that have a row for each flow."""

    def __init__(
        self, inner: Tensor, h: Tensor, live: list[int], memory: Memory, scale: float = 1.0
    ) -> None:
        n, m = inner.shape[1:]
        self._inner = inner
        self._h = some_of(h, live).unsqueeze(1).clone()
        self._live = live
        self._scale = scale
        self._ratio = n / m
        self._memory = memory
        self._kernel = memory.get("plan", len(live), n, m)
        self._u = inner.new_full((len(live), 1, n), m / n)
        self._v = torch.ones_like(self._h)
        self._row = torch.ones_like(self._u)
        self._extreme = 1.0
        column = self._filled()
        self.error, lowest = self._read(column, column.amin())
        if lowest < HIDDEN:
            log_rows = torch.log_softmax(self._logits(), 2)
            log_column = torch.logsumexp(log_rows, 1, keepdim=True) - math.log(self._ratio)
            self._h = torch.where(column < HIDDEN, self._h - log_column / scale, self._h)
            self.error, _ = self._read(self._filled(), column.amin())

    def _read(self, column: Tensor, number: Tensor) -> tuple[list[float], float]:
        """Return the errors of the plans, and ``number`` as a float. This waits for a card only
        once."""
        errors = (column - 1).abs().mean((1, 2))
        *plan_errors, value = torch.cat([errors, number.view(1)]).tolist()
        return plan_errors, value

    def _logits(self) -> Tensor:
        inner = some_of(self._inner, self._live)
        return torch.add(self._scale * self._h, inner, alpha=self._scale, out=self._kernel)

    def _filled(self) -> Tensor:
        """Compute the plans. Return the column sums times M/N, which are 1 at the optimum.
        (B, 1, M)"""
        torch.softmax(self._logits(), 2, out=self._kernel)
        column = torch.bmm(self._u, self._kernel)
        self._kernel.clamp_min_(LOWEST_ENTRY)
        return column

    def update(self, omega: list[float], updates: int) -> None:
        """Run Sinkhorn updates of v and u. Each flow has an omega for over-relaxation. Store the
        error."""
        if not self._extreme < SMALL:
            self._h = self.absorbed().unsqueeze(1)
            self._u = self._u * self._row
            self._v = torch.ones_like(self._v)
            self._filled()
        kernel = self._kernel
        rows = self._kernel.mT
        u = self._u
        v = self._v
        power = -torch.tensor(omega, dtype=torch.float32, device=u.device).view(-1, 1, 1)
        least = 0.1
        most = 10.0
        for _ in range(updates):
            v *= torch.bmm(u, kernel).mul_(v).clamp_(least, most).pow_(power)
            row = torch.baddbmm(u, v, rows, beta=0, alpha=self._ratio)
            u *= row.mul_(u).clamp_(least, most).pow_(power)
        self._row = torch.bmm(v, rows)
        column = torch.bmm(1 / self._row, kernel).mul_(v).div_(self._ratio)
        extreme = torch.maximum(v.amax(), 1 / v.amin())
        self.error, self._extreme = self._read(column, extreme)

    def normalized(self, at: list[int]) -> Tensor:
        """Return the plans at the indices `at`, with rows that sum to 1.  (b, N, M)"""
        kernel = self._kernel
        out = self._memory.get("normalized", len(at), *kernel.shape[1:])
        if len(at) < len(kernel):
            kernel = torch.index_select(kernel, 0, torch.tensor(at, device=kernel.device), out=out)
        return torch.mul(kernel, some_of(self._v, at), out=out).div_(some_of(self._row, at).mT)

    def keep(self, at: list[int]) -> None:
        """Keep only the flows with the indices `at`."""
        if 0 < len(at) < len(self._live):
            self._live = [self._live[k] for k in at]
            self.error = [self.error[k] for k in at]
            for name in self.per_flow:
                setattr(self, name, getattr(self, name)[at])

    def absorbed(self) -> Tensor:
        """Return h after it has absorbed the column factors.  (B, M)"""
        return (self._h + self._v.log() / self._scale).squeeze(1)
