"""Fill the pool: many independent flows, as many at a time as pay."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from nsgf.config.schema import Config
from nsgf.data import Sampler
from nsgf.pool.plan import DTYPES, build_batch, content_settings, plan_pool
from nsgf.pool.storage import PoolFile, new_header, read_header, write_header
from nsgf.pool.trajectories import TrajectoryPool
from nsgf.run.stop import Stopped, StopRequest
from nsgf.sinkhorn import FlowSolver, SolverReport
from nsgf.sinkhorn.schedule import step_sizes, time_step
from nsgf.system.distributed import World
from nsgf.system.errors import UserError

Log = Callable[[str], None]


@dataclass
class Simulation:
    """What flows are made of."""

    config: Config
    source: Sampler
    target: Sampler
    solver: FlowSolver
    device: torch.device
    world: World = field(default_factory=World)
    stop: StopRequest = field(default_factory=StopRequest)

    @property
    def share(self) -> range:
        """Numbers of the flows that this process simulates."""
        return self.world.share(range(self.config.pool.num_batches))

    def flows(self, numbers: range) -> Tensor:
        """Trajectories of the flows with these numbers.  (len(numbers) n, T+1, *shape)

        Flow k starts from position k n of both samplers (n particles each), so any part of the
        pool can be built again, alone or with others.

        Raises:
            UserError: the solver refuses the clouds, e.g. for a blur too small for float32.
        """
        n, flow = self.config.sinkhorn.batch_size, self.config.flow
        clouds = []
        for sampler in (self.source, self.target):
            parts = [sampler.at(range(number * n, (number + 1) * n)) for number in numbers]
            clouds.append(torch.stack(parts).to(self.device))
        try:
            return self.solver.flows(clouds[0], clouds[1], step_sizes(flow)).flatten(0, 1)
        except (ValueError, ArithmeticError) as error:
            raise UserError(
                f"flows {numbers.start} to {numbers.stop - 1} of the pool failed ({error}); with "
                f"flow.eta = {flow.eta} and sinkhorn.blur = {self.config.sinkhorn.blur}: try a "
                "smaller flow.eta or a larger sinkhorn.blur"
            ) from error


def build_pool(
    config: Config,
    source: Sampler,
    target: Sampler,
    solver: FlowSolver,
    device: torch.device,
    folder: Path | None = None,
    log: Log = print,
    world: World | None = None,
    stop: StopRequest | None = None,
) -> TrajectoryPool:
    """Algorithm 1, lines before the regression: many independent flows.

    Of several processes each builds a part, in memory or in a folder of its own. With
    ``pool.storage: disk`` what ``folder`` has already is kept.

    Args:
        config: the experiment.
        source: sampler of mu0.
        target: sampler of mu*.
        solver: simulates flows.
        device: where the flows are computed; the pool stays on the CPU or on the disk.
        folder: the run's folder of the pool; needed on disk, optional in memory, where it
            remembers which type ``pool.dtype: auto`` chose.
        log: takes the lines about the pool.
        world: the processes that share the pool; None: this one alone.
        stop: ends the build between two chunks; None: never.

    Raises:
        Stopped: asked to; a pool on disk keeps what it has.
        UserError: the pool does not fit, its folder cannot be used, or a flow diverges.
    """
    simulation = Simulation(
        config, source, target, solver, device, world or World(), stop or StopRequest()
    )
    dtype = simulation.world.agree(plan_pool(config, source.shape, folder).dtype)
    flows = len(simulation.share)
    file = _open(config, source.shape, dtype, folder, flows)
    pool = _allocate(config, source.shape, dtype, file, flows)
    if file and file.complete:
        log(f"pool: {dtype} from {folder}, nothing to build{_failures(file.header['report'])}")
    else:
        _fill(pool, file, simulation, log)
    if simulation.world.any(simulation.stop.reason is not None):
        kept = f"{pool.filled} of {pool.trajectories} trajectories" if file else "nothing"
        raise Stopped(f"pool: {kept} kept")
    pool.finalize()
    return pool


def _open(
    config: Config, shape: tuple[int, ...], dtype: str, folder: Path | None, flows: int
) -> PoolFile | None:
    """The pool's file, or None in memory; notes the settings in the folder in both cases."""
    header = new_header(content_settings(config, shape, dtype), dtype)
    if config.pool.storage == "disk":
        if folder is None:
            raise ValueError("a pool on disk needs its folder")
        rows, row_shape = config.sinkhorn.batch_size, (config.flow.steps + 1, *shape)
        return PoolFile(folder, header, flows, rows, row_shape)
    if folder is not None:
        _remember(folder, header)
    return None


def _allocate(
    config: Config, shape: tuple[int, ...], dtype: str, file: PoolFile | None, flows: int
) -> TrajectoryPool:
    rows, flow = config.sinkhorn.batch_size, config.flow
    return TrajectoryPool(
        flows * rows,
        flow.steps,
        shape,
        time_step(flow),
        dtype=DTYPES[dtype],
        storage=file.positions if file else None,
        filled=file.finished * rows if file else 0,
    )


def _fill(pool: TrajectoryPool, file: PoolFile | None, simulation: Simulation, log: Log) -> None:
    """Simulate the missing flows, in order."""
    solver, flows = simulation.solver, simulation.share
    together = build_batch(simulation.config, simulation.source.shape, simulation.device)
    first = file.finished if file else 0
    before = dict(file.header["report"]) if file else {}
    if first:
        log(f"pool: going on after flow {first} of {len(flows)}")
    started, report = time.perf_counter(), add_reports(before, SolverReport())
    try:
        shown = simulation.world.is_main
        with tqdm(
            total=len(flows), initial=first, desc="pool", unit="flow", disable=not shown
        ) as bar:
            for start in range(first, len(flows), together):
                if simulation.stop.reason is not None:
                    break
                numbers = flows[start : start + together]
                pool.append(simulation.flows(numbers))
                report = add_reports(before, solver.report)
                if file:
                    file.commit(start + len(numbers), report)
                bar.update(len(numbers))
    finally:
        if file:
            file.save()
    seconds = time.perf_counter() - started
    log(_summary(len(flows) - first, seconds, together, report))


def add_reports(before: dict[str, Any], report: SolverReport) -> dict[str, Any]:
    """The report of this build together with those of interrupted ones, as plain values.

    Args:
        before: result of an earlier call, or empty.
        report: cumulative report of the solver at hand.
    """
    now, before = asdict(report), before or asdict(SolverReport())
    solves = now["solves"] + before["solves"]
    spent = sum(part["iterations"] * part["solves"] for part in (now, before))
    errors = [part["worst_error"] for part in (now, before)]
    measured = [error for error in errors if error is not None and not math.isnan(error)]
    return {
        "flows": now["flows"] + before["flows"],
        "solves": solves,
        "iterations": spent / max(solves, 1),  # a mean over solves
        "worst_error": max(measured, default=None),  # None: not measured (nan is no JSON)
        "unconverged": now["unconverged"] + before["unconverged"],
    }


def _summary(flows: int, seconds: float, together: int, report: dict[str, Any]) -> str:
    """What was built, how fast, and how well the solver converged."""
    parts = [
        f"pool: {flows} flows in {seconds:.1f} s, {flows / max(seconds, 1e-9):.3g} flows/s, "
        f"{together} at a time"
    ]
    if report["iterations"]:
        parts.append(f"{report['iterations']:.1f} updates a solve")
    if report["worst_error"] is not None:
        parts.append(f"largest marginal error {report['worst_error']:.1e}")
    return "; ".join(parts) + _failures(report)


def _failures(report: dict[str, Any]) -> str:
    """Solves that hit the cap on updates, if any."""
    if not report.get("unconverged"):
        return ""
    return f"; {report['unconverged']} of {report['solves']} solves did not reach the tolerance"


def _remember(folder: Path, header: dict[str, Any]) -> None:
    """Note the pool's settings and type in the run folder, unless they stand there already."""
    known = read_header(folder)
    if known and known["settings"] == header["settings"]:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_header(folder, header)
    except OSError as error:
        raise UserError(
            f"out_dir: the pool folder {folder} cannot be written ({error.strerror})"
        ) from error
