from dataclasses import replace

import pytest
import torch

from nsgf.config.schema import DataConfig
from nsgf.data import data_set
from nsgf.data.images import to_unit_range
from nsgf.metrics import classifier
from nsgf.metrics.classifier import ClassifierMetrics
from nsgf.system.errors import UserError

CPU = torch.device("cpu")
CONFIG = DataConfig(name="digits")


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return data_set("digits").images(CONFIG)


@pytest.fixture(scope="module")
def labels() -> torch.Tensor:
    return data_set("digits").labels(CONFIG)


@pytest.fixture(scope="module")
def out_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def metrics(images, out_dir) -> ClassifierMetrics:
    return ClassifierMetrics(CONFIG, images, out_dir, CPU)


def some(images: torch.Tensor, n: int, seed: int = 5) -> torch.Tensor:
    return images[torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:n]]


def test_real_images_score_like_the_floor_and_noise_far_worse(metrics, images):
    floor = metrics.floor(400)
    assert floor.keys() == {f"classifier_{name}" for name in ("fid", "precision", "recall")}
    real = metrics.measure(some(images, 400))
    assert 0.3 < real["classifier_fid"] / floor["classifier_fid"] < 1.5
    assert real["classifier_precision"] > 0.9
    assert real["classifier_recall"] > 0.9
    noise = torch.randint(256, (400, 1, 8, 8), dtype=torch.uint8)
    found = metrics.measure(noise)
    assert found["classifier_fid"] > 20 * floor["classifier_fid"]
    assert found["classifier_precision"] < 0.5


def test_a_lost_class_lowers_recall_not_precision(metrics, images, labels):
    whole = metrics.measure(some(images, 400))
    lost = metrics.measure(some(images[labels > 2], 400))
    assert lost["classifier_recall"] < whole["classifier_recall"] - 0.15
    assert lost["classifier_precision"] > whole["classifier_precision"] - 0.05
    assert lost["classifier_fid"] > 2 * whole["classifier_fid"]


def test_reference_and_floor_have_no_image_in_common(metrics, images):
    rows = {image.numpy().tobytes() for image in images}
    assert len(rows) == len(images)  # all different, so features tell images apart
    reference = {row.numpy().tobytes() for row in metrics._reference}
    others = {row.numpy().tobytes() for row in metrics._features(metrics._others)}
    assert len(reference) == metrics.reference_size == 898
    assert len(others) == 899
    assert not reference & others
    everything = {row.numpy().tobytes() for row in metrics._features(images)}
    assert len(everything & (reference | others)) > 1700  # the rest differs by rounding


def test_as_many_samples_count_as_the_floor_has_images(metrics, images):
    assert (metrics.used(400), metrics.used(5000)) == (400, 899)
    assert metrics.measure(images) == metrics.measure(images[:899])
    assert metrics.measure(images[:899]) != metrics.measure(images[:898])
    assert metrics.floor(5000) == metrics.floor(899)


def test_the_reference_of_a_large_set_is_bounded(images, out_dir, monkeypatch):
    monkeypatch.setattr(classifier, "MOST", 300)
    few = ClassifierMetrics(CONFIG, images, out_dir, CPU)
    assert (few.reference_size, few.used(5000)) == (300, 300)


def test_floats_and_bytes_are_the_same_images(metrics, images):
    assert metrics.measure(to_unit_range(images[:50])) == metrics.measure(images[:50])
    assert metrics.measure(to_unit_range(images[:50]) * 3) != metrics.measure(images[:50])


def test_numbers_are_those_of_torch_fidelitys_whole_calculation(metrics, images, monkeypatch):
    from torch_fidelity import calculate_metrics, registry
    from torch_fidelity.feature_extractor_base import FeatureExtractorBase

    class Rows(FeatureExtractorBase):
        """Rows of features that were made before, one an image."""

        def __init__(self, name, features_list, **_):
            super().__init__(name, features_list)

        @staticmethod
        def get_provided_features_list():
            return ("row",)

        @staticmethod
        def get_default_feature_layer_for_metric(metric):
            return "row"

        def forward(self, x):
            return (x,)

    class Listed(torch.utils.data.Dataset):
        def __init__(self, rows):
            self.rows = rows

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            return self.rows[index]

    monkeypatch.setitem(registry.FEATURE_EXTRACTORS_REGISTRY, "rows", Rows)
    samples = some(images, 200) // 2
    found = metrics.measure(samples)
    theirs = calculate_metrics(
        input1=Listed(metrics._features(samples)),
        input2=Listed(metrics._reference),
        feature_extractor="rows",
        fid=True,
        prc=True,
        cuda=False,
        cache=False,
        verbose=False,
        save_cpu_ram=True,
    )
    assert found["classifier_fid"] == pytest.approx(theirs["frechet_inception_distance"], rel=1e-6)
    assert found["classifier_precision"] == pytest.approx(theirs["precision"], abs=0.006)
    assert found["classifier_recall"] == pytest.approx(theirs["recall"], abs=0.006)


def test_a_second_object_measures_the_same(metrics, images, out_dir):
    again = ClassifierMetrics(CONFIG, images, out_dir, CPU, lambda _: pytest.fail("trained"))
    assert again.measure(images[:100]) == metrics.measure(images[:100])
    assert again.floor(100) == metrics.floor(100)
    assert again.accuracy == metrics.accuracy >= 0.97


def test_random_images_and_missing_labels_are_refused(images, out_dir):
    with pytest.raises(UserError, match="random images have no labels"):
        ClassifierMetrics(replace(CONFIG, fake=True), images, out_dir, CPU)
    with pytest.raises(UserError, match="1797 labels of 1000 images"):
        ClassifierMetrics(CONFIG, images[:1000], out_dir, CPU)


def test_too_few_samples_are_refused(metrics, images):
    with pytest.raises(UserError, match="more than 3 samples"):
        metrics.measure(images[:3])


def test_features_do_not_depend_on_what_was_measured_together(metrics, images):
    whole = metrics._features(images[:1200])
    torch.testing.assert_close(whole[1100:], metrics._features(images[1100:1200]))
