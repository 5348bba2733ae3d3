import importlib
import math
from dataclasses import replace

import pytest

from nsgf.checks import check
from nsgf.config.leaves import leaves, range_of
from nsgf.config.schema import Config, OptimConfig
from nsgf.run.folder import RunFolder
from nsgf.system.errors import UserError
from tests.conftest import shipped


def test_shipped_configurations_are_valid(config_names, own_data):
    assert config_names == sorted(["2d", "cifar10", "digits", "mnist", *own_data])
    for name in config_names:
        check(shipped(name, *own_data.get(name, ())))


WRONG = [  # experiment, flag, words of the message
    ("2d/onecall+", "--accumulate=2", "train.accumulate = 2: must be 1 with phase generator"),
    ("2d/onecall+", "--batch-size=3", "generator.batch_size = 3: must be >= 4, two halves"),
    (
        "digits/onecall",
        "--generator.init=nsgf",
        "generator.init = nsgf: needs that phase; say --phases [nsgf,generator]",
    ),
    (
        "2d/onecall+",
        "--generator.residual=false",
        "generator.init = nsgf: begins with a velocity; say --generator.residual true",
    ),
    ("2d/onecall+", "--generator.blurs=[]", "generator.blurs = []: must have at least one"),
    ("2d/onecall+", "--generator.blurs=[0.1,0]", "generator.blurs = [0.1, 0.0]: must be > 0"),
    ("2d/onecall+", "--generator.targets=3", "generator.targets = 3: must be >= 4"),
    ("2d", "--sinkhorn.batch_size=0", "sinkhorn.batch_size = 0: must be >= 1"),
    ("2d", "--sinkhorn.target_batch=0", "sinkhorn.target_batch = 0: must be >= 1"),
    ("2d", "--sinkhorn.blur=0", "sinkhorn.blur = 0.0: must be > 0"),
    ("2d", "--sinkhorn.blur=1e200", "sinkhorn.blur = 1e+200: must be > 0 and <= 1000000.0"),
    ("2d", "--sinkhorn.blur=-0.5", "sinkhorn.blur = -0.5: must be > 0"),
    ("2d", "--sinkhorn.blur=.nan", "sinkhorn.blur"),
    ("2d", "--sinkhorn.scaling=1", "sinkhorn.scaling = 1.0: must be > 0 and < 1"),
    ("2d", "--sinkhorn.scaling=0", "sinkhorn.scaling = 0.0: must be > 0 and < 1"),
    ("2d", "--flow.eta=0", "flow.eta = 0.0: must be >= 1e-06 and <= "),
    ("2d", "--flow.eta=.inf", "flow.eta"),
    ("2d", "--flow.eta=1e-300", "flow.eta = 1e-300: must be >= 1e-06"),
    ("2d", "--pool.num_batches=-1", "pool.num_batches = -1: must be >= 1"),
    ("2d", "--nsgf.iterations=-1", "nsgf.iterations = -1: must be >= 0"),
    ("2d", "--nsgf.lr=0", "nsgf.lr = 0.0: must be > 0"),
    ("2d", "--lr=1e38", "nsgf.lr = 1e+38: must be > 0 and <= 1"),
    ("2d", "--nsgf.ema_decay=1", "nsgf.ema_decay = 1.0: must be >= 0 and < 1"),
    ("2d", "--nsgf.clip_norm=0", "nsgf.clip_norm = 0.0: must be > 0"),
    ("2d", "--sampling.omega=1.5", "sampling.omega = 1.5: must be >= 1e-06 and <= 1"),
    ("2d", "--sampling.tau=1", "sampling.tau = 1.0: must be >= 0 and < 1"),
    ("2d", "--sampling.tau=-0.1", "sampling.tau = -0.1: must be >= 0 and < 1"),
    ("2d", "--sampling.tau=0", "sampling.tau = 0.0: needs phase nsf"),
    ("2d", "--sampling.label=0", "sampling.label = 0: has no effect without data.conditional"),
    ("2d", "--sampling.solver=rk4", "sampling.solver = rk4: must be one of euler, heun, dopri5"),
    ("2d", "--sampling.tolerance=0", "sampling.tolerance = 0.0: must be >= 1e-07 and <= 1"),
    ("2d", "--seed=-1", "seed = -1: must be >= 0"),
    ("2d", "--device=gpu", "device = gpu: must be auto, cpu, cuda, cuda:N, mps or xpu"),
    ("2d", "--phases=[nsf]", "phases = ['nsf']: must be one of"),
    ("2d", "--phases=[nsgf,predictor]", "must be one of"),
    ("2d", "--data.source=8gaussians", "must differ from data.name"),
    ("2d", "--fake-data", "data.fake = true: must be false"),
    ("2d", "--evaluation.inception=true", "evaluation.inception = true: must be false for 8g"),
    ("2d", "--evaluation.classifier=true", "evaluation.classifier = true: must be false for 8g"),
    ("digits", "--data.source=8gaussians", "data.source = 8gaussians: must be gaussian"),
    ("digits", "--model.unet.channels=48", "model.unet.channels = 48: must be a multiple of 32"),
    ("digits", "--model.unet.attention=[16]", "model.unet.attention = [16]: must be out of [8, 4]"),
    ("mnist", "--model.unet.attention=[16]", "must be out of [28, 14, 7]"),
    ("mnist", "--model.unet.mult=[1,1,1,1]", "image size divisible by 8, mnist has 28"),
    ("digits", "--model.unet.mult=[]", "model.unet.mult = []"),
    ("digits", "--model.unet.mult=[1,0]", "model.unet.mult = [1, 0]: must be >= 1"),
    ("digits", "--model.unet.heads=3", "model.unet.heads = 3: must divide"),
    ("digits", "--model.unet.dropout=1", "model.unet.dropout = 1.0: must be >= 0 and < 1"),
    ("digits", "--model.predictor_channels=[8,8,8,8]", "must have 1 to 3 layers"),
    ("digits", "--data-root=x", "data.root = x: must be data, digits reads no files"),
    ("2d", "--data-root=x", "data.root = x: must be data, 8gaussians reads no files"),
    ("digits", "--accumulate=1000", "train.accumulate = 1000: must be <= nsgf.batch_size = 128"),
    ("digits", "--exp=a/b", "exp"),
]


@pytest.mark.parametrize(("exp", "flag", "words"), WRONG)
def test_wrong_values_are_named_in_one_line(exp, flag, words):
    with pytest.raises(UserError) as caught:
        shipped(exp, flag)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_counts_have_an_upper_bound():
    """No integer may be large enough to hang an estimate or to overflow a float."""
    for key, value, item in leaves(Config()):
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and not isinstance(number, bool):
                assert range_of(item).maximum < 2**63, key
    with pytest.raises(UserError, match=r"model\.mlp\.depth = 1001: must be >= 1 and <= 1000"):
        shipped("2d", "--model.mlp.depth=1001")
    assert shipped("2d", f"--seed={2**63 - 1}").seed == 2**63 - 1


@pytest.mark.parametrize("solver", ["heun", "dopri5"])
def test_steps_omega_belong_to_euler(solver):
    words = rf"^sampling\.omega = 0\.1: must be null with sampling\.solver {solver}"
    with pytest.raises(UserError, match=words):
        shipped("2d", "--sampling.omega=0.1", f"--sampling.solver={solver}")
    assert shipped("2d", "--sampling.omega=0.1").sampling.omega == 0.1
    assert shipped("2d", f"--sampling.solver={solver}").sampling.solver == solver


def test_all_problems_are_reported_at_once():
    with pytest.raises(UserError) as caught:
        shipped("2d", "--sinkhorn.blur=-1", "--nsgf.lr=0", "--seed=-3")
    for key in ("sinkhorn.blur", "nsgf.lr", "seed"):
        assert key in str(caught.value)


@pytest.mark.parametrize(
    ("exp", "flag", "keys"),
    [
        ("2d", "--lr=5", "nsgf.lr"),
        ("digits", "--lr=5", "nsgf.lr, nsf.lr"),
        ("2d", "--predictor.lr=5", "predictor.lr"),
    ],
)
def test_what_is_wrong_for_every_phase_is_said_once_for_those_that_are_trained(exp, flag, keys):
    with pytest.raises(UserError, match=f"^{keys} = 5.0: must be > 0 and <= 1$"):
        shipped(exp, flag)


def test_every_leaf_is_reached_with_its_key():
    keys = [key for key, _, _ in leaves(Config())]
    assert len(keys) == len(set(keys)) > 60
    assert {"seed", "model.unet.mult", "nsf.source", "predictor.lr"} <= set(keys)


def test_data_root_is_taken_by_sets_of_files():
    assert shipped("mnist", "--data-root=x").data.root == "x"


def test_parts_of_a_batch_concern_the_phases_that_are_trained():
    config = shipped("2d", "--nsf.batch_size=4", "--accumulate=8")
    assert (config.phases, config.train.accumulate) == (["nsgf"], 8)


def test_nan_is_out_of_every_range():
    with pytest.raises(UserError, match="finite"):
        check(replace(Config(), nsgf=OptimConfig(lr=math.nan)))


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("digits", "source", "8gaussians", r"data\.source = 8gaussians: must be gaussian for "),
        ("2d", "fake", True, r"data\.fake = true: must be false for 8gaussians"),
        ("2d", "flip", True, r"data\.flip = true: must be false for 8gaussians"),
    ],
)
def test_settings_that_a_data_set_does_not_use_are_refused(name, key, value, message):
    config = shipped(name)
    with pytest.raises(UserError, match=message):
        check(replace(config, data=replace(config.data, **{key: value})))


@pytest.mark.parametrize(
    "entry",
    [
        *("nsgf.experiment.train", "nsgf.preflight.preflight"),
        *("nsgf.sampling.generate.sample_run", "nsgf.metrics.evaluate.evaluate_run"),
    ],
)
def test_entries_refuse_what_is_not_valid_before_they_do_anything(entry, tiny, tmp_path):
    """Also where no command line has been checked: called from Python."""
    module, _, name = entry.rpartition(".")
    wrong = replace(tiny, sinkhorn=replace(tiny.sinkhorn, blur=-1.0))
    run = [RunFolder(tmp_path / "run")] if name in ("sample_run", "evaluate_run") else []
    with pytest.raises(UserError, match=r"sinkhorn\.blur = -1\.0: must be > 0"):
        getattr(importlib.import_module(module), name)(wrong, *run)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("section", "remedy"), [("nsf", "--nsf.coupling_batch null"), ("peer", "--peer.method otcfm")]
)
def test_groups_of_pairs_that_nothing_is_paired_in_are_refused(tiny, section, remedy):
    changed = replace(getattr(tiny, section), coupling_batch=64)
    with pytest.raises(UserError, match=rf"{section}\.coupling_batch = 64: has no .*{remedy}"):
        check(replace(tiny, **{section: changed}))


def test_starts_that_no_line_starts_from_are_refused(tiny):
    with pytest.raises(UserError, match=r"nsf\.starts = 8: has no effect with nsf\.source prior"):
        check(replace(tiny, nsf=replace(tiny.nsf, starts=8)))
