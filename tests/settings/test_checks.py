import math
import re

import pytest

from nsgf import method
from nsgf.cli.arguments import parse
from nsgf.config.layers import SETTINGS, build, values
from nsgf.config.schema import MOST_STEPS
from nsgf.experiment import Experiment
from nsgf.settings.checks import check
from nsgf.system.errors import UserError
from tests.conftest import compared, shipped
from tests.user_data.user_files import write_images

WRONG = [  # experiment, flag, the setting that is refused
    ("2d/onecall+", "--accumulate=2", "train.accumulate"),
    ("2d/onecall+", "--batch-size=3", "generator.batch_size"),
    ("2d/onecall+", "--generator.blurs=[]", "generator.blurs"),
    ("2d/onecall+", "--generator.targets=3", "generator.targets"),
    ("2d", "--sinkhorn.blur=0", "sinkhorn.blur"),
    ("2d", "--sampling.omega=1.5", "sampling.omega"),
    ("2d", "--sampling.omega=9e-6", "sampling.omega"),
    ("2d", "--flow.steps=100001", "flow.steps"),
    ("2d", "--sampling.nsgf_steps=100001", "sampling.nsgf_steps"),
    ("2d/nsgf++", "--sampling.straight_steps=1000000000", "sampling.straight_steps"),
    ("2d", "--compare.nfe=10,100001", "compare.nfe"),
    ("2d", "--compare.tune_nfe=100001", "compare.tune_nfe"),
    ("2d/nsgf++", "--sampling.tau=1", "sampling.tau"),
    ("2d", "--phases=[peer] --peer.method=sbcfm --peer.sigma=0", "peer.sigma"),
    ("2d", "--sampling.label=0", "sampling.label"),
    ("2d", "--device=gpu", "device"),
    ("2d", "--train-iters=0", "nsgf.iterations"),
    ("2d", "--phases=[nsf]", "nsf.source"),
    ("2d", "--nsf.source=affine --phases=[nsgf,nsf]", "nsf.source"),
    ("2d", "--nsf.source=affine", "nsf.source"),
    ("digits/affine", "--flow.eta=1.1", "flow.eta"),
    ("2d/affine", "--nsf.init=nsgf", "nsf.init"),
    ("2d/affine", "--nsf.starts=9", "nsf.starts"),
    ("2d/affine", "--sampling.tau=0.5", "sampling.tau"),
    ("images/affine", "--data.size=128", "nsf.source"),
    ("2d", "--phases=[nsgf,predictor]", "phases"),
    ("2d", "--phases=[nsgf,nsf]", "phases"),
    ("2d", "--phases=[nsgf,nsf] --nsf.init=nsgf", "phases"),
    ("2d", "--data.source=8gaussians", "data.source"),
    ("2d", "--data.source=points.csv", "data.source"),
    ("digits", "--data.source=8gaussians", "data.source"),
    ("2d", "--fake-data", "data.fake"),
    ("2d", "--evaluation.features=imagenet", "evaluation.features"),
    ("digits", "--evaluation.inception_weights=w.pth", "evaluation.inception_weights"),
    ("2d", "--bits-per-dim", "evaluation.bits_images"),
    ("digits/nsgf++", "--bits-per-dim=9", "evaluation.bits_images"),
    ("digits/onecall", "--bits-per-dim=9", "evaluation.bits_images"),
    ("digits", "--bits-per-dim=0", "evaluation.bits_images"),
    ("2d", "--data-root=x", "data.root"),
    ("digits", "--model.unet.channels=48", "model.unet.channels"),
    ("digits", "--model.unet.attention=[16]", "model.unet.attention"),
    ("digits", "--model.unet.mult=[1,0]", "model.unet.mult"),
    ("digits", "--model.unet.heads=3", "model.unet.heads"),
    ("digits", "--accumulate=1000", "train.accumulate"),
    ("mnist", "--model.unet.mult=[1,1,1,1]", "model.unet.mult"),
    ("digits/onecall", "--label=7", "sampling.label"),
    ("digits/onecall", "--sampling.guidance=2", "sampling.guidance"),
]
ON = "--data.conditional=true"
LINES = "--nsf.coupling=independent --nsf.coupling_batch=null --nsf.starts=null"
ALL = "--batch-size=22 --generator.targets=null"
WRONG_WITH_CLASSES = [
    ("2d/onecall+", "", "data.conditional"),
    ("images", "--phases=[generator]", "data.conditional"),
    ("mnist/onecall", "--fake-data", "data.conditional"),
    ("digits/otcfm", "--peer.coupling_batch=64", "peer.coupling_batch"),
    ("digits/2rf", "--reflow.pairs=4096", "reflow.pairs"),
    ("digits", "--sampling.tau=0.5", "sampling.tau"),
    ("digits/nsgf++", "--nsf.source=nsgf --sampling.tau=0.5", "sampling.tau"),
    ("digits", "--nsf.coupling=ot", "nsf.coupling"),
    ("digits", "--nsf.coupling_batch=512", "nsf.coupling_batch"),
    ("digits", "--nsf.starts=65536", "nsf.starts"),
    ("digits", f"{LINES} --pool-batches=9", "pool.num_batches"),
    ("digits/onecall", "--batch-size=256", "generator.batch_size"),
    ("digits/onecall", "--batch-size=22 --generator.targets=4", "generator.targets"),
    ("digits/onecall", f"{ALL} --phases=[nsgf,generator] --pool-batches=9", "pool.num_batches"),
    ("digits/onecall", f"{ALL} --label=10", "sampling.label"),
]
WRONG += [(exp, f"{ON} {flags}", key) for exp, flags, key in WRONG_WITH_CLASSES]


@pytest.mark.parametrize(("exp", "flags", "key"), WRONG)
def test_wrong_values_are_named_in_one_line(exp, flags, key, own_data):
    """Past mistake: `sampling.tau` was accepted for the hand-over, whose straight flow starts at
    time 0. The flow covered a part of the way, and samples were ruined without a word.
    """
    with pytest.raises(UserError) as caught:
        shipped(exp, *own_data.get(exp.partition("/")[0], ()), *flags.split())
    assert re.search(rf"(^|; ){re.escape(key)} = .+: .+", str(caught.value))
    assert "\n" not in str(caught.value)


def test_counts_have_an_upper_bound():
    """No integer may be large enough to hang an estimate or to overflow a float.

    Past mistake: Counts had no upper bound: 10^9 layers were built, and huge numbers ended in
    tracebacks.
    """
    for key, item in SETTINGS.items():
        for number in item.default if isinstance(item.default, list) else [item.default]:
            if isinstance(number, int) and not isinstance(number, bool):
                assert item.range.maximum < 2**63, key
    with pytest.raises(UserError, match=r"mlp\.width = 65537: must be >= 1 and <= 65536"):
        shipped("2d", "--model.mlp.width=65537")
    assert shipped("2d", f"--seed={2**63 - 1}").seed == 2**63 - 1


def test_the_largest_numbers_of_steps_are_allowed():
    keys = ("flow.steps", "sampling.nsgf_steps", "sampling.straight_steps")
    shipped("2d", *(f"--{key}={MOST_STEPS}" for key in keys), "--sampling.omega=1e-5")
    compared("2d", f"--compare.tune_nfe={MOST_STEPS}")
    assert method.LARGEST_T == MOST_STEPS


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        (
            "--exp=2d --sinkhorn.blur=-1 --predictor.lr=0 --seed=-3",
            "seed sinkhorn.blur predictor.lr",
        ),
        ("--exp=digits --lr=5", "nsgf.lr nsf.lr"),  # only of phases that are trained
    ],
)
def test_all_problems_are_reported_at_once(flags, keys):
    with pytest.raises(UserError) as caught:
        parse(["train", *flags.split()])
    assert [part.partition(" ")[0] for part in str(caught.value).split("; ")] == keys.split()


@pytest.mark.parametrize(
    ("exp", "flags"),
    [
        ("2d/nsgf++", "--sampling.omega=0.1"),
        ("2d", "--batch-size=8 --accumulate=8"),
        ("2d", "--phases=[nsgf,nsf] --sampling.tau=0.5"),
        ("2d", "--phases=[nsgf,nsf] --nsf.source=nsgf"),
        ("2d", "--phases=[nsgf,nsf] --nsf.source=nsgf --sampling.tau=0"),
        ("2d", "--phases=[peer,reflow] --peer.method=rf"),
        ("digits", f"{ON} --nsf.starts=500"),
        ("digits/nsgf++", ON),
        ("digits", f"{ON} --phases=[nsgf]"),
        ("digits/onecall", f"{ON} {ALL} --label=9 --sampling.guidance=3"),
        ("digits/2rf", ON),
        ("digits/onecall", f"{ON} --batch-size=22 --generator.targets=44"),
        ("digits/onecall", f"{ON} {ALL} --phases=[nsgf,generator]"),
        ("mnist/onecall", f"{ON} --batch-size=220 --generator.targets=null"),
    ],
)
def test_what_belongs_together_is_valid(exp, flags):
    assert shipped(exp, *flags.split()).data.conditional is (ON in flags)


@pytest.mark.parametrize(
    ("exp", "key", "value"),
    [
        *(("2d", "exp", name) for name in ("", "a/b", "a" * 101)),
        ("2d", "out_dir", "~no_such_user/x"),
        ("2d", "out_dir", "a\nb"),
        ("2d", "nsgf.lr", math.nan),
        ("2d", "data.flip", True),
    ],
)
def test_wrong_settings_from_python_are_refused(exp, key, value):
    config = build({**values(shipped(exp)), "sampling.solver": "heun", key: value})
    with pytest.raises(UserError, match=rf"^{re.escape(key)} = "):
        check(Experiment(config))


def test_settings_of_a_file_are_fitted_to_classes_with_a_line(tmp_path):
    """Of shipped files and of own images; flags of the command line stay.

    Past mistake: Classes, `sampling.tau` and the range of images were checked where they are
    used. Shipped files were refused with classes, and a trained run could not be sampled.
    """
    request = parse(["train", "--exp=digits", ON])
    nsf, [line] = request.config.nsf, request.notes
    assert (nsf.coupling, nsf.coupling_batch, nsf.starts) == ("independent", None, 65_540)
    assert "nsf.coupling independent" in line
    assert "nsf.starts 65540" in line
    assert shipped("digits", ON, "--nsf.starts=500").nsf.starts == 500
    own = shipped("digits/onecall", ON).generator
    assert (own.batch_size, own.targets) == (264, 1804)
    images = write_images(tmp_path, 60, classes=3)
    nsf = parse(["train", "--exp=images", f"--data.path={images}", ON]).config.nsf
    assert (nsf.coupling, nsf.starts % 3) == ("independent", 0)
    assert parse(["train", "--exp=digits"]).notes == []


def test_smoke_run_takes_two_samples_of_each_group():
    assert shipped("digits/onecall", ON, "--smoke").generator.batch_size == 22
    assert shipped("digits/onecall", ON, "--smoke", "--batch-size=44").generator.batch_size == 44
    assert shipped("digits/onecall", "--smoke").generator.batch_size == 4
