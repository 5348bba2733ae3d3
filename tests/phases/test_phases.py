"""Rules that hold for all phases."""

import math
from dataclasses import replace
from itertools import combinations

import pytest
import torch

from nsgf.commands.train import train
from nsgf.config.files import read_layer
from nsgf.config.layers import change, find_contradictions, nest, values
from nsgf.config.schema import OF_PHASES
from nsgf.experiment import Experiment
from nsgf.phases import PHASES, Method, preview_method
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.sampling.sampler import (
    AffineStart,
    EntryTimes,
    FlowSampler,
    NSGFSteps,
    OneCall,
    StraightFlow,
)
from nsgf.system.errors import UserError
from nsgf.user_data import load_data
from tests.conftest import new_network, new_phase, new_session, shipped

OF_METHOD = OF_PHASES[:3]
STEPS, TIME, STRAIGHT = ["NSGFSteps nsgf"], ["EntryTimes predictor"], ["StraightFlow nsf"]
ALGORITHM_4 = (NSGFSteps, EntryTimes, StraightFlow)


def names(phases):
    return [phase.name for phase in phases]


def legs(method):
    return [f"{leg.__name__} {phase.name}" for leg, phase in method.legs]


def test_phases_start_with_different_weights(tiny):
    """Networks of one architecture, so that a shared stream would show."""
    starts = {name: new_network(name, tiny) for name in OF_PHASES if name != "predictor"}
    for one, other in combinations(starts.values(), 2):
        assert not torch.equal(one.layers[0].weight, other.layers[0].weight)
    assert torch.equal(new_network("nsf", tiny).layers[0].weight, starts["nsf"].layers[0].weight)


def test_phases_draw_different_lines(tiny, tmp_path):
    session = new_session(tiny, RunFolder(tmp_path))
    data = load_data(tiny.data, tiny.seed)
    tasks = [new_phase(name, tiny).task(session, data) for name in ("nsf", "predictor")]
    drawn = [task.draw(range(8)) for task in tasks]
    for one, other in zip(*drawn, strict=True):
        assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("phases", "source", "tau", "trained", "expected"),
    [
        ("nsgf nsf predictor", "prior", None, "nsgf nsf predictor", [*STEPS, *TIME, *STRAIGHT]),
        ("nsgf nsf predictor", "prior", None, "nsgf nsf", STEPS),
        ("nsgf nsf predictor", "prior", 0.5, "nsgf nsf", [*STEPS, *STRAIGHT]),
        ("nsgf nsf", "nsgf", None, "nsgf nsf", [*STEPS, *STRAIGHT]),
        ("nsgf nsf", "nsgf", None, "nsgf", STEPS),
        ("nsf", "affine", None, "", ["AffineStart nsf", *STRAIGHT]),
        ("peer", "prior", None, "peer", ["StraightFlow peer"]),
        ("peer reflow", "prior", None, "peer reflow", ["StraightFlow reflow"]),
        ("nsgf generator", "prior", None, "nsgf generator", ["ResidualCall generator"]),
        ("nsgf generator", "prior", None, "nsgf", STEPS),
        ("generator", "prior", None, "generator", ["OneCall generator"]),
    ],
)
def test_legs_depend_on_settings_and_trained_phases(tiny, phases, source, tau, trained, expected):
    nsf, sampling = replace(tiny.nsf, source=source), replace(tiny.sampling, tau=tau)
    config = replace(tiny, phases=phases.split(), nsf=nsf, sampling=sampling)
    is_trained = trained.split().__contains__
    assert legs(Experiment(config).trained_method(is_trained)) == expected


@pytest.mark.parametrize(
    ("legs", "solver", "least", "calls", "steps", "straight"),
    [
        ([NSGFSteps], "heun", 1, 7, 7, None),
        ([StraightFlow], "dopri5", 1, 7, None, 7),
        ([AffineStart, StraightFlow], "heun", 2, 7, None, 3),
        ([NSGFSteps, StraightFlow], "euler", 2, 7, 3, 4),
        (ALGORITHM_4, "euler", 3, 7, 3, 3),
        (ALGORITHM_4, "euler", 3, 3, 1, 1),
        (ALGORITHM_4, "heun", 4, 4, 1, 1),
        (ALGORITHM_4, "euler", 3, 50, 5, 44),
        ([OneCall], "heun", 1, 1, None, None),
    ],
)
def test_calls_are_divided_among_the_legs(legs, solver, least, calls, steps, straight):
    config = shipped("digits/nsgf++", f"--sampling.solver={solver}", "--sampling.nsgf_steps=2")
    method = Method((), tuple((leg, None) for leg in legs), {})
    most = 1 if OneCall in legs else math.inf
    assert method.possible_calls(config.sampling) == (least, most)
    found = method.limit_calls(config.sampling, config.flow, calls)
    assert found.nsgf_steps == (steps or 2)
    assert found.straight_steps == (straight or config.sampling.straight_steps)
    assert found.omega is None


@pytest.mark.parametrize("phases", ["nsgf nsf", "peer reflow", "nsgf generator"])
def test_phase_begins_with_the_averaged_weights_of_the_one_before(tiny, phases):
    """Which is not trained again."""
    first, last = phases.split()
    nsf, pairs = replace(tiny.nsf, init="nsgf"), replace(tiny.reflow, pairs=32)
    config = replace(tiny, phases=[first], nsf=nsf, reflow=pairs)
    run = train(Experiment(config))
    before = checkpoint.load(run.checkpoint_file(first))["ema"]
    section = replace(getattr(config, last), iterations=0)
    train(Experiment(replace(config, phases=phases.split(), **{last: section})), run)
    after = checkpoint.load(run.checkpoint_file(first))["ema"]
    begun = checkpoint.load(run.checkpoint_file(last))["model"]
    for name, value in before.items():
        assert torch.equal(after[name], value)
        assert torch.equal(begun[name], value)


def test_fixed_tau_needs_no_trained_predictor(tiny, tiny_run):
    fixed = replace(tiny, sampling=replace(tiny.sampling, tau=0.5))
    tiny_run.checkpoint_file("predictor").unlink()
    sampler, progress = Experiment(fixed).load_sampler(tiny_run)
    assert list(progress) == ["nsgf", "nsf"]
    assert (sampler(torch.randn(4, 2)).tau == 0.5).all()
    for file in tiny_run.path.glob("checkpoints/phase2_nsf*"):
        file.unlink()
    with pytest.raises(UserError, match=r"^no checkpoint .*phase2_nsf\.pt: train that phase first"):
        Experiment(fixed).load_sampler(tiny_run)


def test_samples_pass_the_affine_map_without_a_network_call(tiny):
    """Past mistake: Precision and distance of the hand-over were credited to its Sinkhorn steps.
    On digits a linear map of the noise, without a network, does the same.
    """
    config = replace(tiny, phases=["nsf"], nsf=replace(tiny.nsf, source="affine"))
    sampler, _ = Experiment(config).load_sampler(train(Experiment(config)))
    _, straight = sampler.legs
    x = torch.randn(5, 2)
    drawn = sampler(x, keep_path=True)
    assert drawn.nfe == sampler.expected_nfe == config.sampling.straight_steps
    assert not torch.equal(drawn.path[1], x)
    assert torch.equal(drawn.path[1], straight.network.model.start(x))
    assert torch.equal(drawn.x, FlowSampler([straight], sampler.target)(drawn.path[1]).x)
    assert drawn.marks[:3] == [
        "start",
        "affine 1/1",
        f"straight flow 1/{config.sampling.straight_steps}",
    ]


@pytest.mark.parametrize(
    ("settings", "needed", "previewed"),
    [
        ({}, {}, STRAIGHT),
        ({"source": "nsgf"}, {"nsf": ["nsgf"], "predictor": ["nsgf"]}, [*STEPS, *STRAIGHT]),
        ({"init": "nsgf"}, {"nsf": ["nsgf"]}, STRAIGHT),
    ],
)
def test_phases_that_use_nsgf_need_it_trained(tiny, settings, needed, previewed):
    config = replace(tiny, nsf=replace(tiny.nsf, **settings))
    found = {phase.name: names(phase.needs()) for phase in Experiment(config).phases(OF_METHOD)}
    assert {name: phases for name, phases in found.items() if phases} == needed
    pictures = {"nsgf": STEPS, "nsf": previewed, "predictor": [*STEPS, *TIME, *STRAIGHT]}
    for name, expected in pictures.items():
        assert legs(preview_method(config, name)) == expected


FLOW = ("seed=1", "data.name=moons", "model.mlp.width=7", "sinkhorn.blur=2", "flow.eta=0.1")
FLOW += ("pool.num_batches=3",)
LINES = (*FLOW, "nsf.source=nsgf", "nsf.coupling=ot", "nsf.coupling_batch=64")
NSF = (*LINES, "nsf.init=nsgf")
PEER = (*FLOW[:3], "peer.method=otcfm", "peer.sigma=0.3", "peer.coupling_batch=64")
REFLOW = (*PEER, "reflow.pairs=33")
GENERATOR = FLOW[:3]


@pytest.mark.parametrize(
    ("phase", "fixed"),
    [
        ("nsgf", FLOW),
        ("nsf", NSF),
        ("predictor", LINES),
        ("peer", PEER),
        ("reflow", REFLOW),
        ("generator", GENERATOR),
    ],
)
def test_checkpoint_contradicts_each_setting_that_its_phase_follows(phase, fixed):
    saved = nest(values(shipped("2d")))
    for setting in {*NSF, *PEER, *REFLOW, *GENERATOR}:
        config = change(shipped("2d"), read_layer(dict([setting.split("=")])))
        changes = find_contradictions(saved, config, PHASES[phase].follows)
        assert bool(changes) == (setting in fixed), setting
    assert ("phases" in PHASES[phase].follows) == (phase == "generator")
