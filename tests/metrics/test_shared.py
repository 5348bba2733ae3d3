import sys

import pytest
import torch
import torch_fidelity

from nsgf.metrics.shared import fingerprint, require_fidelity
from nsgf.system.errors import UserError


def test_installed_version_is_told():
    assert require_fidelity("evaluation.inception") == torch_fidelity.__version__


@pytest.mark.parametrize("module", ["torch_fidelity", "torch_fidelity.metric_prc"])
def test_missing_and_old_libraries_end_in_one_line(module, monkeypatch):
    """Those before 0.4 have no precision and recall."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"evaluation\.classifier = true: needs .* 0\.4 .*pip ins"):
        require_fidelity("evaluation.classifier")


def test_fingerprint_follows_values_shape_and_type():
    tensor = torch.arange(6, dtype=torch.uint8)
    others = [tensor + 1, tensor.view(2, 3), tensor.to(torch.int8)]
    assert len({fingerprint(one) for one in (tensor, *others)}) == 4
    assert fingerprint(tensor) == fingerprint(torch.stack([tensor, tensor], dim=1)[:, 0])
