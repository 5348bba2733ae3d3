"""Each data set has one record, the settings name the same sets, and draws follow the seed."""

import math
from dataclasses import replace
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torchcfm.utils import sample_8gaussians, sample_moons

from nsgf.config.schema import SOURCES, CompareConfig, DataConfig
from nsgf.data import DATA_SETS, STANDARD, ImageSet, PointSet
from nsgf.data.points import eight_gaussians, moons
from nsgf.settings.choices import INSPECTORS
from nsgf.system.errors import UserError
from nsgf.system.seeding import make_generator
from nsgf.user_data import load_data


def test_configuration_and_records_name_the_same_sets():
    hints = get_type_hints(DataConfig)
    assert set(get_args(hints["name"])) == {*DATA_SETS, *INSPECTORS}
    points = {name: one for name, one in DATA_SETS.items() if isinstance(one, PointSet)}
    assert {STANDARD} < {*SOURCES[:-1]} <= {STANDARD, *points}
    (labels,) = get_args(get_type_hints(CompareConfig)["targets"])
    assert set(get_args(labels)) == {*points, "8gaussians_moons"}
    for name, record in DATA_SETS.items():
        assert (record.name, len(record.shape)) == (name, 3 if record.is_images else 1)
        assert {*record.sources} == {STANDARD, *[SOURCES[1]] * (not record.is_images)}
        assert record.is_images is isinstance(record, ImageSet)
        assert (record.uses >= {"root", "download"}) is (name in ("mnist", "cifar10"))
        assert (record.uses >= {"fake", "flip"}) is record.is_images


@pytest.fixture
def own(monkeypatch):
    """A set of 30 images 4x4 without labels."""
    images = torch.arange(30 * 16).remainder(256).to(torch.uint8).view(30, 1, 4, 4)
    record = ImageSet("own_set", (1, 4, 4), read_images=lambda *_: images)
    monkeypatch.setitem(DATA_SETS, "own_set", record)
    return record


@pytest.mark.parametrize(
    "images",
    [
        *(torch.zeros(*shape).byte() for shape in [(0, 1, 4, 4), (3, 2, 4, 4), (3, 4, 4)]),
        torch.ones(3, 1, 4, 4),
    ],
)
def test_images_of_another_shape_or_type_are_refused(own, images):
    with pytest.raises(UserError, match=r"must be .* of torch\.uint8"):
        replace(own, read_images=lambda *_: images).load(DataConfig(), 0)


@pytest.mark.parametrize("labels", [[0, 1, 3], [-1, 0, 0], [0, 1], [[0], [1], [2]]])
def test_labels_outside_of_the_classes_are_refused(own, labels):
    other = replace(own, class_names=(*"abc",), read_labels=lambda *_: torch.tensor(labels))
    with pytest.raises(UserError, match="0 to 2"):
        other.labels(DataConfig(), 3)


def test_every_stream_has_draws_of_its_own(monkeypatch):
    """A target with the law of the source: streams of the same seed would be the same points."""
    law = PointSet("noise", lambda n, generator: torch.randn(n, 2, generator=generator))
    monkeypatch.setitem(DATA_SETS, "noise", law)
    data = load_data(DataConfig(name="noise"), seed=0)
    clouds = [getattr(data, end)(stream) for end in ("source", "target") for stream in ("a", "b")]
    clouds += [data.with_seed(1).source("a"), data.with_seed(1).target("a"), data.source("a", "b")]
    assert len({cloud.sample(9).numpy().tobytes() for cloud in clouds}) == len(clouds)
    assert torch.equal(data.target("a").sample(9), data.target("a").sample(9))


def test_images_are_flipped_only_where_the_settings_say_so(own):
    plain, mirrored = (
        load_data(DataConfig(name="own_set", flip=flip), seed=0).target("x").sample(30)
        for flip in (False, True)
    )
    same = (plain == mirrored).flatten(1).all(1)
    assert 3 < int(same.sum()) < 27
    assert torch.equal(mirrored[~same], plain[~same].flip(-1))


@pytest.mark.parametrize(
    ("name", "point"),
    [
        ("8gaussians", (-0.131267, -5.466367)),
        ("moons", (1.884743, -1.868469)),
        ("scurve", (-0.208947, 3.875782)),
        ("checkerboard", (1.851893, 1.596024)),
    ],
)
def test_draws_are_those_of_earlier_versions(name, point):
    """Runs of the same seed stay comparable: laws, streams and scales keep their numbers."""
    drawn = torch.randint(2**31 - 1, (), generator=torch.Generator().manual_seed(3))
    if name == "scurve" and drawn != 740111726:
        pytest.skip("torch 2.4 draws other seeds for scikit-learn")
    data = load_data(DataConfig(name=name), seed=7)
    start = torch.tensor([[-0.411459, -1.325302]])
    torch.testing.assert_close(data.source("pool").sample(1), start, atol=2e-6, rtol=0)
    target = torch.tensor([point])
    torch.testing.assert_close(data.target("pool").sample(1), target, atol=2e-6, rtol=0)
    other = load_data(DataConfig(name=name, source="8gaussians"), seed=7).source("x").sample(500)
    assert abs(float(other.norm(dim=1).mean()) - 5) < 0.1


@pytest.mark.parametrize(
    ("draw", "reference"), [(eight_gaussians, sample_8gaussians), (moons, sample_moons)]
)
def test_distributions_are_torchcfms(draw, reference):
    """On which the published tables of OT-CFM and of the paper stand."""
    count = 20_000
    np.random.seed(0)  # noqa: NPY002  torchdyn's moons draw from numpy's global generator
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        references = reference(count)
    points = draw(count, make_generator(0))
    for angle in torch.arange(8) * (math.pi / 8):
        direction = torch.stack([angle.cos(), angle.sin()])
        projections = (points @ direction).numpy(), (references @ direction).numpy()
        # .023 is exceeded once in 10,000 pairs of such samples
        assert ks_2samp(*projections).statistic < 0.023
