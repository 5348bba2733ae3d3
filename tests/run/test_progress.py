import io
import time
from unittest.mock import Mock

import pytest

from nsgf.run import progress
from nsgf.run.progress import Progress, count_progress


def work(seconds, **settings):
    """The lines of a work that does one unit after each of these times."""
    now = [0.0]
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now[0])
        with Progress("pool", 100, "flow", **{"line": said.append, **settings}) as bar:
            for each in seconds:
                now[0] += each
                bar.update(10)
    return said


def test_a_line_for_the_first_unit_then_every_half_minute_with_speed_and_time_left():
    assert work([1, *[10] * 5, 20, 20, 5]) == [
        "pool: flow 10 of 100",
        "pool: flow 40 of 100, 1/s, 1.0 min left",
        "pool: flow 70 of 100, 0.75/s, 40.0 s left",
        "pool: flow 90 of 100, 0.8/s, 12.5 s left",
    ]


def test_speed_is_measured_since_the_line_before_or_the_start(capsys):
    work([30], line=None, done=50)
    assert capsys.readouterr().err == "pool: flow 60 of 100, 0.333/s, 2.0 min left\n"
    work([30, 1], line=None, done=80)
    assert capsys.readouterr().err.splitlines()[1:] == ["pool: flow 100 of 100, 10/s"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_bars_are_for_terminals_and_lines_on_stderr_for_others(monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    for stream, expected in ((Terminal(), 0), (io.StringIO(), 3)):
        monkeypatch.setattr("sys.stderr", stream)
        assert list(count_progress(range(3), "W2", "draw")) == [0, 1, 2]
        assert stream.getvalue().count("W2: draw") == expected
        work([100])
        assert ("pool:  10%" in stream.getvalue()) == (expected == 0)


def test_terminal_that_goes_away_does_not_end_the_work(monkeypatch):
    stream = Terminal()
    stream.write = Mock(side_effect=OSError(5, "Input/output error"))
    monkeypatch.setattr("sys.stderr", stream)
    assert len(work([100, 100])) == 2
