import math

import numpy as np
import pytest

from nsgf.compare.results import FLOOR, Row
from nsgf.report.quality import draw_quality
from tests.compare.table_rows import row


def shown(rows: list[Row]) -> list:
    """The panels of the figure about these measures."""
    return draw_quality(rows).axes


def line(panel, title: str) -> tuple[np.ndarray, np.ndarray]:
    """NFE and means of a method."""
    found = next(one for one in panel.containers if one.get_label() == title)
    x, y = found[0].get_xdata(), found[0].get_ydata()
    return np.asarray(x, dtype=float), np.asarray(y, dtype=float)


def spreads(panel, title: str) -> list[float]:
    """Halves of the error bars of a method."""
    found = next(one for one in panel.containers if one.get_label() == title)
    heights = [np.ptp(path.vertices[:, 1]) for path in found[2][0].get_paths()]
    return [float(height) / 2 for height in heights]


ROWS = [
    *(row("nsgf", seed, w2, 2) for seed, w2 in enumerate([1.0, 2.0, 3.0])),
    *(row("nsgf", seed, w2, 10) for seed, w2 in enumerate([0.1, 0.2, 0.3])),
    *(row("icfm", seed, 9.0, 2) for seed in range(3)),
    *(row("icfm", 0, w2, 10, draw) for draw, w2 in enumerate([0.5, 0.7])),
    *(row(FLOOR, seed, 0.05, None) for seed in range(3)),
]


def test_lines_are_means_with_the_spread_over_seeds():
    moved = [item._replace(target="scurve", values={"w2": 7.0}) for item in ROWS]
    panel, below = shown([*ROWS, *moved])
    assert [panel.get_title(), below.get_title()] == ["moons: w2", "scurve: w2"]
    dashed = [one for one in panel.lines if one.get_linestyle() == "--"]
    assert [set(one.get_ydata()) for one in dashed] == [{0.05}]
    x, means = line(panel, "NSGF")
    np.testing.assert_allclose(x, [2, 10], rtol=0.05)
    assert (x < line(panel, "I-CFM")[0]).all()  # beside each other
    np.testing.assert_allclose(means, [2.0, 0.2])
    np.testing.assert_allclose(spreads(panel, "NSGF"), [1.0, 0.1])
    _, means = line(panel, "I-CFM")
    np.testing.assert_allclose(means, [9.0, 0.6])
    np.testing.assert_allclose(spreads(panel, "I-CFM"), [0.0, np.std([0.5, 0.7], ddof=1)])


@pytest.mark.parametrize(
    ("metric", "values", "scale"),
    [
        ("w2", [0.1, 1.0], "log"),
        ("w2", [0.5, 1.0], "linear"),
        ("1000 energy", [-0.1, 5.0], "linear"),
        ("classifier_recall", [0.1, 1.0], "linear"),
    ],
)
def test_distances_of_a_large_range_are_logarithmic(metric, values, scale):
    rows = [row("nsgf", 0, value, nfe) for value, nfe in zip(values, (2, 10), strict=True)]
    named = [item._replace(values={metric: item.values["w2"]}) for item in rows]
    (panel,) = shown(named)
    assert panel.get_yscale() == scale
    wanted = "higher" if metric == "classifier_recall" else "lower"
    assert panel.get_ylabel() == f"{wanted} is better"


def test_samples_that_diverged_leave_a_gap():
    rows = [row("nsgf", 0, math.inf, 2), row("nsgf", 0, 0.5, 10), row("icfm", 0, 0.4, 10)]
    (panel,) = shown(rows)
    assert np.isnan(line(panel, "NSGF")[1]).tolist() == [True, False]
    assert np.isnan(line(panel, "I-CFM")[1]).tolist() == [True, False]
    draw_quality(rows[:1]).canvas.draw()
