import json
from pathlib import Path

import pytest
from PIL import Image

from nsgf.cli import main
from nsgf.compare.report import write_report
from nsgf.compare.results import Row
from nsgf.report.comparison import (
    measured_rows,
    report_comparison,
    stored_comparison,
    trial_rows,
)
from nsgf.run.folder import RunFolder
from nsgf.system.errors import UserError
from tests.compare.table_rows import COMPARISON, ROWS, in_folder
from tests.report.test_page import Page


@pytest.fixture
def folder(tmp_path) -> Path:
    """What a comparison of two methods on moons leaves: tables, settings, picture, a trial."""
    return left(tmp_path, ROWS)


def left(out_dir: Path, rows: list[Row]) -> Path:
    comparison = in_folder(COMPARISON, out_dir)
    folder = comparison.folder
    run = RunFolder.prepare(folder / "moons" / "icfm-seed2")
    run.write_config(comparison.methods["icfm"])
    write_report(comparison, rows)
    Image.new("RGB", (8, 8)).save(folder / "moons.png")
    return folder


def test_command_writes_a_page_with_everything_in_it(folder, capsys):
    assert main(["report", "--compare", str(folder), "--figures", "pdf"]) == 0
    files = capsys.readouterr().out.splitlines()
    page = Page(Path(files[0]))
    assert page.open == []
    assert {Path(file).name for file in files} == {
        *("report.html", "quality.png", "quality.pdf", "moons.png")
    }
    assert (folder / "report" / "quality.pdf").read_bytes().startswith(b"%PDF")
    assert len(page.links) == 2
    assert all(link.startswith("data:image/png") for link in page.links)
    for words in ("NSGF, I-CFM", "0.303 ± 0.105", "0.050", "-0.103 ± 0.003 ahead"):
        assert words in page.text
    assert "<strong>0.200 ± 0.100</strong>" in Path(files[0]).read_text()
    assert "compare --config compare-2d/comparison.yaml --out-dir . " in page.text
    assert str(folder.parent) not in page.text


def test_trials_tell_what_is_measured_and_where_they_were_trained(tmp_path):
    folder = left(tmp_path, ROWS[:4])
    file = folder / "moons" / "icfm-seed2" / "versions.json"
    machine = {"cards": ["Tesla <T4>"], "cores": 2}
    file.write_text(json.dumps({"commit": "0123456789abcdef-dirty", "machine": machine}))
    rows = {row[0]: row for row in trial_rows(folder, stored_comparison(folder), ROWS[:4])}
    assert rows["moons/nsgf-seed1"][1:3] == ("NSGF: 1 of 1", "not begun")
    last = ("I-CFM: 0 of 1", "peer 0/20000", "0123456789", "cards ['Tesla <T4>'], cores 2", "")
    assert rows["moons/icfm-seed2"][1:] == last
    assert "Tesla <T4>" in Page(Path(report_comparison(folder, str(tmp_path))[0])).text
    file.write_text('{"machine": 3}')
    assert len(trial_rows(folder, stored_comparison(folder), ROWS)) == 6


def test_settings_of_another_machine_are_no_obstacle(folder):
    """A page may be made where there is no card, and no half precision."""
    file = folder / "comparison.yaml"
    text = file.read_text().replace("device: auto", "device: cuda:7")
    file.write_text(text.replace("precision: auto", "precision: fp16"))
    assert text != file.read_text()
    (folder / "moons.png").unlink()
    page = Page(Path(report_comparison(folder, str(folder.parent))[0]))
    assert "no picture of samples yet" in page.text


def test_page_may_be_written_elsewhere(folder, tmp_path):
    files = report_comparison(folder, str(tmp_path / "pages"))
    assert files[0] == str(tmp_path / "pages" / "compare-2d" / "report.html")
    assert not (folder / "report").exists()


def test_folders_of_something_else_are_refused(folder, tmp_path, capsys):
    with pytest.raises(UserError, match="compare"):
        measured_rows(folder / "moons" / "icfm-seed2")
    assert main(["report", "--compare", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    lines = (folder / "table.csv").read_text().splitlines()
    (folder / "table.csv").write_text("\n".join([lines[0], *lines[-3:], ""]))  # only floors
    with pytest.raises(UserError, match="compare"):
        measured_rows(folder)


def test_folder_that_leads_out_of_itself_is_refused(folder, tmp_path):
    (folder / "moons.png").unlink()
    (tmp_path / "secret.png").touch()
    (folder / "moons.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(UserError, match="link"):
        measured_rows(folder)


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        ("report --compare DIR --run DIR", "run: has no effect on report --compare"),
        ("report --compare DIR --seed 3", "seed: has no effect on report --compare"),
        ("sample --compare DIR", "--compare"),
    ],
)
def test_command_refuses_in_one_line(folder, capsys, flags, key):
    assert main(flags.replace("DIR", str(folder)).split()) == 2
    said = capsys.readouterr().err
    assert key in said
    assert said.count("\n") == 1
