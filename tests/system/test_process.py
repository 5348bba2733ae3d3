"""Threads of a caller: what belongs to the whole process is as the caller left it."""

import io
import logging
import os
import signal
import sys
import warnings
from threading import Event, Thread

import matplotlib
import numpy as np
import pytest
import torch
from torch import nn

import nsgf
from nsgf.plots.samples import figure_defaults
from nsgf.run.checkpoint import load
from nsgf.run.stop import SIGNALS
from nsgf.system.process import (
    FIGURES,
    GENERATORS,
    PRODUCTS,
    SharedSetting,
    exact_products,
    fast_layers,
)
from tests.conftest import STYLE
from tests.test_api import SMALL

X = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
PATIENCE = 120
"""Seconds after which a thread that waits for another one counts as stuck."""


class Dropout(nn.Module):
    """A caller's network, which draws from torch's global generator."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    def forward(self, x, t):
        return self.layers(torch.cat([x, t.unsqueeze(1)], 1))


@pytest.fixture
def caller(monkeypatch):
    """Settings and numbers of a caller who has changed all of them."""

    def state():
        return {
            "dtype": torch.get_default_dtype(),
            "products": torch.get_float32_matmul_precision(),
            "search": torch.backends.cudnn.benchmark,
            "torch": torch.get_rng_state().tolist(),
            "numpy": np.random.get_state()[1].tolist(),  # noqa: NPY002
            "streams": (sys.stdout, sys.stderr),
            "style": dict(matplotlib.rcParams),
            "filters": list(warnings.filters),
            "gradients": torch.is_grad_enabled(),
            "logging": [list(logging.getLogger(name).handlers) for name in (None, "matplotlib")],
            "signals": [signal.getsignal(number) for number in SIGNALS],
            "environment": dict(os.environ),
        }

    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with matplotlib.rc_context(STYLE):
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("high")
        try:
            yield state
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_float32_matmul_precision("highest")


def train(folder, **how):
    how = {"quiet": True, "network": Dropout, **how}
    return nsgf.train(X, method="otcfm", out_dir=folder, overrides=SMALL, **how)


def finish(*threads):
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_trainings_that_overlap_are_those_of_one_thread_and_leave_the_process_alone(
    caller, tmp_path
):
    """The first to begin is the first to end, so it ends while the second still works.

    Past mistake: Settings of the process were saved and restored around work. Overlapping threads
    left the caller's default dtype and precision changed.
    """
    alone = train(tmp_path / "alone")
    first_begun, second_begun, first_ended = Event(), Event(), Event()
    before = caller()
    found, seen = {}, []

    def watch(begun, wait):
        def callback(update):
            seen.append(caller())
            if update.step == 1:
                begun.set()
                assert wait.wait(PATIENCE)

        return callback

    def work(name, callback):
        found[name] = train(tmp_path / name, callback=callback)

    first = Thread(target=work, args=["first", watch(first_begun, second_begun)])
    second = Thread(target=work, args=["second", watch(second_begun, first_ended)])
    first.start()
    assert first_begun.wait(PATIENCE)
    second.start()
    finish(first)
    first_ended.set()
    finish(second)
    assert caller() == before
    for state in seen:  # with one precision of products, for all threads
        assert {**state, "products": "high"} == before
    for name in ("first", "second"):
        weights = [
            load(run.folder.checkpoint_file("peer"))["model"] for run in (alone, found[name])
        ]
        assert all(map(torch.equal, *(each.values() for each in weights)))


def test_samples_measures_and_pages_leave_the_process_alone(caller, tmp_path, monkeypatch):
    settings = {**SMALL, "sampling.num_samples": 8, "evaluation.num_samples": 16}
    run = nsgf.train(X, out_dir=tmp_path, overrides=settings, quiet=True)
    before = caller()
    for work in (
        lambda: run.sample(3, seed=0),
        lambda: run.show(20, seed=0),
        run.evaluate,
        lambda: run.report(tmp_path / "page.html"),
        lambda: run.export(tmp_path / "out"),
        lambda: nsgf.load(tmp_path / "out"),
        lambda: nsgf.sinkhorn_velocity(X[:20], X[20:]),
    ):
        work()
        assert caller() == before

    def fails(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("nsgf.sampling.sampler.NSGFSteps.carry", fails)
    for work in (
        lambda: run.sample(3, seed=0),
        run.evaluate,
        lambda: run.report(tmp_path / "page.html"),
    ):
        with pytest.raises(ZeroDivisionError):
            work()
        assert caller() == before


def test_a_caller_of_the_open_sampler_counts_only_its_own_calls(tmp_path, monkeypatch):
    run = nsgf.train(X, out_dir=tmp_path, overrides=SMALL, quiet=True)
    alone = run.sampler(X)
    legs = type(run.sampler.legs[0])
    carry, begun, ended, found = legs.carry, Event(), Event(), []

    def waits(leg, samples, observe):
        carry(leg, samples, observe)
        if not begun.is_set():
            begun.set()
            assert ended.wait(PATIENCE)

    monkeypatch.setattr(legs, "carry", waits)
    other = Thread(target=lambda: found.append(run.sampler(X)))
    other.start()
    assert begun.wait(PATIENCE)
    run.sampler(X[:3])
    ended.set()
    finish(other)
    assert found[0].nfe == alone.nfe


@pytest.mark.parametrize(
    ("work", "lock"),
    [(figure_defaults, FIGURES), (nsgf.system.seeding.keep_random_numbers, GENERATORS)],
)
def test_one_thread_at_a_time_changes_what_the_process_has_once(work, lock):
    found = []
    with work(), work():  # the same thread may need it again
        other = Thread(target=lambda: found.append(lock.acquire(blocking=False)))
        other.start()
        finish(other)
    assert found == [False]


def test_a_thread_samples_while_another_one_draws_figures(small_run):
    run = nsgf.load(small_run.path)
    samples = []
    with figure_defaults():
        other = Thread(target=lambda: samples.append(run.sample(4)))
        other.start()
        finish(other)
    assert len(samples[0]) == 4


@pytest.fixture
def setting():
    """A setting with the values fine and coarse, and the values that were written."""
    setting = SharedSetting(
        ("fine", "coarse"),
        lambda: setting.value,
        lambda value: (setting.writes.append(value), setattr(setting, "value", value)),
        lambda value: setting.value == value,
    )
    setting.value = "fine"
    setting.writes = []
    return setting


@pytest.mark.parametrize("before", ["fine", "coarse", "other"])
def test_the_finest_request_holds_until_the_last_one_ends(before, setting):
    setting.value = before
    requests = [setting.request(value) for value in ("coarse", "fine", "coarse")]
    expected = ["coarse", "fine", "fine"]
    for request, value in zip(requests, expected, strict=True):
        request.__enter__()
        assert setting.value == value
    for request, value in zip(requests, ["fine", "coarse", before], strict=True):
        request.__exit__(None, None, None)
        assert setting.value == value


def test_a_setting_is_not_written_without_need_nor_over_a_new_value_of_the_caller(setting):
    with setting.request("fine"):
        pass
    assert setting.writes == []
    with setting.request("coarse"):
        setting.value = "new"
    assert setting.value == "new"


def product_settings():
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark


@pytest.mark.parametrize("choice", [torch.device("cpu"), torch.device("cuda", 0)], ids=str)
def test_layers_are_fast_on_a_card_unless_a_thread_needs_exact_products(choice):
    on_card = choice.type == "cuda"
    before = product_settings()
    assert before == ("highest", False)
    with fast_layers(choice):
        assert product_settings() == ("high" if on_card else "highest", on_card)
        with exact_products():
            assert product_settings() == ("highest", on_card)
        assert product_settings() == ("high" if on_card else "highest", on_card)
    assert product_settings() == before


def newer(value):
    torch.backends.cuda.matmul.fp32_precision = value


@pytest.mark.parametrize(
    "change",
    [
        lambda: None,
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: newer("tf32"),
        lambda: newer("ieee"),
    ],
)
def test_products_are_exact_while_requested_and_then_as_before(change):
    parts = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]
    if not all(hasattr(part, "fp32_precision") for part in parts):
        pytest.skip("this torch has no newer names")

    def state():
        try:
            older = torch.get_float32_matmul_precision()
        except RuntimeError:  # only the newer names are in use
            older = None
        return older, [part.fp32_precision for part in parts]

    untouched = state()
    try:
        change()
        before = state()
        with PRODUCTS.request("highest"):
            older, newer_ones = state()
            assert older == "highest"
            assert not {"tf32", "bf16"} & {*newer_ones}
        assert state() == before
    finally:
        torch.set_float32_matmul_precision(untouched[0])
        for part, value in zip(parts, untouched[1], strict=True):
            part.fp32_precision = value
