import copy
import json
from dataclasses import replace
from itertools import accumulate, cycle

import pytest
import torch

from nsgf.experiment import train
from nsgf.phases import get_phase
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.run.log import Tracker
from nsgf.run.session import Session
from nsgf.system.distributed import World
from nsgf.training import choice
from nsgf.training.choice import faster_precision, leave_open, settle_precision
from nsgf.training.precision import Forward
from nsgf.training.state import TrainState
from nsgf.training.task import squared_error
from tests.conftest import shipped
from tests.training.toys import CPU

SHAPE = (1, 8, 8)


def clock(fp32: float, bf16: float):
    """A clock by which gradients in the two precisions, in turn, take these seconds."""
    times = accumulate(cycle([0.0, fp32, 0.0, bf16]))
    return lambda: next(times)


def digits(tmp_path, *flags, updates=200):
    small = ("--smoke", "--device=cpu", f"--out-dir={tmp_path}", "--phases=[nsgf,nsf,predictor]")
    return replace(shipped("digits", *small, f"--train-iters={updates}", *flags), smoke=False)


@pytest.fixture
def run(tmp_path):
    return RunFolder.prepare(tmp_path / "run")


def state_of(config, phase="nsf", **options):
    model = get_phase(phase).build(config.model, SHAPE, seed=0).train()
    forward = Forward(model, config.train, CPU, World())
    return TrainState(forward, getattr(config, phase), seed=3, **options)


def settle(config, run, now, phase="nsf", step=0):
    """The precision with which a phase goes on."""
    state = state_of(config, phase)
    state.step = step
    with Tracker(run.path) as tracker:
        session = Session(config, run, tracker, CPU)
        settle_precision(session, state, lambda: get_phase(phase).example(4, SHAPE), now)
    return state.forward.precision


def unasked():
    raise AssertionError("nothing is to be measured")


@pytest.mark.parametrize(
    ("fp32", "bf16", "chosen"), [(1.1, 1.0, "bf16"), (1.09, 1.0, "fp32"), (0.5, 1.0, "fp32")]
)
def test_faster_precision_by_a_tenth_is_taken_and_nothing_changes(fp32, bf16, chosen, tmp_path):
    state = state_of(digits(tmp_path))
    before = copy.deepcopy(state.state_dict())
    batch = get_phase("nsf").example(4, SHAPE)
    found, gain = faster_precision(state, batch, clock(fp32, bf16))
    assert found == chosen
    assert gain == pytest.approx(fp32 / bf16)
    torch.testing.assert_close(state.state_dict(), before, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in state.forward.model.parameters())
    assert state.forward.precision == "fp32"


@pytest.mark.parametrize(("accumulate", "timed"), [(1, 32), (2, 32), (8, 8)])
def test_gradients_are_timed_of_as_many_samples_as_the_run_computes_at_once(
    accumulate, timed, tmp_path
):
    config, seen = digits(tmp_path), []

    def loss(forward, batch):
        seen.append(len(batch.target))
        return squared_error(forward, batch)

    state = state_of(config, loss=loss, accumulate=accumulate)
    faster_precision(state, get_phase("nsf").example(64, SHAPE), clock(1, 1))
    assert seen == [timed] * 2 * (1 + choice.ROUNDS)
    assert state.accumulate == accumulate


def test_choice_is_made_once_and_kept_for_all_networks_of_the_run(tmp_path, run):
    config = digits(tmp_path)
    leave_open(config, run, CPU)
    assert settle(config, run, clock(2, 1)) == "bf16"
    assert json.loads(run.precision_file.read_text()) == {"cpu": "bf16"}
    assert "bf16, measured: on this CPU fp32 takes 2.00 times" in (run.path / "log.txt").read_text()
    for step in (0, 7):
        assert settle(config, run, unasked, "nsgf", step) == "bf16"
    assert settle(config, run, unasked, "predictor") == "fp32"
    assert (run.path / "log.txt").read_text().count("bf16, as the run has chosen") == 2
    explicit = replace(config, train=replace(config.train, precision="fp32"))
    assert settle(explicit, run, unasked) == "fp32"


def test_float32_is_kept_too(tmp_path, run):
    config = digits(tmp_path)
    leave_open(config, run, CPU)
    assert settle(config, run, clock(1, 1)) == "fp32"
    assert settle(config, run, unasked) == "fp32"


@pytest.mark.parametrize("asked", [{"updates": 199}, {"precision": "fp32"}, {"compile": True}])
def test_short_compiled_and_explicit_runs_measure_nothing(asked, tmp_path, run):
    config = digits(tmp_path, updates=asked.pop("updates", 200))
    leave_open(replace(config, train=replace(config.train, **asked)), run, CPU)
    assert not run.precision_file.exists()
    leave_open(replace(digits(tmp_path), smoke=True), run, CPU)
    leave_open(shipped("2d"), run, CPU)
    leave_open(digits(tmp_path), run, torch.device("cuda"))
    assert not run.precision_file.exists()


def test_runs_that_were_not_left_open_stay_with_float32(tmp_path, run):
    """Of earlier versions, of comparisons, of other devices; a damaged note is none."""
    config = digits(tmp_path)
    assert settle(config, run, unasked) == "fp32"
    for text in ("", "[]", '{"cpu": "fp16"}', "{"):
        run.precision_file.write_text(text)
        assert settle(config, run, unasked) == "fp32"
    leave_open(config, run, CPU)
    assert settle(config, run, unasked, step=1) == "fp32"  # its first updates were float32


def test_new_run_measures_and_its_resume_does_not(tmp_path, monkeypatch):
    measured = []

    def chosen(state, batch, now):
        measured.append(len(batch.target))
        return "bf16", 2.0

    monkeypatch.setattr(choice, "faster_precision", chosen)
    monkeypatch.setattr(choice, "FEWEST", 2)
    config = digits(tmp_path, "--batch-size=2", "--train.preview=false", updates=2)
    run = train(config)
    assert measured == [2]
    found = [checkpoint.read_header(run.checkpoint_file(name)) for name in config.phases]
    assert [header["precision"] for header in found] == ["bf16", "bf16", "fp32"]
    assert all(header["config"]["train"]["precision"] == "auto" for header in found)
    train(replace(config, nsf=replace(config.nsf, iterations=3)), run, "nsf")
    assert measured == [2]
    assert checkpoint.read_header(run.checkpoint_file("nsf"))["precision"] == "bf16"
