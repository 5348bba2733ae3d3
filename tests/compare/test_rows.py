import csv
import io
import math

import pytest

from nsgf.compare.measure import Measured
from nsgf.compare.rows import Row, has_places_of, read_rows, table_csv
from nsgf.compare.trials import Target, Trial
from nsgf.system.errors import UserError
from tests.compare.table_rows import ROWS, row


def test_csv_has_a_line_for_each_measure():
    lines = list(csv.DictReader(io.StringIO(table_csv(ROWS))))
    assert len(lines) == 9
    assert lines[4] == {
        "target": "moons",
        "method": "icfm",
        "seed": "1",
        "draw": "0",
        "nfe": "10",
        "calls": "10",
        "updates": "100",
        "train_seconds": "60.0",
        "sample_seconds": "0.5",
        "w2": "0.3",
    }
    floor = lines[-1]
    assert (floor["method"], floor["nfe"], floor["calls"]) == ("floor", "", "")
    assert float(floor["w2"]) == 0.05


def test_csv_is_read_as_it_was_written(tmp_path):
    """Every measure to its last digit."""
    rows = [
        Row(
            Trial(Target("moons", "8gaussians"), "2rf", 4),
            *(100, 3, 40000, 61.5),
            Measured(99.5, 0.25, {"w2": math.inf, "1000 energy": -1 / 3}),
        ),
        Row(
            Trial(Target("moons", "8gaussians"), "floor", 4),
            *(None, 3, 0, 0.0),
            Measured(0.0, 0.0, {"w2": 1e-17, "1000 energy": 0.1 + 0.2}),
        ),
    ]
    file = tmp_path / "table.csv"
    file.write_text(table_csv(rows))
    assert read_rows(file) == rows
    assert table_csv(read_rows(file)) == file.read_text()
    file.write_text(table_csv(ROWS))
    assert [item for item in read_rows(file) if item.nfe] == ROWS[:6]


@pytest.mark.parametrize(
    "other", [("icfm", 3, 0.1), ("otcfm", 0, 0.1), ("icfm", 0, 0.1, 5), ("icfm", 0, 0.1, 10, 1)]
)
def test_rows_that_others_have_no_place_for_are_not_replaced(tmp_path, other):
    file, more = tmp_path / "table.csv", [*ROWS, row(*other)]
    assert has_places_of(ROWS, file)
    file.write_text(table_csv(more))
    assert has_places_of(list(reversed(more)), file)
    assert not has_places_of(ROWS, file)
    file.write_text(table_csv(ROWS))
    assert has_places_of(more, file)
    file.write_text("goal\n")
    assert not has_places_of(more, file)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("target,", "goal,", ": must be a table.csv of nsgf compare: target,method,seed"),
        (",w2\n", "\n", ": must be a table.csv of nsgf compare: target,method,seed"),
        ("moons,icfm,0", "moon,icfm,0", ", line 5: target = moon: must be"),
        ("icfm,0,0,10", "icfm,0,0,ten", ", line 5: invalid literal for int() with base 10: 'ten'"),
        ("0.5,0.2\n", "0.5,0.2,0.2\n", ", line 3: 11 cells, but the head has 10"),
    ],
)
def test_other_tables_are_refused_with_the_line(tmp_path, before, after, told):
    text = table_csv(ROWS)
    assert before in text
    file = tmp_path / "table.csv"
    file.write_text(text.replace(before, after, 1))
    with pytest.raises(UserError) as refused:
        read_rows(file)
    assert str(refused.value).startswith(f"{file}{told}")


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"m" * 200_000, None], ids=["empty", "no text", "long", "missing"]
)
def test_files_that_are_no_table_are_refused(tmp_path, content):
    file = tmp_path / "table.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=r"table\.csv: (must be a table|No such file)"):
        read_rows(file)
