"""Room on the disk and processes, checked before a run starts."""

import os
from dataclasses import replace

import pytest

from nsgf.commands import train
from nsgf.commands.train import check_space, training_plan
from nsgf.experiment import Experiment
from nsgf.run.checkpoint import previous_file
from nsgf.run.folder import RunFolder
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from tests.conftest import new_phase, shipped


def test_a_checkpoint_has_about_the_bytes_that_are_asked_for(tiny, tiny_run):
    """Past mistake: The UNet entered `torch.autocast` on the meta device, which has none, and no
    run on images could begin.
    """
    parameters = new_phase("nsgf", tiny).outline().parameters()
    expected = train.WEIGHT_BYTES * sum(part.numel() for part in parameters)
    assert expected < tiny_run.checkpoint_file("nsgf").stat().st_size < expected + 20_000


@pytest.fixture
def fits(monkeypatch):
    """``check_space`` where that many bytes are free."""

    def check(available, *values):
        monkeypatch.setattr(train, "free_disk_bytes", lambda _: available)
        check_space(*values)

    return check


def test_two_checkpoints_of_each_phase_one_more_and_the_pool_must_fit(tmp_path, fits):
    run, weights = RunFolder(tmp_path / "new"), {"nsgf": 1000, "nsf": 3000}
    needed = 16 * (2 * 1000 + 2 * 3000 + 3000)
    for pool in (0, 5000):
        fits(needed + pool, weights, pool, run)
        with pytest.raises(UserError, match="out_dir"):
            fits(needed + pool - 1, weights, pool, run)


def test_checkpoints_that_are_there_need_no_more_room(tmp_path, fits):
    run = RunFolder(tmp_path)
    for file in (run.checkpoint_file("nsf"), previous_file(run.checkpoint_file("nsf"))):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(16_000))
    for needed, restarts in ((16_000, []), (32_000, ["nsf"])):  # one is only renamed
        fits(needed, {"nsf": 1000}, 0, run, restarts)
        with pytest.raises(UserError):
            fits(needed - 1, {"nsf": 1000}, 0, run, restarts)


def test_plan_refuses_fp16_on_a_cpu(tiny):
    half = replace(tiny, train=replace(tiny.train, precision="fp16"))
    with pytest.raises(UserError, match=r"train\.precision"):
        training_plan(Experiment(half), ["nsgf"])
    training_plan(Experiment(half), [])  # it can be measured


def test_plan_keeps_compiled_code_outside_of_runs(tiny, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    compiled = replace(tiny, train=replace(tiny.train, compile=True))
    training_plan(Experiment(compiled), ["nsgf"])
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"].endswith("nsgf/compiled")


@pytest.mark.parametrize(
    ("phase", "flags", "most"),
    [
        ("nsgf", ("--batch-size=4", "--pool-batches=3"), 3),
        ("nsf", ("--batch-size=4", "--pool-batches=3"), 4),
        ("generator", ("--generator.batch_size=8", "--generator.targets=12"), 4),
    ],
)
def test_process_without_work_is_refused(phase, flags, most):
    experiment = Experiment(shipped("2d", "--device=cpu", *flags))
    training_plan(experiment, [phase], world=World(0, most))
    with pytest.raises(UserError, match="processes"):
        training_plan(experiment, [phase], world=World(0, most + 1))
