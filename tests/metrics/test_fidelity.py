from pathlib import Path

import pytest
import torch

from nsgf.data.images import to_unit_range
from nsgf.errors import UserError
from nsgf.metrics.fidelity import ByteImages, check_weights, inception_metrics
from tests.test_checkpoint import Malicious

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


def images(n: int, low: int, high: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, (n, 1, 28, 28), dtype=torch.uint8, generator=generator)


@pytest.mark.e2e
def test_fid_and_inception_score_with_given_weights(weights):
    """Identical samples have Inception score 1, the varied real images would not."""
    samples = to_unit_range(images(1, 0, 256).expand(4, -1, -1, -1))
    found = inception_metrics(samples, images(4, 0, 40, seed=1), weights, CPU, 4)
    assert found["fid"] > 1e-3
    assert found["inception_score"] == pytest.approx(1, abs=1e-5)
    assert set(found) == {"fid", "inception_score", "inception_score_std"}


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


def test_no_network_ends_in_one_line(monkeypatch):
    """Without a weights file torch-fidelity downloads one."""
    from torch_fidelity import feature_extractor_inceptionv3 as extractor

    def unreachable(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(extractor, "load_state_dict_from_url", unreachable)
    with pytest.raises(UserError, match=r"no route to host.*--inception-weights"):
        inception_metrics(torch.zeros(2, 1, 28, 28), images(2, 0, 9), None, CPU, 2)


def test_unusable_weights_end_in_one_line(tmp_path):
    (tmp_path / "w.pth").write_bytes(b"no weights")
    with pytest.raises(UserError, match="no usable Inception weights") as caught:
        check_weights(tmp_path / "w.pth")
    assert "\n" not in str(caught.value)
