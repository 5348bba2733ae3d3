"""Tables in files: read as pandas and others wrote them, or refused by column and line."""

import csv
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from nsgf.config.schema import DataConfig
from nsgf.data.own import inspect_points, read_table
from nsgf.system.errors import UserError
from tests.data.own_files import own_points, write_csv, write_points

UNNAMED = ("coordinate 1", "coordinate 2")
EXACT = pd.DataFrame(own_points(20, 2), columns=["height", "weight"])
FRAME = EXACT.round(9)  # pandas writes .xlsx with 16 digits
WHOLE = pd.DataFrame({"a": range(5, 25), "b": np.arange(20) ** 2 % 7})
ODD = FRAME.set_axis(['say "x", y', "Größe\n (cm)"], axis=1)
WIDE = FRAME.assign(kind=["a;b, c", "d"] * 10)
EXTREMES = pd.DataFrame({"big": 2.0 ** np.arange(20) * 1e144, "small": 5e-324 * np.arange(1, 21)})
BITS = WHOLE.assign(b=WHOLE["b"] > 3)
CATEGORIES = WHOLE.astype("category")
YEARS = FRAME.set_axis([2020, 2021], axis=1).set_axis(pd.date_range("2020", periods=20))
LONG = pd.DataFrame({"id": 2**63 + np.arange(20, dtype="u8"), "part": np.arange(20) / 3})


def read(file, **how):
    table = read_table(DataConfig(name="points", path=str(file), **how))
    return table.values, tuple(table.names)


def refused(file, **how):
    with pytest.raises(UserError) as refusal:
        inspect_points(DataConfig(name="points", path=str(file), **how))
    assert str(refusal.value).startswith(f"data.path = {file}: ")
    return str(refusal.value)


def notes_of(file, **how):
    return inspect_points(DataConfig(name="points", path=str(file), **how))[1]


def written(file, frame, **how):
    """Write a table with pandas, without its index unless ``how`` says so."""
    to_excel = lambda place, **how: frame.to_excel(place, **how)  # noqa: E731
    writer = {".parquet": frame.to_parquet, ".xlsx": to_excel}.get(file.suffix, frame.to_csv)
    writer(file, **({} if file.suffix == ".parquet" else {"index": False}) | how)
    return file


FRAMES = {
    ".csv": [EXACT, ODD, WHOLE, BITS, EXTREMES, LONG],
    ".parquet": [EXACT, ODD, WHOLE.astype("Int64"), BITS, EXTREMES, LONG, CATEGORIES, YEARS],
    ".xlsx": [FRAME, ODD, WHOLE, BITS, FRAME[["weight"]]],
}
WRITTEN = [  # options of pandas, names that are found if they are not those of the frame
    ({"sep": ";"}, None),
    ({"sep": "\t"}, None),
    ({"header": False}, UNNAMED),
    ({"quoting": csv.QUOTE_ALL}, None),
    ({"encoding": "utf-8-sig", "lineterminator": "\r\n"}, None),
    ({"header": ["NA", "nan"]}, ("NA", "nan")),
    ({"header": ["1_1", "1e5"]}, ("1_1", "1e5")),
    ({"header": ["", ""]}, UNNAMED),
    ({"header": ["T (C; mean)", "p"], "quoting": csv.QUOTE_ALL}, ("T (C; mean)", "p")),
]
CASES = [(frame, suffix, {}, None) for suffix in FRAMES for frame in FRAMES[suffix]]
CASES += [(FRAME, ".csv", *case) for case in WRITTEN]


@pytest.mark.parametrize(
    ("frame", "suffix", "how", "names"),
    [
        *CASES,
        (FRAME, ".CSV", {}, None),
        (FRAME, ".tsv", {"sep": "\t"}, None),
        (FRAME, ".txt", {"sep": " "}, None),
        (FRAME, ".xlsx", {"header": False}, UNNAMED),
        (WHOLE, ".csv", {"float_format": "%.3e"}, None),
    ],
)
def test_tables_of_pandas_keep_their_values_and_names(frame, suffix, how, names, tmp_path):
    values, found = read(written(tmp_path / f"x{suffix}", frame, **how))
    assert found == (names or tuple(" ".join(str(name).split()) for name in frame.columns))
    assert values.dtype == np.float64
    np.testing.assert_array_equal(values, frame.to_numpy(np.float64))


def test_an_index_is_a_column_until_it_is_left_out(tmp_path):
    for name in ("x.csv", "x.xlsx"):
        file = written(tmp_path / name, FRAME, index=True)
        values, names = read(file)
        assert names == ("coordinate 1", "height", "weight")
        assert np.array_equal(values[:, 0], range(20))
        (line,) = [note for note in notes_of(file) if "counts the rows" in note]
        assert "data.columns='height, weight'" in line
        assert np.array_equal(read(file, columns="height, weight")[0], FRAME)
    again = written(tmp_path / "again.csv", pd.read_csv(tmp_path / "x.csv"))
    assert read(again)[1] == ("Unnamed: 0", "height", "weight")
    assert "Unnamed: 0 counts the rows" in str(notes_of(again))


def with_cell(value, column=1, frame=FRAME):
    """The table with another value in row 7 from 0 on."""
    frame = frame.astype(object)
    frame.iat[7, column] = value
    return frame


GAPS = [
    (with_cell(None), "x.csv", {}, "line 9, weight"),
    (with_cell(None), "x.xlsx", {}, "line 9, weight"),
    (with_cell(None).astype("float64"), "x.parquet", {}, "row 8, weight"),
    (with_cell(None), "x.csv", {"na_rep": "NA"}, "line 9, weight"),
    (with_cell(None, 0, with_cell(None)), "x.csv", {"header": False}, "line 8, coordinate 1"),
    (with_cell("1_000"), "x.csv", {}, "line 9, weight"),
    (with_cell("1,234.5"), "x.csv", {}, "line 9, weight.* 1234.5 for 1,234.5"),
    (FRAME, "x.csv", {"sep": ";", "decimal": ","}, "line 2, .* for .*1234,5"),
    (WHOLE.assign(b=pd.date_range("2020", periods=20)), "x.xlsx", {}, "line 2, b"),
    (WIDE, "x.csv", {}, "line 2, kind"),
    (ODD.assign(b=with_cell("oops")["weight"]), "x.csv", {}, "line 10, b"),
    (FRAME[:15], "x.csv", {}, "16"),
    (FRAME[:0], "x.xlsx", {}, "x.xlsx"),
    (pd.DataFrame({"a": 5, "b": 7}, range(20)), "x.csv", {}, "constant.* a, b;"),
]


@pytest.mark.parametrize(("frame", "name", "how", "what"), GAPS)
def test_cells_that_are_no_numbers_are_refused_by_column_and_line(frame, name, how, what, tmp_path):
    assert re.search(what, refused(written(tmp_path / name, frame, **how)))


ROWS = [f"{number},{number * number}" for number in range(20)]
REALS = [f"{number}.5,{number * number}.25" for number in range(20)]


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([*ROWS, "1"], "line 21, coordinate 2"),
        (["# note", "", *ROWS, "1,2,3"], "line 23, saw 3"),
        (["# note", "", '"a\n(cm)",b', *ROWS, "1,", "2,3"], "line 25, b"),
        (["a,b", *ROWS, "", "2,3"], "line 22, a"),
        (["a,b", *(f"{row},1" for row in ROWS)], "3 in the second"),
        (["title", *ROWS], "line 2, title"),
        ([f"{n},{n % 4}5" for n in range(20)], "decimal"),
        (["a,b"], "x.csv"),
        ([""], "data"),
    ],
)
def test_rows_are_numbered_as_the_lines_of_their_file(lines, what, tmp_path):
    assert what in refused(write_csv(tmp_path / "x.csv", *lines))


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_other_encodings_are_refused_by_name(encoding, tmp_path):
    (tmp_path / "x.csv").write_bytes(("Größe,b\n" + "\n".join(ROWS)).encode(encoding))
    assert "UTF-8" in refused(tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("head", "names"),
    [
        (["# a,b"], ("a", "b")),
        (["# by hand; in cm", "", "#a,b"], ("a", "b")),
        (["# by hand", "", "a, b"], ("a", "b")),
        (['a 5",b 3"'], ('a 5"', 'b 3"')),
        (["# by hand"], UNNAMED),
        ([], UNNAMED),
    ],
)
def test_comments_may_stand_above_the_points(head, names, tmp_path):
    """As numpy writes them."""
    values, found = read(write_csv(tmp_path / "x.csv", *head, *REALS, "", ""))
    assert found == names
    assert values.tolist() == [[n + 0.5, n * n + 0.25] for n in range(20)]
    np.savetxt(tmp_path / "x.txt", values, header="a b")
    again, found = read(tmp_path / "x.txt")
    assert found == ("a", "b")
    assert np.array_equal(again, values)


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
@pytest.mark.parametrize(
    ("first", "header", "is_named"),
    [
        (("a", "7"), "auto", True),
        (("1_1", "1_2"), "auto", True),
        (("400.5", "401.5"), "auto", False),
        (("400", "410"), True, True),
        (("5", "x"), False, False),
    ],
)
def test_the_program_says_what_the_first_row_is(first, header, is_named, suffix, tmp_path):
    rows = pd.DataFrame([first, *(row.split(",") for row in REALS)])
    if suffix == ".xlsx":
        rows = rows.map(lambda cell: float(cell) if cell.replace(".", "").isdecimal() else cell)
    file = written(tmp_path / f"x{suffix}", rows, header=False)
    if first[1] == "x" and not header:
        assert "line 1, coordinate 2" in refused(file, header=header)
        return
    values, names = read(file, header=header)
    assert len(values) == 21 - is_named
    assert (names == first) is is_named
    line = f"first row taken as names: {first[0]}, {first[1]}"
    if not is_named:
        line = "first row taken as a point; if it has names: data.header=true"
    assert f"data: {line}" in notes_of(file, header=header)


def test_all_types_of_files_hold_the_same_points(tmp_path):
    """By their checksum runs of earlier versions find their points again."""
    points = own_points()
    np.save(tmp_path / "a.npy", points)
    np.savez(tmp_path / "b.npz", anything=points)
    write_csv(tmp_path / "c.csv", *(",".join(map(repr, row)) for row in points.tolist()))
    np.save(tmp_path / "d.npy", np.asfortranarray(points).astype(">f8"))
    np.savetxt(tmp_path / "e.txt", points)
    for file in tmp_path.iterdir():
        found, _ = inspect_points(DataConfig(name="points", path=str(file)))
        assert found.names == ["coordinate 1", "coordinate 2", "coordinate 3"]
        assert found.checksum == "054dd0607581"


@pytest.mark.parametrize(("suffix", "package"), [("parquet", "pyarrow"), ("xlsx", "openpyxl")])
def test_a_missing_package_is_named(suffix, package, tmp_path, monkeypatch):
    file = written(tmp_path / f"x.{suffix}", FRAME)
    monkeypatch.setitem(sys.modules, package, None)
    assert package in refused(file)


@pytest.mark.e2e
def test_pandas_is_imported_only_for_tables(tmp_path):
    file = write_points(tmp_path / "x.npy")
    code = (
        "import sys, nsgf.api.train; from nsgf.config.schema import DataConfig; "
        "from nsgf.data.own import inspect_points; "
        f"inspect_points(DataConfig(name='points', path={str(file)!r})); "
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
