import sys

import pytest
import torch
import torch_fidelity

from nsgf.metrics.shared import fingerprint, require_fidelity
from nsgf.system.errors import UserError


def test_installed_version_is_told():
    assert require_fidelity("evaluation.inception") == torch_fidelity.__version__


def test_missing_library_ends_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    with pytest.raises(UserError, match=r"evaluation\.classifier = true: needs .*pip install"):
        require_fidelity("evaluation.classifier")


@pytest.mark.parametrize(("version", "good"), [("0.3.0", False), ("0.4.0b", True), ("1.0", True)])
def test_old_library_has_no_precision_and_recall(version, good, monkeypatch):
    monkeypatch.setattr(torch_fidelity, "__version__", version)
    if good:
        require_fidelity("evaluation.inception")
    else:
        with pytest.raises(UserError, match=r"0\.4 or newer, this is 0\.3\.0"):
            require_fidelity("evaluation.inception")


def test_fingerprint_follows_values_shape_and_type():
    tensor = torch.arange(6, dtype=torch.uint8)
    others = [tensor + 1, tensor.view(2, 3), tensor.to(torch.int8)]
    assert len({fingerprint(one) for one in (tensor, *others)}) == 4
    assert fingerprint(tensor) == fingerprint(torch.stack([tensor, tensor], dim=1)[:, 0])
