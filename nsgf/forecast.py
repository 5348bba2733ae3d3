"""What training would take on a card that is not here: counted on shapes, nothing is measured.

An update is counted on torch's meta device: operations of matrices, bytes that go from and to the
card's memory, and launches. The time follows from a data sheet and from what is assumed below,
until ``nsgf preflight`` measures it on the card. What the CPU does meanwhile is not counted.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from nsgf.checks import check
from nsgf.config.schema import Config
from nsgf.data import data_shape, shape_and_classes
from nsgf.phases import Phase, get_phases, sampled_phases
from nsgf.phases.base import Problems
from nsgf.pool.plan import build_batch, flow_flags, plan_pool, pool_bytes, solver_bytes
from nsgf.readiness import tried
from nsgf.run.plan import checkpoint_bytes
from nsgf.sessions import Part, session_lines, training_hours
from nsgf.system.cards import Card
from nsgf.system.errors import UserError
from nsgf.system.hardware import format_bytes, format_hours
from nsgf.training.memory import TrainingMemory, training_memory
from nsgf.training.precision import Precision, pick_precision, sampling_precision
from nsgf.training.task import squared_error

EFFICIENCY = {"fp32": 0.5, "bf16": 0.3, "fp16": 0.3}
"""Share of a card's peak that convolutions and matrix products reach; assumed."""
LAUNCH = 8e-6
"""Seconds that the host needs to start an operation; assumed."""
USABLE = 0.9
"""Share of a card's memory that updates get beside the driver and fragments; assumed."""
SINKHORN_UPDATES = 35
"""Of a solve, as measured for the shipped experiments on a CPU (docs/performance.md)."""
POOL_RATE = 1e9
"""Bytes of a pool that the host draws noise for, copies and keeps in a second; assumed."""
OPTIMIZER_LAUNCHES, OPTIMIZER_VALUES = 17, 12
"""Of clipping, fused Adam and average: launches, and values read or written for each weight."""
POOL = "pool"
"""Name of the preparation that is a formula here: its solves go by their values."""
META, CPU = torch.device("meta"), torch.device("cpu")


class Work(NamedTuple):
    """What a card is asked to do."""

    flops: float = 0.0
    """Operations of matrix products and convolutions; a multiplication and an addition are two."""
    traffic: float = 0.0
    """Bytes read and written, each operation by itself."""
    launches: float = 0.0
    """Operations that compute something; views do not."""

    def times(self, count: float) -> "Work":
        """The same so many times."""
        return Work(*(count * part for part in self))

    def in_precision(self, precision: Precision, casts: int = 0) -> "Work":
        """What was counted in float32: 16 bit take half of the traffic and so many casts more."""
        if precision == "fp32":
            return self
        return Work(self.flops, self.traffic / 2, self.launches + casts)

    def seconds(self, card: Card, precision: Precision, tf32: bool = False) -> float:
        """Time on a card: matrices at the assumed efficiency, then memory at its full bandwidth,
        and at least what it takes to launch everything."""
        matrices = self.flops / (EFFICIENCY[precision] * card.peak(precision, tf32))
        return max(matrices + self.traffic / card.bandwidth, LAUNCH * self.launches)


class _Operations(TorchDispatchMode):
    """Counts launches and traffic of what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.traffic = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        if not func.is_view and not func.__name__.startswith("empty"):
            self.launches += 1
            self.traffic += sum(x.nbytes for x in tree_leaves((args, out)) if isinstance(x, Tensor))
        return out


def counted(compute: Callable[[], object]) -> Work:
    """The work of a computation on the meta device, as it is: mostly float32."""
    with FlopCounterMode(display=False) as flops, _Operations() as seen:
        compute()
    return Work(flops.get_total_flops(), seen.traffic, seen.launches)


def update_work(config: Config, phase: Phase, precision: Precision) -> Work:
    """One update: forward, backward and optimizer, for the whole batch."""
    form = shape_and_classes(config.data)
    with META:
        model = phase.network(config.model, *form).train()
        batch = phase.example(phase.optim(config).batch_size, *form)
    work = counted(lambda: squared_error(model, batch).backward())
    weights = list(model.parameters())
    work = work.in_precision(precision, 2 * len(weights))  # each weight is cast, and its gradient
    return Work(
        work.flops,
        work.traffic + 4 * OPTIMIZER_VALUES * sum(weight.numel() for weight in weights),
        work.launches * config.train.accumulate + OPTIMIZER_LAUNCHES,
    )


def pool_work(config: Config, shape: tuple[int, ...], card: Card) -> Work:
    """All flows: a cost matrix and a plan of n x m and of n x n for each step, each a product over
    all coordinates, and Sinkhorn updates, which read that of n x m twice."""
    n, m = config.sinkhorn.batch_size, config.sinkhorn.targets
    batched = config.sinkhorn.solver == "batched"
    together = build_batch(config, shape, CPU, card.memory) if batched else 1
    solves = solve_work(Problems(together, n, m, math.prod(shape)))
    return solves.times(config.flow.steps * config.pool.num_batches / together)


def solve_work(problems: Problems) -> Work:
    """Transport problems that are solved together."""
    number, n, m, values = problems
    traffic = 4 * (n * (m * (2 * SINKHORN_UPDATES + 10) + 10 * n) + 5 * (n + m) * values)
    return Work(
        flops=number * n * (4 * (n + m) * values + 4 * m * SINKHORN_UPDATES),
        traffic=number * traffic,
        launches=16 * SINKHORN_UPDATES + 100,
    )


def sampling_work(config: Config, precision: Precision) -> tuple[Work, int] | None:
    """What a batch of ``sampling.batch_size`` samples takes, and its network calls; None: their
    number depends on the samples."""
    form, tau, total, calls = shape_and_classes(config.data), 0.0, Work(), 0
    for phase in sampled_phases(config, config.phases.__contains__):
        number, tau = phase.leg(config, nn.Identity()).expect(tau)  # type: ignore[assignment]
        if number is None:
            return None
        with META:
            model = phase.network(config.model, *form).eval()
            inputs = phase.example(config.sampling.batch_size, *form).inputs
        with torch.no_grad():
            work = counted(partial(model, *inputs))
        work = work.in_precision(precision)  # weights are cast once, before
        total, calls = Work(*map(sum, zip(total, work.times(number), strict=True))), calls + number
    return total, calls


def forecast(config: Config, card: Card, session_hours: float, command: str) -> list[str]:
    """Lines for people: what every phase, sampling and evaluation would take on ``card``.

    Lines that begin with NO say what would not fit. No device is asked for.

    Args:
        config: the experiment.
        card: which card.
        session_hours: hours that a session has.
        command: what starts the training, ``python -m nsgf train ...``.

    Raises:
        UserError: the configuration is not valid, or the card has not the precision.
    """
    check(config)
    limit = training_hours(session_hours)
    precision = pick_precision(config.train.precision, CPU, card.capability)
    config = replace(config, train=replace(config.train, precision=precision))
    tf32, shape = config.train.tf32, data_shape(config.data)
    lines = [
        f"one {card.name}, computed, not measured: {format_bytes(card.memory)}, {precision}, "
        f"memory at {card.bandwidth / 1e9:.0f} GB/s; assumed: {EFFICIENCY[precision]:.0%} of "
        f"{card.peak(precision, tf32) / 1e12:.3g} TFLOP/s, {1e6 * LAUNCH:.0f} us a launch"
    ]
    parts, weights = [], []
    for phase in get_phases(config.phases):
        said, own = _phase_forecast(config, phase, card, precision)
        needed = training_memory(config, phase, CPU)
        lines += [*said, _memory_line(phase.name, needed, card)]
        parts.append(own)
        weights.append(needed.weights)
    lines += _storage_lines(config, shape, card, weights)
    lines += _sampling_lines(config, card)
    return [*lines, *tried(lambda: session_lines(parts, limit, command))]


def _phase_forecast(
    config: Config, phase: Phase, card: Card, precision: Precision
) -> tuple[list[str], Part]:
    """Lines about the time of a phase, and its share of the sessions."""
    lines, prepared = [], []
    counting = replace(config, train=replace(config.train, precision="fp32"))
    for preparation in phase.preparations(counting, META):
        name, tf32 = preparation.name, config.train.tf32
        if name == POOL:
            seconds = _pool_seconds(config, card)
            name += f" at {SINKHORN_UPDATES} Sinkhorn updates a step"
        elif preparation.problems:
            solves = map(solve_work, preparation.problems)
            each = sum(work.seconds(card, "fp32") for work in solves)
            seconds = each * preparation.units
            name += f" at {SINKHORN_UPDATES} Sinkhorn updates a problem"
        else:
            try:
                work = counted(preparation.unit).times(preparation.units)
            except NotImplementedError:  # it needs values
                lines.append(f"{name}: not counted")
                continue
            if preparation.exact:
                seconds = work.seconds(card, "fp32")
            else:
                seconds = work.in_precision(precision).seconds(card, precision, tf32)
        prepared.append((preparation, seconds))
        lines.append(f"{name}: about {format_hours(seconds)}")
    work, updates = update_work(config, phase, precision), phase.optim(config).iterations
    each = work.seconds(card, precision, config.train.tf32)
    lines.append(
        f"{phase.name}: {updates} updates of {work.flops / 1e12:.3g} TFLOP, "
        f"{work.traffic / 1e9:.3g} GB and {work.launches:.0f} launches, {1e3 * each:.3g} ms each, "
        f"about {format_hours(updates * each)}"
    )
    return lines, Part.of(phase.name, updates * each, prepared)


def _pool_seconds(config: Config, card: Card) -> float:
    shape = data_shape(config.data)
    on_card = pool_work(config, shape, card).seconds(card, "fp32")
    return on_card + pool_bytes(config, shape) / POOL_RATE


def largest_batch(needed: TrainingMemory, card: Card) -> int:
    """Samples of an update that a card holds at once; 0: not even one."""
    room = USABLE * card.memory - needed.fixed
    return max(0, int(room * needed.samples / needed.activations))


def _memory_line(name: str, needed: TrainingMemory, card: Card) -> str:
    most = largest_batch(needed, card)
    if not most:
        return f"NO {name}: not even one sample fits the card; try a smaller model"
    fits = needed.total <= USABLE * card.memory
    if not (fits or needed.divisible):
        return (
            f"NO {name}: about {format_bytes(needed.total)} on the card, and its batch cannot be "
            "split; use a smaller --batch-size"
        )
    parts = "" if fits else " (split by itself)"
    return (
        f"{name}: about {format_bytes(needed.total)} on the card{parts}; up to {most} samples fit "
        "at once"
    )


def _storage_lines(
    config: Config, shape: tuple[int, ...], card: Card, weights: Sequence[int]
) -> list[str]:
    """Main memory and disk: what is needed, and whether the card's usual host has it."""
    lines, pool, host = [], 0, card.host
    on_disk = config.pool.storage == "disk"
    if any("pool.num_batches" in one.shared_counts(config) for one in get_phases(config.phases)):
        pool = pool_bytes(config, shape)
        text = f"{format_bytes(pool)} in float32, half of it in float16"
        try:
            if host:
                free = int(host.disk if on_disk else host.memory)
                pool, text = plan_pool(config, shape, CPU, available=free, solver=False)[1:]
            solver = solver_bytes(config, shape, CPU, card.memory)
            what = f"{format_bytes(solver)} on the card while it is built"
            where = f" on {host.name}" if host else ""
            lines.append(f"pool: {text}{where}; {what}")
            if solver > USABLE * card.memory:
                flags = " or ".join(flow_flags(config))
                lines.append(f"NO pool: {what}; use a smaller {flags}")
        except UserError as error:
            lines.append(f"NO {error}")
    sizes = [checkpoint_bytes(count) for count in weights]
    kept = f"two checkpoints of each phase, {format_bytes(2 * sum(sizes))}"
    kept += f" (finished ones with --keep light: {format_bytes(sum(sizes) // 2)})"
    if on_disk and pool:
        kept += f", and until its phase is done the pool, {format_bytes(pool)}"
    elif pool:
        kept += "; a pool in memory is built again in each session that needs it"
    lines.append(f"to keep between sessions: the run folder, {kept}")
    most = 2 * sum(sizes) + max(sizes) + (pool if on_disk else 0)
    if host and most > host.disk:
        lines.append(
            f"NO disk: {format_bytes(most)} at the most, {host.name} keeps "
            f"{format_bytes(host.disk)}; use fewer --pool-batches or --pool.storage memory"
        )
    return lines


def _sampling_lines(config: Config, card: Card) -> list[str]:
    counts = {"sample": config.sampling.num_samples}
    counts["evaluate"] = config.evaluation.num_samples * config.evaluation.repeats
    precision = sampling_precision(config, CPU, card.capability)
    found = sampling_work(config, precision)
    if found is None:
        return ["sample: depends on the samples, whose network calls differ"]
    work, calls = found
    seconds = work.seconds(card, precision, config.train.tf32) / config.sampling.batch_size
    return [
        f"{command}: to draw {count} samples of {calls} network calls in {precision}, about "
        f"{format_hours(count * seconds)}"
        for command, count in counts.items()
    ]
