import math
import sys

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment, linprog

from nsgf.data.images import to_unit_range
from nsgf.metrics import distances
from nsgf.metrics.distances import (
    classifier_auc,
    column_distances,
    kernel_distance,
    nearest_images,
    precision_and_recall,
    require_fidelity,
)
from nsgf.sinkhorn.energy import energy_distance
from nsgf.sinkhorn.exact import w2
from nsgf.system.errors import UserError
from tests.system.pretended_card import pretended_card


def assigned(x, y):
    """The least sum of squared distances of pairs, by scipy."""
    cost = torch.cdist(x.flatten(1), y.flatten(1)).square().numpy()
    return cost[linear_sum_assignment(cost)].sum()


@pytest.mark.parametrize(("unit", "far"), [(1e-12, 1e4), (1e-8, 1e4), (1e12, 1e4), (1, 1e8)])
def test_w2_is_that_of_an_assignment_in_all_units_and_with_far_outliers(unit, far):
    """Outliers of both clouds are paired, at the distance 1; the others as without them."""
    x, y = torch.randn(60, 1, 2, 2).double(), 2 * torch.randn(60, 1, 2, 2).double()
    assert w2(unit * x, unit * y) == pytest.approx(unit * math.sqrt(assigned(x, y) / 60))
    expected = math.sqrt((assigned(x[1:], y[:-1]) + 1) / 60)
    x[0], y[-1] = far, far
    y[-1, 0, 0, 0] += 1
    assert w2(x, y) == pytest.approx(expected)


@pytest.mark.parametrize("far", [1, 1e6])
@pytest.mark.parametrize("unit", [1e-9, 1])
def test_w2_between_clouds_of_different_sizes_is_that_of_a_linear_program(far, unit):
    x, y = torch.randn(9, 2).double(), torch.randn(6, 2).double()
    cost = torch.cdist(x, y).square().numpy()
    rows, columns = np.kron(np.eye(9), np.ones(6)), np.kron(np.ones(9), np.eye(6))
    masses = np.repeat([1 / 9, 1 / 6], [9, 6])
    least = linprog(cost.ravel(), A_eq=np.vstack([rows, columns]), b_eq=masses).fun
    assert w2(unit * x, unit * y) == pytest.approx(unit * math.sqrt(least))
    apart = torch.tensor([far, 0]).double()  # two such clouds, of which nothing moves to the other
    x, y = torch.cat([x, x + 1000 * apart]), torch.cat([y, y + 1000 * apart])
    assert w2(unit * x, unit * y) == pytest.approx(unit * math.sqrt(least))


@pytest.mark.parametrize("flip", [False, True])
def test_nearest_images_are_found_wherever_they_are(flip, monkeypatch):
    """Images are searched in blocks of 10; an image of the set is not its own neighbour."""
    monkeypatch.setattr(distances, "PART_VALUES", 16 * 10)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (25, 1, 4, 4), dtype=torch.uint8, generator=generator)
    rows, unit = torch.tensor([3, 11, 24, 0]), to_unit_range(images)
    near = unit[rows].flip(-1) if flip else unit[rows]
    assert torch.equal(nearest_images(near, images, flip=flip), near)
    found = nearest_images(unit[rows], images, flip=flip, rows=rows)
    for number, image in zip(rows.tolist(), found, strict=True):
        others = unit[torch.arange(25) != number]
        others = torch.cat([others, others.flip(-1)]) if flip else others
        expected = (others - unit[number]).square().sum((1, 2, 3)).argmin()
        assert torch.equal(image, others[expected])


@pytest.mark.parametrize("distance", [w2, energy_distance])
@pytest.mark.parametrize("offset", [1e4, 1e6])
def test_distances_between_points_do_not_depend_on_the_origin(distance, offset):
    """Of float32 points, which have the rounding of this offset."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 60, 2, generator=generator) + offset
    near = (x.double() - offset, y.double() - offset)
    assert distance(x, y) == pytest.approx(distance(*near), rel=1e-6)


def test_energy_distance_between_points_is_known_and_does_not_depend_on_the_origin():
    """Points 0, 2 and 1, 5: 2 (1 + 5 + 1 + 3) / 4 - 2 - 4 = -1, an estimate without bias. Then
    times in seconds since 1970, milliseconds apart.

    Past mistake: W2 of 4,096 points depends on how many points fall into each part by chance.
    Methods that differ tenfold in energy distance looked level.
    """
    x, y = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [5.0]])
    assert energy_distance(x, y) == pytest.approx(-1.0)
    x, y = torch.randn(2, 60, 2).double()
    there = energy_distance(1.7e9 + 1e-3 * x, 1.7e9 + 1e-3 * (y + 1))
    assert there == pytest.approx(1e-3 * energy_distance(x, y + 1), rel=1e-3)
    small = energy_distance(1e-7 * x, 1e-7 * (y + 1))  # geomloss: 0
    assert small == pytest.approx(1e-7 * energy_distance(x, y + 1))


def test_kernel_distance_is_that_of_torch_fidelity_and_unbiased():
    from torch_fidelity.metric_kid import kid_features_to_metric

    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 40, 8, generator=generator)
    whole = kid_features_to_metric(x, y + 0.5, kid_subset_size=40, kid_subsets=1, verbose=False)
    expected = whole["kernel_inception_distance_mean"]
    assert kernel_distance(x, y + 0.5) == pytest.approx(expected, rel=1e-4)
    draws = torch.randn(100, 30, 8, generator=generator)
    found = torch.tensor([kernel_distance(draw[:20], draw[20:]) for draw in draws])
    assert abs(found.mean()) < 3 * found.std() / 10


@pytest.mark.parametrize("module", ["torch_fidelity", "torch_fidelity.metric_prc"])
def test_missing_or_old_torch_fidelity_is_a_one_line_error(module, monkeypatch):
    """Those before 0.4 have no precision and recall."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"evaluation\.features = x: needs .* 0\.4 "):
        require_fidelity("evaluation.features = x")


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
    alone = precision_and_recall(samples, real)
    assert alone == pytest.approx((4 / 5, 5 / 9))
    assert places == {"cpu"}
    places.clear()
    with pretended_card(capability=(7, 5)):
        assert precision_and_recall(samples.to("cuda"), real) == alone
    assert places == {"cuda"}


@pytest.mark.gpu
def test_card_and_cpu_agree_on_precision_and_recall():
    samples, real = torch.randn(3000, 64), torch.randn(2500, 64) + 0.1
    cpu, card = (precision_and_recall(samples.to(name), real) for name in ("cpu", "cuda"))
    assert card == pytest.approx(cpu, abs=2e-3)


def normal(seed, n, dim=2):
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dim", [1, 3, 100])
@pytest.mark.parametrize(("n", "m"), [(1000, 30), (30, 1000), (25, 25)])
def test_classifier_tells_only_what_differs(n, m, dim):
    """Also few points from few, where leaves of 20 points would leave trees without a split."""
    x = normal(0, n, dim)
    y = normal(1, m, dim)
    spread = ((n + m + 1) / (12 * n * m)) ** 0.5  # of ranks at random
    assert abs(classifier_auc(x, y) - 0.5) < 5 * spread
    assert classifier_auc(x, y + 6) > 0.9
    assert classifier_auc(x, y - 6) > 0.9
    assert classifier_auc(x, 10 * y) > 0.7


def test_classifier_sees_a_gap_and_needs_20_points():
    """Samples where no real point is, with the same mean."""
    y = normal(1, 40).sign() + 0.1 * normal(2, 40)
    x = torch.cat([normal(3, 900).sign() + 0.1 * normal(4, 900), 0.1 * normal(5, 100)])
    assert classifier_auc(x, y) > 0.54
    assert classifier_auc(x, y) == classifier_auc(x, y.double())
    assert classifier_auc(torch.ones(30, 2), torch.ones(40, 2)) == 0.5
    assert np.isnan(classifier_auc(x, y[:19]))
    assert np.isnan(classifier_auc(x[:19], y))
    assert not np.isnan(classifier_auc(x[:20], y[:20]))


def test_column_distances_are_differences_of_shares():
    x = torch.arange(10.0)
    pair = torch.stack([x, x, x], 1), torch.stack([x + 5, x, -x - 1], 1)
    assert column_distances(*pair) == pytest.approx([0.5, 0, 1])
    assert column_distances(*reversed(pair)) == pytest.approx([0.5, 0, 1])
    assert column_distances(x[:4, None], x[:1, None].double()) == pytest.approx([0.75])
