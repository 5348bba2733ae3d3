"""Shared by all tests: a tiny experiment, and a training run of it.

Past mistake: Tests opened runs with `auto` beside runs on the CPU: 18 failures on the first
machine with a card. Now only tests marked gpu see a card.
"""

import copy
import functools
import gc
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from nsgf.cli.arguments import parse
from nsgf.commands.train import train
from nsgf.comparison.trials import Comparison
from nsgf.config.files import CONFIGS
from nsgf.experiment import Experiment
from nsgf.phases.base import starting_network
from nsgf.run.folder import RunFolder
from nsgf.run.log import RunLog
from nsgf.settings import resolve
from nsgf.training.precision import BFLOAT16_CHECKS
from nsgf.training.task import Session
from tests.user_data.user_files import write_images, write_points

for _name, _examples in (("quick", 10), ("all", 200)):  # scripts/test.sh --all takes the latter
    settings.register_profile(
        _name,
        max_examples=_examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
settings.load_profile("quick")

CPU = torch.device("cpu")
STYLE = {"text.usetex": True, "axes.facecolor": "black"}
"""Settings of matplotlib that a user may have."""


@functools.cache  # parsing takes longer than most tests
def shipped(name, *flags):
    """The configuration of ``--exp NAME`` with flags; ``NAME/METHOD`` names the method too."""
    return parse(["train", *experiment(name), *flags]).config


def experiment(name):
    """``NAME`` or ``NAME/METHOD`` as flags."""
    exp, _, method = name.partition("/")
    return ["--exp", exp, *(["--method", method] if method else [])]


def compared(name, *flags):
    """The comparison of ``compare --exp NAME`` with flags."""
    request = parse(["compare", *experiment(name), *flags])
    return Comparison.of(request.config, request.methods, request.fixed)


def new_network(phase, config):
    """A phase's network on the CPU before its first update."""
    return starting_network(new_phase(phase, config), new_session(config, RunFolder(Path())))


def new_phase(name, config):
    """A phase of these settings."""
    (phase,) = Experiment(config).phases([name])
    return phase


def new_session(config, run, **settings):
    """A training session on the CPU."""
    target = Experiment(config).target
    return Session(config, target, run, RunLog(run.path), CPU, **settings)


@pytest.fixture(scope="session", autouse=True)
def _shipped_files_are_read_once():
    """Every command line begins with one."""
    real = resolve.read_recipe
    once = functools.cache(real)

    def read(file):
        return copy.deepcopy(once(file)) if file.parent == CONFIGS else real(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolve, "read_recipe", read)
        yield


@pytest.fixture(scope="session", autouse=True)
def _processor_has_no_bfloat16():
    """``auto`` means fp32 on every machine."""
    with pytest.MonkeyPatch.context() as patch:
        for name in BFLOAT16_CHECKS:
            patch.setattr(torch.cpu, name, bool, raising=False)
        yield


@pytest.fixture(scope="session")
def own_data(tmp_path_factory):
    """By name of experiment the flag that names a user's own images or points."""
    folder = tmp_path_factory.mktemp("own")
    write_images(folder / "images")
    write_points(folder / "points.npy")
    places = {"images": folder / "images", "points": folder / "points.npy"}
    return {name: (f"--data.path={place}",) for name, place in places.items()}


def records(run, file="metrics"):
    """The lines of a run's file of records."""
    return [json.loads(line) for line in (run.path / f"{file}.jsonl").read_text().splitlines()]


def tiny_config(out_dir):
    """NSGF++ on points with small networks: all three phases in a second."""
    base = shipped(
        "2d",
        "--phases=[nsgf,nsf,predictor]",
        "--steps=3",
        "--flow.schedule=constant",
        "--flow.eta=0.5",
        "--train-iters=12",
        "--batch-size=16",
        "--pool-batches=4",
        "--sinkhorn-batch=16",
        "--model.mlp.width=16",
        "--train.checkpoint_every=5",
        "--train.log_every=4",
        "--train.preview=false",
        "--device=cpu",
    )
    return replace(base, out_dir=str(out_dir))


@pytest.fixture
def tiny(tmp_path):
    return tiny_config(tmp_path / "runs")


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory):
    """A finished run of the tiny experiment; never written to."""
    torch.set_num_threads(1)
    return train(Experiment(tiny_config(tmp_path_factory.mktemp("tiny")))).path


@pytest.fixture
def tiny_run(tiny, trained_once):
    """This test's own copy of a finished run of ``tiny``."""
    return RunFolder(Path(shutil.copytree(trained_once, Path(tiny.out_dir) / trained_once.name)))


@pytest.fixture
def small(tiny):
    """``tiny``, with few samples to draw and to measure."""
    return replace(
        tiny,
        sampling=replace(tiny.sampling, num_samples=20, batch_size=8, straight_steps=4),
        evaluation=replace(tiny.evaluation, num_samples=24),
    )


@pytest.fixture
def small_run(small, tiny_run):
    """The finished run, with ``small`` as its own settings."""
    tiny_run.write_config(small)
    return tiny_run


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    """A smoke run of NSGF++ on images; its samples and measures may be written anew."""
    config = shipped(
        "digits/nsgf++",
        "--smoke",
        "--device=cpu",
        "--sampling.num_samples=9",
        "--evaluation.num_samples=16",
        f"--out-dir={tmp_path_factory.mktemp('runs')}",
    )
    return config, train(Experiment(config))


@pytest.fixture(scope="session")
def told_run(tmp_path_factory):
    """A smoke run of a generator that is given the class; its samples may be written anew."""
    config = shipped(
        "digits/onecall",
        "--data.conditional=true",
        "--smoke",
        "--device=cpu",
        "--generator.lr=0.01",
        "--generator.ema_decay=0",
        "--sampling.num_samples=23",
        "--sampling.batch_size=8",
        "--evaluation.num_samples=24",
        "--train.preview=false",
        f"--out-dir={tmp_path_factory.mktemp('told')}",
    )
    return config, train(Experiment(config))


@pytest.fixture
def launch(monkeypatch):
    """Set the variables of torchrun, as for the second process of two on this machine."""

    def set_variables(**others):
        own = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
        for key, value in (own | others).items():
            monkeypatch.setenv(key, value)

    return set_variables


@pytest.fixture(scope="module", autouse=True)
def _collections_pass_over_libraries():
    """Each takes a quarter of a second otherwise, and every phase ends with one."""
    gc.collect()
    gc.freeze()


_has_card = torch.cuda.is_available


def pytest_runtest_setup(item):
    """Only tests marked ``gpu`` see a card: others compare runs on the CPU with ``auto``."""
    needs_card = item.get_closest_marker("gpu")
    if needs_card and not _has_card():
        pytest.skip("needs a GPU")
    torch.cuda.is_available = _has_card if needs_card else bool


def pytest_sessionfinish():
    gc.unfreeze()  # else libraries that count their objects at exit report leaks


@pytest.fixture(autouse=True)
def _same_numbers_everywhere():
    """One thread, so that a busy machine stays fast, and a known state of torch's generator."""
    torch.set_num_threads(1)
    torch.default_generator.manual_seed(123456)  # of every device costs a stack trace each
