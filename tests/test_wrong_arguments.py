"""Each argument of each public function with values of all kinds: success, or UserError."""

import functools
import inspect
import math
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

import nsgf
from nsgf import UserError

JAGGED, NESTED = torch.jagged, [torch.zeros(2, 2), torch.zeros(1, 2)]
VALUES = [
    *(None, True, -1, 0, 10**30, 10**5000, math.nan, math.inf, 1j, np.int64(3), np.float32(2.5)),
    *("", "x", "x" * 10_000, "a/" * 3000, "a\0b", "a\udc80b", "~no_such_user/x", b"x"),
    *([], ["a"], [1, 2], (1,), {1}, {}, {"a": 1}, {1: 2}, range(3), Path("no/file")),
    *(object(), dict, lambda *_: 1 / 0, [torch.eye(2)], torch.zeros(0), torch.tensor(3)),
    *(np.arange(3), np.array([None, 1]), np.array(["a", "b"]), torch.eye(3).to_sparse()),
    *(torch.full((3, 2), math.nan), torch.ones(3, 2, dtype=torch.bool)),
    *(torch.zeros(3, 2, device="meta"), torch.zeros(3, 2, dtype=torch.complex64)),
    *(torch.zeros(3, 2).to(torch.float8_e4m3fn), torch.nested.nested_tensor(NESTED, layout=JAGGED)),
]
X, Y = torch.randn(6, 2), torch.randn(5, 2)
SOLVER = {"x": X, "y": Y, "blur": 0.5, "tolerance": 1e-3, "max_iterations": 50}
SIZES = {"num_batches": 2, "batch_size": 4, "device": "cpu"}
COMPARED = {"exp": "2d", "methods": {"mine": max}, "against": ["nsgf"], "nfe": [2], "seeds": 1}
FUNCTIONS = {
    "sinkhorn_velocity": SOLVER,
    "sinkhorn_divergence": SOLVER,
    "SinkhornPool": {"source": X, "target": Y, "steps": 2, "eta": 0.2, "seed": 0, **SIZES},
    "SinkhornPool.sample": {"n": 3},
    "load": {"path": "checkerboard", "device": "cpu"},
    "train": {"exp": "2d", "iterations": 2, "seed": 0},
    "train of data": {"data": X.repeat(5, 1), "iterations": 2, "seed": 0},
    "compare": {**COMPARED, "out_dir": "runs", "quiet": True},
    "Run.sample": {"n": 3, "seed": 0, "nfe": 9, "batch_size": 2},
    "Run.report": {"file": "page.html"},
    "Run.export": {"to": "out"},
    "Run.save_images": {"file": "a.png", "samples": torch.rand(4, 1, 8, 8) - 0.5},
}
CASES = []
for _name in FUNCTIONS:
    _owner, _, _method = _name.partition(" of ")[0].partition(".")
    _function = getattr(nsgf, _owner)
    _signature = inspect.signature(getattr(_function, _method) if _method else _function)
    CASES += [(_name, argument) for argument in _signature.parameters if argument != "self"]


class Begun(Exception):
    """The work that follows the checks has begun."""


def begin(*_, **__):
    raise Begun


@pytest.fixture
def call(request, tmp_path, monkeypatch):
    """A function that calls a public function up to the beginning of its work."""
    monkeypatch.chdir(tmp_path)
    for work in ("train.experiment.train", "run.report_run", "compare.comparing.compare"):
        monkeypatch.setattr(f"nsgf.api.{work}", begin)
    (tmp_path / "file").touch()
    objects = {"SinkhornPool.sample": lambda: nsgf.SinkhornPool(X, Y, **SIZES)}
    objects["Run"] = lambda: nsgf.load(request.getfixturevalue("small_run").path)

    @functools.cache
    def find(name):
        owner, _, method = name.partition(" of ")[0].partition(".")
        make = objects.get(owner, objects.get(name))
        return getattr(make(), method) if make else getattr(nsgf, owner)

    def call_function(name, **changed):
        with warnings.catch_warnings(action="ignore"), suppress(Begun):
            find(name)(**{**FUNCTIONS[name], **changed})

    return call_function


@pytest.mark.parametrize(("name", "argument"), CASES)
def test_any_argument_is_taken_or_refused_in_one_line(call, name, argument):
    for value in VALUES:
        with suppress(UserError):
            call(name, **{argument: value})
    usual = FUNCTIONS[name].get(argument)
    if type(usual) in (int, float):
        call(name, **{argument: np.asarray(usual)[()]})
        call(name, **{argument: torch.tensor(usual)})


@pytest.mark.parametrize("file", ["file/x.png", ".", "~no_such_user/x.png"])
@pytest.mark.parametrize("name", ["Run.report", "Run.export", "Run.save_images"])
def test_places_are_checked_before_the_work(call, name, file):
    argument = next(iter(FUNCTIONS[name]))
    with pytest.raises(UserError, match=f"^{argument} = |{argument}=DIR"):
        call(name, **{argument: file})
