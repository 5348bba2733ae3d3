import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from nsgf.cli import main
from nsgf.compare.report import write_report
from nsgf.compare.results import Row
from nsgf.report.comparison import (
    measured_rows,
    missing_trials,
    report_comparison,
    reported_figures,
    stored_comparison,
    trial_origins,
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


def page_of(folder: Path, **how) -> Page:
    return Page(Path(report_comparison(folder, str(folder.parent), **how)[0]))


def test_page_has_everything_in_it(folder):
    files = report_comparison(folder, str(folder.parent), "pdf")
    page = Page(Path(files[0]))
    assert page.open == []
    names = ["report.html", "quality.png", "quality.pdf", "moons.png"]
    assert [Path(file).name for file in files] == names
    assert (folder / "report" / "quality.pdf").read_bytes().startswith(b"%PDF")
    assert len(page.links) == 2
    assert all(link.startswith("data:image/png") for link in page.links)
    for told in (
        "NSGF, I-CFM",
        "0, 1, 2",
        "0.303 ± 0.105",
        "0.050",
        "-0.103 ± 0.003 ahead",
    ):
        assert told in page.text
    assert "<strong>0.200 ± 0.100</strong>" in Path(files[0]).read_text()
    assert "compare --config compare-2d/comparison.yaml --out-dir . " in page.text
    assert str(folder.parent) not in page.text
    assert "Not finished" not in page.text
    assert "A smoke run" not in page.text


def test_trials_that_are_not_finished_are_listed(tmp_path):
    folder = left(tmp_path, ROWS[:4])
    text = page_of(folder).text
    assert text.index("Not finished") < text.index("Quality")
    comparison = stored_comparison(folder)
    assert comparison is not None
    lines = missing_trials(folder, comparison, ROWS[:4])
    assert [line[:4] for line in lines] == [
        ("I-CFM", "moons", "1", "0 of 1"),
        ("I-CFM", "moons", "2", "0 of 1"),
    ]
    assert [line[4] for line in lines] == ["not begun", "peer 0/20000"]
    assert "I-CFM0.250" not in text


def test_settings_of_another_machine_are_no_obstacle(folder):
    """A page may be made where there is no card, and no half precision."""
    file = folder / "comparison.yaml"
    text = file.read_text().replace("device: auto", "device: cuda:7")
    file.write_text(text.replace("precision: auto", "precision: fp16"))
    assert text != file.read_text()
    assert "Not finished" not in page_of(folder).text


def test_comparison_without_settings_says_what_is_not_known(folder, capsys):
    (folder / "comparison.yaml").unlink()
    (folder / "moons.png").unlink()
    page = page_of(folder)
    told = "compare-2d has no comparison.yaml"
    assert told in page.text
    assert f"report: {folder.parent}/{told}" in capsys.readouterr().out
    assert "no picture of samples yet" in page.text
    assert "0.303 ± 0.105" in page.text
    assert "compare --config" not in page.text


def test_where_trials_come_from_is_told(folder):
    file = folder / "moons" / "icfm-seed2" / "versions.json"
    machine = {"cards": ["Tesla <T4>"], "cores": 2}
    file.write_text(json.dumps({"commit": "0123456789abcdef-dirty", "machine": machine}))
    page = page_of(folder)
    for told in ("moons/icfm-seed2", "0123456789", "Tesla <T4>", "peer 0/20000"):
        assert told in page.text
    file.write_text('{"machine": 3}')
    assert "CPU, ? cores" in page_of(folder).text


@pytest.mark.parametrize(("cards", "told"), [(5, "5"), ("a card", "a card"), (["a", 5], "a, 5")])
def test_cards_of_another_type_are_no_obstacle(folder, cards, told):
    file = folder / "moons" / "icfm-seed2" / "versions.json"
    file.write_text(json.dumps({"machine": {"cards": cards}}))
    assert [origin[3] for origin in trial_origins(folder)] == [told]


def test_what_the_paper_reports_is_marked():
    rows = [row._replace(target="mnist") for row in ROWS]
    others = "Reported by the paper on mnist: fid 3.8 at NFE 60. None of the measures above"
    assert [line.startswith(others) for line in reported_figures(None, rows)] == [True]
    same = [row._replace(values={"fid": 4.0}) for row in rows]
    assert reported_figures(None, same) == ["Reported by the paper on mnist: fid 3.8 at NFE 60."]
    config = COMPARISON.config
    fake = replace(config, data=replace(config.data, fake=True))
    assert reported_figures(fake, rows) == reported_figures(config, ROWS) == []


def test_page_may_be_written_elsewhere(folder, tmp_path):
    files = report_comparison(folder, str(tmp_path / "pages"))
    assert files[0] == str(tmp_path / "pages" / "compare-2d" / "report.html")
    assert not (folder / "report").exists()


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (None, "must be a folder that nsgf compare has written"),
        ([], "must be a folder that nsgf compare has written"),
        (["config.yaml"], "with --run DIR"),
        (["moons/icfm-seed0/config.yaml"], "nothing is measured yet"),
    ],
)
def test_folders_of_something_else_are_refused(tmp_path, files, told):
    folder = tmp_path / "compare-2d"
    for name in files or ():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    if files is not None:
        folder.mkdir(exist_ok=True)
    with pytest.raises(UserError, match=told):
        measured_rows(folder)


def test_table_of_floors_alone_is_nothing_to_show(tmp_path):
    write = left(tmp_path, ROWS)
    lines = (write / "table.csv").read_text().splitlines()
    (write / "table.csv").write_text("\n".join([lines[0], *lines[-3:], ""]))
    with pytest.raises(UserError, match="nothing is measured yet"):
        measured_rows(write)


def test_folder_that_leads_out_of_itself_is_refused(folder, tmp_path):
    (folder / "moons.png").unlink()
    (tmp_path / "secret.png").touch()
    (folder / "moons.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(UserError, match="link"):
        measured_rows(folder)


def test_command_writes_the_page(folder, capsys):
    assert main(["report", "--compare", str(folder), "--figures", "svg"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == str(folder / "report.html")
    assert str(folder / "report" / "quality.svg") in told
    assert all(Path(line).exists() for line in told)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("report --compare DIR --run DIR", "run: has no effect on report --compare, which takes"),
        ("report --compare DIR --seed 3", "seed: has no effect on report --compare"),
        ("report --compare DIR/moons", "must be a folder that nsgf compare"),
        ("sample --compare DIR", "--compare"),
    ],
)
def test_command_refuses_in_one_line(folder, capsys, flags, told):
    assert main(flags.replace("DIR", str(folder)).split()) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
