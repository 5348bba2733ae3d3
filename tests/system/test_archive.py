"""Fingerprints; that damaged and foreign files are refused is tested with what reads them."""

import torch

from nsgf.system.archive import fingerprint


def test_fingerprint_follows_values_shape_and_type():
    tensor = torch.arange(6, dtype=torch.uint8)
    others = [tensor + 1, tensor.view(2, 3), tensor.to(torch.int8)]
    assert len({fingerprint(one) for one in (tensor, *others)}) == 4
    assert fingerprint(tensor) == fingerprint(torch.stack([tensor, tensor], dim=1)[:, 0])
