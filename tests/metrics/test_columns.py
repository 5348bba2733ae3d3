from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nsgf.commands.evaluate import evaluate_run
from nsgf.commands.export import card
from nsgf.commands.report import report_run
from nsgf.experiment import Experiment
from nsgf.metrics import columns, distances
from nsgf.metrics.columns import RealRows, mean_and_spread, measure_columns, typical_step
from nsgf.metrics.measures import report
from nsgf.sinkhorn.exact import w2
from nsgf.user_data import load_data
from tests.conftest import shipped


def normal(seed, n, dim=2):
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def table(folder, rows, *flags):
    """The data, and the held-out part, of a table with these rows."""
    np.save(folder / "rows.npy", rows)
    data = load_data(shipped("points", f"--data.path={folder / 'rows.npy'}", *flags).data, 0)
    return data, data.measured()


@pytest.fixture
def few_trees(monkeypatch):
    monkeypatch.setattr(distances, "TREES", (5, 20))
    monkeypatch.setattr(columns, "FLOOR_DRAWS", (2, 3))


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize("held_out", [0, 0.2])
def test_good_w2_does_not_hide_samples_where_no_row_is(held_out, tmp_path):
    """150 rows in two groups; 4 % of the samples lie below all rows and 12 % between the groups.

    Past mistake: W2 to 30 rows was read as a proof: "as close as real rows" stood beside 8 %
    negative widths.
    """
    points = 1 + (normal(0, 3150) > 0)[:, :1] + 0.1 * normal(1, 3150, 4).double()
    rows, samples = points.split([150, 3000])
    data, measured = table(tmp_path, rows, f"--data.held_out={held_out}")
    good = measure_columns(data, measured, samples.split(1000), 0)
    samples[::8, 2] = 1.5
    samples[1::25, 2] = 0.5
    bad = measure_columns(data, measured, samples.split(1000), 0)

    few = measured.user_points[:30]
    assert w2(samples[:30], few) < 1.2 * w2(data.user_points[:30], data.user_points[-30:])
    assert bad["auc"] > good["auc"] + 0.03
    column = bad["worst_columns"][0]
    assert column["column"] == "coordinate 3"
    assert column["outside"] == pytest.approx(0.04, abs=0.02)
    assert column["outside_floor"] <= 2 / 150
    assert (column["min"], column["max"]) == (float(rows[:, 2].min()), float(rows[:, 2].max()))
    assert len(bad["worst_columns"]) == 3
    assert bad["outside_range"] > good["outside_range"] + 0.03
    assert bad["classifier_rows"] == (30 if held_out else 75)
    assert bad["classifier_samples"] == 1000


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize("unit", [1.0, 0.1, 2.54, 1000.0])
def test_rounded_rows_are_no_reason_to_tell_samples_from_them(unit, tmp_path):
    """Neither samples with more decimals, nor rounded ones, differ from rows of whole units.

    Past mistake: The classifier saw the decimals of rounded rows: AUC .94 for training rows with
    a little noise.
    """
    points = 4 * normal(0, 2400, 3).double()
    rows = unit * points[:400].round()
    data, measured = table(tmp_path, rows)
    for samples in (points[400:], points[400:].round()):
        found = measure_columns(data, measured, [unit * samples], 0)
        assert abs(found["auc"] - 0.5) < 0.1
        assert found["ks_worst"] < found["ks_worst_floor"] + 0.08
        assert found["outside_range"] < 0.01
    found = measure_columns(data, measured, [unit * (points[400:] + 2)], 0)
    assert found["auc"] > 0.6
    assert found["ks_worst"] > found["ks_worst_floor"] + 0.1


@pytest.mark.parametrize("scale", [1e-140, 1e-9, 1.0, 1e9, 1e140])
def test_step_is_that_of_rounded_values_and_small_for_others(scale):
    whole = normal(0, 1000, 1).double().mul(5).round() * scale
    any_value = normal(1, 1000, 1).double() * scale
    binary = (any_value > 0).double() * scale
    steps = typical_step(torch.cat([whole, any_value, binary], 1)) / scale
    assert steps[[0, 2]].tolist() == pytest.approx([1, 1])
    assert 0 < steps[1] < 0.01


@pytest.mark.usefixtures("few_trees")
def test_copies_of_rows_have_an_auc_below_a_half(tmp_path):
    """Near each row that the classifier does not know there are only samples."""
    rows = normal(0, 150, 4).double()
    data, measured = table(tmp_path, rows)
    copies = rows[torch.arange(1500) % 150] + 0.01 * normal(1, 1500, 4)
    found = measure_columns(data, measured, [copies], 0)
    assert found["auc"] < found["auc_floor"] - found["auc_floor_std"]


@pytest.mark.usefixtures("few_trees")
def test_worst_column_is_that_of_the_largest_distance(tmp_path):
    rows = normal(0, 400, 5).double()
    data, measured = table(tmp_path, rows)
    samples = normal(1, 400, 5).double()
    samples[:, 3] = samples[:, 3].abs()
    found = measure_columns(data, measured, [samples, samples], 0)
    column = found["worst_columns"][0]
    assert column["column"] == "coordinate 4"
    assert column["ks"] == pytest.approx(found["ks_worst"]) == pytest.approx(0.5, abs=0.1)
    assert column["ks_floor"] < found["ks_worst_floor"] < 0.2


def test_floor_of_the_range_leaves_each_row_out(tmp_path):
    """Rows that share an end are not outside of the range of the others."""
    rows = np.arange(40.0).reshape(20, 2)
    rows[:, 1] = np.repeat([0.0, 1.0, 2.0, 3.0], 5)
    data, measured = table(tmp_path, rows)
    real = RealRows(data, measured, 100, 0)
    alone = real.is_alone
    assert alone[:, 0].nonzero().flatten().tolist() == [0, 19]
    assert not alone[:, 1].any()
    assert real.step.tolist() == [2, 1]
    samples = torch.tensor([[-0.9, -0.4], [38.9, 3.4], [39.1, 3.0], [5.0, -0.6], [5.0, 2.5]])
    outside = real.is_outside(samples.double())
    assert outside.tolist() == [[False, False]] * 2 + [[True, False], [False, True], [False] * 2]


@pytest.mark.parametrize("held_out", [0, 0.4])
def test_floors_divide_all_rows_anew_and_samples_meet_the_held_out_ones(held_out, tmp_path):
    rows = normal(0, 50).double()
    data, measured = table(tmp_path, rows, f"--data.held_out={held_out}")
    real = RealRows(data, measured, 1000, 0)
    assert real.count == (20 if held_out else 25)
    first, again, second = (real.divided(draw) for draw in (0, 0, 1))
    for part, rest in (first, second):
        assert len(part) == real.count
        assert torch.equal(torch.cat([part, rest]).sort(0).values, rows.sort(0).values)
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(first[0], RealRows(data, measured, 1000, 1).divided(0)[0])
    compared = {tuple(row) for row in real.compared(0).tolist()}
    assert len(compared) == real.count
    assert compared <= {tuple(row) for row in measured.user_points.tolist()}


@pytest.mark.usefixtures("few_trees")
def test_points_in_the_plane_are_compared_with_new_draws():
    data = load_data(shipped("2d").data, 0)
    draws = [data.target("new", str(draw)).sample(1500) for draw in range(2)]
    found = measure_columns(data, data, draws, 0)
    assert abs(found["auc"] - 0.5) < 0.05
    assert abs(found["auc_floor"] - 0.5) < 0.05
    assert found["ks_worst"] < 0.07
    assert found["outside_range"] < 0.01
    assert {column["column"] for column in found["worst_columns"]} == {"x1", "x2"}
    assert found == measure_columns(data, data, draws, 0)
    shifted = measure_columns(data, data, [draw + 0.5 for draw in draws], 0)
    assert shifted["auc"] > 0.7
    assert shifted["auc_floor"] == found["auc_floor"]


@pytest.mark.parametrize("count", [1, 19])
def test_too_few_samples_have_no_classifier_and_a_line_says_so(count, small, small_run):
    evaluation = replace(small.evaluation, num_samples=count)
    _, found = evaluate_run(Experiment(replace(small, evaluation=evaluation)), small_run)
    assert found["auc"] is found["auc_floor"] is None
    assert 0 <= found["ks_worst"] <= 1
    assert any(f"{count} real points" in line and "classifier" in line for line in report(found))


@pytest.mark.usefixtures("few_trees")
def test_lines_page_and_card_have_the_measures_of_points(small, small_run):
    experiment = Experiment(small)
    _, found = evaluate_run(experiment, small_run)
    names = [column["column"] for column in found["worst_columns"]]
    lines = report(found)
    page = Path(report_run(experiment, small_run)[0]).read_text("utf-8")
    for name in ("AUC", "KS distance", "outside", *(f"column {name}" for name in names)):
        assert any(name in line for line in lines)
        assert name in page
    assert any("W2 cannot tell" in line for line in lines)
    assert "W2 cannot tell" in page
    text = card(experiment, small_run, found["updates"], [])
    assert "AUC" in text
    assert "column x1" not in text  # has the smallest and the largest value of the rows


@pytest.mark.usefixtures("few_trees")
def test_images_have_no_columns(digits_run):
    config, run = digits_run
    assert "auc" not in evaluate_run(Experiment(config), run)[1]


def test_a_column_that_is_constant_in_the_first_rows_has_a_step(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "STEP_ROWS", 20)
    rows = np.stack([np.linspace(0, 1, 200), np.arange(200) >= 100], axis=1)
    assert RealRows(*table(tmp_path, rows), 100, 0).step[1] == 1
    assert typical_step(torch.ones(9, 1)) == 0


def test_spread_of_equal_values_is_zero():
    """Past mistake: A report said 0.025 ± 3.5e-18."""
    assert mean_and_spread("share", [0.025] * 3) == {"share": pytest.approx(0.025), "share_std": 0}
    assert mean_and_spread("w2", [1.0, 3.0]) == {"w2": 2, "w2_std": 1}
