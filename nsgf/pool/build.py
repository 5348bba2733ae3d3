"""Fill the pool with independent flows (Algorithm 1, before the regression)."""

import time
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import Sampler
from nsgf.pool.plan import build_batch, plan_pool, pool_folder
from nsgf.pool.storage import Header, PoolFile, content_settings, matching_header, write_header
from nsgf.pool.trajectories import TrajectoryPool
from nsgf.run.session import Session
from nsgf.run.stop import Stopped
from nsgf.sinkhorn import FlowSolver, SolverReport, build_solver
from nsgf.sinkhorn.base import step_sizes, time_step
from nsgf.system.errors import UserError, cause, name_setting, one_line, suggest
from nsgf.system.hardware import release_memory


def build_pool(session: Session, source: Sampler, target: Sampler) -> TrajectoryPool:
    """Build the pool; complete it if an interrupted run left a part of it on the disk.

    Flows from mu0 to mu* are computed on the session's device; the pool is in main memory or on the
    disk. With several processes, each builds a part. With ``pool.storage: memory`` the run folder
    stores only the header.

    Raises:
        Stopped: a stop was requested; a pool on disk keeps its finished flows.
        UserError: pool or solver do not fit, the folder cannot be used, or a flow diverges.
    """
    config, world, shape = session.config, session.world, source.shape
    folder = pool_folder(session.run, world)
    dtype = world.agree(plan_pool(config, shape, session.device, session.run, world).dtype)
    header = matching_header(folder, config, shape, dtype)
    header = header or Header(dtype, content_settings(config, shape, dtype))
    share = world.share(range(config.pool.num_batches))
    flow_shape = config.sinkhorn.batch_size, config.flow.steps + 1, *shape
    file, finished = None, 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_header(folder, header)
        if config.pool.storage == "disk":
            file = PoolFile(folder, header, len(share), flow_shape, session.log.progress)
            positions, finished = file.positions, len(header.checksums)
        else:
            size = len(share) * flow_shape[0], *flow_shape[1:]
            positions = torch.empty(size, dtype=getattr(torch, dtype))
    except OSError as error:
        raise UserError(
            f"pool.storage = {config.pool.storage}: {folder} cannot be written ({cause(error)}); "
            f"name another folder with {suggest('out_dir', 'DIR')}"
        ) from error
    pool = TrajectoryPool(positions, time_step(config.flow), finished * flow_shape[0])
    if world.any(finished < len(share)):
        solver = build_solver(config.sinkhorn)
        simulation = Simulation(config, source, target, solver, session.device)
        finished = _fill(pool, file, header, simulation, share[finished:], session)
    else:
        session.log.write(f"pool: {dtype} from {folder}; complete")
    if session.should_stop():
        kept = f"{finished} of {len(share)} flows" if file else "nothing"
        raise Stopped(f"pool: {kept} kept")
    return pool


@dataclass
class Simulation:
    """Compute flows by number, from two samplers and a solver."""

    config: Config
    source: Sampler
    target: Sampler
    solver: FlowSolver
    device: torch.device

    def flows(self, numbers: range) -> Tensor:
        """Return the trajectories of the flows with these numbers.  (len(numbers) n, T+1, *shape)

        Flow k uses the source samples k n to (k + 1) n - 1 and the target samples k m to
        (k + 1) m - 1, so any part of the pool can be built again.

        Raises:
            UserError: a flow diverges, or the blur is too small for float32.
        """
        sinkhorn, flow = self.config.sinkhorn, self.config.flow
        clouds = []
        for sampler, n in (self.source, sinkhorn.batch_size), (self.target, sinkhorn.targets):
            cloud = sampler.at(range(numbers.start * n, numbers.stop * n)).to(self.device)
            clouds.append(cloud.unflatten(0, (len(numbers), n)))
        x, y = clouds
        try:
            return self.solver.flows(x, y, step_sizes(flow)).flatten(0, 1)
        except (ValueError, ArithmeticError) as error:
            raise UserError(
                f"flows {numbers.start} to {numbers.stop - 1} of the pool failed "
                f"({one_line(error)}); with {name_setting('flow.eta', flow.eta)} and "
                f"{name_setting('sinkhorn.blur', sinkhorn.blur)}: try a smaller "
                f"{suggest('flow.eta')} or a larger {suggest('sinkhorn.blur')}"
            ) from error

    def try_flows(self, numbers: range, pool: TrajectoryPool) -> bool:
        """Append these flows to the pool; return False if the card's memory is too small for
        them. Raise UserError if it is too small for one flow."""
        before = asdict(self.solver.report)
        try:
            pool.append(self.flows(numbers))
            return True
        except torch.cuda.OutOfMemoryError as error:
            if len(numbers) == 1:
                flow = name_setting("sinkhorn.batch_size", self.config.sinkhorn.batch_size)
                raise UserError(
                    f"{flow}: the card's memory is full with a single flow of the pool; use a "
                    f"smaller one, or a smaller {suggest('sinkhorn.target_batch')}"
                ) from error
            self.solver.report = SolverReport(**before)
            return False  # the end of the handler frees the flows before the next try


def _fill(
    pool: TrajectoryPool,
    file: PoolFile | None,
    header: Header,
    simulation: Simulation,
    missing: range,
    session: Session,
) -> int:
    """Simulate the missing flows of this process in order, until a stop is requested. Return the
    number of finished flows of this process."""
    config, solver, log = simulation.config, simulation.solver, session.log.write
    first = start = pool.filled // config.sinkhorn.batch_size
    total = first + len(missing)
    together = most = build_batch(config, simulation.source.shape, simulation.device)
    if first:
        log(f"pool: continuing after {first} of {total} flows")
    started = time.perf_counter()
    try:
        with session.log.progress("pool", total, "flow", first) as progress:
            while session.world.any(start < total) and not session.should_stop():
                together = min([most, *(limit for flow, limit in header.limits if flow <= start)])
                numbers = missing[start - first : start - first + together]
                if not numbers:
                    continue  # other processes have more to do
                if simulation.try_flows(numbers, pool):
                    start += len(numbers)
                    if file:
                        file.commit(start)
                    progress.update(len(numbers))
                    continue
                release_memory(simulation.device)
                half = len(numbers) // 2
                log(f"pool: {len(numbers)} flows do not fit into the card's memory, trying {half}")
                # a resumed or rebuilt pool must use the same limit: rounding depends on it
                header.limits.append([start, half])
                if not file:  # otherwise the header is written with the next flows
                    write_header(pool_folder(session.run, session.world), header)
    finally:
        if file:
            file.save()
    seconds = max(time.perf_counter() - started, 1e-9)
    log(
        f"pool: {start - first} flows in {seconds:.1f} s, {(start - first) / seconds:.3g} flows/s, "
        f"{together} at a time; {solver.report}"
    )
    return start
