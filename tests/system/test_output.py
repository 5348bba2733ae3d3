import os

import pytest

from nsgf import cli
from nsgf.system.output import show, show_error


@pytest.mark.parametrize(("name", "say"), [("stdout", show), ("stderr", show_error)])
def test_reader_that_went_away_ends_nothing(monkeypatch, name, say):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(f"sys.{name}", stream)
        for _ in range(2):
            say("x" * 100_000)
        stream.flush()


@pytest.mark.parametrize("words", [["--version"], ["train", "--help"], ["--nonsense"]])
def test_commands_end_the_same_without_a_reader(monkeypatch, capsys, words):
    code = cli.main(words)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        monkeypatch.setattr("sys.stderr", stream)
        assert cli.main(words) == code
        stream.flush()
