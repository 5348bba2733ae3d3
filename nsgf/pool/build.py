"""Fill the pool with independent flows (Algorithm 1, before the regression)."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import Sampler
from nsgf.pool.plan import DTYPES, build_batch, content_settings, plan_pool, pool_folder
from nsgf.pool.storage import Header, PoolFile, differences, new_header, read_header, write_header
from nsgf.pool.trajectories import TrajectoryPool
from nsgf.run.session import Session
from nsgf.run.stop import Stopped
from nsgf.sinkhorn import FlowSolver, SolverReport, build_solver
from nsgf.sinkhorn.schedule import step_sizes, time_step
from nsgf.system.errors import UserError, cause, one_line
from nsgf.system.hardware import release_memory


def build_pool(session: Session, source: Sampler, target: Sampler) -> TrajectoryPool:
    """Build the pool, or complete the pool on disk of an interrupted run.

    Flows are computed on the session's device; the pool stays in main memory or on the disk. Each
    of several processes builds a part. With ``pool.storage: memory`` the run folder only stores
    the type that ``pool.dtype: auto`` chose.

    Args:
        session: the run, its device and processes.
        source: sampler of mu0.
        target: sampler of mu*.

    Raises:
        Stopped: a stop was requested, between two chunks; a pool on disk keeps its flows.
        UserError: pool or solver do not fit, the folder cannot be used, or a flow diverges.
    """
    config, world, log = session.config, session.world, session.log.write
    folder = pool_folder(session.run, world)
    dtype = world.agree(plan_pool(config, source.shape, session.device, folder).dtype)
    share = world.share(range(config.pool.num_batches))
    n, flow = config.sinkhorn.batch_size, config.flow
    header = new_header(content_settings(config, source.shape, dtype), dtype)
    file = None
    if config.pool.storage == "disk":
        trajectory, counter = (flow.steps + 1, *source.shape), session.log.progress
        file = PoolFile(folder, header, len(share), n, trajectory, counter)
        header = file.header
    else:
        header = _stored_header(folder, header)
    pool = TrajectoryPool(
        len(share) * n,
        flow.steps,
        source.shape,
        time_step(flow),
        dtype=DTYPES[dtype],
        storage=file.positions if file else None,
        filled=file.finished * n if file else 0,
    )
    report = SolverReport(**header["report"]) if file else SolverReport()
    if not world.any(pool.filled < len(share) * n):
        log(f"pool: {dtype} from {folder}, complete{_failures(report)}")
    else:
        solver = build_solver(config.sinkhorn)
        solver.report = report
        simulation = Simulation(config, source, target, solver, session.device)
        _fill(pool, file, header, simulation, share, session)
    if session.is_asked():
        done = pool.filled // n
        raise Stopped(f"pool: {f'{done} of {_flows(len(share))}' if file else 'nothing'} kept")
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
        """Return the trajectories of the flows with these numbers.  (len(numbers) n, T+1, *shape)

        Flow k takes positions k n to (k + 1) n - 1 of the source and k m to (k + 1) m - 1 of the
        target, so any part of the pool can be built again.

        Raises:
            UserError: the solver refuses the clouds, e.g. for a blur too small for float32.
        """
        sinkhorn, flow = self.config.sinkhorn, self.config.flow
        x, y = (
            sampler.at(range(numbers.start * size, numbers.stop * size))
            .to(self.device)
            .unflatten(0, (len(numbers), size))
            for sampler, size in (
                (self.source, sinkhorn.batch_size),
                (self.target, sinkhorn.targets),
            )
        )
        try:
            return self.solver.flows(x, y, step_sizes(flow)).flatten(0, 1)
        except (ValueError, ArithmeticError) as error:
            raise UserError(
                f"flows {numbers.start} to {numbers.stop - 1} of the pool failed "
                f"({one_line(error)}); with flow.eta = {flow.eta} and sinkhorn.blur = "
                f"{sinkhorn.blur}: try a smaller flow.eta or a larger sinkhorn.blur"
            ) from error

    def try_flows(self, numbers: range, take: Callable[[Tensor], object]) -> bool:
        """Pass these flows to ``take``; False if they do not fit into the card's memory."""
        before = asdict(self.solver.report)
        try:
            take(self.flows(numbers))
            return True
        except torch.cuda.OutOfMemoryError:
            self.solver.report = SolverReport(**before)
            return False  # leaving the handler frees the flows before the next try

    def halve(self, together: int, log: Callable[[str], None]) -> int:
        """Return half of the number of flows that did not fit together, and log it.

        Raises:
            UserError: a single flow did not fit.
        """
        if together == 1:
            raise UserError(
                f"sinkhorn.batch_size = {self.config.sinkhorn.batch_size}: the card's memory is "
                "full with a single flow of the pool; use a smaller --sinkhorn-batch or "
                "--sinkhorn.target_batch"
            )
        release_memory(self.device)
        log(
            f"pool: {together} flows at a time do not fit into the card's memory; continuing with "
            f"{together // 2}, the same flows"
        )
        return together // 2


def _fill(
    pool: TrajectoryPool,
    file: PoolFile | None,
    header: Header,
    simulation: Simulation,
    share: range,
    session: Session,
) -> None:
    """Simulate the missing flows of this process's share, in order, until a stop is requested."""
    config, solver = simulation.config, simulation.solver
    together = most = build_batch(config, simulation.source.shape, simulation.device)
    first = file.finished if file else 0
    if first:
        session.log.write(f"pool: continuing after {first} of {_flows(len(share))}")
    started = time.perf_counter()
    try:
        with session.log.progress("pool", len(share), "flow", first) as progress:
            start = first
            while session.world.any(start < len(share)) and not session.is_asked():
                together = min([most, *(k for flow, k in header["limits"] if flow <= start)])
                if numbers := share[start : start + together]:  # others may have more to do
                    if not simulation.try_flows(numbers, pool.append):
                        half = simulation.halve(len(numbers), session.log.write)
                        _store_limit(header, start, half, session)
                        continue
                    start += len(numbers)
                    if file:
                        file.commit(start, asdict(solver.report))
                    progress.update(len(numbers))
    except KeyboardInterrupt:  # a second Ctrl-C
        if file:
            file.save()
            session.log.write(f"pool: {file.finished} of {_flows(len(share))} are kept")
        raise
    finally:
        if file:
            file.save()
    built = pool.filled // config.sinkhorn.batch_size - first
    seconds = time.perf_counter() - started
    session.log.write(_summary(built, seconds, together, solver.report))


def _store_limit(header: Header, start: int, together: int, session: Session) -> None:
    """Store how many flows fit together from flow ``start`` on.

    A pool that is resumed or built again keeps to it: flows that are computed together are rounded
    together.
    """
    header["limits"].append([start, together])
    if session.config.pool.storage == "memory":  # a file's header is written with the next flows
        write_header(pool_folder(session.run, session.world), header)


def _summary(flows: int, seconds: float, together: int, report: SolverReport) -> str:
    """Return number of flows, speed and convergence in one line."""
    parts = [
        f"pool: {_flows(flows)} in {seconds:.1f} s, {flows / max(seconds, 1e-9):.3g} flows/s, "
        f"{together} at a time"
    ]
    if report.iterations:
        parts.append(f"{report.iterations:.1f} updates a step")
    if report.worst_error is not None:
        parts.append(f"largest marginal error {report.worst_error:.1e}")
    return "; ".join(parts) + _failures(report)


def _flows(count: int) -> str:
    return "1 flow" if count == 1 else f"{count} flows"


def _failures(report: SolverReport) -> str:
    """Return how many steps were not solved to the tolerance, if any."""
    if not report.unconverged:
        return ""
    return f"; {report.unconverged} of {report.solves} steps did not reach sinkhorn.tolerance"


def _stored_header(folder: Path, header: Header) -> Header:
    """Return the stored header of a pool with these settings, or store this one."""
    known = read_header(folder)
    if known and not differences(known, header["settings"]):
        return known
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_header(folder, header)
    except OSError as error:
        raise UserError(
            f"out_dir: the pool folder {folder} cannot be written ({cause(error)})"
        ) from error
    return header
