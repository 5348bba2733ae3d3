"""One optimizer update, and the state that it changes."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import InitVar, dataclass
from inspect import signature, unwrap
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nsgf.config.schema import OptimConfig, TrainConfig
from nsgf.system.distributed import ALONE, World
from nsgf.system.errors import UserError, suggest
from nsgf.system.files import Plain
from nsgf.system.output import Log, show
from nsgf.system.process import GENERATORS
from nsgf.system.seeding import derive_seed
from nsgf.training.precision import Precision, precision_context
from nsgf.training.task import Batch, Task


class StepStats(NamedTuple):
    """Loss and gradient norm of an update, or their means over several updates."""

    loss: float
    norm: float

    @property
    def is_finite(self) -> bool:
        """Whether the update was applied, and not skipped."""
        return math.isfinite(self.loss + self.norm)


class PendingStats(NamedTuple):
    """Loss and unclipped gradient norm of one update, while they are copied from the device.

    The loop reads the values one update later. By then the copies are complete, so the device is
    never idle.
    """

    step: int
    """Number of the update: 1, 2, ..."""
    values: Tensor
    """The two scalars, on the CPU."""
    copied: torch.cuda.Event | None
    """Event after the copy from a card; None on a device without events."""

    def read(self) -> StepStats:
        """Wait until the update is done, and return its statistics."""
        if self.copied is not None:
            self.copied.synchronize()
        return StepStats(*self.values.tolist())


class Adam(torch.optim.Adam):
    """torch's Adam without decorators. The decorators would import torch's compiler, which takes
    seconds."""

    add_param_group = unwrap(torch.optim.Adam.add_param_group)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))
    state_dict = unwrap(torch.optim.Adam.state_dict)
    load_state_dict = unwrap(torch.optim.Adam.load_state_dict)


@dataclass
class TrainState:
    """The state of a training phase: weights, average, Adam, learning rate, loss scale, step.

    Checkpoints and averages use the task's network itself, not a compiled or distributed form. An
    update does not wait for the device. If loss or gradient norm are not finite, the update on the
    device leaves weights and Adam's moments unchanged.
    """

    task: Task
    config: OptimConfig
    train: InitVar[TrainConfig]
    device: torch.device
    world: World = ALONE
    precision: Precision = "fp32"
    seed: int = 0
    """Seed of the phase. Seed and step determine dropout."""
    log: Log = show
    """Function that is called with a line when a batch is split."""
    step: int = 0

    def __post_init__(self, train: TrainConfig) -> None:
        self.accumulate = train.accumulate
        """Number of parts of each batch."""
        self.model = self.task.model
        self._shared: DistributedDataParallel | None = None
        network = torch.compile(self.model) if train.compile else self.model
        if self.world.size > 1:
            buffers = "forward_sync_buffers"
            if buffers not in signature(DistributedDataParallel).parameters:
                buffers = "broadcast_buffers"  # the name of this argument before torch 2.14
            network = self._shared = DistributedDataParallel(
                network,
                device_ids=[self.device] if self.device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                **{buffers: False},  # type: ignore[arg-type]  # the buffers are large constants
            )
        self._network = network
        self._draws = draws_numbers(self.model)
        self._parameters: list[Tensor] = list(self.model.parameters())
        # fused Adam is one kernel, and the only Adam that can skip an update on the device
        self.adam = Adam(self._parameters, lr=self.config.lr, fused=True)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
        self.ema = copy.deepcopy(self.model).requires_grad_(False)
        self._averages: list[Tensor] = list(self.ema.parameters())

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the network's output in the precision of training, as float32."""
        with precision_context(self.precision, self.device):
            return self._network(*inputs).float()

    def update(self, batch: Batch) -> PendingStats:
        """Run one optimizer update on this process's share of a batch.

        Raises:
            UserError: the card's memory is too small for a single sample.
        """
        loss = self.gradient(batch)
        self.scaler.unscale_(self.adam)
        norm = nn.utils.clip_grad_norm_(self._parameters, self.config.clip_norm or math.inf)
        loss = self.world.mean(loss)
        skips = ~torch.isfinite(loss + norm)
        self.adam.found_inf = skips.float()  # type: ignore[attr-defined]
        for group in self.adam.param_groups:
            group["lr"] = self.config.lr * lr_factor(self.step, self.config)
        self.adam.step()
        # without this call, an autocast context around the loop (see nsgf.train) would use old
        # weights
        torch.clear_autocast_cache()
        self.scaler.update()
        # the decay starts small, so that the average of a short run forgets the initial weights
        decay = min(self.config.ema_decay, (1 + self.step) / (10 + self.step))
        with torch.no_grad():  # faster than swa_utils, which makes a new function in each update
            torch._foreach_lerp_(self._averages, self._parameters, 1 - decay)
        self.step += 1
        on_card = loss.device.type == "cuda"
        values = torch.stack([loss, norm]).to("cpu", non_blocking=on_card)
        copied = torch.cuda.current_stream(loss.device).record_event() if on_card else None
        return PendingStats(self.step, values, copied)

    def gradient(self, batch: Batch) -> Tensor:
        """Compute the gradient of a batch, and return the loss. If the memory is full, split the
        batch. Raise the errors of :meth:`update`."""
        before = self.accumulate
        size = batch.size
        while (loss := self._try_gradient(batch)) is None:
            if self.accumulate >= size or self.world.size > 1 or not self.task.divisible:
                parts = ""
                if self.task.divisible:
                    parts = f"{suggest('train.accumulate', 2 * self.accumulate)}, "
                raise UserError(
                    f"out of memory on the card with {-(-size // self.accumulate)} samples at a "
                    f"time; try {parts}a smaller {suggest('optim.batch_size')}, or "
                    f"{suggest('model.checkpoint_activations', 'true')}"
                )
            self.accumulate = min(2 * self.accumulate, size)
            self.adam.zero_grad()
            torch.cuda.empty_cache()
        if self.accumulate != before:
            self.log(
                f"step {self.step + 1} did not fit into the card's memory; training continues with "
                f"{suggest('train.accumulate', self.accumulate)}, the same batch of "
                f"{self.config.batch_size} in parts"
            )
        return loss

    @contextmanager
    def _seeded(self) -> Iterator[None]:
        """Context that seeds torch's global generators for this update, and then restores them.
        Dropout draws only from global generators. For a network without random numbers, the context
        changes nothing."""
        if not self._draws:
            yield
            return
        seed = derive_seed(self.seed, "dropout", self.world.rank, self.step)
        generators = [torch.default_generator]
        if self.device.type == "cuda":
            generators.append(torch.cuda.default_generators[self.device.index or 0])
        with GENERATORS:
            before = [generator.get_state() for generator in generators]
            try:
                # torch.manual_seed would take longer than a small update
                for generator in generators:
                    generator.manual_seed(seed)
                yield
            finally:
                for generator, state in zip(generators, before, strict=True):
                    generator.set_state(state)

    def _try_gradient(self, batch: Batch) -> Tensor | None:
        """Compute the gradient of a batch and return the loss; None if the memory is full."""
        world = self.world
        for parameter in self._parameters:  # Adam's zero_grad would take ten times as long
            parameter.grad = None
        parts = batch.split(self.accumulate)
        # the gradients of all processes have equal weights in the mean, even if a process has one
        # more sample. So divide by the mean number of samples of a process
        size = self.config.batch_size / world.size if world.size > 1 else batch.size
        total = torch.zeros((), dtype=torch.float32, device=batch.target.device)
        try:
            with self._seeded():
                for number, part in enumerate(parts, start=1):
                    # processes exchange gradients only for the last part of a batch
                    shared = self._shared if number < len(parts) else None
                    with shared.no_sync() if shared else nullcontext():
                        loss = self.task.loss(self.forward, part) * (part.size / size)
                        self.scaler.scale(loss).backward()
                    total += loss.detach()
        except torch.cuda.OutOfMemoryError:
            return None  # this frees the exception and its graph before the next try
        return total

    def state_dict(self) -> Plain:
        """Return the whole state. It contains no random generator, because ``step`` determines the
        random numbers of the phase."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "ema": self.ema.state_dict(),
            "optimizer": self.adam.state_dict(),
            "scaler": self.scaler.state_dict(),
            "accumulate": self.accumulate,
        }

    def load_state_dict(self, state: Plain) -> None:
        """Restore a state from :meth:`state_dict`."""
        self.step = int(state["step"])
        self.model.load_state_dict(state["model"])
        self.ema.load_state_dict(state["ema"])
        self.adam.load_state_dict(state["optimizer"])
        for moments in self.adam.state.values():  # fused Adam needs the memory layout of weights
            moments |= {name: moments[name].contiguous() for name in ("exp_avg", "exp_avg_sq")}
        for group in self.adam.param_groups:
            # only fused Adam can skip updates, and the file may contain False
            group["fused"] = True
        # the run was split into this many parts because fewer parts did not fit into memory
        self.accumulate = max(self.accumulate, int(state["accumulate"]))
        # load the scaler only if this precision uses a scaler
        if state["scaler"] and self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])


def draws_numbers(model: nn.Module) -> bool:
    """Return whether a network in training may draw random numbers, because it has dropout or code
    of a caller."""
    for part in model.modules():
        package = type(part).__module__.partition(".")[0]
        if package not in ("nsgf", "torch") or getattr(part, "p", 0) > 0:
            return True
    return False


def lr_factor(step: int, config: OptimConfig) -> float:
    """Return the learning rate of update ``step`` (0, 1, ...) divided by ``config.lr``.

    The factor grows linearly from 1/warmup_steps to 1. Then it is constant, or follows half a
    cosine, which would reach 0 one update after the last update.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    length = max(1, config.iterations - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / length)
    return 0.5 * (1 + math.cos(math.pi * progress))
