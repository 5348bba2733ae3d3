"""A user's own data: their records, files of points, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nsgf.config.schema import DataConfig
from nsgf.data import INSPECTORS, Data, target_set
from nsgf.data.own import inspect_points, read_points, read_table
from nsgf.system.errors import UserError
from tests.data.own_files import own_points, write_images, write_points


def inspected(name: str, place: Path, **other) -> DataConfig:
    """The section of a new run."""
    config = DataConfig(name=name, path=str(place), **other)
    found, _ = INSPECTORS[name](config)
    return replace(config, found=found._asdict())


def test_images_are_a_set_as_the_shipped_ones(tmp_path):
    config = inspected("images", write_images(tmp_path, 24, classes=2), size=8, flip=True)
    record, data = target_set(config), Data(config, seed=0)
    assert (record.shape, record.classes) == ((3, 8, 8), 2)
    assert data.images.shape == (24, 3, 8, 8)
    assert record.labels(config, 24).tolist() == [0] * 12 + [1] * 12
    batch = data.target("x").sample(30)
    assert batch.shape == data.source("x").sample(30).shape == (30, 3, 8, 8)
    assert torch.equal(data.reference("x").sample(30), batch)
    assert data.in_units(batch) is batch
    assert (data.count, data.axes) == (24, None)


def test_points_are_standardised_for_networks_and_measured_in_their_units(tmp_path):
    config = inspected("points", write_points(tmp_path / "x.npy"))
    data = Data(config, seed=0)
    assert data.images is None
    assert (data.shape, data.count) == ((3,), 40)
    assert data.axes == ("coordinate 1", "coordinate 2", "coordinate 3")
    batch, real = data.target("x").sample(40), data.reference("x").sample(40)
    assert batch.dtype == torch.float32
    torch.testing.assert_close(batch.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(batch.std(0, correction=0), torch.ones(3))
    back = data.in_units(batch)
    assert back.dtype == torch.float64
    torch.testing.assert_close(back, real, rtol=1e-5, atol=1e-5)
    assert np.array_equal(np.sort(real.numpy(), 0), np.sort(own_points(), 0))
    assert data.source("x").sample(5).shape == (5, 3)


def test_large_numbers_keep_their_differences(tmp_path):
    """Seconds since 1970: float32 has steps of 128 there."""
    np.save(tmp_path / "x.npy", 1.7e9 + np.arange(100.0)[:, None])
    data = Data(inspected("points", tmp_path / "x.npy"), seed=0)
    back, real = data.in_units(data.target("x").sample(100)), data.reference("x").sample(100)
    assert float((back - real).abs().max()) < 1e-3


FOUND = {"samples": 40, "shape": [1, 8, 8], "checksum": "x", "classes": 2}


@pytest.mark.parametrize(
    "wrong",
    [
        {"classes": 10**8, "samples": 10**9},
        {"classes": 41},
        {"class_names": 7},
        {"class_names": ["a"]},
        {"class_names": ["a", ["b"]]},
        {"shape": 5},
        {"shape": [8]},
        {"samples": "x"},
        {"colour": 1},
        {"broken": [1]},
    ],
)
def test_a_strangers_description_is_checked(wrong):
    with pytest.raises(UserError, match=r"^data\.found"):
        target_set(DataConfig(name="images", path="x", size=8, found={**FOUND, **wrong}))


@pytest.mark.parametrize("name", INSPECTORS)
def test_data_that_were_not_inspected_are_refused(name):
    with pytest.raises(UserError, match=rf"data\.path = x: .*{name}"):
        Data(DataConfig(name=name, path="x"), seed=0)


# --- files of points ---

ROWS = [f"{number},{number * number}" for number in range(20)]


def write_csv(file: Path, *lines: str) -> Path:
    file.write_text("\n".join(lines))
    return file


def table(file: Path, **how) -> tuple[np.ndarray, tuple[str, ...]]:
    return read_table(DataConfig(name="points", path=str(file), **how))


def refused(file: Path, **how) -> str:
    with pytest.raises(UserError) as refusal:
        table(file, **how)
    message = str(refusal.value)
    assert message.startswith(f"data.path = {file}: ")
    return message


def test_all_types_of_files_hold_the_same_points(tmp_path):
    points = own_points()
    np.save(tmp_path / "a.npy", points)
    np.savez(tmp_path / "b.npz", anything=points)
    write_csv(tmp_path / "c.csv", *(",".join(map(repr, row)) for row in points.tolist()))
    np.save(tmp_path / "d.npy", np.asfortranarray(points).astype(">f8"))
    for file in tmp_path.iterdir():
        found, _ = inspect_points(DataConfig(name="points", path=str(file)))
        assert found.names == ["coordinate 1", "coordinate 2", "coordinate 3"]
        assert found.checksum == "054dd0607581"  # by which earlier runs find their points again
        assert np.array_equal(table(file)[0], points)
    np.save(tmp_path / "x.npy", whole := np.arange(60).reshape(20, 3).astype("int8"))
    assert np.array_equal(table(tmp_path / "x.npy")[0], whole.astype(float))


@pytest.mark.parametrize("separator", ",;\t")
def test_a_first_line_of_names_is_no_point(separator, tmp_path):
    lines = ["\ufeff", '"a b",c', "", *(row.replace(",", ',"') + '"' for row in ROWS), ""]
    file = write_csv(tmp_path / "x.csv", *(line.replace(",", separator) for line in lines))
    values, names = table(file)
    assert names == ("a b", "c")
    assert values.tolist() == [[number, number**2] for number in range(20)]
    assert table(write_csv(tmp_path / "y.csv", *ROWS))[0].shape == (20, 2)
    assert table(write_csv(tmp_path / "z.csv", *map(str, range(20))))[0].shape == (20, 1)


REALS = [f"{number}.5,{number * number}.25" for number in range(20)]


@pytest.mark.parametrize(
    ("head", "rows", "names"),
    [
        (["0,1"], REALS, ("0", "1")),
        (["2001,2002"], REALS, ("2001", "2002")),
        (["0"], [row[:4] + "1" for row in REALS], ("0",)),
        ([",0,1"], [f"{n},{n},{n * n}" for n in range(20)], ("coordinate 1", "0", "1")),
        (["# a,b"], ROWS, ("a", "b")),
        (["# by hand; in cm", "", "#a;b"], [row.replace(",", ";") for row in ROWS], ("a", "b")),
        (["# by hand", "a,b"], REALS, ("a", "b")),
        (['"Height\n(cm)";"b;c"'], [row.replace(",", ";") for row in ROWS], ("Height (cm)", "b;c")),
        (["0,0"], REALS, None),
        (["0,2"], REALS, None),
    ],
)
def test_lines_above_the_points_are_names(head, rows, names, tmp_path):
    """As pandas, numpy and spreadsheets write them."""
    if names and len(names) == 1:
        rows = [row.replace(",", "") for row in rows]
    values, found = table(write_csv(tmp_path / "x.csv", *head, *rows))
    assert (len(values), found) == (20 + (not names), names or ("coordinate 1", "coordinate 2"))


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        (["0,1,2", *(f"{n},{n * n},7{n}" for n in range(20))], "names"),
        (["36,6", *(f"{n},{n % 4}5" for n in range(20))], "decimal"),
    ],
)
def test_points_that_may_be_something_else_get_a_line(lines, word, tmp_path):
    _, notes = inspect_points(
        DataConfig(name="points", path=str(write_csv(tmp_path / "x.csv", *lines)))
    )
    assert word in notes[1]


@pytest.mark.parametrize(
    ("wrong", "what"), [("1,oops", "'oops'"), ("1,nan", "nan"), ("1", "1 cells")]
)
@pytest.mark.parametrize("head", [[], ["a,b"], ["# note", "", '"a\n(cm)",b']])
def test_rows_are_numbered_as_the_lines_of_their_file(head, wrong, what, tmp_path):
    found = refused(write_csv(tmp_path / "x.csv", *head, *ROWS, wrong, "2,2"))
    line = "\n".join([*head, *ROWS, wrong]).count("\n") + 1
    assert f"row {line}" in found
    assert what in found


@pytest.mark.parametrize("value", [np.finfo(float).max, -1e200, 1e-200])
def test_values_whose_square_leaves_float64_are_refused_by_their_column(value, tmp_path):
    points = own_points()
    points[:, 1] *= value if value == 1e-200 else 1
    points[7, 1] = value
    np.save(tmp_path / "x.npy", points)
    assert "coordinate 2" in refused(tmp_path / "x.npy")


def test_a_file_of_another_type_is_not_missing(tmp_path):
    (tmp_path / "x.xlsx").touch()
    assert "no such file" not in refused(tmp_path / "x.xlsx")
    assert "no such file" in refused(tmp_path / "y.xlsx")


def test_other_points_than_before_are_refused(tmp_path):
    file = write_points(tmp_path / "x.npy")
    config = DataConfig(name="points", path=str(file))
    found, _ = inspect_points(config)
    assert (found.samples, found.shape, found.classes) == (40, [3], 0)
    config = replace(config, found=found._asdict())
    moved = file.rename(tmp_path / "moved.npy")
    read_points(replace(config, path=str(moved)))
    points = own_points()
    points[7, 1] = np.nextafter(points[7, 1], 0)
    np.save(file, points)
    with pytest.raises(UserError, match=r"^data\.path = .*other points"):
        read_points(config)


WRONG_LINES = {
    "text": ([*ROWS, "1,abc"], "'abc'"),
    "missing": (["a,b", *ROWS, "1,"], "row 22"),
    "nan": ([*ROWS, "nan,2", "1,inf"], "nan in row 21, coordinate 1"),
    "constant": (["a,b", *(f"{number},7" for number in range(20))], "in b;"),
    "few": (ROWS[:15], "16"),
    "decimal comma": (["a;b", *(row.replace(",", ",1;") for row in ROWS)], "'0,1'"),
    "title": (["title", *ROWS], "row 2: 2 cells, but row 1 has 1"),
}


@pytest.mark.parametrize("kind", WRONG_LINES)
def test_wrong_lines_are_named(kind, tmp_path):
    lines, word = WRONG_LINES[kind]
    assert word in refused(write_csv(tmp_path / "x.csv", *lines))


WRONG_ARRAYS = {
    "complex": (np.ones((20, 2), complex), "complex128"),
    "text": (np.full((20, 2), "x"), ""),
    "one dimension": (np.arange(20.0), "(N, D)"),
}


def test_wrong_arrays_and_other_files_are_refused(tmp_path):
    for kind, (array, word) in WRONG_ARRAYS.items():
        np.save(tmp_path / f"{kind}.npy", array, allow_pickle=True)
        assert word in refused(tmp_path / f"{kind}.npy")
    np.savez(tmp_path / "two.npz", first=np.ones((20, 2)), second=np.ones(3))
    write_csv(tmp_path / "x.txt", *ROWS)
    for name in ("damaged.csv", "damaged.npy", "damaged.npz"):
        (tmp_path / name).write_bytes(bytes(range(128, 256)))
    for file in (*tmp_path.iterdir(), tmp_path, tmp_path / "missing.csv"):
        refused(file)


def test_columns_are_chosen_by_name_or_number(tmp_path):
    lines = ["id,kind,b,a", *(f"{n},x,{n * n},{-n}" for n in range(20))]
    file = write_csv(tmp_path / "x.csv", *lines)
    values, names = table(file, columns="a, b")
    assert names == ("a", "b")
    assert values.tolist() == [[-n, n * n] for n in range(20)]
    assert table(file, columns="4")[1] == ("a",)
    assert "id, kind, b, a" in refused(file, columns="c")
    assert "data.columns=" in refused(file)
    longer = write_csv(tmp_path / "v.csv", *lines, "1,2,3,4,5")
    assert "row 22: 5 cells" in refused(longer, columns="b")
    assert "x must be" in refused(write_csv(tmp_path / "w.csv", "x,x", *ROWS), columns="x")
    numbered = write_csv(tmp_path / "u.csv", "x,2020", *ROWS)
    assert [part.size for part in (table(numbered, columns="2020")[0], table(numbered)[0])] == [
        20,
        40,
    ]
    rows = write_csv(tmp_path / "y.csv", *ROWS)
    assert table(rows, columns="2,1")[0].tolist() == [[n * n, n] for n in range(20)]
    np.save(tmp_path / "z.npy", own_points())
    assert np.array_equal(table(tmp_path / "z.npy", columns="3,1")[0], own_points()[:, [2, 0]])


def test_array_is_chosen_by_its_key(tmp_path):
    np.savez(tmp_path / "x.npz", first=own_points(), second=-own_points())
    assert np.array_equal(table(tmp_path / "x.npz", key="second")[0], -own_points())
    for how in ({}, {"key": "third"}):
        found = refused(tmp_path / "x.npz", **how)
        assert "data.key" in found
        assert "first, second" in found
    with pytest.raises(UserError, match=r"^data\.key = first: "):
        table(write_points(tmp_path / "x.npy"), key="first")


@pytest.mark.parametrize(
    ("names", "begin", "hint"),
    [(",a,b", 0, "'a, b'"), ("id,a,b", 1, "'a, b'"), ("a,,b", 0, "'a, b'"), ("a,i,b", 0, None)],
)
def test_index_among_the_columns_is_named(names, begin, hint, tmp_path):
    place = 1 if names[0] == "a" else 0
    rows = ([3 * n % 7, n * n] for n in range(20))
    lines = (
        ",".join(map(str, [*row[:place], n + begin, *row[place:]])) for n, row in enumerate(rows)
    )
    file = write_csv(tmp_path / "x.csv", names, *lines)
    _, notes = inspect_points(DataConfig(name="points", path=str(file)))
    assert (hint in notes[-1] and "index" in notes[-1]) if hint else len(notes) == 1
