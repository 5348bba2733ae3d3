"""Fill the pool with independent flows (Algorithm 1, before the regression)."""

import time
from bisect import bisect_right
from dataclasses import asdict

import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import Sampler
from nsgf.method import run_flow, step_sizes, time_step
from nsgf.pool.plan import flow_groups, plan_pool, pool_folder
from nsgf.pool.trajectories import (
    Header,
    PoolFile,
    TrajectoryPool,
    content_settings,
    matching_header,
    write_header,
)
from nsgf.run.stop import Stopped
from nsgf.sinkhorn import Flow, SolverReport, build_flow
from nsgf.system.errors import UserError, cause, name_setting, one_line, suggest
from nsgf.system.hardware import release_memory
from nsgf.training.task import Session


def build_pool(session: Session, source: Sampler, target: Sampler) -> TrajectoryPool:
    """Build the pool; complete it if an interrupted run left a part of it on the disk.

    Flows from mu0 to mu* are computed on the session's device; the pool is in main memory or on the
    disk. With several processes, each builds a part. With ``pool.storage: memory`` the run folder
    stores only the header.

    Raises:
        Stopped: a stop was requested; a pool on disk keeps its finished flows.
        UserError: pool or solver do not fit, the folder cannot be used, or a flow diverges.
    """
    # what an earlier run left
    config = session.config
    world = session.world
    shape = source.shape
    log = session.log
    folder = pool_folder(session.run, world)
    n = config.sinkhorn.batch_size
    dtype = world.agree(plan_pool(config, shape, session.device, session.run, world).dtype)
    header = matching_header(folder, config, shape, dtype)
    header = header or Header(dtype, content_settings(config, shape, dtype))
    share = world.share(range(config.pool.num_batches))
    flow_shape = n, config.flow.steps + 1, *shape
    # room for all positions
    file = None
    first = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_header(folder, header)
        if config.pool.storage == "disk":
            file = PoolFile(folder, header, len(share), flow_shape, log.progress)
            positions = file.positions
            first = len(header.checksums)
        else:
            size = len(share) * n, *flow_shape[1:]
            positions = torch.empty(size, dtype=getattr(torch, dtype))
    except OSError as error:
        raise UserError(
            f"pool.storage = {config.pool.storage}: {folder} cannot be written ({cause(error)}); "
            f"name another folder with {suggest('out_dir', 'DIR')}"
        ) from error
    length = time_step(config.flow.steps, config.flow.step_size)
    pool = TrajectoryPool(positions, length, first * n)
    finished = first
    if not world.any(first < len(share), has_worked=True):
        log.write(f"pool: {dtype} from {folder}; complete")
        return pool
    if first:
        log.write(f"pool: continuing after {first} of {len(share)} flows")
    # simulate group after group; a full card halves the flows at a time
    solver = build_flow(config)
    started = time.perf_counter()
    stops = [group.stop for group in flow_groups(config, shape, session.device)]
    together = stops[0]
    try:
        with log.progress("pool", len(share), "flow", first) as progress:
            while world.any(finished < len(share), has_worked=True) and not session.should_stop():
                if finished == len(share):
                    continue  # other processes have more to do
                limits = [limit for flow, limit in header.limits if flow <= finished]
                left = stops[bisect_right(stops, share[finished])] - share[finished]
                together = min([left, *limits])
                numbers = share[finished : finished + together]
                before = asdict(solver.report)
                try:
                    pool.append(simulate(config, source, target, solver, session.device, numbers))
                    finished += len(numbers)
                    if file:
                        file.commit(finished)
                    progress.update(len(numbers))
                    continue
                except torch.cuda.OutOfMemoryError as error:
                    if len(numbers) == 1:
                        raise UserError(
                            f"{name_setting('sinkhorn.batch_size', n)}: the card's memory is full "
                            "with a single flow of the pool; use a smaller one, or a smaller "
                            f"{suggest('sinkhorn.target_batch')}"
                        ) from error
                # here the handler has freed the flows
                solver.report = SolverReport(**before)
                release_memory(session.device)
                half = len(numbers) // 2
                log.write(f"pool: the card has no memory for {len(numbers)} flows, trying {half}")
                # a resumed or rebuilt pool must use the same limit: rounding depends on it
                header.limits.append([finished, half])
                if not file:  # otherwise the header is written with the next flows
                    write_header(folder, header)
    finally:
        if file:
            file.save()
    # report
    done = finished - first
    seconds = max(time.perf_counter() - started, 1e-9)
    speed = f"{done / seconds:.3g} flows/s, {together} at a time"
    solved = f"; {solver.report}" if solver.report.solves else ""
    log.write(f"pool: {done} flows in {seconds:.1f} s, {speed}{solved}")
    if session.should_stop():
        kept = f"{finished} of {len(share)} flows" if file else "nothing"
        raise Stopped(f"pool: {kept} kept")
    return pool


def simulate(
    config: Config,
    source: Sampler,
    target: Sampler,
    solver: Flow,
    device: torch.device,
    numbers: range,
) -> Tensor:
    """Return the trajectories of the flows with these numbers.  (len(numbers) n, T+1, *shape)

    Flow k uses the source samples k n to (k + 1) n - 1 and the target samples k m to (k + 1) m - 1,
    so any part of the pool can be built again.

    Raises:
        UserError: a flow diverges, or the blur is too small for float32.
    """
    sinkhorn = config.sinkhorn
    flow = config.flow
    x, y = (
        sampler.at(range(numbers.start * n, numbers.stop * n)).to(device).unflatten(0, (-1, n))
        for sampler, n in ((source, sinkhorn.batch_size), (target, sinkhorn.targets))
    )
    try:
        return run_flow(solver, x, y, step_sizes(flow.steps, flow.step_size)).flatten(0, 1)
    except (ValueError, ArithmeticError) as error:
        remedy = f"with {name_setting('flow.eta', flow.eta)}: try a smaller {suggest('flow.eta')}"
        if "blur" in solver.uses:
            remedy += f" or a larger {suggest('sinkhorn.blur')}"
        failed = f"flows {numbers.start} to {numbers.stop - 1} of the pool failed"
        raise UserError(f"{failed} ({one_line(error)}); {remedy}") from error
