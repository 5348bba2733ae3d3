"""Sharing network calls among legs; that of each compared method is tested there."""

from dataclasses import replace

import pytest

from nsgf.sampling.budget import at_calls, least_calls, most_calls
from nsgf.sampling.sampler import EntryTimes, NSGFSteps, OneCall, StraightFlow
from tests.conftest import shipped

WAY = [NSGFSteps, EntryTimes, StraightFlow]


@pytest.mark.parametrize(
    ("legs", "solver", "least"),
    [
        ([NSGFSteps], "heun", 1),
        ([StraightFlow], "euler", 1),
        ([StraightFlow], "heun", 2),
        ([StraightFlow], "dopri5", 1),
        (WAY, "euler", 3),
        (WAY, "heun", 4),
        ([OneCall], "heun", 1),
    ],
)
def test_least_calls(legs, solver, least):
    sampling = replace(shipped("digits").sampling, solver=solver, straight_steps=30, omega=None)
    assert least_calls(sampling, legs) == least


@pytest.mark.parametrize(
    ("legs", "most"), [([NSGFSteps], None), ([StraightFlow], None), (WAY, None), ([OneCall], 1)]
)
def test_most_calls(legs, most):
    assert most_calls(legs) == most


@pytest.mark.parametrize(
    ("legs", "calls", "steps", "straight"),
    [
        ([NSGFSteps], 7, 7, None),
        ([StraightFlow], 7, None, 7),
        ([NSGFSteps, StraightFlow], 7, 3, 4),
        (WAY, 7, 3, 3),
        (WAY, 3, 1, 1),
        (WAY, 50, 5, 44),
    ],
)
def test_calls_are_spent(legs, calls, steps, straight):
    config = shipped("digits/nsgf++")
    found = at_calls(config, legs, calls).sampling
    assert found.nsgf_steps == (steps or config.sampling.nsgf_steps)
    assert found.straight_steps == (straight or config.sampling.straight_steps)
    assert found.omega is None
