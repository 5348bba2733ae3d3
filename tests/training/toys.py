"""A small training problem with a known solution."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nsgf.config.schema import TrainConfig
from nsgf.data import PointSampler, gaussian
from nsgf.training.state import TrainState
from nsgf.training.task import Batch, Task
from tests.conftest import CPU


class Scale(nn.Module):
    """w x, behind a dropout; ``fault`` may replace its answer."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, 1))
        self.dropout = nn.Dropout(dropout)
        self.calls: list[int] = []
        self.fault: Callable[[Tensor, int], Tensor] = lambda answer, call: answer

    def forward(self, x):
        self.calls.append(len(x))
        return self.fault(self.dropout(x @ self.weight), len(self.calls))

    def __deepcopy__(self, memo):
        twin = Scale(self.dropout.p).to(self.weight.device)
        twin.load_state_dict(self.state_dict())
        return twin


class Quadratic(Task):
    """Loss |w - 3|^2 with seeded noise: a minimum to find and a stream to continue."""

    def __init__(self, dropout=0.0):
        self.model = Scale(dropout)
        self.noise = PointSampler(gaussian((1,)), seed=0)
        self.drawn: list[range] = []

    def draw(self, positions):
        self.drawn.append(positions)
        return (3 + 0.1 * self.noise.at(positions),)

    def batch(self, *drawn):
        return Batch((torch.ones_like(drawn[0]),), drawn[0])


def weight(task):
    return task.model.weight.item()


def fails_at(*calls, value=math.nan):
    """A fault: at these calls of the network the answer is multiplied by ``value``."""
    return lambda answer, call: answer * value if call in calls else answer


class Updates:
    """A :class:`TrainState` of a trainer that draws its own batches."""

    def __init__(self, trainer, config, **settings):
        self.trainer, precision = trainer, settings.pop("precision", "fp32")
        self.state = TrainState(trainer, config, TrainConfig(**settings), CPU, precision=precision)

    def update(self):
        size = self.state.config.batch_size
        positions = range(self.state.step * size, (self.state.step + 1) * size)
        return self.state.update(self.trainer.batch(*self.trainer.draw(positions))).read()


class OutOfMemory(Quadratic):
    """A card for ``room`` samples at a time."""

    def __init__(self, room=4):
        super().__init__()
        self.model.fault = self._fault
        self.room = room

    def _fault(self, answer, call):
        if len(answer) > self.room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return answer
