"""Fill the pool: many independent flows, as many at a time as pay."""

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import Sampler
from nsgf.pool.plan import DTYPES, build_batch, content_settings, plan_pool, pool_folder
from nsgf.pool.storage import PoolFile, new_header, read_header, write_header
from nsgf.pool.trajectories import TrajectoryPool
from nsgf.run.session import Session
from nsgf.run.stop import Stopped
from nsgf.sinkhorn import FlowSolver, SolverReport, build_solver
from nsgf.sinkhorn.schedule import step_sizes, time_step
from nsgf.system.errors import UserError


def build_pool(session: Session, source: Sampler, target: Sampler) -> TrajectoryPool:
    """Algorithm 1, lines before the regression: many independent flows.

    Flows are computed on the session's device; the pool stays in main memory or on the disk. Of
    several processes each builds a part. With ``pool.storage: disk`` what the run folder has
    already is kept; in memory the folder only remembers which type ``pool.dtype: auto`` chose.

    Args:
        session: the run, its device and processes.
        source: sampler of mu0.
        target: sampler of mu*.

    Raises:
        Stopped: asked to, between two chunks; a pool on disk keeps what it has.
        UserError: pool or solver do not fit, the folder cannot be used, or a flow diverges.
    """
    config, world, log = session.config, session.world, session.tracker.log
    folder = pool_folder(session.run, world)
    dtype = world.agree(plan_pool(config, source.shape, session.device, folder).dtype)
    share = world.share(range(config.pool.num_batches))
    file = _open(config, source.shape, dtype, folder, len(share))
    pool = _allocate(config, source.shape, dtype, file, len(share))
    if file and file.complete:
        log(f"pool: {dtype} from {folder}, nothing to build{_failures(file.header['report'])}")
    else:
        solver = build_solver(config.sinkhorn)
        simulation = Simulation(config, source, target, solver, session.device)
        _fill(pool, file, simulation, share, session)
    if world.any(session.stop.reason is not None):
        session.stop.follow()
        done = pool.filled // config.sinkhorn.batch_size
        raise Stopped(f"pool: {f'{done} of {_flows(len(share))}' if file else 'nothing'} kept")
    pool.finalize()
    return pool


@dataclass
class Simulation:
    """Flows by their number, from two samplers and a solver."""

    config: Config
    source: Sampler
    target: Sampler
    solver: FlowSolver
    device: torch.device

    def flows(self, numbers: range) -> Tensor:
        """All trajectories of the flows with these numbers.  (len(numbers) n, T+1, *shape)

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


def _open(
    config: Config, shape: tuple[int, ...], dtype: str, folder: Path, flows: int
) -> PoolFile | None:
    """The pool's file, or None in memory; notes the settings in the folder in both cases."""
    header = new_header(content_settings(config, shape, dtype), dtype)
    if config.pool.storage == "memory":
        _remember(folder, header)
        return None
    trajectory = (config.flow.steps + 1, *shape)
    return PoolFile(folder, header, flows, config.sinkhorn.batch_size, trajectory)


def _allocate(
    config: Config, shape: tuple[int, ...], dtype: str, file: PoolFile | None, flows: int
) -> TrajectoryPool:
    """The pool with what its file holds already, if any."""
    n, flow = config.sinkhorn.batch_size, config.flow
    return TrajectoryPool(
        flows * n,
        flow.steps,
        shape,
        time_step(flow),
        dtype=DTYPES[dtype],
        storage=file.positions if file else None,
        filled=file.finished * n if file else 0,
    )


def _fill(
    pool: TrajectoryPool,
    file: PoolFile | None,
    simulation: Simulation,
    share: range,
    session: Session,
) -> None:
    """Simulate the missing flows of this process's share, in order, until asked to stop."""
    config, solver = simulation.config, simulation.solver
    together = build_batch(config, simulation.source.shape, simulation.device)
    first = file.finished if file else 0
    before = dict(file.header["report"]) if file else {}
    if first:
        session.tracker.log(f"pool: going on after {first} of {_flows(len(share))}")
    started, report = time.perf_counter(), add_reports(before, SolverReport())
    try:
        with session.tracker.progress("pool", len(share), "flow", first) as progress:
            for start in range(first, len(share), together):
                if session.stop.reason is not None:
                    break
                numbers = share[start : start + together]
                pool.append(simulation.flows(numbers))
                report = add_reports(before, solver.report)
                if file:
                    file.commit(start + len(numbers), report)
                progress.update(len(numbers))
    finally:
        if file:
            file.save()
    built = pool.filled // config.sinkhorn.batch_size - first
    session.tracker.log(_summary(built, time.perf_counter() - started, together, report))


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
        f"pool: {_flows(flows)} in {seconds:.1f} s, {flows / max(seconds, 1e-9):.3g} flows/s, "
        f"{together} at a time"
    ]
    if report["iterations"]:
        parts.append(f"{report['iterations']:.1f} updates a step")
    if report["worst_error"] is not None:
        parts.append(f"largest marginal error {report['worst_error']:.1e}")
    return "; ".join(parts) + _failures(report)


def _flows(count: int) -> str:
    return "1 flow" if count == 1 else f"{count} flows"


def _failures(report: dict[str, Any]) -> str:
    """Steps whose transport problem was not solved to the tolerance, if any."""
    if not report.get("unconverged"):
        return ""
    return f"; {report['unconverged']} of {report['solves']} steps did not reach sinkhorn.tolerance"


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
