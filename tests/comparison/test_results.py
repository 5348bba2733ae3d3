import math

import pytest

from nsgf.comparison import (
    Measured,
    Row,
    add_measure,
    read_measures,
    read_rows,
    table_csv,
)
from nsgf.comparison.trials import FLOOR
from nsgf.system.errors import UserError
from tests.comparison.table_rows import ROWS


def test_csv_is_read_as_it_was_written(tmp_path):
    """Every measure to its last digit."""
    cost = (40000, 61.5, 0.25)
    rows = [
        Row("moons", "2rf", 4, 3, 100, 99.5, *cost, {"w2": math.inf, "1000 energy": -1 / 3}),
        Row("moons", FLOOR, 4, 3, None, 0.0, *cost, {"w2": 1e-17, "1000 energy": 0.1 + 0.2}),
    ]
    file = tmp_path / "table.csv"
    file.write_text(table_csv(rows))
    first = "target,method,seed,draw,nfe,calls,updates,train_seconds,sample_seconds,w2,1000 energy"
    assert file.read_text().splitlines()[0] == first
    assert file.read_text().splitlines()[2].startswith("moons,floor,4,3,,0.0,40000,61.5,0.25,")
    assert read_rows(file) == rows


def test_measures_are_added_to_a_file_after_a_line_that_was_cut_off(tmp_path):
    """By a killed process. A measure that is new adds to those of the same key."""
    file, key = tmp_path / "measures.jsonl", '{"draw": 0, "omega": 0.2}'
    add_measure(file, key, Measured(9.5, 0.25, {"w2": 1 / 3, "1000 energy": math.inf}))
    for cut in (1, 30):
        whole = file.read_bytes()
        add_measure(file, key, Measured(9.5, 0.25, {"lost": 1.0}))
        file.write_bytes(file.read_bytes()[:-cut])
        if cut == 1:  # only the end of the line
            file.write_bytes(whole + b"\n")
    add_measure(file, '{"draw": 1}', Measured(1.0, 0.0, {"w2": 2.0}))
    add_measure(file, key, Measured(9.5, 0.5, {"sliced": 0.5}))
    assert read_measures(file) == {
        key: Measured(9.5, 0.5, {"w2": 1 / 3, "1000 energy": math.inf, "sliced": 0.5}),
        '{"draw": 1}': Measured(1.0, 0.0, {"w2": 2.0}),
    }
    assert read_measures(tmp_path / "none") == {}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("target,", "goal,"),
        ("icfm,0,0,10", "icfm,0,0,ten"),
        ("icfm,0,0,10", f"icfm,0,0,{'9' * 400}"),
        ("0.5,0.2\n", "0.5\n"),
        (table_csv(ROWS), ""),
        (table_csv(ROWS), "\udcff\udcfe"),
    ],
)
def test_other_tables_are_refused(tmp_path, before, after):
    text = table_csv(ROWS)
    assert before in text
    file = tmp_path / "table.csv"
    file.write_text(text.replace(before, after, 1), errors="surrogateescape")
    with pytest.raises(UserError, match=r"table\.csv: must be a table\.csv of nsgf compare"):
        read_rows(file)
