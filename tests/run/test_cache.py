"""Values that are kept in files: fingerprints, and what happens to damaged and hostile files."""

from unittest.mock import Mock

import pytest
import torch

from nsgf.run.cache import fingerprint, load_or_compute
from tests.run.test_hostile_files import WEIGHTS, _nothing_is_executed  # noqa: F401


def test_fingerprint_follows_values_shape_and_type():
    tensor = torch.arange(6, dtype=torch.uint8)
    others = [tensor + 1, tensor.view(2, 3), tensor.to(torch.int8)]
    assert len({fingerprint(one) for one in (tensor, *others)}) == 4
    assert fingerprint(tensor) == fingerprint(torch.stack([tensor, tensor], dim=1)[:, 0])


class Kept:
    """A tensor in a file, how often it was computed, and what was said."""

    def __init__(self, folder) -> None:
        self.file, self.value, self.said = folder / "x.pt", torch.arange(40.0), []
        self.compute = Mock(return_value=self.value)

    def get(self) -> list[float]:
        self.said.clear()
        return load_or_compute(self.file, torch.Tensor.tolist, self.compute, self.said.append)


@pytest.fixture
def kept(tmp_path) -> Kept:
    kept = Kept(tmp_path)
    kept.get()
    return kept


def test_value_is_computed_once(kept):
    assert kept.get() == kept.value.tolist()
    assert kept.compute.call_count == 1
    assert kept.said == []


@pytest.mark.parametrize("error", [OSError(28, "disk full"), RuntimeError("disk full")])
def test_value_that_cannot_be_kept_is_used(error, tmp_path, monkeypatch):
    kept = Kept(tmp_path)
    monkeypatch.setattr(torch, "save", Mock(side_effect=error))
    assert kept.get() == kept.value.tolist()
    assert "disk full" in kept.said[0]
    assert not kept.file.exists()


@pytest.mark.parametrize("kind", [*WEIGHTS, "empty", "flipped bit"])
def test_bad_files_are_computed_again_and_replaced(kind, kept):
    content = bytearray(kept.file.read_bytes())
    content[content.find(kept.value[3].numpy().tobytes() + kept.value[4].numpy().tobytes())] ^= 1
    kept.file.write_bytes({"empty": b"", "flipped bit": content, **WEIGHTS}[kind])
    assert kept.get() == kept.value.tolist()
    assert len(kept.said) == 1
    assert str(kept.file) in kept.said[0]
    assert kept.get() == kept.value.tolist()
    assert kept.compute.call_count == 2
