from dataclasses import replace

import pytest
import torch

from nsgf.config.schema import DataConfig
from nsgf.data import DATA_SETS
from nsgf.data.images import to_unit_range
from nsgf.metrics import classifier
from nsgf.metrics.classifier import ClassifierMetrics
from nsgf.system.errors import UserError

CPU = torch.device("cpu")
CONFIG = DataConfig(name="digits")


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return DATA_SETS["digits"].images(CONFIG)


@pytest.fixture(scope="module")
def labels() -> torch.Tensor:
    return DATA_SETS["digits"].labels(CONFIG, 1797)


@pytest.fixture(scope="module")
def out_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def metrics(images, out_dir) -> ClassifierMetrics:
    return ClassifierMetrics(CONFIG, images, out_dir, CPU)


def some(images: torch.Tensor, n: int, seed: int = 5) -> torch.Tensor:
    return images[torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:n]]


def test_real_images_score_like_the_floor_and_noise_scores_far_worse(metrics, images):
    floor = metrics.floor(400, 0)
    assert floor.keys() == {f"classifier_{name}" for name in ("fid", "precision", "recall")}
    real = metrics.measure(some(images, 400))
    assert 0.3 < real["classifier_fid"] / floor["classifier_fid"] < 1.5
    assert real["classifier_precision"] > 0.9
    assert real["classifier_recall"] > 0.9
    noise = torch.randint(256, (400, 1, 8, 8), dtype=torch.uint8)
    found = metrics.measure(noise)
    assert found["classifier_fid"] > 20 * floor["classifier_fid"]
    assert found["classifier_precision"] < 0.5
    assert metrics.noise_precision() < 0.5


def test_missing_class_lowers_recall_not_precision(metrics, images, labels):
    whole = metrics.measure(some(images, 400))
    lost = metrics.measure(some(images[labels > 2], 400))
    assert lost["classifier_recall"] < whole["classifier_recall"] - 0.15
    assert lost["classifier_precision"] > whole["classifier_precision"] - 0.05
    assert lost["classifier_fid"] > 2 * whole["classifier_fid"]


def test_reference_is_half_of_the_images_if_there_are_no_others(metrics, images):
    rows = {image.numpy().tobytes() for image in images}
    assert len(rows) == len(images)  # all different, so features tell images apart
    reference = {row.numpy().tobytes() for row in metrics._reference}
    others = {row.numpy().tobytes() for row in metrics._features(metrics._rest)}
    assert len(reference) == 898
    assert len(others) == 899
    assert not reference & others
    everything = {row.numpy().tobytes() for row in metrics._features(images)}
    assert len(everything & (reference | others)) > 1700  # the rest differs by rounding


@pytest.fixture
def compared(monkeypatch) -> list[set[bytes]]:
    """Rows of the features that are compared, samples and reference in turn."""
    seen: list[set[bytes]] = []

    def note(samples, real, device):
        seen.extend({row.numpy().tobytes() for row in part} for part in (samples, real))
        return {}

    monkeypatch.setattr(classifier, "compare_features", note)
    return seen


def test_each_floor_compares_disjoint_halves_of_another_split(metrics, compared):
    for split in range(3):
        metrics.floor(5000, split)
        samples, reference = compared[-2:]
        assert (len(samples), len(reference)) == (899, 898)
        assert not samples & reference
    halves = compared[::2]
    assert 300 < len(halves[0] & halves[1]) < 600
    metrics.floor(5000, 0)
    assert compared[-2] == halves[0]


def test_test_images_are_the_reference_of_a_set_that_has_some(
    images, labels, out_dir, compared, monkeypatch
):
    kind = replace(
        DATA_SETS["digits"],
        read_images=lambda _: images[:1200],
        read_labels=lambda _: labels[:1200],
        read_test=lambda _: images[1200:],
    )
    monkeypatch.setitem(DATA_SETS, "digits", kind)
    metrics = ClassifierMetrics(CONFIG, images[:1200], out_dir, CPU)
    assert (metrics.about, metrics.used(5000)) == ("597 test images", 1200)
    for split in (0, 1):
        metrics.floor(800, split)
    first, reference, second, again = compared
    test = {row.numpy().tobytes() for row in metrics._features(images[1200:])}
    assert reference == again == test
    assert len(first) == len(second) == 800
    assert first != second
    assert not (first | second) & test


def test_at_most_as_many_samples_are_measured_as_the_floor_has(
    metrics, images, out_dir, monkeypatch
):
    assert (metrics.used(400), metrics.used(5000)) == (400, 899)
    assert metrics.measure(images) == metrics.measure(images[:899])
    assert metrics.measure(images[:899]) != metrics.measure(images[:898])
    assert metrics.floor(5000, 1) == metrics.floor(899, 1)
    monkeypatch.setattr(classifier, "MOST", 300)
    few = ClassifierMetrics(CONFIG, images, out_dir, CPU)
    assert (len(few._reference), few.used(5000)) == (300, 300)


def test_float_and_byte_images_score_the_same(metrics, images):
    assert metrics.measure(to_unit_range(images[:50])) == metrics.measure(images[:50])
    assert metrics.measure(to_unit_range(images[:50]) * 3) != metrics.measure(images[:50])


def test_random_images_and_too_few_samples_are_refused(metrics, images, out_dir):
    with pytest.raises(UserError, match="random images have no labels"):
        ClassifierMetrics(replace(CONFIG, fake=True), images, out_dir, CPU)
    with pytest.raises(UserError, match="more than 3 samples"):
        metrics.measure(images[:3])
    with pytest.raises(UserError, match="more than 3 samples"):
        metrics.floor(3, 0)
