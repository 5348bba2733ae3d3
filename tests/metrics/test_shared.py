import itertools
import sys

import pytest
import torch
import torch_fidelity

from nsgf.metrics import shared
from nsgf.metrics.shared import distances, require_fidelity
from nsgf.system.errors import UserError
from tests.system.pretended_card import pretended_card


def test_installed_version_is_told():
    assert require_fidelity("evaluation.inception") == torch_fidelity.__version__


@pytest.mark.parametrize("module", ["torch_fidelity", "torch_fidelity.metric_prc"])
def test_missing_and_old_libraries_end_in_one_line(module, monkeypatch):
    """Those before 0.4 have no precision and recall."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"evaluation\.classifier = true: needs .* 0\.4 .*pip ins"):
        require_fidelity("evaluation.classifier")


def test_precision_and_recall_by_hand_and_on_a_card(monkeypatch):
    """Samples 0, 1, 2, 3 and 100 on a line; their balls end at the third neighbour."""
    monkeypatch.setattr(shared, "PRC_BATCH", 4)
    samples, real = (
        torch.tensor(values).unsqueeze(1) * torch.tensor([1.0, 0.0])
        for values in ([0, 1, 2, 3, 100], [-2.0, -2.1, -2.2, -2.3, 2.5, 500, 501, 502, 503])
    )
    said, places, cdist = [], set(), torch.cdist

    def seen(x, y):
        places.update([x.device.type, y.device.type])
        return cdist(x, y)

    monkeypatch.setattr(torch, "cdist", seen)
    alone = distances(samples, real, torch.device("cpu"), said.append)
    assert (alone["precision"], alone["recall"]) == (pytest.approx(4 / 5), pytest.approx(5 / 9))
    assert places == {"cpu"}
    places.clear()
    with pretended_card(capability=(7, 5)):
        assert distances(samples, real, torch.device("cuda"), said.append) == alone
    assert places == {"cuda"}
    assert said == []


def test_long_work_is_said_before(monkeypatch):
    """Blocks of 4 x 4 that take 5 seconds each: 16 of them."""
    monkeypatch.setattr(shared, "PRC_BATCH", 4)
    clock = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: 5 * next(clock))
    said: list[str] = []
    x = torch.randn(10, 3)
    distances(x, x[:6], torch.device("cpu"), said.append)
    assert said == ["precision and recall of 10 samples and 6 real images: about 1.3 min"]


@pytest.mark.gpu
def test_a_card_finds_the_precision_and_recall_of_a_cpu():
    samples, real = torch.randn(3000, 64), torch.randn(2500, 64) + 0.1
    cpu, card = (
        distances(samples, real, torch.device(name), lambda _: None) for name in ("cpu", "cuda")
    )
    assert card == pytest.approx(cpu, abs=2e-3)
