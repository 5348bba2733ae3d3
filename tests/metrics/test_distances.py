import math
import sys

import pytest
import torch
from scipy.optimize import linear_sum_assignment

from nsgf.data import ImageSampler, PointSampler
from nsgf.data.images import to_unit_range
from nsgf.data.points import Gaussian
from nsgf.metrics import distances
from nsgf.metrics.distances import (
    compare_features,
    energy_distance,
    nearest_images,
    require_fidelity,
    w2,
    w2_floor,
)
from nsgf.system.errors import UserError
from tests.system.pretended_card import pretended_card


def test_w2_is_the_root_mean_square_of_the_optimal_assignment():
    x, y = torch.randn(60, 1, 2, 2), 2 * torch.randn(60, 1, 2, 2)
    cost = torch.cdist(x.flatten(1), y.flatten(1)).square().numpy()
    rows, columns = linear_sum_assignment(cost)
    assert w2(x, y) == pytest.approx(math.sqrt(cost[rows, columns].mean()), rel=1e-4)


def test_samples_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="finite"):
        w2(torch.full((2, 2), torch.nan), torch.ones(2, 2))


def test_floor_compares_two_different_draws():
    floor = w2_floor(PointSampler(Gaussian((2,)), 0), 200)
    assert 0.05 < floor < 0.6
    assert w2_floor(PointSampler(Gaussian((2,)), 0), 2000) < floor


def test_floor_of_images_compares_disjoint_halves():
    """No image may stand in both halves: with ten different images no distance is zero."""
    images = (torch.arange(10, dtype=torch.uint8) * 25).view(-1, 1, 1, 1)
    assert w2_floor(ImageSampler(images, 0), 5) >= 25 / 127.5 * 0.99


@pytest.mark.parametrize("flip", [False, True])
def test_nearest_images_are_found_wherever_they_are(flip, monkeypatch):
    """Images are searched in blocks of 10; an image of the set is not its own neighbour."""
    monkeypatch.setattr(distances, "PART_VALUES", 16 * 10)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (25, 1, 4, 4), dtype=torch.uint8, generator=generator)
    own, unit = torch.tensor([3, 11, 24, 0]), to_unit_range(images)
    near = unit[own].flip(-1) if flip else unit[own]
    assert torch.equal(nearest_images(near, images, flip=flip), near)
    found = nearest_images(unit[own], images, flip=flip, own=own)
    for number, image in zip(own.tolist(), found, strict=True):
        others = unit[torch.arange(25) != number]
        others = torch.cat([others, others.flip(-1)]) if flip else others
        expected = (others - unit[number]).square().sum((1, 2, 3)).argmin()
        assert torch.equal(image, others[expected])


def test_energy_distance_between_points_is_known():
    """Points 0, 2 and 1, 5: 2 (1 + 5 + 1 + 3) / 4 - 2 - 4 = -1, an estimate without bias."""
    x, y = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [5.0]])
    assert energy_distance(x, y) == pytest.approx(-1.0)


def test_energy_distance_measures_a_shift_and_is_near_zero_without_one():
    generator = torch.Generator().manual_seed(0)
    x, y, z = torch.randn(3, 4096, 2, generator=generator)
    assert abs(energy_distance(x, y)) < 2e-3
    # to leading order |shift|^2 sqrt(pi) / 4, with |shift|^2 = 0.18
    assert energy_distance(x, z + 0.3) == pytest.approx(0.08, rel=0.2)


@pytest.mark.parametrize("module", ["torch_fidelity", "torch_fidelity.metric_prc"])
def test_missing_or_old_torch_fidelity_is_a_one_line_error(module, monkeypatch):
    """Those before 0.4 have no precision and recall."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"evaluation\.classifier = true: needs .* 0\.4 "):
        require_fidelity("evaluation.classifier")


def test_precision_and_recall_of_known_points_on_cpu_and_card(monkeypatch):
    """Samples 0, 1, 2, 3 and 100 on a line; their balls end at the third neighbour."""
    monkeypatch.setattr(distances, "PRC_BATCH", 4)
    samples, real = (
        torch.tensor(values).unsqueeze(1) * torch.tensor([1.0, 0.0])
        for values in ([0, 1, 2, 3, 100], [-2.0, -2.1, -2.2, -2.3, 2.5, 500, 501, 502, 503])
    )
    places, cdist = set(), torch.cdist

    def seen(x, y):
        places.update([x.device.type, y.device.type])
        return cdist(x, y)

    monkeypatch.setattr(torch, "cdist", seen)
    alone = compare_features(samples, real, torch.device("cpu"))
    assert (alone["precision"], alone["recall"]) == (pytest.approx(4 / 5), pytest.approx(5 / 9))
    assert places == {"cpu"}
    places.clear()
    with pretended_card(capability=(7, 5)):
        assert compare_features(samples, real, torch.device("cuda")) == alone
    assert places == {"cuda"}


@pytest.mark.gpu
def test_card_and_cpu_agree_on_precision_and_recall():
    samples, real = torch.randn(3000, 64), torch.randn(2500, 64) + 0.1
    cpu, card = (compare_features(samples, real, torch.device(name)) for name in ("cpu", "cuda"))
    assert card == pytest.approx(cpu, abs=2e-3)
