from dataclasses import replace

import pytest
import torch

from nsgf.compare.record import measure_key
from nsgf.compare.trials import (
    Target,
    Trial,
    asked_nfe,
    at_nfe,
    comparison_folder,
    named_target,
    possible_nfe,
    trial_config,
    trial_folder,
    trials,
    updates,
)
from nsgf.config.schema import PHASES
from nsgf.data import DATA_SETS, PointSet
from nsgf.data.points import moons
from nsgf.phases import get_phases
from nsgf.sampling.sampler import EntryTimes, FlowSampler, NSGFSteps
from nsgf.system.errors import UserError
from tests.conftest import shipped


def test_one_seed_is_complete_before_the_next():
    config = shipped("2d", "--compare.seeds=2", "--compare.methods=[nsgf,icfm]")
    order = list(trials(config))
    assert len(order) == 2 * 5 * 2
    assert [trial.seed for trial in order] == [0] * 10 + [1] * 10
    assert order[:3] == [
        Trial(Target("8gaussians"), "nsgf", 0),
        Trial(Target("8gaussians"), "icfm", 0),
        Trial(Target("moons"), "nsgf", 0),
    ]


def test_target_with_a_source_of_its_own():
    config = trial_config(shipped("2d"), Trial(Target("moons", "8gaussians"), "nsgf", 1))
    assert (config.data.source, config.data.name, config.seed) == ("8gaussians", "moons", 1)


def test_cells_are_computed_in_precisions_that_are_named(monkeypatch):
    """A comparison that goes on where auto means another one measures again, under another name."""
    trial, keys = Trial(Target("moons"), "nsgf", 0), set()
    for flags, trained, found in (
        ([], "fp32", "fp32"),  # also of UNets: cells are not to differ by what is measured
        (["--precision=bf16"], "bf16", "bf16"),
        (["--precision=bf16", "--sampling.precision=fp32"], "bf16", "fp32"),
    ):
        config = trial_config(shipped("2d", "--device=cpu", *flags), trial)
        assert (config.train.precision, config.sampling.precision) == (trained, found)
        keys.add(measure_key("nsgf", config, 10, 0))
    assert len(keys) == 2


def test_measures_of_earlier_versions_are_found():
    """All were drawn in float32, which their names do not say."""
    config = trial_config(shipped("2d", "--device=cpu"), Trial(Target("moons"), "nsgf++", 0))
    assert measure_key("nsgf++", config, 10, 0) == (
        '{"draw": 0, "format": 1, "iterations": [6667, 6667, 6666], "method": "nsgf++", "nfe": 10, '
        '"samples": 4096, "sampling": {"atol": 1e-05, "batch_size": 4096, "nsgf_steps": 4, '
        '"num_samples": 1, "omega": null, "rtol": 1e-05, "solver": "euler", "straight_steps": 5, '
        '"tau": null, "weights": "ema"}, "w2_samples": 4096}'
    )


@pytest.mark.parametrize(
    ("label", "target"),
    [
        ("moons", Target("moons")),
        ("8gaussians_moons", Target("moons", "8gaussians")),
        ("pin_wheel", Target("pin_wheel")),
        ("8gaussians_pin_wheel", Target("pin_wheel", "8gaussians")),
        ("far_off_moons", Target("moons", "far_off")),
        ("far_off_pin_wheel", Target("pin_wheel", "far_off")),
    ],
)
def test_labels_are_looked_up_and_never_taken_apart(label, target, monkeypatch):
    """Names of sets and of sources may have underscores."""
    monkeypatch.setitem(DATA_SETS, "pin_wheel", PointSet("pin_wheel", moons))
    monkeypatch.setitem(DATA_SETS, "far_off", PointSet("far_off", moons, is_source=True))
    assert named_target(label) == target
    assert target.label == label


@pytest.mark.parametrize("label", ["moon", "moons_8gaussians", "gaussian_moons", ""])
def test_unknown_targets_are_refused(label):
    with pytest.raises(UserError, match=rf"compare\.targets = {label}: must be"):
        named_target(label)


def test_a_set_with_an_underscore_is_configured_under_its_whole_name(monkeypatch):
    monkeypatch.setitem(DATA_SETS, "pin_wheel", PointSet("pin_wheel", moons))
    base = shipped("2d", "--compare.targets=[]", "--compare.methods=[nsgf]")
    config = replace(base, data=replace(base.data, name="pin_wheel"))
    trial = next(trials(config))
    own = trial_config(config, trial)
    assert (own.data.name, own.data.source) == ("pin_wheel", "gaussian")
    assert trial_folder(config, trial) == comparison_folder(config) / "pin_wheel/nsgf-seed0"


def test_a_smoke_comparison_leaves_the_real_one_alone():
    config = shipped("2d")
    assert comparison_folder(config).name == "compare-2d"
    assert comparison_folder(replace(config, smoke=True)).name == "compare-2d-smoke"


def test_without_targets_the_data_section_is_meant():
    config = shipped("2d", "--compare.targets=[]", "--dataset=moons", "--data.source=8gaussians")
    assert {trial.target for trial in trials(config)} == {Target("moons", "8gaussians")}


@pytest.mark.parametrize("exp", ["2d", "digits", "mnist", "cifar10"])
@pytest.mark.parametrize(
    "method", ["own", "nsgf", "nsgf++", "nsgf++h", "icfm", "otcfm", "sbcfm", "1rf"]
)
def test_all_methods_have_the_same_number_of_updates(exp, method):
    config = shipped(exp)
    target = "moons" if exp == "2d" else exp
    own = trial_config(config, Trial(Target(target), method, 0))
    assert updates(own) == config.peer.iterations
    batch = {getattr(own, phase).batch_size for phase in own.phases}
    assert batch == {config.peer.batch_size}


def test_nsgf_plus_plus_keeps_the_proportion_of_its_phases():
    config = trial_config(shipped("2d"), Trial(Target("moons"), "nsgf++", 0))
    assert [getattr(config, phase).iterations for phase in PHASES] == [6667, 6667, 6666]
    assert config.flow.steps == 5


def test_noise_of_the_peers_is_that_of_their_authors_examples():
    config = shipped("2d")
    widths = {
        method: trial_config(config, Trial(Target("moons"), method, 0)).peer.sigma
        for method in ("icfm", "otcfm", "sbcfm", "1rf")
    }
    assert widths == {"icfm": 0.1, "otcfm": 0.1, "sbcfm": 0.5, "1rf": 0.0}
    assert trial_config(shipped("digits"), Trial(Target("digits"), "otcfm", 0)).peer.sigma == 0


def test_peer_and_hand_over_pair_within_the_same_group():
    config = shipped("digits", "--compare.coupling_batch=512", "--compare.handover_steps=3")
    own = {
        method: trial_config(config, Trial(Target("digits"), method, 0))
        for method in ("otcfm", "otcfm+", "nsgf++", "nsgf++h")
    }
    assert own["otcfm"].peer.coupling_batch is None
    assert own["otcfm+"].peer.coupling_batch == own["nsgf++h"].nsf.coupling_batch == 512
    assert own["otcfm+"].peer.method == "otcfm"
    assert own["nsgf++"].nsf.coupling == "independent"
    handed = own["nsgf++h"]
    assert handed.phases == ["nsgf", "nsf"]
    assert (handed.nsf.source, handed.nsf.init, handed.nsf.coupling) == ("nsgf", "nsgf", "ot")
    assert (handed.flow.steps, own["nsgf++"].flow.steps) == (3, 5)


def test_peer_and_hand_over_pair_with_all_data():
    config = shipped("digits", "--compare.coupling=semidiscrete")
    own = {
        method: trial_config(config, Trial(Target("digits"), method, 0))
        for method in ("otcfm", "otcfm+", "nsgf++h")
    }
    assert (own["otcfm"].peer.coupling, own["otcfm"].peer.coupling_batch) == ("batch", None)
    assert own["otcfm+"].peer.coupling == own["nsgf++h"].nsf.coupling == "semidiscrete"
    assert own["otcfm+"].peer.coupling_batch is own["nsgf++h"].nsf.coupling_batch is None


HAND_OVER = (
    *("--phases=[nsgf,nsf]", "--nsf.source=nsgf", "--nsf.init=nsgf", "--nsf.coupling=ot"),
    *("--nsf.coupling_batch=256", "--steps=2", "--sampling.tau=0.3", "--peer.iterations=1800"),
)
PLUS_PLUS = (
    *("--phases=[nsgf,nsf,predictor]", "--nsf.source=prior", "--nsf.init=random", "--steps=4"),
    *("--nsf.coupling=independent", "--nsf.coupling_batch=null", "--sampling.tau=null"),
)


def test_recipes_do_not_follow_the_experiments_own():
    """NSGF++ is the paper's and the hand-over complete, whichever of them the file has."""
    files = [shipped("digits-paper", *flags) for flags in (HAND_OVER, PLUS_PLUS)]
    for method in ("nsgf++", "nsgf++h"):
        one, other = (trial_config(file, Trial(Target("digits"), method, 0)) for file in files)
        assert (one.phases, one.nsf, one.flow) == (other.phases, other.nsf, other.flow)
        assert one.sampling == other.sampling
        assert one.sampling.tau is None
    paper, handed = (
        trial_config(files[0], Trial(Target("digits"), method, 0)) for method in ("nsgf++", "own")
    )
    assert paper.phases == list(PHASES)
    assert (paper.nsf.source, paper.nsf.init, paper.flow.steps) == ("prior", "random", 5)
    assert (paper.nsf.coupling, paper.nsf.coupling_batch) == ("independent", None)
    assert (handed.nsf, handed.flow) == (
        replace(files[0].nsf, iterations=handed.nsf.iterations),
        files[0].flow,
    )
    assert (handed.phases, handed.sampling.tau) == (["nsgf", "nsf"], 0.3)


def test_shipped_digits_are_the_hand_over_of_compare():
    """What a reader of the table trains with the shipped file."""
    config = shipped("digits")
    compared = trial_config(config, Trial(Target("digits"), "nsgf++h", 0))
    assert compared.phases == config.phases
    assert compared.flow == config.flow
    assert compared.nsf == replace(config.nsf, iterations=compared.nsf.iterations)


@pytest.mark.parametrize(("flags", "starts"), [((), 65_536), (("--nsf.starts=100",), 100)])
def test_the_hand_over_keeps_no_more_starts_than_the_experiment(flags, starts):
    """Of large images they would not fit."""
    config = shipped("digits", *flags)
    assert trial_config(config, Trial(Target("digits"), "nsgf++h", 0)).nsf.starts == starts


def test_the_experiment_itself_is_compared_where_it_is_one_of_nsgf():
    trial = Trial(Target("moons"), "own", 0)
    own = trial_config(shipped("2d", "--steps=40"), trial)
    assert (own.phases, own.flow.steps) == (["nsgf"], 40)
    with pytest.raises(UserError, match=r"phases = \['peer'\]: must be of NSGF, or generator,"):
        trial_config(shipped("2d", "--phases=[peer]"), trial)


def test_steps_of_the_hand_over_are_refused_where_they_are_too_many():
    trial, flags = Trial(Target("digits"), "nsgf++h", 0), ["--compare.handover_steps=7"]
    with pytest.raises(UserError, match=r"compare\.handover_steps = 7: must be <= 5"):
        trial_config(shipped("digits", *flags), trial)
    many = shipped("digits", *flags, "--flow.allow_many_steps=true")
    assert trial_config(many, trial).flow.steps == 7


def test_updates_of_each_method_are_shared_among_its_networks():
    """2-RF too, which then has a 1-RF of its own."""
    config = shipped("2d", "--compare.methods=[nsgf++,otcfm,1rf,2rf]", "--reflow.iterations=10000")
    given = replace(config, compare=replace(config.compare, updates=[300, 700, 500, 900]))
    shares = {}
    for method in config.compare.methods:
        own = trial_config(given, Trial(Target("moons"), method, 0))
        shares[method] = [getattr(own, phase).iterations for phase in own.phases]
    assert shares == {"nsgf++": [100] * 3, "otcfm": [700], "1rf": [500], "2rf": [600, 300]}
    one, two = (trial_folder(given, Trial(Target("moons"), name, 2)) for name in ("1rf", "2rf"))
    assert (one.name, two.name) == ("1rf-seed2", "2rf-seed2")
    few = replace(config, compare=replace(config.compare, updates=[2, 700, 500, 900]))
    with pytest.raises(UserError, match=r"compare\.updates = \[2, .*: too few for .* nsgf\+\+"):
        trial_config(few, Trial(Target("moons"), "nsgf++", 0))


def test_without_updates_of_its_own_2rf_has_those_of_1rf_and_of_reflow():
    config = shipped("2d", "--reflow.iterations=10000")
    own = trial_config(config, Trial(Target("moons"), "2rf", 0))
    assert [own.peer.iterations, own.reflow.iterations] == [20_000, 10_000]


def test_2rf_goes_on_in_the_folder_of_1rf():
    config = shipped("2d")
    one, two = (
        trial_folder(config, Trial(Target("moons"), method, 2)) for method in ("1rf", "2rf")
    )
    assert one == two
    assert one.name == "rf-seed2"


def expected_nfe(config) -> int | None:
    """Of all networks of a trial, in the order in which a sample meets them."""
    legs = [phase.leg(config, torch.nn.Identity()) for phase in get_phases(config.phases)]
    order = (NSGFSteps, EntryTimes)
    return FlowSampler(
        [leg for leg in legs if isinstance(leg, order)]
        + [leg for leg in legs if not isinstance(leg, order)]
    ).expected_nfe


@pytest.mark.parametrize("nfe", [5, 10, 20, 60])
@pytest.mark.parametrize("method", ["nsgf", "nsgf++", "nsgf++h", "icfm"])
def test_every_method_spends_the_network_calls_it_is_given(nfe, method):
    config = trial_config(shipped("digits"), Trial(Target("digits"), method, 0))
    assert expected_nfe(at_nfe(config, nfe)) == nfe


def test_nsgf_plus_plus_splits_a_few_calls_evenly():
    config = trial_config(shipped("digits"), Trial(Target("digits"), "nsgf++", 0))
    few, many = at_nfe(config, 5).sampling, at_nfe(config, 60).sampling
    assert (few.nsgf_steps, few.straight_steps) == (2, 2)
    assert (many.nsgf_steps, many.straight_steps) == (5, 54)
    fixed = replace(config, sampling=replace(config.sampling, tau=0.5))
    assert at_nfe(fixed, 5).sampling.straight_steps == 3
    heun = replace(config, sampling=replace(config.sampling, solver="heun"))
    assert at_nfe(heun, 20).sampling.straight_steps == 7


def test_nsgf_plus_plus_has_more_than_five_steps_only_where_they_are_allowed():
    plain = shipped("2d", "--phases=[nsgf,nsf,predictor]", "--flow.allow_many_steps=true")
    trial = Trial(Target("moons"), "nsgf++", 0)
    assert trial_config(plain, trial).flow.steps == 10
    flow = replace(plain.flow, allow_many_steps=False)
    assert trial_config(replace(plain, flow=flow), trial).flow.steps == 5


@pytest.mark.parametrize("solver", ["euler", "heun", "dopri5"])
@pytest.mark.parametrize(
    ("method", "least"),
    [("nsgf", 1), ("nsgf++", 3), ("nsgf++h", 2), ("icfm", 1), ("otcfm+", 1), ("1rf", 1)],
)
def test_few_calls_are_made_or_not_asked_for(method, least, solver):
    """A step of Heun's takes one more; no method makes more calls than it was asked for."""
    flags = ("--compare.nfe=[1,2,3,4]", f"--sampling.solver={solver}")
    config = trial_config(shipped("digits", *flags), Trial(Target("digits"), method, 0))
    least += solver == "heun" and method != "nsgf"
    assert possible_nfe(config) == (least, None)
    assert asked_nfe(config) == [nfe for nfe in (1, 2, 3, 4) if nfe >= least]
    made = {nfe: expected_nfe(at_nfe(config, nfe)) for nfe in asked_nfe(config)}
    if solver == "euler":
        assert made == {nfe: nfe for nfe in made}
    elif solver == "heun":
        assert made[least] == least
        assert all(made[nfe] in (nfe, nfe - 1) for nfe in made)


def test_a_time_that_is_given_takes_no_call():
    """Of the experiment as it is configured; the straight flow is entered without a predictor."""
    flags = ("--phases=[nsgf,nsf]", "--sampling.tau=0.5", "--nsf.source=prior")
    config = trial_config(shipped("digits-paper", *flags), Trial(Target("digits"), "own", 0))
    assert possible_nfe(config) == (2, None)
    sampling = at_nfe(config, 3).sampling
    assert (sampling.tau, sampling.nsgf_steps, sampling.straight_steps) == (0.5, 1, 2)


def test_nsgf_alone_has_no_straight_flow_to_enter():
    fixed = shipped("digits", "--sampling.tau=0.5")
    config = trial_config(fixed, Trial(Target("digits"), "nsgf", 0))
    assert at_nfe(config, 10).sampling.tau is None


def test_target_that_the_network_does_not_fit_is_refused():
    with pytest.raises(UserError, match=r"model\.kind"):
        trial_config(shipped("digits"), Trial(Target("moons"), "icfm", 0))
