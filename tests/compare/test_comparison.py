"""Small comparisons from end to end: trained once, measured once, left to others, reported."""

import json
from dataclasses import replace

import pytest

from nsgf.compare import comparison
from nsgf.compare.cells import cell_folder, cells, comparison_folder
from nsgf.compare.comparison import Work, compare
from nsgf.errors import UserError
from nsgf.lock import only_process
from nsgf.stopping import Stopped, StopRequest
from tests.conftest import shipped


@pytest.fixture
def config(tmp_path):
    """Three methods on moons."""
    base = shipped(
        "2d",
        "--smoke",
        "--compare.targets=[moons]",
        "--compare.methods=[nsgf,nsgf++,1rf,2rf]",
        "--model.mlp.width=16",
        "--num-samples=32",
        "--evaluation.w2_samples=16",
        "--device=cpu",
    )
    return replace(base, out_dir=str(tmp_path))


def run(config) -> tuple[list, list[str]]:
    said: list[str] = []
    return compare(config, say=said.append), said


def test_comparison_trains_measures_and_reports(config):
    files, said = run(config)
    assert [file.name for file in files] == ["table.md", "table.csv", "moons.png"]
    assert all(file.stat().st_size > 0 for file in files)
    assert said[1] == "compare: 4 cells, 0 of them measured, 26 updates in all"
    table = files[0].read_text()
    assert "| 2-RF |" in table
    assert "| floor |" in table


def test_what_is_finished_is_not_done_again(config, monkeypatch):
    first, _ = run(config)
    table = first[0].read_text()

    def refuse(*_, **__):
        raise AssertionError("trained or measured again")

    monkeypatch.setattr(comparison, "train", refuse)
    monkeypatch.setattr(comparison, "measure", refuse)
    second, said = run(config)
    assert second[0].read_text() == table
    assert "4 of them measured" in said[1]


def test_other_nfe_are_measured_without_training(config, monkeypatch):
    run(config)
    before = [cell_folder(config, cell) / "checkpoints" for cell in cells(config)]
    times = [file.stat().st_mtime_ns for folder in before for file in sorted(folder.iterdir())]
    run(replace(config, compare=replace(config.compare, nfe=[3])))
    again = [file.stat().st_mtime_ns for folder in before for file in sorted(folder.iterdir())]
    assert times == again


def test_cell_of_another_process_is_left_to_it(config):
    work = Work(config, StopRequest(), lambda _: None)
    cell = next(cells(config))
    folder = cell_folder(config, cell)
    folder.mkdir(parents=True)
    with only_process(folder):
        assert not work.finish(cell)
    assert work.finish(cell)


def test_damaged_record_is_measured_anew(config):
    files, _ = run(config)
    table = files[0].read_text().splitlines()[:6]
    for cell in cells(config):
        (cell_folder(config, cell) / "compare.json").write_text('{"measures": [3]}')
    files, _ = run(config)
    assert files[0].read_text().splitlines()[:6] == table


def test_time_of_training_adds_up_over_sessions_and_methods(config):
    run(config)
    folder = cell_folder(config, list(cells(config))[-1])
    seconds = json.loads((folder / "compare.json").read_text())["train_seconds"]
    assert set(seconds) == {"1rf", "2rf"}
    assert min(seconds.values()) > 0


def test_missing_torchcfm_is_said_before_any_work(config, monkeypatch, tmp_path):
    def missing():
        raise UserError("needs torchcfm")

    monkeypatch.setattr(comparison, "check_installed", missing)
    with pytest.raises(UserError, match="torchcfm"):
        run(config)
    assert not list(tmp_path.iterdir())


def test_cells_of_other_settings_are_refused_before_any_work(config, monkeypatch):
    run(config)
    other = replace(config, flow=replace(config.flow, steps=7))
    monkeypatch.setattr(comparison, "train", None)
    with pytest.raises(UserError, match=r"flow\.steps.*remove .*nsgf-seed0, or name another"):
        run(other)


def test_stopped_comparison_leaves_the_table_of_what_it_has(config, monkeypatch):
    stop, real = StopRequest(), comparison.train

    def stopping(own, folder, stop):
        if own.phases == ["peer"]:
            raise Stopped("here")
        return real(own, folder, stop=stop)

    monkeypatch.setattr(comparison, "train", stopping)
    with pytest.raises(Stopped):
        compare(config, stop, lambda _: None)
    table = (comparison_folder(config) / "table.md").read_text()
    assert "| 1-RF | - (0 seeds) | - (0 seeds) |" in table
