import csv
import io
import math

import pytest

from nsgf.compare.results import (
    FLOOR,
    Row,
    add_train_seconds,
    read_measure,
    read_rows,
    table_csv,
    train_seconds,
)
from nsgf.run.folder import RunFolder
from nsgf.system.errors import UserError
from tests.compare.table_rows import ROWS


def test_csv_has_a_line_for_each_measure():
    lines = list(csv.DictReader(io.StringIO(table_csv(ROWS))))
    assert len(lines) == 9
    assert lines[4] == {
        "target": "moons",
        "method": "icfm",
        "seed": "1",
        "draw": "0",
        "nfe": "10",
        "calls": "10.0",
        "updates": "100",
        "train_seconds": "60.0",
        "sample_seconds": "0.5",
        "w2": "0.3",
    }
    assert (lines[-1]["method"], lines[-1]["nfe"], lines[-1]["w2"]) == ("floor", "", "0.05")


def test_csv_is_read_as_it_was_written(tmp_path):
    """Every measure to its last digit."""
    cost = (40000, 61.5, 0.25)
    rows = [
        Row("moons", "2rf", 4, 3, 100, 99.5, *cost, {"w2": math.inf, "1000 energy": -1 / 3}),
        Row("moons", FLOOR, 4, 3, None, 0.0, *cost, {"w2": 1e-17, "1000 energy": 0.1 + 0.2}),
    ]
    file = tmp_path / "table.csv"
    file.write_text(table_csv(rows))
    assert read_rows(file) == rows
    assert read_measure(file) is None
    file.write_text(table_csv(rows[:1]))
    assert read_measure(file) == rows[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("target,", "goal,"),
        (",w2\n", "\n"),
        ("icfm,0,0,10", "icfm,0,0,ten"),
        ("0.5,0.2\n", "0.5,0.2,0.2\n"),
        ("0.5,0.2\n", "0.5\n"),
    ],
)
def test_other_tables_are_refused(tmp_path, before, after):
    text, file = table_csv(ROWS), tmp_path / "table.csv"
    assert before in text
    file.write_text(text.replace(before, after, 1))
    with pytest.raises(UserError, match=r"table\.csv: must be a table\.csv of nsgf compare"):
        read_rows(file)
    assert read_measure(file) is None


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"m" * 200_000, None])
def test_files_that_are_no_table_are_refused(tmp_path, content):
    file = tmp_path / "table.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=r"table\.csv: (must be a table|No such file)"):
        read_rows(file)
    assert read_measure(file) is None


def test_unknown_training_time_is_not_guessed(tmp_path):
    """A session that was killed has counted nothing; the next one knows only its own share."""
    run = RunFolder(tmp_path)
    add_train_seconds(run, "peer", 3.0, resumed=True)
    add_train_seconds(run, "reflow", 5.0, resumed=False)
    add_train_seconds(run, "reflow", 2.0, resumed=True)
    assert train_seconds(run, ["peer", "reflow"]) == 0
    assert train_seconds(run, ["reflow"]) == 7
    (tmp_path / "train_seconds.json").write_text('{"reflow"')
    assert train_seconds(run, ["reflow"]) == 0
