import io
import json
from pathlib import Path

import pytest

from nsgf.run.log import Tracker


def test_lines_go_to_terminal_log_and_metrics(tmp_path, capsys):
    tracker = Tracker(tmp_path)
    tracker.log("hello")
    tracker.record(phase="nsgf", step=1, loss=0.5)
    assert capsys.readouterr().out == "hello\n"
    assert (tmp_path / "log.txt").read_text().endswith(" hello\n")
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {
        "phase": "nsgf",
        "step": 1,
        "loss": 0.5,
    }


def test_process_beside_the_first_writes_nothing(tmp_path, capsys):
    tracker = Tracker(tmp_path, quiet=True)
    tracker.log("hello")
    with tracker.progress("nsgf", 9, "step") as progress:
        progress.update()
    tracker.record(phase="nsgf", step=1)
    tracker.record_cost(phase="nsgf", step=1)
    tracker.rewind("nsgf", 0)
    tracker.sort(["nsgf"])
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_in_the_log_and_printed_where_there_is_no_bar(
    tmp_path, capsys, monkeypatch, terminal
):
    monkeypatch.setattr("nsgf.run.log.is_terminal", lambda: terminal)
    monkeypatch.setattr("nsgf.run.progress.is_terminal", lambda: terminal)
    with Tracker(tmp_path).progress("nsgf", 9, "step") as progress:
        progress.update(3)
    assert (tmp_path / "log.txt").read_text().endswith(" nsgf: step 3 of 9\n")
    assert capsys.readouterr().out == ("" if terminal else "nsgf: step 3 of 9\n")


def test_log_goes_on_when_nobody_reads_stdout(tmp_path, monkeypatch):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("sys.stdout", Gone())
    Tracker(tmp_path).log("hello")
    assert (tmp_path / "log.txt").read_text().endswith(" hello\n")


def test_rewind_drops_what_will_be_written_again(tmp_path):
    tracker = Tracker(tmp_path)
    tracker.rewind("nsgf", 3)
    for phase, step in (("nsgf", 5), ("nsf", 2), ("nsf", 4)):
        tracker.record(phase=phase, step=step)
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"phase": "nsf", "st')
    tracker.rewind("nsf", 2)
    kept = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert kept == [{"phase": "nsgf", "step": 5}, {"phase": "nsf", "step": 2}]


class Notebook:
    """A mirror that notes its calls and fails at one of them."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[tuple] = []
        self.failing = failing

    def _note(self, *call) -> None:
        self.calls.append(call)
        if call[0] == self.failing:
            raise ConnectionError("the cable\nis cut")

    def record(self, values) -> None:
        self._note("record", values)

    def picture(self, name, file) -> None:
        self._note("picture", name, file)

    def close(self, failed) -> None:
        self._note("close", failed)


def test_mirror_gets_records_and_pictures_and_is_closed(tmp_path):
    mirror = Notebook()
    with Tracker(tmp_path) as tracker:
        tracker.record(phase="nsgf", step=1)
        tracker.mirror = mirror
        tracker.record(phase="nsgf", step=2)
        tracker.picture("nsgf/samples", Path("p.png"))
    tracker.record(phase="nsgf", step=3)
    assert mirror.calls == [
        ("record", {"phase": "nsgf", "step": 2}),
        ("picture", "nsgf/samples", Path("p.png")),
        ("close", False),
    ]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_mirror_learns_of_a_failure_which_passes_on(tmp_path, kind):
    mirror = Notebook()

    def fail():
        with Tracker(tmp_path) as tracker:
            tracker.mirror = mirror
            raise kind

    with pytest.raises(kind):
        fail()
    assert mirror.calls == [("close", True)]


@pytest.mark.parametrize("failing", ["record", "picture", "close"])
def test_failing_mirror_is_one_line_and_then_left_alone(tmp_path, capsys, failing):
    mirror = Notebook(failing)
    with Tracker(tmp_path) as tracker:
        tracker.mirror = mirror
        for step in (1, 2):
            tracker.record(phase="nsgf", step=step)
            tracker.picture("nsgf/samples", tmp_path / "p.png")
    assert mirror.calls[-1][0] == "close"
    assert [call[0] for call in mirror.calls].count("close") == 1
    assert [call[0] for call in mirror.calls].count(failing) == 1
    assert capsys.readouterr().out == (
        "tracking: nothing is mirrored from here on (the cable is cut)\n"
    )
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_line_of_the_log_is_one_line_without_commands(tmp_path):
    Tracker(tmp_path).log("a \x1b[31m b\n2026-01-01 00:00:00 nsgf: done")
    (line,) = (tmp_path / "log.txt").read_text().splitlines()
    assert line.endswith(" a \\x1b[31m b\\n2026-01-01 00:00:00 nsgf: done")
