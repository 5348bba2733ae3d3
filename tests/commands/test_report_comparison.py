import math
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from nsgf.cli import main
from nsgf.commands.report_comparison import measured_rows, report_comparison
from nsgf.comparison import table_csv
from nsgf.comparison.figures import draw_quality
from nsgf.comparison.tables import write_report
from nsgf.comparison.trials import FLOOR
from nsgf.run.folder import RunFolder
from nsgf.system.errors import UserError
from tests.commands.test_report import Page
from tests.comparison.table_rows import COMPARISON, ROWS, in_folder, row
from tests.conftest import STYLE, compared


@pytest.fixture
def folder(tmp_path):
    """A comparison of two methods on moons: tables, settings, picture, a trial."""
    comparison = in_folder(COMPARISON, tmp_path)
    run = RunFolder.prepare(comparison.folder / "moons" / "icfm-seed2")
    run.write_config(comparison.methods["icfm"])
    write_report(comparison, ROWS)
    Image.new("RGB", (8, 8)).save(comparison.folder / "moons.png")
    return comparison.folder


def test_command_writes_a_page_with_everything_in_it(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("HOME", str(folder))
    copy = folder.parent / "copy.html"
    words = ["report", "--compare", str(folder), "--figures", "pdf", "--out", str(copy)]
    assert main(words) == 0
    files = capsys.readouterr().out.splitlines()
    page = Page(Path(files[-1]))
    assert page.open == []
    assert {Path(file).name for file in files} == {
        *("report.html", "quality.png", "quality.pdf", "moons.png", copy.name)
    }
    assert (folder / "report" / "quality.pdf").read_bytes().startswith(b"%PDF")
    quality = (folder / "report" / "quality.png").read_bytes()
    with matplotlib.rc_context(STYLE):
        report_comparison(folder, str(folder.parent))
    assert (folder / "report" / "quality.png").read_bytes() == quality
    assert len(page.links) == 2
    assert all(link.startswith("data:image/png") for link in page.links)
    for words in ("I-CFMas in the recipe", "0.303 ± 0.105", "0.050", "-0.103 ± 0.003 ahead"):
        assert words in page.text
    assert "<strong>0.200 ± 0.100</strong>" in Path(files[-1]).read_text()
    place = folder.name
    assert f"compare --config {place}/comparison.yaml --out-dir {place}/.. " in page.text
    assert "cd ~" not in page.text
    assert str(folder.parent) not in page.text


def test_folder_may_be_named_from_the_working_directory(folder, monkeypatch):
    """Past mistake: The names of trials were cut out of absolute paths."""
    monkeypatch.chdir(folder.parent)
    (page, *_) = report_comparison(Path(folder.name), ".")
    assert "moons/icfm-seed2" in Page(Path(page)).text


def test_settings_of_another_machine_are_no_obstacle(folder):
    """A page may be made where there is no card, and no half precision."""
    file = folder / "comparison.yaml"
    text = file.read_text().replace("device: auto", "device: cuda:7")
    file.write_text(text.replace("precision: auto", "precision: fp16"))
    (folder / "moons.png").unlink()
    (folder / "moons/icfm-seed2/versions.json").write_text('{"commit": "<b>0123"}')
    page = Page(Path(report_comparison(folder, str(folder.parent))[0]))
    assert "moons/icfm-seed2" in page.text
    assert "peer 0/20000" in page.text
    assert "<b>0123" in page.text


def test_page_needs_no_facts_about_a_users_data(own_data, tmp_path):
    """Its folder may come from another machine without them."""
    flags = ("--compare.methods=[nsgf,icfm]", "--seed=3", "--device=cpu")
    comparison = in_folder(compared("points", *own_data["points"], *flags), tmp_path)
    comparison.folder.mkdir()
    write_report(comparison, ROWS)
    (comparison.folder / "facts.json").unlink()
    (page, *_) = report_comparison(comparison.folder, str(tmp_path))
    text = Page(Path(page)).text
    assert "seed 3" in text
    assert "moons: points.npy" in text


def test_page_of_a_single_seed_names_no_best_method(folder):
    """Its spread is that of draws."""
    file = folder / "table.csv"
    for is_single, words in ((False, "Means over training runs"), (True, "of one training run")):
        if is_single:
            file.write_text(table_csv([item for item in ROWS if item.seed == 0]))
        page = Path(report_comparison(folder, str(folder.parent))[0])
        assert ("<td><strong>" in page.read_text()) != is_single
        assert words in Page(page).text


def test_page_shows_no_picture_from_elsewhere(folder, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "secret.png")
    file = folder / "table.csv"
    file.write_text(file.read_text().replace("moons", str(tmp_path / "secret")))
    assert len(Page(Path(report_comparison(folder, str(folder.parent))[0])).links) == 1


def test_folders_of_something_else_are_refused(folder, tmp_path, capsys):
    with pytest.raises(UserError, match="compare"):
        measured_rows(folder / "moons" / "icfm-seed2")
    assert main(["report", "--compare", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    lines = (folder / "table.csv").read_text().splitlines()
    (folder / "table.csv").write_text("\n".join([lines[0], *lines[-3:], ""]))  # only floors
    with pytest.raises(UserError, match="compare"):
        measured_rows(folder)
    (folder / "moons.png").unlink()
    (tmp_path / "secret.png").touch()
    (folder / "moons.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(UserError, match="link"):
        measured_rows(folder)


def line(panel, title):
    """NFE and means of a method."""
    found = next(one for one in panel.containers if one.get_label() == title)
    x, y = found[0].get_xdata(), found[0].get_ydata()
    return np.asarray(x, dtype=float), np.asarray(y, dtype=float)


def spreads(panel, title):
    """Halves of the error bars of a method."""
    found = next(one for one in panel.containers if one.get_label() == title)
    heights = [np.ptp(path.vertices[:, 1]) for path in found[2][0].get_paths()]
    return [float(height) / 2 for height in heights]


MEASURES = [
    *(row("nsgf", seed, w2, 2) for seed, w2 in enumerate([1.0, 2.0, 3.0])),
    *(row("nsgf", seed, w2, 10) for seed, w2 in enumerate([0.1, 0.2, 0.3])),
    *(row("icfm", seed, 9.0, 2) for seed in range(3)),
    *(row("icfm", 0, w2, 10, draw) for draw, w2 in enumerate([0.5, 0.7])),
    *(row(FLOOR, seed, 0.05, None) for seed in range(3)),
]


def test_lines_are_means_with_the_spread_over_seeds():
    moved = [item._replace(target="scurve", values={"w2": 7.0}) for item in MEASURES]
    panel, below = draw_quality([*MEASURES, *moved]).axes
    assert [panel.get_title(), below.get_title()] == ["moons: W2 ↓", "scurve: W2 ↓"]
    dashed = [one for one in panel.lines if one.get_linestyle() == "--"]
    assert [set(one.get_ydata()) for one in dashed] == [{0.05}]
    x, means = line(panel, "NSGF")
    assert x.tolist() == [2, 10]
    np.testing.assert_allclose(means, [2.0, 0.2])
    np.testing.assert_allclose(spreads(panel, "NSGF"), [1.0, 0.1])
    _, means = line(panel, "I-CFM")
    np.testing.assert_allclose(means, [9.0, 0.6])
    np.testing.assert_allclose(spreads(panel, "I-CFM"), [0.0, np.std([0.5, 0.7], ddof=1)])


def test_a_method_whose_name_begins_with_an_underscore_has_a_line_in_the_legend():
    figure = draw_quality([*MEASURES, *(row("_mine", seed, 1.0, 10) for seed in range(3))])
    (legend,) = figure.legends
    assert "_mine" in [text.get_text().strip() for text in legend.get_texts()]


def test_markers_stand_at_the_calls_that_were_made_and_diverged_samples_leave_a_gap():
    rows = [row("nsgf", 0, math.inf, 2), row("nsgf", 0, 0.4, 10)._replace(calls=11.5)]
    (panel,) = draw_quality([*rows, row("icfm", 0, 0.6, 10)]).axes
    assert panel.get_xscale() == "log"
    assert line(panel, "NSGF")[0].tolist() == [2, 11.5]
    assert line(panel, "I-CFM")[0].tolist()[1] == 10
    assert panel.get_xticks().tolist() == [2, 10, 11.5]
    for name in ("NSGF", "I-CFM"):
        assert np.isnan(line(panel, name)[1]).tolist() == [True, False]
    draw_quality([rows[0], rows[0]._replace(seed=1)]).canvas.draw()


@pytest.mark.parametrize(
    ("metric", "values", "scale"),
    [
        ("w2", [0.1, 1.0], "log"),
        ("w2", [0.5, 1.0], "linear"),
        ("imagenet_recall", [0.1, 1.0], "linear"),
    ],
)
def test_distances_of_a_large_range_are_logarithmic(metric, values, scale):
    rows = [row("nsgf", 0, 0.0, nfe) for nfe in (2, 10)]
    named = [row._replace(values={metric: value}) for row, value in zip(rows, values, strict=True)]
    (panel,) = draw_quality(named).axes
    assert panel.get_yscale() == scale
