import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from nsgf.metrics.inception import (
    ByteImages,
    Reference,
    check_weights,
    inception_metrics,
)
from nsgf.system.errors import UserError
from tests.metrics.test_inception_cache import images
from tests.run.test_checkpoint import Malicious

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
    """torch-fidelity's Inception network with random weights."""
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    holder: dict[str, dict] = {}

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


def write_folder(folder: Path, pixels: torch.Tensor) -> str:
    folder.mkdir()
    for number, image in enumerate(pixels):
        Image.fromarray(image[0].numpy()).save(folder / f"{number:03}.png")
    return str(folder)


def by_command_line(samples: str, real: str, weights: str) -> dict[str, float]:
    """torch-fidelity's own program on two folders of PNG files."""
    words = ["--input1", samples, "--input2", real, "--cpu", "--no-cache", "--json", "--silent"]
    words += ["--isc", "--fid", "--kid", "--prc", "--isc-splits", "10", "--kid-subset-size", "16"]
    words += ["--feature-extractor", "inception-v3-compat", "--save-cpu-ram", "-b", "8"]
    words += ["--feature-extractor-weights-path", weights]
    result = subprocess.run(
        [sys.executable, "-m", "torch_fidelity.fidelity", *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
    )
    return json.loads(result.stdout[result.stdout.index("{") :])


@pytest.mark.e2e
def test_numbers_are_those_of_torch_fidelitys_own_program(weights, tmp_path):
    """The same samples in the same order, grey there turned into colour by reading PNG files."""
    samples, real = images(16, 0, 256), images(20, 0, 200, seed=1)
    real[:10] = samples[:10]
    found = inception_metrics(
        samples, Reference(real, "mnist", tmp_path / "cache"), weights, CPU, 5, lambda _: None
    )
    theirs = by_command_line(
        write_folder(tmp_path / "samples", samples), write_folder(tmp_path / "real", real), weights
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


def test_grey_images_are_repeated_in_three_channels():
    grey = images(4, 0, 256)
    data = ByteImages(grey)
    assert len(data) == 4
    assert data[2].shape == (3, 28, 28)
    assert data[2].dtype == torch.uint8
    assert torch.equal(data[2][1], grey[2, 0])


def test_missing_weights_file_is_named():
    with pytest.raises(UserError, match=r"inception_weights = nowhere\.pth"):
        check_weights(Path("nowhere.pth"))


def test_weights_file_cannot_execute_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"x": Malicious()}, tmp_path / "w.pth")
    with pytest.raises(UserError, match="no usable Inception weights"):
        check_weights(Path("w.pth"))
    assert not (tmp_path / "executed").exists()


def test_no_network_ends_in_one_line(monkeypatch, tmp_path):
    """Without a weights file torch-fidelity downloads one."""
    from torch_fidelity import feature_extractor_inceptionv3 as extractor

    def unreachable(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(extractor, "load_state_dict_from_url", unreachable)
    reference = Reference(images(5, 0, 9), "mnist", tmp_path)
    with pytest.raises(UserError, match=r"no route to host.*--inception-weights"):
        inception_metrics(images(5, 0, 9), reference, None, CPU, 2)


def test_unusable_weights_end_in_one_line(tmp_path):
    (tmp_path / "w.pth").write_bytes(b"no weights")
    with pytest.raises(UserError, match="no usable Inception weights") as caught:
        check_weights(tmp_path / "w.pth")
    assert "\n" not in str(caught.value)
