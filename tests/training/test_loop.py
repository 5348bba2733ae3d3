import gc
import math
import os
import re
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from nsgf.config.schema import MLPConfig, UNetConfig
from nsgf.models import AffineStartNetwork, VelocityMLP
from nsgf.models.unet import UNet
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.run.stop import CALLBACK, Stopped, StopRequest
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from nsgf.training.loop import fit
from nsgf.training.state import TrainState, draws_numbers
from tests.conftest import new_session, records
from tests.training.toys import OutOfMemory, Quadratic, fails_at, weight


def run_fit(config, trainer, run=None, train=(), session=(), **changes):
    """Train ``trainer`` as phase 1 with changes of the phase, of ``train`` and of the session."""
    phase, train = replace(config.nsgf, **changes), replace(config.train, **dict(train))
    config = replace(config, nsgf=phase, train=train)
    run = run or RunFolder.create(config)
    fit("nsgf", trainer, new_session(config, run, **dict(session)))
    return run


def saved(run):
    return checkpoint.load(run.checkpoint_file("nsgf"))


def log(run):
    return (run.path / "log.txt").read_text()


@pytest.fixture
def few_lines(monkeypatch):
    """Records are as rare as ``train.log_every`` says, however short the phase."""
    monkeypatch.setattr("nsgf.training.loop.LOSS_POINTS", 1)


@pytest.mark.parametrize(("iterations", "every"), [(30, 1), (120, 2), (1000, 4)])
def test_short_phases_write_at_least_fifty_log_lines(tiny, iterations, every):
    run = run_fit(tiny, Quadratic(), iterations=iterations)
    assert [record["step"] for record in records(run)] == list(range(every, iterations + 1, every))


@pytest.mark.usefixtures("few_lines")
def test_records_and_batches_count_updates(tiny):
    trainer, rate = Quadratic(), {"lr": 0.8, "warmup_steps": 8, "schedule": "constant"}
    trainer.model.eval()
    run = run_fit(tiny, trainer, iterations=10, batch_size=8, **rate)
    assert trainer.model.training
    assert trainer.drawn == [range(8 * step, 8 * step + 8) for step in range(10)]
    assert [record["step"] for record in records(run)] == [4, 8, 10]
    assert [record["lr"] for record in records(run)] == pytest.approx([0.4, 0.8, 0.8])
    assert set(records(run)[0]) == {"phase", "step", "loss", "grad_norm", "lr"}
    costs = records(run, "costs")
    assert [cost["step"] for cost in costs] == [4, 8, 10]
    assert all(cost["peak_memory"] > 10**7 and cost["steps_per_second"] > 0 for cost in costs)
    assert saved(run)["step"] == 10
    assert re.search(r"nsgf: peak memory \d", log(run))


@pytest.mark.usefixtures("few_lines")
def test_logged_loss_is_the_mean_of_the_window(tiny):
    trainer = Quadratic()
    trainer.model.fault = lambda answer, call: answer * 0 + 3 + call
    trainer.batch = lambda target: Quadratic.batch(trainer, torch.full_like(target, 3.0))
    run = run_fit(tiny, trainer, iterations=8)
    means = [(1 + 4 + 9 + 16) / 4, (25 + 36 + 49 + 64) / 4]
    assert [record["loss"] for record in records(run)] == means
    assert f"step 8 of 8, loss {means[-1]:.4g}" in log(run)


class Another(World):
    """A process that is not the first, without the first."""

    is_main = False


@pytest.mark.parametrize(("world", "expected"), [(World(), [6, 12, 15]), (Another(), [10, 15])])
def test_time_between_checkpoints_is_bounded_in_the_first_process(
    tiny, monkeypatch, world, expected
):
    """Each update takes 100 seconds by the clock. Others save only when the first one does."""
    steps, content = [], TrainState.state_dict

    def noted(self):
        steps.append(self.step)
        return content(self)

    monkeypatch.setattr(TrainState, "state_dict", noted)
    trainer, train = Quadratic(), {"checkpoint_every": 1000 if world.is_main else 10}
    monkeypatch.setattr(time, "monotonic", lambda: 100.0 * len(trainer.drawn))
    run_fit(tiny, trainer, train=train, iterations=15, session={"world": world})
    assert steps == expected


@pytest.mark.parametrize("first", [5, 0])
def test_weights_that_are_not_finite_are_not_saved(tiny, first):
    """An update with a finite loss and gradient may still leave them.

    Past mistake: The loss was checked for finite values only when it was logged. NaN weights
    could be saved, and every resume failed.
    """
    run = run_fit(tiny, Quadratic(), iterations=first) if first else RunFolder.create(tiny)
    trainer = Quadratic()

    def spoil(answer, call):
        if call == 4:
            trainer.model.weight.data = torch.full_like(trainer.model.weight, math.inf)
        return answer

    trainer.model.fault = spoil
    with pytest.raises(UserError, match=f"not finite after step {first + 5}"):
        run_fit(tiny, trainer, run, iterations=12)
    assert run.has_checkpoint("nsgf") == bool(first)


class Asked(StopRequest):
    """Requests the end from some call on."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    @property
    def reason(self):
        self.calls -= 1
        return "test" if self.calls < 0 else None


@pytest.mark.usefixtures("few_lines")
@pytest.mark.parametrize("calls", [4, 5, 7])
def test_stop_request_saves_a_checkpoint_that_resumes_identically(tiny, calls):
    """Wherever it falls: log lines (4, 8), checkpoints (5, 10), or neither.

    Past mistake: A run ended one update later than its message said, which is minutes on a slow
    network.
    """
    run, first = RunFolder.create(tiny), Quadratic(dropout=0.5)
    with pytest.raises(Stopped, match=r"nsgf: step \d+ of 12"):
        run_fit(tiny, first, run, session={"stop": Asked(calls)}, iterations=12)
    assert saved(run)["step"] == len(first.drawn) == calls
    second, both = Quadratic(dropout=0.5), Quadratic(dropout=0.5)
    run_fit(tiny, second, run, iterations=12)
    whole = run_fit(tiny, both, iterations=12)
    assert first.drawn + second.drawn == both.drawn
    assert weight(second) == weight(both)
    assert records(run) == records(whole)


def test_stop_before_the_first_update_leaves_no_network_without_an_update(tiny):
    run = RunFolder.create(tiny)
    with pytest.raises(Stopped, match="nsgf: step 0 of 12"):
        run_fit(tiny, Quadratic(), run, session={"stop": Asked(0)}, iterations=12)
    assert not run.has_checkpoint("nsgf")


@pytest.mark.usefixtures("few_lines")
@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("draw", ValueError),
        ("network", ValueError),
        ("callback", ValueError),
        ("callback", KeyboardInterrupt),
        ("callback", SystemExit),
    ],
)
def test_exception_of_the_callers_code_leaves_a_checkpoint_that_resumes_identically(
    tiny, place, kind
):
    """After 6 of 12 updates, or in a callback after 8.

    Past mistake: Only Ctrl-C was thought of as an early end. A callback's exception lost all
    updates since the last checkpoint.
    """
    run, first = RunFolder.create(tiny), Quadratic(dropout=0.5)
    draw = first.draw

    def fails(condition):
        if condition:
            raise kind("mine")

    session = {}
    if place == "draw":
        first.draw = lambda positions: (fails(len(first.drawn) == 6), draw(positions))[1]
    elif place == "network":
        first.model.fault = lambda answer, call: (fails(call == 7), answer)[1]
    else:
        session["on_log"] = lambda _, step, *__: fails(step == 8)
    train = {"checkpoint_every": 1000}
    with pytest.raises(kind, match="mine"):
        run_fit(tiny, first, run, train=train, session=session, iterations=12)
    assert saved(run)["step"] == (8 if place == "callback" else 6)
    second, both = Quadratic(dropout=0.5), Quadratic(dropout=0.5)
    run_fit(tiny, second, run, train=train, iterations=12)
    whole = run_fit(tiny, both, train=train, iterations=12)
    assert weight(second) == weight(both)
    assert records(run) == records(whole)


def test_exception_before_the_first_update_leaves_no_checkpoint(tiny):
    """A network without an update would be sampled from."""
    run, task = RunFolder.create(tiny), Quadratic()

    def fails(*_):
        raise ValueError("mine")

    task.model.fault = fails
    with pytest.raises(ValueError, match="mine"):
        run_fit(tiny, task, run, iterations=12)
    assert not run.has_checkpoint("nsgf")


def test_exception_stays_if_no_checkpoint_can_be_written(tiny, monkeypatch):
    def fails(*_):
        monkeypatch.setattr(checkpoint, "save", full)
        raise ZeroDivisionError("mine")

    def full(*_):
        raise UserError("the disk is full")

    run = RunFolder.create(tiny)
    with pytest.raises(ZeroDivisionError, match="mine"):
        run_fit(tiny, Quadratic(), run, session={"on_log": fails}, iterations=12)
    assert "the disk is full" in log(run)


@pytest.mark.usefixtures("few_lines")
@pytest.mark.parametrize("answer", [None, 0, True, "", np.bool_(True)])
def test_only_false_of_a_callback_ends_training(answer, tiny):
    run = run_fit(tiny, Quadratic(), session={"on_log": lambda *_: answer}, iterations=12)
    assert saved(run)["step"] == 12
    for no in (False, np.bool_(False)):
        run = RunFolder.create(tiny)
        stop = StopRequest()
        with pytest.raises(Stopped, match="nsgf: step 4 of 12"):
            run_fit(
                tiny,
                Quadratic(),
                run,
                session={"on_log": lambda *_, no=no: no, "stop": stop},
                iterations=12,
            )
        assert saved(run)["step"] == 4
        assert stop.reason == CALLBACK


def test_networks_without_dropout_leave_the_global_generator_alone(tiny, monkeypatch):
    """Other threads of the caller may draw from it."""
    draws = [VelocityMLP(2, 2, MLPConfig(4)), UNet((1, 8, 8), UNetConfig(mult=[1]))]
    assert [*map(draws_numbers, draws)] == [False, False]
    dropout = UNetConfig(mult=[1], dropout=0.1)
    drawing = [UNet((1, 8, 8), dropout), AffineStartNetwork(Quadratic().model, (1,))]
    assert [*map(draws_numbers, drawing)] == [True, True]
    before = torch.get_rng_state()
    run_fit(tiny, Quadratic(dropout=0.5), iterations=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_stop_request_at_the_last_update_does_not_stop_the_phase(tiny):
    """It is not stopped, and not trained again."""
    run = run_fit(tiny, Quadratic(), session={"stop": Asked(6)}, iterations=6)
    assert saved(run)["step"] == 6
    again = Quadratic()
    run_fit(tiny, again, run, iterations=6)
    assert again.drawn == []


def test_single_bad_updates_are_skipped_with_a_description(tiny):
    trainer, good = Quadratic(), Quadratic()
    trainer.model.fault = fails_at(3, 7)
    run = run_fit(tiny, trainer, iterations=12, batch_size=8)
    run_fit(tiny, good, iterations=12, batch_size=8)
    lines = [line for line in log(run).splitlines() if "skipped" in line]
    assert len(lines) == 2
    assert "nsgf: step 3 skipped, loss nan, gradient norm nan" in lines[0]
    assert "step 7 skipped" in lines[1]
    assert all(math.isfinite(record["loss"]) for record in records(run))
    assert 0.5 * weight(good) < weight(trainer) < weight(good)  # two steps fewer


def test_bad_updates_in_a_row_stop_the_run_after_a_checkpoint(tiny, monkeypatch):
    monkeypatch.setattr("nsgf.training.loop.MAX_SKIPPED", 4)
    trainer = Quadratic()
    trainer.model.fault = lambda answer, call: answer * (math.nan if call > 6 else 1)
    run = RunFolder.create(tiny)
    with pytest.raises(UserError, match=r"no finite update in 4 steps.*nsgf\.lr"):
        run_fit(tiny, trainer, run, iterations=40)
    payload = saved(run)
    assert payload["model"]["weight"].item() == pytest.approx(6 * tiny.nsgf.lr, rel=0.2)
    assert 10 <= payload["step"] <= 11
    run_fit(tiny, Quadratic(), run, iterations=40)  # the reason is gone
    assert saved(run)["step"] == 40


def test_phase_without_a_finite_update_is_not_finished(tiny):
    """Few updates may all be lost to the first scales of fp16. Resumed, it is not done either.

    Past mistake: Five updates that all overflowed in fp16 ended as a finished phase with initial
    weights, because the limit of skipped updates was larger than the run.
    """
    run, settings = RunFolder.create(tiny), {"train": {"checkpoint_every": 2}, "iterations": 5}
    for _ in range(2):
        trainer = Quadratic()
        trainer.model.fault = lambda answer, call: answer * math.nan
        with pytest.raises(UserError, match="not finite after step 5"):
            run_fit(tiny, trainer, run, **settings)
        assert saved(run)["step"] == 4
    run_fit(tiny, Quadratic(), run, **settings)
    assert saved(run)["step"] == 5


def test_finite_update_resets_the_count_of_skipped_ones(tiny, monkeypatch):
    monkeypatch.setattr("nsgf.training.loop.MAX_SKIPPED", 3)
    trainer = Quadratic()
    trainer.model.fault = fails_at(*(call for call in range(100) if call % 3))
    run_fit(tiny, trainer, iterations=30)


def test_out_of_memory_outside_of_the_network_is_a_one_line_error(tiny):
    class Hungry(Quadratic):
        def batch(self, *drawn):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(UserError, match="at step 1, where splitting"):
        run_fit(tiny, Hungry(), iterations=4)


def test_batch_that_does_not_fit_is_split_and_logged(tiny):
    trainer = OutOfMemory()
    run = run_fit(tiny, trainer, iterations=4, batch_size=8)
    assert log(run).count("train.accumulate=2, the same batch of 8") == 1
    assert trainer.model.calls == [8] + [4, 4] * 4


@pytest.mark.e2e
def test_checkpoints_do_not_depend_on_compilation(tiny):
    """Names as without it, and the average follows the weights that are trained."""
    payloads = []
    torch._dynamo.reset()
    for compiled in (True, False):
        trainer = Quadratic()
        trainer.model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(trainer.model.weight)
        run = run_fit(tiny, trainer, train={"compile": compiled}, iterations=20, lr=0.1)
        assert bool(re.search(r"nsgf: compiled in \d+\.\d s", log(run))) == compiled
        payloads.append(saved(run))
    for part in ("model", "ema"):
        assert list(payloads[0][part]) == ["weight"]
        torch.testing.assert_close(*(payload[part] for payload in payloads), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.e2e
def test_compiled_code_is_kept_in_the_cache_of_the_user(tmp_path):
    """In a process of its own: torch settles on a folder once.

    Past mistake: The compiler's cache folder was set after torch had read the variable, and
    compiled code was lost with the machine.
    """
    runs, caches = tmp_path / "runs", tmp_path / "caches"
    command = [sys.executable, "-m", "nsgf", "train", "--exp", "2d", "--smoke", "--device", "cpu"]
    command += ["--train.compile", "true", "--out-dir", str(runs)]
    environment = {key: value for key, value in os.environ.items() if "INDUCTOR" not in key}
    environment["XDG_CACHE_HOME"] = str(caches)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "nsgf: compiled in" in done.stdout
    assert list((caches / "nsgf" / "compiled").iterdir())
    assert [path.name for path in runs.iterdir() if path.name.startswith(".")] == []


@pytest.mark.e2e
@pytest.mark.parametrize("compiler", ["missing", "folder"])
def test_failed_compilation_is_a_one_line_error(compiler, tiny, tmp_path, monkeypatch):
    file = tmp_path / compiler
    if compiler == "folder":
        file.mkdir()
    monkeypatch.setenv("CXX", str(file))
    torch._dynamo.reset()
    with (
        torch._inductor.config.patch({"cpp.cxx": (None, str(file))}),
        pytest.raises(UserError, match=r"train\.compile = true: cannot compile here \("),
    ):
        run_fit(tiny, Quadratic(dropout=0.1), train={"compile": True}, iterations=2)


def test_training_does_not_leak_memory(tiny):
    """600 updates keep nothing: neither Python objects nor tensors.

    Past mistake: Each update made a new averaging function, and memory grew by a kilobyte an
    update under a profiler.
    """
    trainer = Quadratic()
    marks = {}

    def draw(positions):
        step = positions.start // tiny.nsgf.batch_size
        if step in (300, 900):  # the interpreter's own free lists are full by then
            gc.collect()
            marks[step] = (tracemalloc.get_traced_memory()[0], psutil.Process().memory_info().rss)
        return (torch.full((len(positions), 1), 3.0),)

    trainer.draw = draw
    trainer.model.calls = type("Nothing", (), {"append": id, "__len__": lambda self: 0})()
    tracemalloc.start()
    try:
        run_fit(tiny, trainer, train={"checkpoint_every": 1000}, iterations=901)
    finally:
        tracemalloc.stop()
    # caches of torch come and go by 20 kB; 600 kept tensors would be 48 kB or more
    assert marks[900][0] - marks[300][0] < 40_000
    assert marks[900][1] - marks[300][1] < 4 * 2**20
