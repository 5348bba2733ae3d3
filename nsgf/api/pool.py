"""The trajectory pool for a training loop that you write.

N: number of points; *shape: shape of one point.
"""

import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from nsgf.config.files import from_arguments
from nsgf.config.layers import build
from nsgf.data import PointSampler, PointSet, RowSampler, Sampler
from nsgf.experiment import Experiment
from nsgf.method import time_step
from nsgf.pool import plan_pool, simulate
from nsgf.pool.settings import PoolSettings
from nsgf.pool.trajectories import PoolBatch, TrajectoryPool
from nsgf.settings.checks import check
from nsgf.sinkhorn import build_flow
from nsgf.sinkhorn.base import Array, Flow, box_diameter, positive_number, to_tensor
from nsgf.system.errors import UserError, naming
from nsgf.system.seeding import derive_seed, make_generator, torch_defaults

DrawPoints = Callable[[int, torch.Generator], Array]
ROUNDING = 1e-3
"""Largest rounding error of a stored position, relative to the extent of the points. Velocities
are differences of positions, so their error is larger."""


class SinkhornPool:
    """Training batches (x, v, t) of Sinkhorn gradient flows: points, their velocities and times.

    The constructor simulates flows from a source to a target. A network that learns v from x and t
    moves new points from the source to the target. Each of its ``steps`` steps is
    ``x = x + pool.time_step * network(x, t)``, with t = 0, 1 / steps, 2 / steps, ...:

        pool = nsgf.SinkhornPool(torch.randn(2000, 2), data, blur=0.5, steps=5)
        network = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 2))
        optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
        for x, v, t in pool:
            loss = (network(torch.cat([x, t.unsqueeze(1)], dim=1)) - v).square().mean()
            optimizer.zero_grad(), loss.backward(), optimizer.step()

    One loop passes once over all pairs, in a random order from torch's global generator.

    Args:
        source: points to start from, a tensor or array ``(N, *shape)``, or a function
            ``draw(n, generator)`` that returns n points; the generator is on the CPU.
        target: points to reach, in the same form as ``source``.
        blur: square root of the regularization eps, in the units of the points.
        steps: number T of steps of a flow.
        eta: size of a step, for the schedule ``constant``.
        schedule: ``constant``, or ``harmonic`` with steps of size 1/T, 1/(T-1), ..., 1.
        num_batches: number of flows.
        batch_size: number of particles in a flow, and of pairs in a batch.
        target_batch: number of targets in a flow; None: the number of particles.
        device: device for simulation and batches, such as ``cuda``. The pool is in main memory.
        seed: seed of the order of the points, and of the generators that functions ``draw`` get.
        first_blur: blur of a flow's first step, at least ``blur``. It falls by the same factor from
            step to step, and is ``blur`` in the last step. None: ``blur`` in all steps.

    Raises:
        UserError: an argument is out of range, points are not finite or have different shapes, the
            points are too far from the origin for their spread, the pool does not fit into memory,
            or the blur is too small for float32.
    """

    def __init__(
        self,
        source: Array | DrawPoints,
        target: Array | DrawPoints,
        blur: float = 0.5,
        steps: int = 5,
        *,
        eta: float = 0.2,
        schedule: str = "constant",
        num_batches: int = 200,
        batch_size: int = 256,
        target_batch: int | None = None,
        device: str | torch.device = "auto",
        seed: int = 0,
        first_blur: float | None = None,
    ) -> None:
        settings = {
            "sinkhorn.blur": blur,
            "sinkhorn.first_blur": first_blur,
            "sinkhorn.batch_size": batch_size,
            "sinkhorn.target_batch": target_batch,
            "pool.num_batches": num_batches,
            "flow.steps": steps,
            "flow.eta": eta,
            "flow.schedule": schedule,
            "seed": seed,
            "device": device and str(device),
        }
        with naming({key: key.rpartition(".")[2] for key in settings}):
            experiment = Experiment(build(from_arguments({}, settings)))
            check(experiment)
            config = experiment.config
            self.device = experiment.device
            self.batch_size = config.sinkhorn.batch_size
            self.time_step = time_step(config.flow.steps, config.flow.step_size)
            solver = build_flow(config.flow.kind, config.sinkhorn)
            with torch_defaults():
                mu0 = _sampler("source", source, config.seed)
                mu1 = _sampler("target", target, config.seed)
                if mu0.shape != mu1.shape:
                    raise UserError(
                        f"source has points of shape {mu0.shape}, target {mu1.shape}: must be equal"
                    )
                pool = PoolSettings(config.sinkhorn, config.flow, config.pool, mu0.shape)
                plan = plan_pool(pool, self.device, config.out_path)
                self._pool = self._simulate(pool, plan.dtype, mu0, mu1, solver)
        if (report := solver.report).unconverged:
            warnings.warn(
                f"{report}; a larger blur needs fewer updates", RuntimeWarning, stacklevel=2
            )

    def _simulate(
        self, pool: PoolSettings, dtype_name: str, mu0: Sampler, mu1: Sampler, solver: Flow
    ) -> TrajectoryPool:
        """Return the trajectories of all flows. Raise UserError if the points are too far from the
        origin."""
        dtype = getattr(torch, dtype_name)
        _check_origin(mu0, mu1, self.batch_size, dtype)
        count = pool.pool.num_batches * self.batch_size
        positions = torch.empty((count, pool.flow.steps + 1, *pool.shape), dtype=dtype)
        trajectories = TrajectoryPool(positions, self.time_step)
        for numbers in pool.groups(self.device):
            trajectories.append(simulate(pool, mu0, mu1, solver, self.device, numbers))
        return trajectories

    def __len__(self) -> int:
        return len(self._pool) // self.batch_size

    def __iter__(self) -> Iterator[PoolBatch]:
        for indices in torch.randperm(len(self._pool), device="cpu").split(self.batch_size):
            yield self._pairs(indices)

    def sample(self, n: int, generator: torch.Generator | None = None) -> PoolBatch:
        """Return n random pairs (x, v) and their times t (n,) in [0, 1), float32 on ``device``.
        ``generator`` is on the CPU; None: torch's global generator."""
        n = positive_number("n", n, is_whole=True)
        indices = torch.randint(len(self._pool), (n,), generator=generator, device="cpu")
        return self._pairs(indices)

    @torch_defaults()
    def _pairs(self, indices: Tensor) -> PoolBatch:
        return PoolBatch(*(part.to(self.device) for part in self._pool.pairs(indices)))


def _sampler(name: str, points: Array | DrawPoints, seed: int) -> Sampler:
    """Return a sampler of points. ``name``: the argument that holds the points. Raise UserError if
    the points are not finite or have the wrong shape."""
    seed = derive_seed(seed, name, "pool")  # the same stream as in a run
    if not callable(points):
        return RowSampler(_check_points(name, points), seed)

    def draw(n: int, generator: torch.Generator) -> Tensor:
        return _check_points(name, points(n, generator), n)

    shape = tuple(draw(1, make_generator(seed)).shape[1:])
    return PointSampler(PointSet(name, draw, shape=shape), seed)


def _check_origin(mu0: Sampler, mu1: Sampler, n: int, dtype: torch.dtype) -> None:
    """Raise UserError if points lie so far from the origin that this type of positions cannot
    represent their differences. The check draws n points of source and target."""
    x, y = (sampler.at(range(n)).flatten(1) for sampler in (mu0, mu1))
    extent = float(box_diameter(x, y))
    farthest = float(max(x.abs().max(), y.abs().max()))
    if 0 < ROUNDING * extent < torch.finfo(dtype).eps * farthest:
        raise UserError(
            f"source and target reach {farthest:.3g} but spread over {extent:.3g} only, too far "
            f"from the origin for {dtype}; subtract the mean of target from both"
        )


def _check_points(name: str, points: Array, n: int | None = None) -> Tensor:
    """Return points in float32. Raise UserError unless the points are finite and have the shape (n,
    *shape)."""
    x = to_tensor(name, points).detach()
    is_shape = x.ndim > 1 and x.numel() > 0 and n in (None, len(x))
    if not (is_shape and x.is_floating_point() and x.isfinite().all()):
        raise UserError(
            f"{name} is {tuple(x.shape)}, {x.dtype}: must be finite, of a floating-point type, "
            f"({n or 'N'}, *shape)"
        )
    return x.float()
