"""Updates that fit into some minutes, on a clock that only the work of training moves."""

import time
from types import SimpleNamespace

import pytest
import torch

from nsgf import UserError
from nsgf.cli.commands import main
from nsgf.commands import estimate
from nsgf.commands import train as training
from nsgf.commands.estimate import fit_minutes
from nsgf.commands.train import train
from nsgf.config.layers import change
from nsgf.experiment import Experiment
from nsgf.phases import nsgf
from nsgf.phases.lines import CachedStarts
from nsgf.run import checkpoint
from nsgf.run.stop import StopRequest
from nsgf.training.loop import PhaseLoop
from tests.conftest import shipped

HAND_OVER = (
    *("--device=cpu", "--sinkhorn-batch=16", "--model.mlp.width=8", "--batch-size=16"),
    *("--nsf.coupling_batch=16", "--optim.warmup_steps=500", "--pool-batches=100"),
    "--nsf.starts=1600",
    "--pool.build_batch=5",
)


def train_for(config, minutes, stop=None):
    """Train as ``train --minutes`` does."""
    stop = stop or StopRequest()
    experiment, line = fit_minutes(Experiment(config), minutes, stop)
    return train(experiment, stop=stop, notes=[line])


@pytest.fixture
def clock(monkeypatch):
    """3 s a flow, 1/50 s a start of a line, 4 or 8 s an update, 2 s to read data, 5 s a picture;
    updates and pictures are ``slowness`` times as slow."""
    clock = SimpleNamespace(now=0.0, slowness=1)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)

    def costs(owner, name, seconds):
        function = getattr(owner, name)

        def call(*args, **kwargs):
            clock.now += seconds(*args)
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    costs(Experiment, "load_data", lambda _: 2)
    for module in (estimate, training):
        costs(module, "show_preview", lambda *_: 5 * clock.slowness)
    costs(nsgf, "build_pool", lambda session, *_: 3 * session.config.pool.num_batches)
    costs(CachedStarts, "at", lambda starts, rows: len(rows) / 50 if starts.count is None else 0)
    seconds = {"nsgf": 4, "nsf": 8}
    costs(PhaseLoop, "_update", lambda loop, _: seconds[loop.name] * clock.slowness)
    return clock


@pytest.mark.parametrize(("recipe", "minutes", "is_more"), [(3000, 30, False), (30, 30, True)])
def test_training_takes_the_minutes_that_were_asked_for(recipe, minutes, is_more, clock, tmp_path):
    """Past mistake: Starts of lines are made when first needed. They were counted into every
    update, so a training of N minutes ended early.
    """
    recipe = (f"--nsgf.iterations={recipe}", f"--nsf.iterations={2 * recipe}")
    config = shipped("2d/nsgf++h", *HAND_OVER, *recipe)
    config = change(config, {"out_dir": str(tmp_path), "train.preview": False})
    run = train_for(config, minutes)
    assert 0.8 * 60 * minutes < clock.now < 1.2 * 60 * minutes
    # shares of the recipe; the rate and what is prepared
    settings = run.read_settings()
    share = settings["nsgf.iterations"] / config.nsgf.iterations
    assert settings["nsf.iterations"] == pytest.approx(share * config.nsf.iterations, abs=2)
    assert (share > 1) == is_more
    prepared = {"nsf.starts": 1600, "nsgf.warmup_steps": 500, "pool.num_batches": 100}
    for key, whole in prepared.items():
        assert settings[key] == pytest.approx(max(16, min(1, share) * whole), rel=0.05)
    # the settings of the run say all: the same again
    again = train(Experiment(change(config, settings)))
    for phase in config.phases:
        one, other = (checkpoint.load(each.checkpoint_file(phase)) for each in (run, again))
        assert one["step"] == settings[f"{phase}.iterations"]
        for name, weight in one["ema"].items():
            assert torch.equal(weight, other["ema"][name])


def test_measuring_for_a_long_training_takes_no_more_time(clock, tmp_path):
    config = change(shipped("2d/nsgf++h", *HAND_OVER), {"out_dir": str(tmp_path)})
    ends = []
    for minutes in (30, 300):
        fit_minutes(Experiment(config), minutes, StopRequest())
        ends.append(clock.now)
    assert ends[1] == 2 * ends[0]


@pytest.mark.parametrize("minutes", [0, -1, 1e9, float("nan")])
def test_minutes_that_no_training_can_take_are_refused(minutes, clock, tmp_path):
    config = change(shipped("2d/nsgf++h", *HAND_OVER), {"out_dir": str(tmp_path)})
    with pytest.raises(UserError, match=r"^minutes = "):
        fit_minutes(Experiment(config), minutes, StopRequest())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("minutes", "slowness"), [(5, 1), (5, 10), (30, 10), (30, 80)])
def test_measuring_takes_a_fifth_of_the_time_however_slow_the_machine(
    minutes, slowness, clock, tmp_path
):
    """Past mistake: Measuring for `--minutes` had no limit. On a busy machine one minute was
    measured and nothing trained.
    """
    clock.slowness = slowness
    config = change(shipped("2d/nsgf++h", *HAND_OVER), {"out_dir": str(tmp_path)})
    fitted, _ = fit_minutes(Experiment(config), minutes, StopRequest())
    assert clock.now < 0.25 * 60 * minutes
    chosen = fitted.config
    assert min(chosen.nsgf.iterations, chosen.nsf.iterations) > 0


def test_too_few_minutes_train_each_phase_for_an_update(clock, tmp_path):
    clock.slowness = 100
    config = change(shipped("2d/nsgf++h", *HAND_OVER), {"out_dir": str(tmp_path)})
    run = train_for(change(config, {"train.preview": False}), 1)
    assert [checkpoint.load(run.checkpoint_file(name))["step"] for name in config.phases] == [1, 1]
    assert "minutes = 1" in (run.path / "log.txt").read_text()


def test_a_phase_without_an_estimate_counts_as_slow_as_the_phases_before():
    config = shipped("2d/nsgf++h", *HAND_OVER, "--nsgf.iterations=300", "--nsf.iterations=600")
    estimates = [estimate.Estimate("", 0.0, 300.0, 0.0)]  # one second for each update
    layer, _ = estimate._shrink(Experiment(config), estimates, 90.0)
    assert (layer["nsgf.iterations"], layer["nsf.iterations"]) == (30, 60)


def test_a_shorter_training_prepares_a_flow_for_each_class(monkeypatch):
    monkeypatch.setattr(estimate, "LEAST_PREPARED", 4)
    config = shipped("digits", "--data.conditional=true", "--pool-batches=100")
    estimates = [estimate.Estimate("", 1.0, 1e6, 0.0)] * 3
    layer, _ = estimate._shrink(Experiment(config), estimates, 60.0)
    assert layer["pool.num_batches"] == 10


def test_what_cannot_be_trained_is_refused_before_updates_are_measured(clock, tmp_path):
    config = shipped("2d/nsgf++h", *HAND_OVER, "--precision=fp16")
    with pytest.raises(UserError, match=r"^train\.precision = "):
        train_for(change(config, {"out_dir": str(tmp_path)}), 30)
    assert clock.now == 0


def test_the_check_before_takes_no_more_flows_than_the_recipe(clock, monkeypatch):
    plans = []

    def plan(experiment, *_, **__):
        plans.append(experiment.config.pool.num_batches)
        raise UserError("planned")

    monkeypatch.setattr(estimate, "training_plan", plan)
    for flows in (2, 100):
        config = shipped("2d/nsgf++h", *HAND_OVER)
        with pytest.raises(UserError, match="planned"):
            train_for(change(config, {"pool.num_batches": flows}), 30)
    assert plans == [2, 16]


def test_a_finished_or_resumed_run_keeps_its_updates(tiny_run, capfd):
    assert main(["train", "--run", str(tiny_run.path), "--resume", "--minutes=5"]) == 2
    assert "minutes = 5" in capfd.readouterr().err


def test_a_stop_while_updates_are_measured_leaves_nothing(clock, tmp_path):
    config = change(shipped("2d/nsgf++h", *HAND_OVER), {"out_dir": str(tmp_path)})
    with pytest.raises(UserError, match=r"train\.max_hours = "):
        train_for(config, 30, StopRequest(max_hours=1e-9))
    assert not list(tmp_path.iterdir())
