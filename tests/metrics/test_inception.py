import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from nsgf.config.schema import DataConfig
from nsgf.data import DATA_SETS, Data
from nsgf.metrics import features
from nsgf.metrics.features import PUBLISHED, FeatureMetrics, Inception
from nsgf.system.errors import UserError
from tests.conftest import CPU
from tests.run.test_checkpoint import Malicious


def mnist_of(images):
    """Data of MNIST's shape, without files, classes and test images."""
    record = replace(
        DATA_SETS["mnist"], read_images=lambda *_: images, has_test=False, class_names=()
    )
    return Data(record, DataConfig(name="mnist"), 0)


def images(n, low, high, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, (n, 1, 28, 28), dtype=torch.uint8, generator=generator)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """torch-fidelity's Inception network with random weights."""
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    holder = {}

    class Empty(FeatureExtractorInceptionV3):
        def load_state_dict(self, state_dict, *args, **kwargs):
            holder["state"] = {
                key: value.clone() for key, value in torch.nn.Module.state_dict(self).items()
            }

    file = tmp_path_factory.mktemp("inception") / "weights.pth"
    torch.save({}, file)
    torch.manual_seed(0)
    Empty("inception-v3-compat", ["2048"], feature_extractor_weights_path=str(file))
    for value in holder["state"].values():  # torch's own start would leave all features near zero
        if value.ndim > 1:
            torch.nn.init.kaiming_normal_(value)
    torch.save(holder["state"], file)
    return str(file)


def write_folder(folder, pixels):
    folder.mkdir()
    for number, image in enumerate(pixels):
        Image.fromarray(image[0].numpy()).save(folder / f"{number:03}.png")
    return str(folder)


@pytest.mark.e2e
def test_measures_equal_those_of_torch_fidelity(weights, tmp_path):
    """The same samples in the same order, grey there turned into colour by reading PNG files.

    Past mistake: torch-fidelity uses VGG16 for precision and recall by default. Its default was
    taken from the help, and the two measures did not work beside FID.
    """
    from torch_fidelity import calculate_metrics

    samples, real = images(16, 0, 256), images(20, 0, 200, seed=1)
    real[:10] = samples[:10]
    network = Inception(Path(weights))
    metrics = FeatureMetrics(network, mnist_of(real), tmp_path, CPU, lambda _: None)
    found = metrics.measure(samples)
    theirs = calculate_metrics(
        input1=write_folder(tmp_path / "samples", samples),
        input2=write_folder(tmp_path / "real", real),
        isc=True,
        fid=True,
        kid=True,
        prc=True,
        feature_extractor="inception-v3-compat",
        feature_extractor_weights_path=weights,
        batch_size=8,
        isc_splits=10,
        kid_subset_size=16,
        cuda=False,
        cache=False,
        verbose=False,
        save_cpu_ram=True,
    )
    for ours, name in (
        ("fid", "frechet_inception_distance"),
        ("inception_score", "inception_score_mean"),
        ("inception_score_std", "inception_score_std"),
        ("kid", "kernel_inception_distance_mean"),
        ("kid_std", "kernel_inception_distance_std"),
        ("precision", "precision"),
        ("recall", "recall"),
    ):
        assert found[ours] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), ours
    assert found["inception_score"] > 1 + 1e-4
    assert 0 < found["precision"] < 1 or 0 < found["recall"] < 1


@pytest.fixture
def loads(monkeypatch):
    """What reaches torch-fidelity's network in place of its own loading."""
    given = []

    class Loads:
        def __init__(self, *_, feature_extractor_weights_path):
            given.append(torch.load(feature_extractor_weights_path, weights_only=False))

    monkeypatch.setattr(
        "torch_fidelity.feature_extractor_inceptionv3.FeatureExtractorInceptionV3", Loads
    )
    return given


def test_weights_file_is_read_once(loads, tmp_path, monkeypatch):
    """Whatever takes its place after it was checked is not looked at.

    Past mistake: A file was checked and then handed to torch-fidelity, which unpickles it. A file
    that changed in between could run code.
    """
    file, checked = tmp_path / "w.pth", torch.load
    torch.save({"x": torch.ones(2)}, file)

    def load(*args, **how):
        file.write_bytes(b"another")
        return checked(*args, **how)

    monkeypatch.setattr("nsgf.metrics.features.torch.load", load)
    Inception(file)
    assert torch.equal(loads[0]["x"], torch.ones(2))


def test_malicious_file_in_the_torch_cache_is_not_executed(loads, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    torch.save({"x": Malicious()}, tmp_path / "checkpoints" / PUBLISHED)
    with pytest.raises(UserError, match=f"^\\S+{PUBLISHED}: .*not the published weights"):
        Inception()
    assert not (tmp_path / "executed").exists()
    assert not loads


def test_published_weights_are_downloaded_once_and_their_checksum_checked(
    loads, tmp_path, monkeypatch
):
    said = []

    def unreachable(*_, **__):
        raise OSError("no route to host")

    def download(url, file, sha256, progress):
        said.append((url, sha256))
        torch.save({"x": torch.ones(2)}, file)

    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr("torch.hub.download_url_to_file", unreachable)
    with pytest.raises(UserError, match=r"no route to host.*evaluation.inception_weights=FILE"):
        Inception()
    monkeypatch.setattr("torch.hub.download_url_to_file", download)
    with pytest.raises(UserError, match="not the published weights"):
        Inception()
    file = tmp_path / "hub" / "checkpoints" / PUBLISHED
    monkeypatch.setattr(features, "INCEPTION_SHA256", hashlib.sha256(file.read_bytes()).hexdigest())
    assert Inception().name.startswith(f"{PUBLISHED}, sha256 {features.INCEPTION_SHA256[:12]}...")
    assert said == [(features.URL, said[0][1])]
    assert said[0][1].startswith("6726825d")
    assert len(loads) == 1


@pytest.mark.parametrize("kind", ["missing", "damaged", "another network's", "hostile"])
def test_bad_weights_files_give_a_one_line_error_and_execute_nothing(kind, tmp_path, monkeypatch):
    """Past mistake: torch-fidelity unpickles the weights file that it gets, so a downloaded file
    could run code.
    """
    monkeypatch.chdir(tmp_path)
    if kind == "damaged":
        (tmp_path / "w.pth").write_bytes(b"no weights")
    elif kind != "missing":
        content = Malicious() if kind == "hostile" else torch.ones(2)
        torch.save({"x": content}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"^evaluation\.inception_weights = .*w\.pth") as caught:
        Inception(tmp_path / "w.pth")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()


# --- kept features of real images, with a small network in Inception's place ---


class Tiny(Inception):
    """Means of rows as features, and means of columns as logits, in turn."""

    spaces = (("inception", slice(0, None, 2)), ("logits", slice(1, None, 2)))

    def __init__(self, weights="a"):
        self.name, self.key, self.read = f"{weights}.pth", f"{weights}", []
        """``read``: first values of the images that were."""

    def features(self, images, title, device):
        self.read.append(int(images.flatten()[0]))
        x = images.float()[:, 0]
        return torch.stack([x.mean(1), x.mean(2)], 2).flatten(1)


SAMPLES, REAL = images(20, 0, 256), images(30, 50, 200, seed=1)
REAL[0, 0, 0, 0] = 7


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache").mkdir()
    yield tmp_path / "cache"
    assert not Path("executed").exists()


def measure(cache, network=None, samples=SAMPLES, real=REAL):
    """Measures, and what was said."""
    said = []
    metrics = FeatureMetrics(network or Tiny(), mnist_of(real), cache, CPU, said.append)
    return metrics.measure(samples), said


def test_features_of_real_images_are_computed_once(cache):
    """All that changes the features changes the name of their file."""
    network = Tiny()
    first, said = measure(cache, network)
    assert (network.read[0], len(said)) == (7, 1)
    network.read.clear()
    assert measure(cache, network) == (first, [])
    assert len(network.read) == 1
    assert 7 not in network.read
    other, _ = measure(cache, samples=REAL[:20] // 2)
    assert other["fid"] != first["fid"]
    assert len(list(cache.glob(".features/*"))) == 1
    measure(cache, Tiny("b"))
    for real in (REAL[:29], REAL.flip(-1)):
        measure(cache, real=real)
    assert len(list(cache.glob(".features/*"))) == 4


BAD = [Malicious(), torch.ones(29, 56), torch.ones(30, 56).double(), torch.ones(30)]


@pytest.mark.parametrize("content", BAD)
def test_features_in_bad_files_are_computed_again(content, cache):
    good, _ = measure(cache)
    (file,) = cache.glob(".features/*")
    torch.save(content, file)
    found, said = measure(cache)
    assert found == good
    assert "computing it again" in said[0]
