from pathlib import Path
from unittest.mock import Mock, call

import pytest

from nsgf.run.folder import RunFolder
from nsgf.run.log import Cost, RunLog, read_costs
from nsgf.run.stop import Stopped
from tests.conftest import records


def test_control_characters_and_line_ends_are_escaped_in_the_log(tmp_path, capsys):
    log = RunLog(tmp_path)
    log.write("hello")
    log.write("a \x1b[31m b\n2026-01-01 00:00:00 nsgf: done")
    assert capsys.readouterr().out.startswith("hello\n")
    hello, line = (tmp_path / "log.txt").read_text().splitlines()
    assert hello.endswith(" hello")
    assert line.endswith(" a \\x1b[31m b\\n2026-01-01 00:00:00 nsgf: done")


def test_other_processes_than_the_first_write_nothing(tmp_path, capsys):
    log = RunLog(tmp_path, quiet=True)
    log.write("hello")
    with log.progress("nsgf", 9, "step") as progress:
        progress.update()
    log.record(phase="nsgf", step=1)
    log.record("costs", phase="nsgf", step=1)
    log.tidy(["nsgf"])
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_in_the_log_and_printed_where_there_is_no_bar(
    tmp_path, capsys, monkeypatch, terminal
):
    monkeypatch.setattr("nsgf.run.log.is_terminal", lambda: terminal)
    monkeypatch.setattr("nsgf.run.progress.is_terminal", lambda: terminal)
    with RunLog(tmp_path).progress("nsgf", 9, "step") as progress:
        progress.update(3)
    assert (tmp_path / "log.txt").read_text().endswith(" nsgf: step 3 of 9\n")
    assert capsys.readouterr().out == ("" if terminal else "nsgf: step 3 of 9\n")


def test_records_are_sorted_by_phase_without_later_ones_and_damaged_lines(tmp_path):
    log = RunLog(tmp_path)
    log.tidy(["nsgf", "nsf"], "nsgf", 3)
    for phase, step in (("nsf", 2), ("nsgf", 5), ("nsf", 4), ("peer", 1)):
        log.record(phase=phase, step=step)
    with (tmp_path / "metrics.jsonl").open("ab") as stream:
        stream.write(
            b'\xff\xfe\x00\n[1]\nnull\n{"phase": "nsf", "step": "x"}\n{"phase": "nsf", "st'
        )
    log.tidy(["nsgf", "nsf"], "nsf", 2)
    kept = records(RunFolder(tmp_path))
    expected = (("nsgf", 5), ("nsf", 2), ("peer", 1))
    assert kept == [{"phase": phase, "step": step} for phase, step in expected]


@pytest.mark.parametrize(("error", "failed"), [(KeyboardInterrupt, True), (Stopped, False)])
def test_tracker_gets_records_and_pictures_and_is_closed(tmp_path, error, failed):
    tracker = Mock()

    def train():
        with RunLog(tmp_path) as log:
            log.record(phase="nsgf", step=1)
            log.tracker = tracker
            log.record(phase="nsgf", step=2)
            log.picture("nsgf/samples", Path("p.png"))
            raise error

    with pytest.raises(error):
        train()
    assert tracker.method_calls == [
        call.record({"phase": "nsgf", "step": 2}),
        call.picture("nsgf/samples", Path("p.png")),
        call.close(failed),
    ]


@pytest.mark.parametrize("failing", ["record", "picture", "close"])
def test_failing_tracker_is_one_line_and_not_used_again(tmp_path, capsys, failing):
    tracker = Mock(**{f"{failing}.side_effect": ConnectionError("the cable\nis cut")})
    with RunLog(tmp_path) as log:
        log.tracker = tracker
        for step in (1, 2):
            log.record(phase="nsgf", step=step)
            log.picture("nsgf/samples", tmp_path / "p.png")
    assert [name for name, *_ in tracker.method_calls].count(failing) == 1
    tracker.close.assert_called_once()
    assert tracker.method_calls[-1][0] == "close"
    [line] = capsys.readouterr().out.splitlines()
    assert "the cable is cut" in line
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_costs_are_preparation_and_updates(tmp_path):
    """A line's speed holds since the line before; lines that are no records are skipped."""
    log = RunLog(tmp_path)
    for step, speed, peak, prepare in ((10, 5.0, 100, 7.0), (40, 10.0, 300, 0.0), (50, 10, 200, 0)):
        log.record(
            "costs",
            phase="nsgf",
            step=step,
            steps_per_second=speed,
            peak_memory=peak,
            prepare_seconds=prepare,
        )
    with (tmp_path / "costs.jsonl").open("a") as file:
        file.write('{"phase": "nsgf", "step": 9, "steps_per_second": 0, "peak_memory": 900}\n{"ph')
    assert read_costs(tmp_path) == {"nsgf": Cost(7.0 + 2.0 + 3.0 + 1.0, 300, 50)}
