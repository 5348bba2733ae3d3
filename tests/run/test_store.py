"""Values that are kept in files: fingerprints, and what happens to damaged and hostile files."""

from unittest.mock import Mock

import pytest
import torch

from nsgf.run import store
from nsgf.run.store import fingerprint
from tests.run.test_hostile_files import WEIGHTS, _nothing_is_executed  # noqa: F401


def test_fingerprint_follows_values_shape_and_type():
    """Past mistake: A checksum was made in blocks of rows, which a single number does not have.
    The torture script could not read any checkpoint.
    """
    tensor = torch.arange(6, dtype=torch.uint8)
    others = [tensor + 1, tensor.view(2, 3), tensor.to(torch.int8)]
    assert len({fingerprint(one) for one in (tensor, *others)}) == 4
    assert fingerprint(tensor) == fingerprint(torch.stack([tensor, tensor], dim=1)[:, 0])
    assert fingerprint(torch.tensor(1.0)) != fingerprint(torch.tensor(2.0))


VALUE = torch.arange(40.0)


def find(file, said):
    return store.find(file, torch.Tensor.tolist, said.append)


@pytest.mark.parametrize("error", [OSError(28, "disk full"), RuntimeError("disk full")])
def test_value_that_cannot_be_kept_is_one_line(error, tmp_path, monkeypatch):
    file, said = tmp_path / "x.pt", []
    monkeypatch.setattr(torch, "save", Mock(side_effect=error))
    assert not store.keep(file, VALUE, said.append)
    assert "disk full" in said[0]
    assert find(file, said) is None
    assert len(said) == 1


@pytest.mark.parametrize("kind", [*WEIGHTS, "empty", "flipped bit"])
def test_bad_files_are_not_used_and_can_be_replaced(kind, tmp_path):
    file, said = tmp_path / "x.pt", []
    assert store.keep(file, VALUE)
    content = bytearray(file.read_bytes())
    content[content.find(VALUE[3:5].numpy().tobytes())] ^= 1
    file.write_bytes({"empty": b"", "flipped bit": content, **WEIGHTS}[kind])
    assert find(file, said) is None
    assert len(said) == 1
    assert str(file) in said[0]
    store.keep(file, VALUE)
    assert find(file, said) == VALUE.tolist()
