import copy
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
from nsgf.training.choice import faster_precision, measures, saved_precision, settle_precision
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
    return replace(
        shipped("digits/nsgf++", *small, f"--train-iters={updates}", *flags), smoke=False
    )


@pytest.fixture
def run(tmp_path):
    return RunFolder.prepare(tmp_path / "run")


def state_of(config, phase="nsf", **options):
    model = get_phase(phase).build(config.model, SHAPE, seed=0).train()
    forward = Forward(model, config.train, CPU, World())
    return TrainState(forward, getattr(config, phase), seed=3, **options)


def settle(config, run, now, saved=None):
    """The precision with which a phase goes on, and what is said of it."""
    state = state_of(config)
    with Tracker(run.path) as tracker:
        session = Session(config, run, tracker, CPU)
        said = settle_precision(
            session, state, saved, lambda: get_phase("nsf").example(4, SHAPE), now
        )
    return state.forward.precision, said


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


@pytest.mark.parametrize(("fp32", "chosen"), [(2, "bf16"), (1, "fp32")])
def test_phase_that_begins_measures_and_goes_on_in_what_its_checkpoint_says(
    fp32, chosen, tmp_path, run
):
    config = digits(tmp_path)
    precision, said = settle(config, run, clock(fp32, 1))
    assert precision == chosen
    assert f"auto: {chosen}, measured: on this CPU fp32 takes {fp32}.00 times" in said
    precision, said = settle(config, run, unasked, saved=chosen)
    assert precision == chosen
    assert said == ("train.precision = auto: bf16, as in the checkpoint" if fp32 == 2 else None)


def test_phases_of_a_card_with_fp16_go_on_in_float32(tmp_path, run):
    assert settle(digits(tmp_path), run, unasked, saved="fp16") == ("fp32", None)


@pytest.mark.parametrize(("asked", "saved"), [("fp32", "bf16"), ("bf16", "fp32"), ("fp32", None)])
def test_precision_that_is_asked_for_is_taken_whatever_was_before(asked, saved, tmp_path, run):
    config = digits(tmp_path, f"--precision={asked}")
    assert settle(config, run, unasked, saved=saved) == (asked, None)


def test_checkpoints_of_earlier_versions_are_of_float32():
    assert saved_precision({"step": 7}) == "fp32"


def test_only_unets_of_long_plain_phases_on_a_cpu_measure(tmp_path):
    def asked(config, phase="nsf", device=CPU):
        network = get_phase(phase).build(config.model, SHAPE, seed=0)
        return measures(config, getattr(config, phase), network, device)

    assert asked(digits(tmp_path))
    assert not asked(digits(tmp_path), "predictor")
    assert not asked(digits(tmp_path), device=torch.device("cuda"))
    assert not asked(digits(tmp_path, updates=199))
    assert not asked(digits(tmp_path, "--precision=fp32"))
    assert not asked(digits(tmp_path, "--train.compile=true"))
    assert not asked(replace(digits(tmp_path), smoke=True))
    assert not asked(shipped("2d", "--train-iters=200"))


def test_phases_of_a_run_measure_when_they_begin_and_not_when_they_go_on(tmp_path, monkeypatch):
    """The run was killed before its first update: it has a configuration and nothing else."""
    measured = []

    def chosen(state, batch, now):
        measured.append(len(batch.target))
        return "bf16", 2.0

    monkeypatch.setattr(choice, "faster_precision", chosen)
    monkeypatch.setattr(choice, "FEWEST", 2)
    config = digits(tmp_path, "--batch-size=2", "--train.preview=false", updates=2)
    run = train(config, RunFolder.create(config))
    assert measured == [2, 2]
    headers = [checkpoint.read_header(run.checkpoint_file(name)) for name in config.phases]
    assert [header["precision"] for header in headers] == ["bf16", "bf16", "fp32"]
    assert all(header["config"]["train"]["precision"] == "auto" for header in headers)
    log = (run.path / "log.txt").read_text()
    assert log.count(" M weights, fp32 or bf16, at most ") == 2
    assert log.count(" M weights, fp32, about ") == 1
    assert "nsf: train.precision = auto: bf16, measured" in log
    train(replace(config, nsf=replace(config.nsf, iterations=3)), run)
    assert measured == [2, 2]
    assert checkpoint.read_header(run.checkpoint_file("nsf"))["precision"] == "bf16"
    assert (
        "nsf: 3 updates of 2, 0.70 M weights, bf16, about 1" in (run.path / "log.txt").read_text()
    )
