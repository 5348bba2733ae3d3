"""The pool for one's own training loop."""

import inspect
import math
import textwrap

import numpy as np
import pytest
import torch
from torch import nn

import nsgf
from nsgf import SinkhornPool, UserError
from nsgf.api import pool as api_pool
from nsgf.data.points import moons
from nsgf.pool import build_pool
from nsgf.run.folder import RunFolder
from nsgf.run.log import RunLog
from nsgf.training.task import Session
from nsgf.user_data import load_data
from tests.conftest import new_phase, shipped
from tests.pool.conftest import CPU, HalfWay

SMALL = {"num_batches": 3, "batch_size": 8, "steps": 4, "device": "cpu"}


def noise(n, generator):
    return torch.randn((n, 2), generator=generator)


@pytest.mark.parametrize("schedule", ["constant", "harmonic"])
def test_pairs_are_those_of_a_run(tmp_path, schedule):
    """With the same settings, seed and points, also where they are drawn by functions. A pass has
    each pair once."""
    flags = ("--sinkhorn-batch=8", "--pool-batches=3", "--steps=4", "--seed=5", "--dataset=moons")
    flow = [f"--flow.schedule={schedule}", "--sinkhorn.target_batch=6"]
    flow += ["--flow.eta=0.3"] if schedule == "constant" else []
    config = shipped("2d", *flags, *flow, "--sinkhorn.blur=0.4", "--device=cpu")
    phase = new_phase("nsgf", config)
    data = load_data(config.data, 5)
    session = Session(config, phase.target, RunFolder(tmp_path), RunLog(tmp_path, quiet=True), CPU)
    run = build_pool(session, phase.pool_settings, data.source("pool"), data.target("pool"))
    settings = {**SMALL, "schedule": schedule, "eta": 0.3, "target_batch": 6, "seed": 5}
    own = SinkhornPool(noise, moons, 0.4, **settings)
    assert torch.equal(own._pool._positions, run._positions)
    drawn = [torch.cat([x, v, t[:, None]], 1) for x, v, t in (run.pairs(torch.arange(96)), *own)]
    assert len(own) == len(drawn) - 1 == 12
    assert torch.equal(drawn[0].unique(dim=0), torch.cat(drawn[1:]).unique(dim=0))


def test_example_of_the_docstring_learns():
    text = inspect.getdoc(SinkhornPool).partition(", ...:\n")[2].partition("One loop")[0]
    torch.manual_seed(0)
    data = 0.3 * torch.randn(2000, 2) + torch.tensor([2.0, -1.0])
    names = {"nsgf": nsgf, "torch": torch, "nn": nn, "data": data}
    code = textwrap.dedent(text).replace("steps=5", "steps=5, num_batches=20, device='cpu'")
    exec(code, names)
    x = torch.randn(500, 2)
    for step in range(5):
        t = torch.full((500, 1), step / 5)
        x = x + names["pool"].time_step * names["network"](torch.cat([x, t], 1)).detach()
    left = (1 - 0.2) ** 5  # of the way, after five steps of 0.2
    torch.testing.assert_close(x.mean(0), (1 - left) * data.mean(0), rtol=0, atol=0.2)


@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
def test_velocities_do_not_depend_on_the_origin(offset):
    x, y = torch.randn(2, 30, 2, dtype=torch.float64)
    pools = [SinkhornPool(x + far, y + far + 2, **SMALL) for far in (0.0, offset)]
    (_, v, t), (_, far_v, far_t) = (pool._pairs(torch.arange(96)) for pool in pools)
    assert torch.equal(t, far_t)
    torch.testing.assert_close(v, far_v, rtol=0, atol=0.02)


def test_pool_in_float16_needs_points_around_the_origin(monkeypatch):
    plan = api_pool.plan_pool
    monkeypatch.setattr(api_pool, "plan_pool", lambda *how: plan(*how)._replace(dtype="float16"))
    x = torch.rand(2, 30, 2) - 0.5
    SinkhornPool(*x, **SMALL)
    with pytest.raises(UserError, match="float16"):
        SinkhornPool(*(x + 100), **SMALL)


def test_problems_that_were_cut_off_warn_at_the_callers_line(monkeypatch):
    monkeypatch.setattr("nsgf.api.pool.build_flow", lambda *_: HalfWay(unconverged=1))
    with pytest.warns(RuntimeWarning, match="larger blur") as caught:
        SinkhornPool(noise, moons, **SMALL)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"blur": 0}, "blur = 0.0: must be > 0"),
        ({"num_batches": 10**9}, "num_batches = 1000000000: the pool needs"),
        ({"schedule": "no"}, "schedule = no"),
        ({"blur": 1e-9}, "smaller eta or a larger blur"),
        ({"source": torch.zeros(5, 3)}, "source has points of shape (3,)"),
        ({"source": torch.zeros(5)}, "source is (5,)"),
        ({"target": np.zeros((4, 2), dtype=int)}, "target is (4, 2), torch.int64"),
        ({"target": torch.full((4, 2), math.nan)}, "target is (4, 2)"),
        ({"target": lambda n, _: torch.zeros(n + 1, 2)}, "(1, *shape)"),
        ({"source": torch.randn(9, 2) + 1e6, "target": torch.randn(9, 2) + 1e6}, "from the origin"),
        (
            {
                "source": lambda n, _: torch.randn(n, 2) - 1e6,
                "target": lambda n, _: torch.randn(n, 2) - 1e6,
            },
            "from the origin",
        ),
    ],
)
def test_wrong_arguments_are_named(change, words):
    given = {"source": noise, "target": moons, **SMALL, **change}
    with pytest.raises(UserError) as error:
        SinkhornPool(**given)
    assert words in str(error.value)
    assert not any(section in str(error.value) for section in ("sinkhorn.", "flow.", "--"))
