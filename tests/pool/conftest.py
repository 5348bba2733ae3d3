"""A small experiment, and a solver that is exact, fast and counts."""

import functools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import Data
from nsgf.pool import TrajectoryPool, build_pool
from nsgf.sinkhorn import SolverReport
from tests.conftest import shipped

CPU = torch.device("cpu")
parsed = functools.cache(shipped)
"""The configuration of an experiment, parsed once: parsing takes longer than these tests."""


class Killed(BaseException):
    """The program ends here; unlike KeyboardInterrupt it does not end the test session too."""


class HalfWay:
    """Particle i goes straight to target i, X^{t+1} = X^t + eta (y - X^t); knows what it did."""

    def __init__(self, fail_at: int | None = None, unconverged: int = 0) -> None:
        self.report = SolverReport()
        self.calls: list[int] = []
        self.fail_at, self.unconverged = fail_at, unconverged

    def velocity(self, x: Tensor, y: Tensor) -> Tensor:
        return y - x

    def flows(self, x: Tensor, y: Tensor, etas: list[float]) -> Tensor:
        if len(self.calls) == self.fail_at:
            raise Killed
        self.calls.append(len(x))
        self.report.flows += len(x)
        self.report.solves += len(x) * len(etas)
        self.report.unconverged += self.unconverged
        positions = [x]
        for eta in etas:
            positions.append(positions[-1] + eta * (y - positions[-1]))
        return torch.stack(positions, dim=2)


@pytest.fixture
def config(tmp_path) -> Config:
    """Seven flows of eight points, two steps."""
    base = parsed("2d", "--pool-batches=7", "--sinkhorn-batch=8", "--steps=2")
    return replace(base, out_dir=str(tmp_path))


def with_pool(config: Config, **settings) -> Config:
    return replace(config, pool=replace(config.pool, **settings))


def build(config: Config, folder=None, solver=None, log=None) -> TrajectoryPool:
    data = Data(config.data, config.seed)
    said: list[str] = []
    return build_pool(
        config,
        data.source("p"),
        data.target("p"),
        solver or HalfWay(),
        CPU,
        folder,
        log or said.append,
    )
