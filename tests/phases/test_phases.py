"""Rules that hold for all phases."""

from dataclasses import asdict, replace
from itertools import combinations

import pytest
import torch

from nsgf.config.leaves import find_contradictions
from nsgf.config.schema import FAMILIES, PHASES
from nsgf.data import Data
from nsgf.experiment import train
from nsgf.phases import get_phase, get_phases, load_sampler, previewed_phases, sampled_phases
from nsgf.phases.base import new_network
from nsgf.run.folder import RunFolder
from nsgf.run.log import RunLog
from nsgf.run.session import Session
from nsgf.sampling.sampler import FlowSampler
from nsgf.system.errors import UserError
from tests.conftest import shipped

CPU = torch.device("cpu")
ALL = [name for names in FAMILIES for name in names]


def names(phases) -> list[str]:
    return [phase.name for phase in phases]


def sampled(config, *trained: str) -> list[str]:
    return names(sampled_phases(config, lambda name: name in trained))


def test_phases_start_with_different_weights(tiny):
    """Networks of one architecture, so that a shared stream would show."""
    starts = {name: new_network(get_phase(name), tiny, CPU) for name in ALL if name != "predictor"}
    for one, other in combinations(starts.values(), 2):
        assert not torch.equal(one.layers[0].weight, other.layers[0].weight)
    again = new_network(get_phase("nsf"), tiny, CPU)
    assert torch.equal(again.layers[0].weight, starts["nsf"].layers[0].weight)


def test_phases_draw_different_lines(tiny, tmp_path):
    session = Session(tiny, RunFolder(tmp_path), RunLog(tmp_path), CPU)
    data = Data(tiny.data, tiny.seed)
    tasks = [get_phase(name).task(session, data) for name in ("nsf", "predictor")]
    drawn = [task.draw(range(8)) for task in tasks]
    for one, other in zip(*drawn, strict=True):
        assert not torch.equal(one, other)


def test_sampled_phases_depend_on_the_trained_phases(tiny):
    fixed = replace(tiny, sampling=replace(tiny.sampling, tau=0.5))
    handed = replace(tiny, phases=["nsgf", "nsf"], nsf=replace(tiny.nsf, source="nsgf"))
    at_once = replace(handed, sampling=replace(tiny.sampling, tau=0.0))
    algorithm_4 = ["nsgf", "predictor", "nsf"]
    assert sampled(tiny, *PHASES) == algorithm_4
    assert sampled(tiny, "nsgf", "nsf") == ["nsgf"]
    assert sampled(fixed, "nsgf", "nsf") == algorithm_4
    assert sampled(handed, "nsgf", "nsf") == ["nsgf", "nsf"]
    assert sampled(handed, "nsgf") == ["nsgf"]
    assert sampled(at_once, "nsgf", "nsf") == algorithm_4
    assert sampled(replace(handed, phases=list(PHASES)), *PHASES) == algorithm_4
    affine = replace(tiny, phases=["nsf"], nsf=replace(tiny.nsf, source="affine"))
    assert sampled(affine) == ["nsf"]
    assert sampled(replace(tiny, phases=["peer"])) == ["peer"]
    assert sampled(replace(tiny, phases=["peer", "reflow"])) == ["reflow"]
    with pytest.raises(UserError, match=r"sampling\.tau = 0\.5: needs phase nsf"):
        sampled(fixed, "nsgf")


def test_fixed_tau_needs_no_trained_predictor(tiny, tiny_run):
    fixed = replace(tiny, sampling=replace(tiny.sampling, tau=0.5))
    tiny_run.checkpoint_file("predictor").unlink()
    sampler, progress = load_sampler(fixed, tiny_run, CPU)
    assert list(progress) == ["nsgf", "nsf"]
    assert (sampler(torch.randn(4, 2)).tau == 0.5).all()


def test_samples_pass_the_affine_map_without_a_network_call(tiny):
    config = replace(tiny, phases=["nsf"], nsf=replace(tiny.nsf, source="affine"))
    run = train(config)
    sampler, _ = load_sampler(config, run, CPU)
    _, straight = sampler.legs
    x = torch.randn(5, 2)
    drawn = sampler(x, keep_path=True)
    assert drawn.nfe == sampler.expected_nfe == config.sampling.straight_steps
    assert not torch.equal(drawn.path[1], x)
    assert torch.equal(drawn.path[1], straight.network.model.start(x))
    assert torch.equal(drawn.x, FlowSampler([straight])(drawn.path[1]).x)
    assert drawn.marks[:3] == [
        "start",
        "affine 1/1",
        f"straight 1/{config.sampling.straight_steps}",
    ]


@pytest.mark.parametrize(
    ("settings", "needed", "previewed"),
    [
        ({}, {}, ["nsf"]),
        ({"source": "nsgf"}, {"nsf": ["nsgf"], "predictor": ["nsgf"]}, ["nsgf", "nsf"]),
        ({"init": "nsgf"}, {"nsf": ["nsgf"]}, ["nsf"]),
    ],
)
def test_phases_that_use_nsgf_need_it_trained(tiny, settings, needed, previewed):
    config = replace(tiny, nsf=replace(tiny.nsf, **settings))
    found = {phase.name: names(phase.needs(config)) for phase in get_phases(PHASES)}
    assert {name: phases for name, phases in found.items() if phases} == needed
    assert names(previewed_phases(config, get_phase("nsf"))) == previewed


FLOW = ("--seed=1", "--dataset=moons", "--model.mlp.width=7", "--sinkhorn.blur=2", "--flow.eta=0.1")
FLOW += ("--pool-batches=3",)
LINES = (*FLOW, "--nsf.source=nsgf", "--nsf.coupling=ot")
LINES += ("--nsf.coupling=ot --nsf.coupling_batch=64",)
NSF = (*LINES, "--nsf.init=nsgf")
PEER = (*FLOW[:3], "--peer.method=otcfm", "--peer.sigma=0.3")
PEER += ("--peer.method=otcfm --peer.coupling_batch=64",)
REFLOW = (*PEER, "--reflow.pairs=33")
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
    saved = asdict(shipped("2d"))
    for flag in {*NSF, *PEER, *REFLOW, *GENERATOR}:
        changes = find_contradictions(saved, shipped("2d", *flag.split()), get_phase(phase).follows)
        assert bool(changes) == (flag in fixed), flag
    assert ("phases" in get_phase(phase).follows) == (phase == "generator")
