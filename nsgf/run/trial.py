"""The networks of a run, tried before there is anything to lose."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from nsgf.config.leaves import leaves
from nsgf.config.schema import Config
from nsgf.data import shape_and_classes
from nsgf.phases import Phase
from nsgf.system.distributed import World
from nsgf.system.errors import UserError, one_line
from nsgf.system.hardware import release_memory
from nsgf.training.precision import Forward, device_settings
from nsgf.training.state import TrainState

SAMPLES = 2
"""Of the update that is tried: CIFAR-10's network takes two seconds for it on one core."""
CARD_ERRORS = (torch.cuda.OutOfMemoryError, getattr(torch, "AcceleratorError", ()))
CARD_WORDS = ("CUDA", "cuDNN")
"""In errors of a card that are plain RuntimeErrors, as all are in older versions of torch."""


def try_networks(config: Config, phases: Sequence[Phase], device: torch.device) -> None:
    """One update of each network, as the run would do it but for compilation, on noise.

    Phases with the same network are tried once. A smoke run is a trial itself, and has none.

    Raises:
        UserError: one of them cannot be trained; names the settings of its model.
    """
    networks = {(type(phase).network, type(phase).example): phase for phase in reversed(phases)}
    for phase in () if config.smoke else reversed(networks.values()):
        with naming_the_model(config, phase), device_settings(config.train):
            _update(config, phase, device)
        release_memory(device)


@contextmanager
def naming_the_model(config: Config, phase: Phase) -> Iterator[None]:
    """Around updates of a phase's network on noise. Faults of a card and of this program stay what
    they are.

    Raises:
        UserError: shapes do not fit, as torch says in words that tell the user nothing.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if isinstance(error, CARD_ERRORS) or any(word in str(error) for word in CARD_WORDS):
            raise
        own = (f"model.{config.model.kind}.", "model.predictor")
        model = [f"{key} = {value}" for key, value, _ in leaves(config) if key.startswith(own)]
        raise UserError(
            f"{phase.name}: its network cannot be trained ({type(error).__name__}: "
            f"{one_line(error)}); change {', '.join(model)}"
        ) from error


def _update(config: Config, phase: Phase, device: torch.device) -> None:
    """One update of a network that is dropped afterwards."""
    shape, classes = shape_and_classes(config.data)
    model = phase.build(config.model, shape, 0, classes).to(device).train()
    state = TrainState(
        Forward(model, replace(config.train, compile=False), device, World()),
        replace(phase.optim(config), batch_size=SAMPLES),
        accumulate=min(config.train.accumulate, SAMPLES),
    )
    with device:
        batch = phase.example(SAMPLES, shape, classes)
    state.update(batch).read()
