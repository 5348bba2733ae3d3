"""Each argument of each public function with values of its types: success, or UserError."""

import functools
import inspect
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import get_args, get_origin

import pytest
import torch
from torch import Tensor

import nsgf
from nsgf import UserError

VALUES = {
    int: [-1, 0, 10**30],
    float: [-1.0, 0.0, math.nan, math.inf],
    str: ["", "x", "x" * 10_000, "a/" * 3000, "a\0b", "a\udc80b", "~no_such_user/x"],
    PathLike: [Path("no/file"), Path("file/file")],
    Sequence: [[], ["a"], [1, 2], (1,)],
    Mapping: [{}, {"a": 1}, {"nsgf.lr": [1]}, {"data.path": None}],
    Tensor: [torch.zeros(0), torch.tensor(3), torch.full((3, 2), math.nan), torch.eye(3).bool()],
}
"""Values by type, most of them out of every range."""
X = torch.randn(6, 2)
Y = torch.randn(5, 2)
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
    for _argument in _signature.parameters.values():
        _kinds = get_args(_argument.annotation) or (_argument.annotation,)
        if _values := [one for kind in _kinds for one in VALUES.get(get_origin(kind) or kind, [])]:
            CASES.append((_name, _argument.name, _values))


class Begun(Exception):
    """The work that follows the checks has begun."""


def begin(*_, **__):
    raise Begun


@pytest.fixture
def call(request, tmp_path, monkeypatch):
    """A function that calls a public function up to the beginning of its work."""
    monkeypatch.chdir(tmp_path)
    for work in ("train.train_phases", "run.report_run", "compare.compare_methods"):
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


@pytest.mark.parametrize(("name", "argument", "values"), CASES)
def test_any_value_of_its_type_is_taken_or_refused_in_one_line(call, name, argument, values):
    for value in values:
        with suppress(UserError):
            call(name, **{argument: value})
