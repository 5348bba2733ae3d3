import pytest

from nsgf.cli.arguments import parse
from nsgf.system.errors import UserError
from tests.conftest import shipped
from tests.data.own_files import write_images

ON = "--data.conditional=true"
LINES = ("--nsf.coupling=independent", "--nsf.coupling_batch=null", "--nsf.starts=null")
ALL = ("--batch-size=22", "--generator.targets=null")
WRONG = [  # experiment, flags, words of the message
    ("2d/onecall+", (ON,), "data.conditional = true: must be false for 8gaussians"),
    ("images", (ON, "--phases=[generator]"), "must be false for images, which have no classes"),
    ("mnist/onecall", (ON, "--fake-data"), "data.conditional = true: not with data.fake"),
    ("digits", (ON, "--phases=[peer]"), "data.conditional = true: not with phase peer"),
    ("digits", (ON, "--phases=[peer,reflow]"), "data.conditional = true: not with phase peer"),
    ("digits", (ON, "--phases=[]"), "phases = []: must be one of"),
    ("digits", (ON, "--nsf.coupling=ot"), "not with nsf.coupling ot, which would mix classes; say"),
    ("digits", (ON, "--nsf.coupling_batch=512"), "nsf.coupling_batch = 512: has no effect"),
    ("digits", (ON, "--nsf.starts=65536"), "nsf.starts = 65536: must be a multiple of 10"),
    ("digits", (ON, "--nsf.starts=65536"), "the nearest is 65540"),
    ("digits", (ON, *LINES, "--pool-batches=9"), "pool.num_batches = 9: must be >= 10"),
    ("digits", (ON, *LINES, "--sampling.omega=0.1"), "not with sampling.omega"),
    ("digits/onecall", (ON, "--batch-size=256"), "size = 256: must be a multiple of 22 with 10"),
    ("digits/onecall", (ON, "--batch-size=256"), "for none; the nearest is 264"),
    ("digits/onecall", (ON, "--batch-size=22", "--generator.targets=4"), "targets = 4: must be"),
    (
        "digits/onecall",
        (ON, *ALL, "--phases=[nsgf,generator]", "--pool-batches=9"),
        "must be >= 10",
    ),
    ("digits/onecall", (ON, *ALL, "--label=10"), "label = 10: must be one of 0 to 9"),
    ("digits/onecall", (ON, *ALL, "--label=-1"), "sampling.label = -1: must be >= 0"),
    ("digits/onecall", ("--label=7",), "sampling.label = 7: has no effect without"),
    ("digits/onecall", ("--sampling.guidance=2",), "guidance = 2: has no effect without"),
    ("digits/onecall", ("--sampling.guidance=-1",), "sampling.guidance = -1.0: must be >= 0"),
]


@pytest.mark.parametrize(("exp", "flags", "words"), WRONG)
def test_what_classes_do_not_go_with_is_one_line(exp, flags, words, own_data):
    with pytest.raises(UserError) as caught:
        shipped(exp, *own_data.get(exp, ()), *flags)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("exp", "flags"),
    [
        ("digits", (ON, *LINES)),
        ("digits", (ON, *LINES[:2], "--nsf.starts=500")),
        ("digits/nsgf++", (ON,)),
        ("digits", (ON, "--phases=[nsgf]")),
        ("digits/onecall", (ON, *ALL, "--label=9", "--sampling.guidance=3")),
        ("digits/onecall", (ON, "--batch-size=22", "--generator.targets=44")),
        ("digits/onecall", (ON, *ALL, "--phases=[nsgf,generator]")),
        ("digits/onecall", (ON, "--smoke")),
        ("mnist/onecall", (ON, "--batch-size=220", "--generator.targets=null")),
    ],
)
def test_what_classes_go_with_is_valid(exp, flags):
    assert shipped(exp, *flags).data.conditional


def test_settings_of_a_file_are_fitted_to_classes_with_a_line(tmp_path):
    """Of shipped files and of own images; flags of the command line stay."""
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
    assert parse(["train", "--exp=digits"]).notes == ()


def test_smoke_run_takes_two_samples_of_each_group():
    assert shipped("digits/onecall", ON, "--smoke").generator.batch_size == 22
    assert shipped("digits/onecall", ON, "--smoke", "--batch-size=44").generator.batch_size == 44
    assert shipped("digits/onecall", "--smoke").generator.batch_size == 4
