import json
import re
from dataclasses import replace

import pytest

from nsgf.cli.arguments import parse
from nsgf.comparison.trials import Comparison, Trial, edition_key, measure_key
from nsgf.config.files import from_arguments
from nsgf.config.layers import change
from nsgf.data import DATA_SETS, PointSet
from nsgf.data.points import moons
from nsgf.settings.resolve import resolve
from nsgf.system.errors import UserError
from tests.conftest import compared, shipped


def key_of(config):
    """The key of a floor."""
    return measure_key(config.evaluation, config.data)


def one_trial(exp, method, *flags):
    """Configuration of a trial of ``method``."""
    comparison = compared(exp, f"--compare.methods=[{method}]", "--device=cpu", *flags)
    label = "moons" if exp == "2d" else exp
    (name,) = comparison.methods
    return Trial(comparison, label, name, 0).experiment.config


def test_one_seed_is_complete_before_the_next():
    order = compared("2d", "--compare.seeds=2", "--compare.methods=[nsgf,icfm]").trials
    assert [trial.seed for trial in order] == [0] * 10 + [1] * 10
    places = [("8gaussians", "nsgf"), ("8gaussians", "icfm"), ("moons", "nsgf")]
    assert [(trial.target, trial.method) for trial in order[:3]] == places


@pytest.mark.parametrize(
    "flag",
    [
        *("--precision=bf16", "--seed=1", "--compare.updates=[7]"),
        *("--num-samples=20", "--evaluation.w2_samples=8", "--sampling.nsgf_steps=2"),
    ],
)
def test_what_determines_a_measure_is_in_its_key(flag):
    """For example a comparison that continues where auto means another precision measures again."""
    flags = ("--compare.methods=[nsgf]", "--device=cpu", "--compare.nfe=[1]")
    first = compared("2d", *flags).trials[0]
    assert "spacing" not in first.keys[1, 0]  # as in rows of earlier versions
    assert first.experiment.config.train.precision == "fp32"
    keys = set(compared("2d", *flags, flag).trials[0].keys.values()) - set(first.keys.values())
    assert len(keys) == (flag != "--sampling.nsgf_steps=2")  # limited by NFE
    layers = [{}, {"data.held_out": 0.4}, {"data.fake": True}, {"data.size": 8}]
    assert len({key_of(change(first.experiment.config, layer)) for layer in layers}) == 4


@pytest.mark.parametrize(
    ("exp", "updates"), [("2d", 20_000), ("digits", 1800), ("mnist", 200_000), ("cifar10", 80_000)]
)
def test_all_methods_have_the_same_number_of_updates_and_batch(exp, updates):
    names = ["nsgf", "nsgf++", "nsgf++h", "affine", "icfm", "otcfm", "otcfm+", "sbcfm", "1rf"]
    comparison = compared(exp, f"--compare.methods=[{','.join(names)}]")
    assert list(comparison.methods) == names
    for own in comparison.methods.values():
        assert sum(own.updates) == updates
        assert {getattr(own, phase).batch_size for phase in own.phases} == {own.peer.batch_size}


@pytest.mark.parametrize("exp", ["2d", "digits", "mnist", "images", "points"])
def test_the_papers_method_has_the_papers_shares(exp, own_data):
    """100,000 updates of v, as many of u, 40,000 of the predictor.

    Past mistake: The paper's method was compared with a sixth of its updates of v and flows of
    128 particles, shares that were chosen for a quick demo. Its distance was twice what it can
    be.
    """
    own = one_trial(exp, "nsgf++", "--compare.updates=[2400]", *own_data.get(exp, ()))
    assert [getattr(own, phase).iterations for phase in own.phases] == [1000, 1000, 400]
    assert (own.flow.schedule, own.flow.eta) == ("constant", 0.2)  # something is left to hand over


@pytest.mark.parametrize("method", ["nsgf++h", "nsgf++", "otcfm", "onecall"])
def test_compare_trains_what_train_trains(method):
    """But for the number of updates."""
    single, trial = shipped(f"digits/{method}"), one_trial("digits", method)
    for section in ("data", "sinkhorn", "flow", "pool", "model"):
        assert getattr(single, section) == getattr(trial, section)
    assert single.phases == trial.phases
    for phase in single.phases:
        updates = getattr(trial, phase).iterations
        assert replace(getattr(single, phase), iterations=updates) == getattr(trial, phase)


def test_a_method_of_ones_own_is_one_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("phases: [nsgf, nsf]\nflow: {steps: 3}\nnsf: {source: nsgf}\n")
    comparison = compared("digits", f"--compare.methods=[nsgf++,{file}]")
    assert list(comparison.methods) == ["nsgf++", "mine"]
    trial = Trial(comparison, "digits", "mine", 4)
    own = trial.experiment.config
    assert (own.phases, own.flow.steps, own.nsf.source) == (["nsgf", "nsf"], 3, "nsgf")
    assert trial.run.path.name == "mine-seed4"


OWN = {
    "nsgf": "phases: [nsgf]",
    "unused": "phases: [nsgf, nsf]",
    "wide": "phases: [nsgf]\nmodel: {mlp: {width: 64}}",
    "measured": "phases: [nsgf]\nevaluation: {w2_samples: 9}",
    "noisy": "phases: [peer]\npeer: {method: rf, sigma: 0.5}",
}
"""Methods of one's own."""


@pytest.mark.parametrize(
    ("name", "kind", "key"),
    [
        *((name, "nsgf", "compare.methods") for name in ("floor", "rf", "OT-CFM", "a|b")),
        ("a\nb", "nsgf", "method"),
        ("own", "unused", "phases"),
        ("own", "wide", "model.mlp.width"),
        ("own", "measured", "evaluation.w2_samples"),
        ("own", "noisy", "compare.methods"),  # would be measured with the weights of 1-RF
    ],
)
def test_methods_that_no_table_can_show_or_that_have_other_terms_are_refused(
    tmp_path, name, kind, key
):
    (tmp_path / f"{name}.yaml").write_text(OWN[kind])
    with pytest.raises(UserError, match=re.escape(f"{key} = ")):
        Comparison.of(*own_and_shipped(tmp_path / f"{name}.yaml"))


def own_and_shipped(file):
    """A comparison's settings from Python, which takes any name of a file."""
    methods = {"compare.methods": ["otcfm", "1rf", str(file)]}
    wanted = resolve("compare", from_arguments({"exp": "2d", **methods}), {})
    return wanted.config, wanted.methods


def test_rectified_flows_with_updates_of_their_own_may_differ(tmp_path):
    (tmp_path / "own.yaml").write_text(OWN["noisy"])
    comparison = compared(
        "2d", f"--compare.methods=[1rf,{tmp_path}/own.yaml]", "--compare.updates=[9]"
    )
    places = [Trial(comparison, "moons", name, 0).run.path.name for name in ("1rf", "own")]
    assert places == ["1rf-seed0", "own-seed0"]


def test_settings_of_a_method_file_that_do_not_count_are_said(tmp_path):
    """Those that the experiment or a flag overrides, not those that agree or are not used."""
    file = tmp_path / "mine.yaml"
    file.write_text("phases: [nsgf]\noptim: {lr: 1.0e-4}\nflow: {steps: 3, schedule: constant}\n")
    words = ["train", "--exp=2d", f"--method={file}", "--steps=4", "--flow.schedule=constant"]
    (note,) = parse(words).notes
    assert note.endswith("win: flow.steps 4 (file: 3), nsgf.lr 0.001 (file: 0.0001)")


def test_a_set_with_an_underscore_is_configured_under_its_whole_name(monkeypatch):
    """Past mistake: A target's name was split at its underscore, so a 2D set with an underscore
    could not be compared.
    """
    monkeypatch.setitem(DATA_SETS, "pin_wheel", PointSet("pin_wheel", moons))
    comparison = compared("2d", "--compare.targets=[]", "--compare.methods=[nsgf]", "--smoke")
    trial = Trial(comparison, "pin_wheel", "nsgf", 0)
    own = trial.experiment.config
    assert (own.data.name, own.data.source) == ("pin_wheel", "gaussian")
    assert trial.run.path.parts[-3:] == (*("compare-2d-smoke", "pin_wheel", "nsgf-seed0"),)


def test_without_targets_the_data_section_is_compared():
    flags = ("--compare.methods=[nsgf]", "--dataset=moons", "--data.source=8gaussians")
    (trial, *_) = compared("2d", *flags, "--compare.targets=[]").trials
    assert trial.target == "8gaussians_moons"
    own = trial.experiment.config
    assert (own.data.source, own.data.name) == ("8gaussians", "moons")


@pytest.mark.parametrize(
    ("updates", "shares", "places"),
    [
        ("[300,500,900]", ([125, 125, 50], [500], [621, 279]), ("1rf-seed2", "2rf-seed2")),
        ("[600]", ([250, 250, 100], [600], [414, 186]), ("1rf-seed2", "2rf-seed2")),
        ("[]", ([8333, 8333, 3334], [20_000], [20_000, 9_000]), ("rf-seed2", "rf-seed2")),
    ],
)
def test_updates_of_each_method_are_shared_among_its_networks(updates, shares, places):
    """Without ``compare.updates`` 2-RF continues in the folder of 1-RF."""
    flags = ("--compare.methods=[nsgf++,1rf,2rf]", "--reflow.iterations=9000")
    comparison = compared("2d", *flags, f"--compare.updates={updates}")
    for own, expected in zip(comparison.methods.values(), shares, strict=True):
        assert [getattr(own, phase).iterations for phase in own.phases] == expected
    for name, place in zip(("1rf", "2rf"), places, strict=True):
        assert Trial(comparison, "moons", name, 2).run.path.name == place


@pytest.mark.parametrize("wrong", ["[2,700,500]", "[1,2]"])
def test_updates_that_fit_no_method_are_refused(wrong):
    with pytest.raises(UserError, match=r"compare\.updates"):
        compared("2d", "--compare.methods=[nsgf++,otcfm,1rf]", f"--compare.updates={wrong}")


@pytest.mark.parametrize(
    ("target", "has_changed"),
    [("8gaussians", True), ("moons", True), ("8gaussians_moons", True), ("checkerboard", False)],
)
def test_measures_to_an_earlier_distribution_are_not_used(target, has_changed):
    """Rows of the sets that have not changed keep their keys."""
    flags = ("--methods=nsgf", "--device=cpu", f"--compare.targets=[{target}]")
    keys = compared("2d", *flags).trials[0].keys.values()
    assert [bool(json.loads(key).get("edition")) for key in keys] == [has_changed] * 2
    assert edition_key(target) == ({"edition": 2} if has_changed else {})


@pytest.mark.parametrize(("flags", "steps"), [("", 250), ("--optim.warmup_steps=900", 900)])
def test_warm_up_shrinks_with_the_updates_of_a_comparison(flags, steps):
    flags = ("--methods=otcfm", "--compare.updates=4000", *flags.split())
    assert compared("cifar10", *flags).methods["otcfm"].peer.warmup_steps == steps
