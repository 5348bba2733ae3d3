"""Tables in files: read as pandas and others wrote them, or refused by column and line."""

import csv
import datetime
import re
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse

from nsgf.config.schema import DataConfig
from nsgf.system.errors import UserError
from nsgf.user_data.points import inspect_points, read_table
from nsgf.user_data.tables import read_file, to_frame, to_numbers, to_records
from tests.user_data.user_files import own_points, write_csv, write_points

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
    ({"sep": "|"}, None),
    ({"header": ["a|b|c", "d"]}, ("a|b|c", "d")),
    ({"header": ["a,b", "c"], "sep": "|", "quoting": csv.QUOTE_ALL}, ("a,b", "c")),
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
    """Past mistake: The program's table reader guessed headers and used `float()` as a test of
    numbers. `2020_01` became 202001, rows of gaps vanished, and a column was taken twice.
    """
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
        assert "data.columns='height,weight'" in line
        assert np.array_equal(read(file, columns="height, weight")[0], FRAME)
    again = written(tmp_path / "again.csv", pd.read_csv(tmp_path / "x.csv"))
    assert read(again)[1] == ("Unnamed: 0", "height", "weight")
    assert "Unnamed: 0 counts the rows" in str(notes_of(again))


STEPS = pd.Index(np.arange(20) ** 2, name="step")
INDEXED = [  # an index, the columns with it
    (STEPS, "height weight step"),
    (pd.RangeIndex(3, 43, 2, name="step"), "height weight step"),
    (pd.MultiIndex.from_arrays([STEPS, STEPS % 7 + 0.5], names=["a", "b"]), "height weight a b"),
    (pd.MultiIndex.from_arrays([STEPS, ["x"] * 20], names=["a", "who"]), "height weight a"),
    (STEPS.rename("height"), "height weight height (index)"),
    (pd.Index(FRAME["height"]), "height weight"),
    (STEPS.rename(None), "height weight"),
    (pd.date_range("2020", periods=20, name="date"), "height weight"),
]


@pytest.mark.parametrize(("index", "names"), INDEXED)
def test_a_named_index_of_numbers_is_a_column(index, names, tmp_path):
    """Also where the file stores it only in its description, as pandas does with equal steps."""
    frame = FRAME.set_axis(index)
    file = written(tmp_path / "x.parquet", frame)
    values, found = read(file)
    assert " ".join(found) == names
    added = [*names.split()[2:3]]
    lines = str(notes_of(file))
    assert ("columns from the index: " in lines) is bool(added)
    assert ("index left out" in lines) is (not {"who", "date"}.isdisjoint(index.names))
    assert np.array_equal(values[:, :2], FRAME)
    if added:
        assert np.array_equal(values[:, 2], np.asarray(index.get_level_values(0), float))
        assert read(file, columns=f"weight,{found[2]}")[1] == ("weight", found[2])
    in_memory, note = to_frame(frame)
    assert in_memory.columns.tolist() == [*found]
    assert not note or note in lines
    again, _ = to_frame(pa.Table.from_pandas(frame))
    assert np.array_equal(again, values)


def test_a_run_that_began_without_the_index_finds_its_points(tmp_path):
    config = DataConfig(name="points", path=str(written(tmp_path / "a.csv", FRAME)))
    facts, _ = inspect_points(config)
    file = written(tmp_path / "x.parquet", FRAME.set_axis(STEPS).assign(same=7))
    again = DataConfig(name="points", path=str(file), found=facts)
    assert read_table(again).names == ["height", "weight"]


@pytest.mark.parametrize(("suffix", "columns"), [(".csv", None), (".parquet", None), (".npy", "2")])
def test_constant_columns_are_left_out(suffix, columns, tmp_path):
    """For a run that has begun also; those that the user names are refused."""
    frame = WHOLE.assign(c=5, d=EXACT["height"], e=0.0)[["a", "c", "b", "e", "d"]]
    file = tmp_path / f"x{suffix}"
    if suffix == ".npy":
        write_points(file, frame.to_numpy())
    else:
        written(file, frame)
    constants = "coordinate 2, coordinate 4" if suffix == ".npy" else "c, e"
    (line,) = [note for note in notes_of(file) if "left out" in note]
    assert line.endswith(f"2 of 5: {constants}")
    config = DataConfig(name="points", path=str(file))
    found, _ = inspect_points(config)
    assert len(found.names) == 3
    begun = DataConfig(name="points", path=str(file), found=found)
    values, names, *_ = read_table(begun)
    assert names == found.names
    assert np.array_equal(values, frame[["a", "b", "d"]])
    moved = write_points(tmp_path / "moved.npy", frame.to_numpy())
    assert np.array_equal(read_table(replace(begun, path=str(moved))).values, values)
    assert "constant" in refused(file, columns="1,2")


BIG = 1_700_000_000_000_000_000 + 15 * np.arange(20)  # nanoseconds; float64 has steps of 256
BIG_COLUMNS = [
    BIG,
    BIG.astype("u8") + 2**63,
    pd.array(BIG, dtype="Int64"),
    pd.Categorical(BIG),
    BIG.astype(object),
    BIG.astype(str),
    [Decimal(int(number)) / 100 for number in BIG],
]
STORED = [".parquet", ".csv", "memory"]


@pytest.mark.parametrize("where", STORED)
@pytest.mark.parametrize("column", BIG_COLUMNS)
def test_numbers_whose_differences_would_be_rounded_are_refused(column, where, tmp_path):
    """Past mistake: Whole numbers became float64 before their mean was subtracted: a spread of
    349.6 in place of 173.2.
    """
    frame = FRAME.assign(time=column)
    file = tmp_path / f"x{where}"
    if where == "memory":
        file = write_points(tmp_path / "x.npy", to_records(frame))
    else:
        written(file, frame)
    if where == ".csv" and isinstance(column, list):  # pandas reads 1.5 as float64
        assert "time: the values near 1.7e+16 differ little" in str(notes_of(file))
        return
    assert re.search("time: .*rounds", refused(file))
    assert read(file, columns="height,weight")[1] == ("height", "weight")


@pytest.mark.parametrize(
    ("column", "is_near"),
    [(BIG - BIG[0], False), (BIG + 10**12 * np.arange(20), False), (BIG - BIG % 256, True)],
)
def test_numbers_that_float64_holds_are_accepted(column, is_near, tmp_path):
    values = np.stack([column, np.arange(20) ** 2], 1)
    file = write_points(tmp_path / "x.npy", values)
    found, notes = inspect_points(DataConfig(name="points", path=str(file)))
    assert found.scale[0] == pytest.approx((column - column[0]).std(), rel=1e-9)
    assert ("subtract" in str(notes)) is is_near
    write_points(file, np.stack([BIG, values[:, 1]], 1).astype("u8"))
    assert "coordinate 1: " in refused(file)


CELLS = [
    ("abc", "text"),
    ([1.0, 2.0], "several values"),
    ([0.125] * 40, "several values"),
    (pd.Timestamp("2020-01-01"), "date"),
    (datetime.date(2020, 1, 31), "date"),
    (datetime.time(12, 30), "date or time"),
    ("31.1.2020", "date"),
    ("Jan 31, 2020", "date"),
    (pd.Timedelta("5s"), "duration"),
    (pd.Period("2020-01"), "date"),
    (pd.Interval(0, 1), "several values"),
    ("0.12 -0.13", "separate cells"),
    ("0.12:-0.13", "separate cells"),
    ("1.234,5", "is no number; write 1234.5"),
    (None, "missing; leave"),
    (np.inf, "inf"),
]
OBJECTS = [
    (b"abc", "text"),
    (np.ones(3), "several values"),
    ({"a": 1}, "several values"),
    (-1.2590655321041202 - 0.1257302210933933j, "complex"),
]


@pytest.mark.parametrize(
    ("cell", "what", "where"),
    [
        *((*case, "line 2") for case in CELLS),
        *((*case, "row 1") for case in CELLS + OBJECTS),
    ],
)
def test_a_cell_that_is_no_number_gets_its_reason(cell, what, where, tmp_path):
    """In a file of text, and in records of a table in memory."""
    frame = FRAME.assign(odd=pd.Series([cell] * 20, dtype=object))
    file = tmp_path / "x.csv"
    if where == "row 1":
        file = write_points(tmp_path / "x.npy", to_records(frame))
    else:
        written(file, frame)
    assert re.search(f"{where}, odd: .*{what}", refused(file))
    assert read(file, columns="weight,height")[1] == ("weight", "height")


@pytest.mark.parametrize(
    "column",
    [
        pd.array([True, False] * 10, dtype="boolean"),
        pd.array(range(20), dtype="UInt8"),
        pd.Categorical([3, 1] * 10),
        pd.arrays.SparseArray([0, 1.5] * 10),
        [Decimal(number) / 7 for number in range(20)],
        np.arange(20).astype("float16") / 8,
        np.arange(20).astype(">i2"),
        (np.arange(20) / 7).astype(str),
        [0.5, np.float32(1.5), 3, True] * 5,
    ],
)
def test_numbers_of_any_type_are_numbers(column):
    values = to_numbers(pd.DataFrame({"a": column}))
    assert values[:, 0].tolist() == [float(value) for value in column]
    assert to_records(pd.DataFrame({"a": column}))["a"].tolist() == values[:, 0].tolist()


def test_fields_of_records_are_checked_only_if_they_are_used(tmp_path):
    kinds = [
        ("x", ">f4"),
        ("name", "U5"),
        ("y", float),
        ("pair", float, 2),
        ("number", "S4"),
        ("time", ">i8"),
    ]
    records = np.zeros(20, kinds)
    records["x"], records["y"], records["name"] = FRAME["height"], FRAME["weight"], "abc"
    records["number"] = [f"{number}.5".encode() for number in range(20)]
    records["time"] = BIG
    file = write_points(tmp_path / "x.npy", records)
    values, names = read(file, columns="x,y,number")
    assert names == ("x", "y", "number")
    assert np.array_equal(values[:, :2], np.stack([records["x"], records["y"]], 1))
    assert values[:, 2].tolist() == [number + 0.5 for number in range(20)]
    for column, what in {"name": "'abc' is text", "pair": "several", "time": "rounds"}.items():
        assert re.search(f"{column}: .*{what}", refused(file, columns=f"x,{column}"))


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.full((20, 2), "a"), "'a' is text"),
        (np.ones((20, 2), "M8[s]"), "seconds since"),
        (np.ones((20, 2), "m8[s]"), "a duration"),
        (np.ones((20, 2), complex), "x.real"),
        (np.ones((20, 2), object), "astype"),
    ],
)
@pytest.mark.parametrize("save", [np.save, np.savez])
def test_an_array_of_another_kind_is_refused_by_its_kind(array, what, save, tmp_path):
    file = tmp_path / f"x.{'npy' if save is np.save else 'npz'}"
    save(file, array)
    assert what in refused(file)


def test_an_array_may_have_numbers_as_text(tmp_path):
    file = write_points(tmp_path / "x.npy", FRAME.to_numpy().astype(str))
    assert np.array_equal(read(file)[0], FRAME)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("x.zip", "unpack"),
        ("x.JPG", "images"),
        ("x.mat", "loadmat"),
        ("x.h5", "h5py"),
        ("x.h5ad", "anndata"),
        ("x.json", "pandas"),
        ("x.odd", "csv"),
        ("x", "csv"),
    ],
)
def test_a_file_of_another_kind_exists(name, what, tmp_path):
    assert "no such file" in refused(tmp_path / name)
    (tmp_path / name).write_bytes(b"x")
    line = refused(tmp_path / name)
    assert what in line
    assert "exists" in line
    assert "folder" in refused(tmp_path)


def test_a_sparse_matrix_in_a_file_is_named(tmp_path):
    sparse.save_npz(tmp_path / "x.npz", sparse.eye(20, format="csr"))
    assert "toarray" in refused(tmp_path / "x.npz")


@pytest.mark.parametrize(
    "above",
    ["\n" * 50_000, "# note\n" * 10_000, "# note\n \n" * 10_000, "a,b\n1,2\n" + "\n" * 50_000],
)
def test_empty_and_commented_lines_need_little_memory(above, tmp_path):
    """Past mistake: A repeated group of a regular expression went over a whole file and needed
    284 times its size in memory.
    """
    file = tmp_path / "x.csv"
    file.write_text(above + "\n".join(ROWS))
    read_file(write_csv(tmp_path / "small.csv", *ROWS), "auto")  # imports pandas
    tracemalloc.start()
    try:
        with suppress(ValueError):
            read_file(file, "auto")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * file.stat().st_size


def test_all_columns_that_count_the_rows_are_named_in_a_line(tmp_path):
    frame = FRAME.assign(first=np.arange(20), second=np.arange(20) + 0.5)
    lines = notes_of(written(tmp_path / "x.csv", frame.rename(columns={"height": "a, b"})))
    (line,) = [line for line in lines if "the rows" in line]
    assert "first, second count" in line
    assert line.endswith("""data.columns='"a, b",weight'""")


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
    """Past mistake: A shorter reader dropped the refusal of decimal commas, and its test was
    changed with it. A column of 0,5 was read as two columns.
    """
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
        (["# note", "a,b", *ROWS, " ", "2,3"], "line 23, a"),
        (["a,b", *(f"{row},1" for row in ROWS)], "3 in the second"),
        (["title", *ROWS], "line 2, title"),
        (["title", "", "a,b", *ROWS], "line 1 is a title"),
        (["title", "a,b", *ROWS], "line 1 is a title"),
        (["a title, of 2020", "a,b", *ROWS], "line 1 is a title"),
        (["# note", "a title, of, 2020", "a,b", *ROWS], "line 2 is a title"),
        (["a title, of 2020", "a;b", *(row.replace(",", ";") for row in ROWS)], "line 1 is"),
        (["a,b", "m,kg", *ROWS], "line 2 has units"),
        (["a,b", *ROWS, "# note", "1,2"], "line 22, a: .*comment"),
        ([f"{n},{n % 4}5" for n in range(20)], "decimal"),
        ([f"{n},5;{n % 4},5" for n in range(20)], "line 2, 0,5: .*1234,5"),
        (["a,b"], "x.csv"),
        ([""], "data"),
    ],
)
def test_rows_are_numbered_as_the_lines_of_their_file(lines, what, tmp_path):
    assert re.search(what, refused(write_csv(tmp_path / "x.csv", *lines)))


def test_quoted_names_may_have_empty_lines_and_numbers_zeros_in_front(tmp_path):
    file = write_csv(tmp_path / "x.csv", '"a\n\n(cm)",b', *ROWS)
    assert read(file)[1] == ("a (cm)", "b")
    file = write_csv(tmp_path / "x.csv", *(f"0{number},{-(number**2)}" for number in range(20)))
    assert read(file)[0].tolist() == [[number, -(number**2)] for number in range(20)]


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
        "from nsgf.user_data.points import inspect_points; "
        f"inspect_points(DataConfig(name='points', path={str(file)!r})); "
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
