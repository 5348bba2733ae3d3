"""Kept features of real images, with a small network in Inception's place."""

import io
import os
import pickle
from pathlib import Path

import pytest
import torch
import torch_fidelity
from torch_fidelity import registry
from torch_fidelity.feature_extractor_base import FeatureExtractorBase

from nsgf.metrics import inception as fidelity
from nsgf.metrics.inception import (
    ByteImages,
    Reference,
    inception_metrics,
)
from nsgf.system.errors import UserError
from tests.run.test_checkpoint import Malicious

CPU = torch.device("cpu")


def images(n: int, low: int, high: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, (n, 1, 28, 28), dtype=torch.uint8, generator=generator)


# --- the cache, with a small network in Inception's place ---------------------------------------


class Tiny(FeatureExtractorBase):
    """Means of rows as features, and means of columns as logits."""

    def __init__(self, name, features_list, **_):
        super().__init__(name, features_list)

    @staticmethod
    def get_provided_features_list():
        return "2048", "logits_unbiased"

    @staticmethod
    def get_default_feature_layer_for_metric(metric):
        return "logits_unbiased" if metric == "isc" else "2048"

    def forward(self, x):
        means = {"2048": x.float().mean((1, 2)), "logits_unbiased": x.float().mean((1, 3))}
        return tuple(means[name] for name in self.features_list)


@pytest.fixture
def tiny_network(monkeypatch):
    monkeypatch.setitem(registry.FEATURE_EXTRACTORS_REGISTRY, fidelity.EXTRACTOR, Tiny)


@pytest.fixture
def read(monkeypatch):
    """How many images were read since, by the first of their values."""
    found: list[int] = []
    ordinary = ByteImages.__getitem__

    def counted(self, index):
        found.append(int(self._images.flatten()[0]))
        return ordinary(self, index)

    monkeypatch.setattr(ByteImages, "__getitem__", counted)
    return found


class Case:
    """20 samples against 30 real images that begin with the value 7."""

    def __init__(self, cache: Path) -> None:
        self.samples = images(20, 0, 256)
        real = images(30, 50, 200, seed=1)
        real[0, 0, 0, 0] = 7
        self.reference = Reference(real, "mnist", cache)
        self.said: list[str] = []

    def measure(self, weights=None, samples=None, reference=None):
        self.said.clear()
        chosen = self.samples if samples is None else samples
        return inception_metrics(
            chosen, reference or self.reference, weights, CPU, 8, self.said.append
        )

    def files(self, part: str) -> list[Path]:
        return sorted(self.reference.cache.glob(f"*{part}*"))


@pytest.fixture
def case(tmp_path, tiny_network, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield Case(tmp_path / "cache")
    assert not Path("executed").exists()


def test_real_images_go_through_the_network_once(case, read):
    first = case.measure()
    assert 7 in read
    assert "kept in" in case.said[0]
    read.clear()
    assert case.measure() == first
    assert read
    assert 7 not in read
    assert case.said == []


def test_other_samples_use_the_same_kept_features(case, read):
    first = case.measure()
    read.clear()
    other = case.measure(samples=case.reference.images[:20].clone() // 2)
    assert other["fid"] != first["fid"]
    assert other["inception_reference"] == first["inception_reference"]
    assert len(case.files("features-2048")) == 1


def test_what_changes_the_features_changes_the_file(case, tmp_path, monkeypatch):
    real = case.reference.images
    case.measure()
    for weights in (b"a", b"b"):
        (tmp_path / "w.pth").write_bytes(weights)
        case.measure(str(tmp_path / "w.pth"))
    for other in (real[:29], real.flip(-1)):
        case.measure(reference=Reference(other, "mnist", case.reference.cache))
    case.measure(reference=Reference(real, "mnist random", case.reference.cache))
    monkeypatch.setattr(torch_fidelity, "__version__", "0.9.9")
    case.measure()
    assert len(case.files("features-2048")) == 7


def saved(content) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


BAD = {
    "pickle": pickle.dumps(Malicious()),
    "torch": saved(Malicious()),
    "text": b"no features",
    "empty": b"",
    "fewer": saved(torch.ones(29, 28)),
    "other type": saved(torch.ones(30, 28, dtype=torch.float64)),
    "flat": saved(torch.ones(30)),
    "not finite": saved(torch.full((30, 28), torch.nan)),
    "dictionary": saved({"x": torch.ones(30, 28)}),
    "huge": saved(torch.ones(1).expand(30, 2**50)),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("part", ["features-2048", "features-logits", "stat-fid"])
def test_bad_files_are_computed_again(kind, part, case):
    good = case.measure()
    (file,) = case.files(part)
    file.write_bytes(BAD[kind])
    assert case.measure() == good
    assert [line for line in case.said if "computed again" in line] == (
        case.said if part != "stat-fid" else []
    )
    assert case.said or part == "stat-fid"


def test_one_flipped_bit_is_noticed(case):
    good = case.measure()
    (file,) = case.files("features-2048")
    content = bytearray(file.read_bytes())
    place = content.find(torch.load(file, weights_only=True)[3].numpy().tobytes())
    assert place > 0
    content[place] ^= 1
    file.write_bytes(content)
    assert case.measure() == good
    assert "checksum" in case.said[0]


def test_a_pipe_in_the_cache_is_not_waited_for(case):
    good = case.measure()
    (file,) = case.files("features-2048")
    file.unlink()
    os.mkfifo(file)
    assert case.measure() == good


def test_a_folder_in_the_place_of_a_file_is_named(case):
    case.measure()
    (file,) = case.files("features-2048")
    file.unlink()
    file.mkdir()
    with pytest.raises(UserError, match="cannot remove"):
        case.measure()


def test_an_interrupted_write_leaves_no_half_file(case, monkeypatch):
    def interrupted(content, stream):
        stream.write(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("torch_fidelity.utils_torch.torch.save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            case.measure()
    assert list(case.reference.cache.iterdir()) == []
    case.measure()
    assert "kept in" in case.said[0]


def test_what_numbers_depend_on_is_told(case, tmp_path):
    (tmp_path / "w.pth").write_bytes(b"abc")
    found = case.measure(str(tmp_path / "w.pth"))
    assert found["inception_samples"] == 20
    assert found["inception_weights"] == "w.pth, sha256 ba7816bf8f01..."
    assert found["inception_reference"].startswith(
        "mnist train, 30 images, 28x28 grey replicated to 3 channels, not flipped, resized to "
        "299x299 by torch-fidelity (TF1 bilinear), sha256 of the pixels "
    )
    assert torch_fidelity.__version__ in found["inception_library"]
    assert found["kid_subset_size"] == 20
    colour = Reference(images(6, 0, 9).expand(-1, 3, -1, -1), "cifar10", tmp_path)
    assert "colour" in colour.describe()
    assert "grey" not in colour.describe()


def test_precision_is_of_samples_and_recall_of_real_images(case):
    """Samples that are a few of the real images have full precision, and little recall."""
    real = case.reference.images
    found = case.measure(samples=real[:4].repeat(5, 1, 1, 1))
    assert found["precision"] == 1
    assert found["recall"] < 0.5


def test_too_few_samples_are_refused(case):
    with pytest.raises(UserError, match="more than 3 samples"):
        case.measure(samples=case.samples[:3])


def test_foreign_weights_are_asked_about(tmp_path):
    torch.save({"x": torch.ones(2)}, tmp_path / "w.pth")
    reference = Reference(images(6, 0, 9), "mnist", tmp_path / "cache")
    with pytest.raises(UserError, match=r"w\.pth the Inception weights"):
        inception_metrics(images(6, 0, 9), reference, str(tmp_path / "w.pth"), CPU, 2)
