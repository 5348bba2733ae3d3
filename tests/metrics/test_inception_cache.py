"""Kept features of real images, with a small network in Inception's place."""

from pathlib import Path

import pytest
import torch

from nsgf.metrics.inception import Inception, Reference, inception_metrics
from tests.run.test_checkpoint import Malicious

CPU = torch.device("cpu")


def images(n: int, low: int, high: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, (n, 1, 28, 28), dtype=torch.uint8, generator=generator)


class Tiny(Inception):
    """Means of rows as features, and means of columns as logits."""

    version = "0.4.0"

    def __init__(self, weights: str | None = None) -> None:
        weights = weights or "a"
        self.name, self.sha256, self.read = f"w.pth, sha256 {weights}...", weights * 64, []
        """``read``: first values of the images that were."""

    def features(self, images, title, device, batch_size):
        self.read.append(int(images.flatten()[0]))
        x = images.float().expand(-1, 3, -1, -1)
        return x.mean((1, 2)), x.mean((1, 3))


class Case:
    """20 samples against 30 real images that begin with the value 7."""

    def __init__(self, cache: Path) -> None:
        self.samples = images(20, 0, 256)
        real = images(30, 50, 200, seed=1)
        real[0, 0, 0, 0] = 7
        self.reference = Reference(real, "mnist", cache)
        self.said: list[str] = []

    def measure(self, network=None, samples=None, reference=None):
        self.said.clear()
        chosen = self.samples if samples is None else samples
        network, reference = network or Tiny(), reference or self.reference
        return inception_metrics(chosen, reference, network, CPU, 8, self.said.append)

    def file(self) -> Path:
        (file,) = self.reference.cache.iterdir()
        return file


@pytest.fixture
def case(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache").mkdir()
    yield Case(tmp_path / "cache")
    assert not Path("executed").exists()


def test_real_images_go_through_the_network_once(case):
    network = Tiny()
    first = case.measure(network)
    assert network.read[0] == 7
    assert len(case.said) == 1
    network.read.clear()
    assert case.measure(network) == first
    assert len(network.read) == 1
    assert 7 not in network.read
    assert case.said == []
    other = case.measure(samples=case.reference.images[:20].clone() // 2)
    assert other["fid"] != first["fid"]
    assert other["inception_reference"] == first["inception_reference"]
    assert case.file()


def test_each_change_of_the_features_changes_the_file(case, monkeypatch):
    real = case.reference.images
    case.measure()
    case.measure(Tiny("b"))
    for other in (real[:29], real.flip(-1)):
        case.measure(reference=Reference(other, "mnist", case.reference.cache))
    case.measure(reference=Reference(real, "mnist random", case.reference.cache))
    monkeypatch.setattr(Tiny, "version", "0.9.9")
    case.measure()
    assert len(list(case.reference.cache.iterdir())) == 6


BAD = [
    Malicious(),
    torch.ones(29, 28),
    torch.ones(30, 28, dtype=torch.float64),
    torch.ones(30),
]


@pytest.mark.parametrize("content", BAD)
def test_bad_files_are_computed_again(content, case):
    good = case.measure()
    torch.save(content, case.file())
    assert case.measure() == good
    assert "computed again" in case.said[0]
