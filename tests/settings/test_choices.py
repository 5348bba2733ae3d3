"""What is chosen for a user's own data, and that it is chosen once."""

from pathlib import Path

import numpy as np
import pytest
import torch

import nsgf
from nsgf.cli.arguments import parse
from nsgf.commands.export import export_run
from nsgf.commands.report import report_run
from nsgf.commands.sample import sample_run
from nsgf.commands.train import train
from nsgf.config.layers import build, spread_optim
from nsgf.config.schema import DataFacts
from nsgf.experiment import Experiment
from nsgf.models import TimePredictorCNN
from nsgf.models.unet import UNet
from nsgf.run.folder import RunFolder
from nsgf.settings.checks import check
from nsgf.settings.choices import for_images, for_points
from nsgf.system.errors import UserError
from tests.user_data.user_files import write_images, write_points

SMALL = (
    *("--device=cpu", "--train-iters=6", "--pool-batches=2", "--train.checkpoint_every=2"),
    *("--train.preview=false", "--model.mlp.width=8", "--sinkhorn.batch_size=16"),
)


@pytest.fixture
def images(tmp_path):
    return write_images(tmp_path / "images", 20)


@pytest.fixture
def points(tmp_path):
    return write_points(tmp_path / "points.npy")


def parsed(exp, place, *flags):
    return parse(["train", "--exp", exp, f"--data.path={place}", *flags]).config


def refused(*words):
    with pytest.raises(UserError) as refusal:
        parse(["train", "--device=cpu", *map(str, words)])
    return str(refusal.value)


IMAGES = [  # number, channels, pixels; batches, blur, flows; UNet; starts
    ((16, 3, 4), (16, 16, 0.5, 1600), (32, 1, [1], [], 1), 65536),
    ((10000, 1, 16), (128, 128, 0.5, 200), (32, 1, [1, 2, 2], [8], 2), 65536),
    ((10000, 3, 64), (128, 128, 1, 114), (128, 2, [1, *4 * [2]], [16, 8], 8), 21845),
    ((64, 3, 256), (64, 64, 1, 15), (64, 1, [1, *6 * [2]], [16, 8], 4), 1365),
]
POINTS = [  # number, dimension; batches, blur, flows, width
    ((16, 1), (16, 16, 0.07, 6400, 256)),
    ((2000, 17), (256, 1024, 0.289, 100, 512)),
    ((2000, 5000), (256, 1024, 4.95, 10, 1024)),
]
BATCHES = ["optim.batch_size", "sinkhorn.batch_size", "sinkhorn.blur", "pool.num_batches"]
UNET = [f"model.unet.{key}" for key in ("channels", "res_blocks", "mult", "attention", "heads")]


@pytest.mark.parametrize(("data", "batches", "unet", "starts"), IMAGES)
def test_rules_for_images(data, batches, unet, starts):
    chosen = for_images(*data, data[-1])
    assert (chosen.pop("nsf.starts"), chosen.pop("optim.lr")) == (starts, 5e-4)
    for phase in ("nsf", "peer"):
        assert chosen.pop(f"{phase}.coupling_batch") == min(data[0], 1024)
    assert chosen == dict(zip(BATCHES + UNET, batches + unet, strict=True))


def test_batches_and_attention_are_small_without_a_card(tmp_path, monkeypatch):
    """Past mistake: Smaller batches for a machine without a card would also have reached the
    generator, whose flows would have had 32 particles.

    Past mistake: Attention without a card was chosen differently for the one-call method, and
    `compare` of own images with `onecall` was refused.
    """
    images = write_images(tmp_path / "images", 40)
    for device, *wanted in (("cpu", 32, 1e-3, [8]), ("cuda", 40, 5e-4, [16, 8])):
        monkeypatch.setattr(
            "nsgf.settings.choices.pick_device", lambda _, it=device: torch.device(it)
        )
        own = parsed("images", images, "--data.size=32")
        assert [own.nsf.batch_size, own.nsf.lr, own.model.unet.attention] == wanted
        onecall = parsed("images", images, "--data.size=32", "--method=onecall")
        assert (onecall.generator.batch_size, onecall.generator.lr) == (40, 5e-4)
        assert onecall.model.unet == own.model.unet  # compared on equal terms


@pytest.mark.parametrize(("data", "values"), POINTS)
def test_rules_for_points(data, values):
    assert for_points(*data) == dict(zip([*BATCHES, "model.mlp.width"], values, strict=True))


@pytest.mark.parametrize("size", [4, 9, 16, 28, 48, 1024, (28, 20), (8, 13)])
def test_chosen_networks_are_valid_at_every_size(size):
    channels, sides = 1 if size == 28 else 3, size if isinstance(size, tuple) else (size, size)
    facts = DataFacts(20, [channels, *sides], "x")
    data = {"data.name": "images", "data.path": "x", "data.size": sides[0], "data.found": facts}
    chosen = for_images(20, channels, *sides)
    hand_over = {"nsf.coupling": "ot", "nsf.source": "nsgf", "peer.method": "otcfm"}
    config = build({**spread_optim({**chosen, **hand_over}), **data})
    check(Experiment(config))
    with torch.device("meta"):
        x, t = torch.empty(2, channels, *sides), torch.empty(2)
        assert UNet(x.shape[1:], config.model.unet)(x, t).shape == x.shape
        assert TimePredictorCNN(x.shape[1:])(x).shape == (2,)
    with pytest.raises(UserError, match=r"66 x 66 .*data\.size"):  # halves too seldom
        for_images(200, 3, 66, 66)
    with pytest.raises(UserError, match="66 x 28"):
        for_images(200, 3, 66, 28)


def test_files_and_flags_win(images, tmp_path):
    flags = ("--batch-size=5", "--nsf.batch_size=7", "--data.size=16")
    config = parsed("images", images, *flags)
    assert (config.nsgf.batch_size, config.nsf.batch_size) == (5, 7)
    assert config.data.found.shape == [3, 16, 16]
    file = tmp_path / "mine.yaml"
    file.write_text("exp: mine\ndata: {name: points}\noptim: {batch_size: 3}\n")
    place = write_points(tmp_path / "x.npy")
    config = parse(["train", "--config", str(file), "--data.path", str(place)]).config
    assert config.nsgf.batch_size == 3


@pytest.mark.parametrize("method", ["nsgf++", "otcfm", "onecall"])
@pytest.mark.parametrize("exp", ["images", "points"])
def test_nothing_is_chosen_that_would_have_no_effect(exp, method, images, points):
    """Past mistake: Choices for own images ignored the user's flags, and the user was asked to
    repair what the program had set.
    """
    config = parsed(exp, images if exp == "images" else points, f"--method={method}")
    assert config.peer.coupling_batch is None
    assert (config.nsf.coupling_batch, config.nsf.starts) == (None, None)


def test_a_method_keeps_no_more_starts_than_fit(images):
    """The method's file says 65,536, whatever the size of the images.

    Past mistake: A comparison on own images kept 65,536 starts of any size, which is 51 GB for
    images of 256 pixels.
    """
    words = ["--exp=images", f"--data.path={images}", "--data.size=64"]
    request = parse(["compare", *words, "--compare.methods=[nsgf++h,otcfm+]"])
    handed, peer = request.methods
    assert handed.nsf.starts == request.config.nsf.starts == 2**28 // (3 * 64 * 64)
    assert handed.nsf.coupling_batch == peer.peer.coupling_batch == 20


def test_a_run_keeps_the_size_of_its_images_and_a_saved_file_wins_over_choices(images, tmp_path):
    assert refused("--exp", "images").startswith("data.path = null")
    config = parsed("images", images, f"--out-dir={tmp_path / 'runs'}")
    run = RunFolder.create(config)
    message = refused("--run", run.path, "--resume", "--data.size=16")
    assert message.startswith("data.size = 16: must be 32")
    resumed = parse(["train", "--run", str(run.path), "--resume", "--data.size=auto"])
    assert resumed.config.data.size == 32
    (run.path / "facts.json").write_text("[1, 2]")  # a new run finds its own
    again = parse(["train", "--config", str(run.config_file)]).config
    assert (again, again.data.found) == (config, config.data.found)


def test_a_run_goes_on_where_its_points_have_moved(points, tmp_path):
    run = train(Experiment(parsed("points", points, *SMALL, f"--out-dir={tmp_path / 'runs'}")))
    moved = points.rename(tmp_path / "moved.npy")
    resume = ["train", "--run", str(run.path), "--resume", "--train-iters=8"]
    with pytest.raises(UserError, match="no such file"):
        train(Experiment(parse(resume).config), run)
    train(Experiment(parse([*resume, f"--data.path={moved}"]).config), run)
    assert parse(resume).config.data.path == str(moved)


def test_own_points_are_in_their_units_for_everyone(points, tmp_path):
    """The file of samples, those of Python, and the page.

    Past mistake: An export listed the settings to leave out, so a path that was added later
    stayed in.
    """
    config = parsed("points", points, *SMALL, f"--out-dir={tmp_path / 'runs'}")
    run = train(Experiment(config))
    sample_run(Experiment(config), run)
    saved = np.load(run.samples / "samples.npz", allow_pickle=False)["x"]
    drawn = nsgf.load(run.path).sample(len(saved), seed=config.seed).numpy()
    np.testing.assert_allclose(drawn, saved)
    values = np.load(points)
    assert abs(drawn.mean(0) - values.mean(0)).max() < 3 * values.std(0).max()
    assert not np.allclose(drawn.std(0), 1, atol=0.3)
    assert "way.png" in {Path(file).name for file in report_run(Experiment(config), run)}
    points.unlink()  # on another machine
    export_run(Experiment(config), run, tmp_path / "shared")
    assert str(tmp_path) not in (tmp_path / "shared" / "config.json").read_text()
    shared = nsgf.load(tmp_path / "shared").sample(len(saved), seed=config.seed)
    np.testing.assert_allclose(shared.numpy(), saved)
