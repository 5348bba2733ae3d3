"""A small experiment, and a solver that is exact, fast and counts."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
import torch

from nsgf.pool import build_pool, pool_folder
from nsgf.run.folder import RunFolder
from nsgf.run.log import RunLog
from nsgf.run.stop import StopRequest
from nsgf.sinkhorn import Flow
from nsgf.system.distributed import World
from nsgf.training.task import Session
from nsgf.user_data import load_data
from tests.conftest import CPU, new_phase, shipped


class Killed(BaseException):
    """The program ends here; unlike KeyboardInterrupt it does not end the test session too."""


class HalfWay(Flow):
    """Particle i goes straight to target i, X^{t+1} = X^t + eta (y - X^t); knows what it did."""

    def __init__(self, fail_at=None, unconverged=0, room=None):
        """It dies in call ``fail_at``; its card has ``room`` for so many flows."""
        super().__init__()
        self.calls: list[int] = []
        self.fail_at, self.unconverged, self.room = fail_at, unconverged, room

    def velocity(self, x, y):
        return y - x

    def start(self, x, y, steps):
        if len(self.calls) == self.fail_at:
            raise Killed
        self.calls.append(len(x))
        self.report.solves += len(x) * steps
        self.report.unconverged += self.unconverged
        if self.room is not None and len(x) > self.room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return super().start(x, y, steps)


@pytest.fixture
def config(tmp_path):
    """Seven flows of eight points, two steps."""
    base = shipped("2d", "--pool-batches=7", "--sinkhorn-batch=8", "--steps=2")
    return replace(base, out_dir=str(tmp_path))


def pool_settings(config):
    """The settings of an experiment's pool."""
    return new_phase("nsgf", config).pool_settings


def with_pool(config, **settings):
    return replace(config, pool=replace(config.pool, **settings))


class Lines(RunLog):
    """Keeps what is logged, without progress."""

    def __init__(self, folder, lines):
        super().__init__(folder, quiet=True)
        self.write = lambda text, prints=None: prints is None and lines.append(text)


def build(
    config,
    folder=None,
    solver=None,
    lines=None,
    *,
    device=CPU,
    world=None,
    stop=None,
):
    """The pool of an experiment, built by ``solver`` (exact, unless it is given) in ``folder``.

    ``lines`` takes what is logged. A folder is needed where a test looks at it, or builds twice.
    """
    data = load_data(config.data, config.seed)
    with TemporaryDirectory() as somewhere, patch("nsgf.pool.build_flow") as make:
        make.return_value = solver or HalfWay()
        path = folder.parent if folder else Path(somewhere)
        run = RunFolder(path.parent if world and folder else path)
        assert folder in (None, pool_folder(run, world or World()))
        log = Lines(run.path, [] if lines is None else lines)
        world = world or World()
        session = Session(config, data.record, run, log, device, world, stop or StopRequest())
        return build_pool(session, pool_settings(config), data.source("p"), data.target("p"))
