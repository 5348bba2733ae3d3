"""A user's own data: their records, files of points, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nsgf.config.schema import Config, DataConfig
from nsgf.data import INSPECTORS, Data, target_set
from nsgf.data.choices import choose_for_own_data
from nsgf.data.own import inspect_points, read_points, read_table, split_rows
from nsgf.system.errors import UserError
from tests.data.own_files import inspected, own_points, write_csv, write_images, write_points


def test_images_are_a_set_as_the_shipped_ones(tmp_path):
    config = inspected("images", write_images(tmp_path, 24, classes=2), size=8, flip=True)
    record, data = target_set(config), Data(config, seed=0)
    assert (record.shape, record.classes) == ((3, 8, 8), 2)
    assert (data.images.shape, data.count, data.axes) == ((24, 3, 8, 8), 24, None)
    assert record.labels(config, 24).tolist() == [0] * 12 + [1] * 12
    batch = data.target("x").sample(30)
    assert batch.shape == data.source("x").sample(30).shape == (30, 3, 8, 8)
    assert torch.equal(data.reference("x").sample(30), batch)
    assert data.in_units(batch) is batch


# the second are seconds since 1970, where float32 has steps of 128
@pytest.mark.parametrize("points", [own_points(), 1.7e9 + np.arange(120.0).reshape(40, 3)])
def test_points_are_standardised_for_networks_and_measured_in_their_units(points, tmp_path):
    data = Data(inspected("points", write_points(tmp_path / "x.npy", points)), seed=0)
    assert (data.images, data.shape, data.count) == (None, (3,), 40)
    assert data.axes == ("coordinate 1", "coordinate 2", "coordinate 3")
    batch, real = data.target("x").sample(40), data.reference("x").sample(40)
    torch.testing.assert_close(batch.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(batch.std(0, correction=0), torch.ones(3))
    torch.testing.assert_close(data.in_units(batch), real, rtol=0, atol=1e-3)
    assert np.array_equal(np.sort(real.numpy(), 0), np.sort(points, 0))
    assert data.source("x").sample(5).shape == (5, 3)


@pytest.mark.parametrize("kind", ["points", "images", "arrays"])
def test_a_held_out_part_is_the_same_for_every_seed_and_not_trained_on(kind, tmp_path):
    name, how = ("points", {}) if kind == "points" else ("images", {"size": 8, "conditional": True})
    place = tmp_path / "x.npy"
    place = write_points(place) if name == "points" else write_images(tmp_path, 40, classes=2)
    whole = Data(inspected(name, place, **how), 0)
    if kind == "arrays":
        np.savez(place := tmp_path / "x.npz", images=whole.images, labels=whole.labels)
    config = inspected(name, place, held_out=0.4, **how)
    data, other = Data(config, 0), Data(config, 5)
    rows, (trained, held_out) = whole.points, split_rows(config, 40)
    assert torch.equal(torch.cat([trained, held_out]).sort().values, torch.arange(40))
    for one in (data, other):
        if name == "images":
            rows, found = whole.images, (one.images, one.measured().images)
            assert torch.equal(one.labels, whole.labels[trained])
            tested = target_set(config).labels(config, 16, test=True)
            assert torch.equal(tested, whole.labels[held_out])
        else:
            found = (one.points, one.measured().points)
        assert torch.equal(found[0], rows[trained])
        assert torch.equal(found[1], rows[held_out])
        for part, own in zip((one, one.measured()), found, strict=True):
            drawn = part.reference("x").sample(part.count)
            assert part.count == len(own) == len(drawn.unique(dim=0))
    assert whole.measured() is whole
    with pytest.raises(UserError, match=r"data\.held_out = 0\.1"):
        choose_for_own_data(replace(Config(), data=replace(config, held_out=0.1)))


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
REALS = [f"{number}.5,{number * number}.25" for number in range(20)]
SEMICOLONS = [row.replace(",", ";") for row in ROWS]


def table(file: Path, **how) -> tuple[np.ndarray, tuple[str, ...]]:
    return read_table(DataConfig(name="points", path=str(file), **how))


def refused(file: Path, **how) -> str:
    with pytest.raises(UserError) as refusal:
        table(file, **how)
    assert str(refusal.value).startswith(f"data.path = {file}: ")
    return str(refusal.value)


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
    whole = np.arange(60).reshape(20, 3).astype("int8")
    assert np.array_equal(table(write_points(tmp_path / "x.npy", whole))[0], whole.astype(float))


@pytest.mark.parametrize("separator", ",;\t")
def test_a_first_line_of_names_is_no_point(separator, tmp_path):
    lines = ["\ufeff", '"a b",c', "", *(row.replace(",", ',"') + '"' for row in ROWS), ""]
    file = write_csv(tmp_path / "x.csv", *(line.replace(",", separator) for line in lines))
    values, names = table(file)
    assert names == ("a b", "c")
    assert values.tolist() == [[number, number**2] for number in range(20)]


@pytest.mark.parametrize(
    ("head", "rows", "names"),
    [
        ([], ROWS, None),
        ([], [str(number) for number in range(20)], None),
        (["0,1"], REALS, ("0", "1")),
        (["2001,2002"], REALS, ("2001", "2002")),
        (["0"], [row[:3] for row in REALS], ("0",)),
        ([",0,1"], [f"{n},{n},{n * n}" for n in range(20)], ("coordinate 1", "0", "1")),
        (["# a,b"], ROWS, ("a", "b")),
        (["# by hand; in cm", "", "#a;b"], SEMICOLONS, ("a", "b")),
        (["# by hand", "a,b"], REALS, ("a", "b")),
        (['"Height\n(cm)";"b;c"'], SEMICOLONS, ("Height (cm)", "b;c")),
        (["0,0"], REALS, None),
        (["0,2"], REALS, None),
    ],
)
def test_lines_above_the_points_are_names(head, rows, names, tmp_path):
    """As pandas, numpy and spreadsheets write them."""
    values, found = table(write_csv(tmp_path / "x.csv", *head, *rows))
    dim = rows[0].count(",") + rows[0].count(";") + 1
    assert values.shape == (len(rows) + len(head) * (names is None), dim)
    assert found == (names or ("coordinate 1", "coordinate 2")[:dim])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["0,1,2", *(f"{n},{n * n},7{n}" for n in range(20))], ["names"]),
        (["36,6", *(f"{n},{n % 4 + 1}5" for n in range(20))], ["decimal"]),
        ([",a,b", *(f"{n},{3 * n % 7},{n * n}" for n in range(20))], ["index", "'a, b'"]),
        (["id,a,b", *(f"{n + 1},{3 * n % 7},{n * n}" for n in range(20))], ["index", "'a, b'"]),
        (["a,,b", *(f"{3 * n % 7},{n},{n * n}" for n in range(20))], ["index", "'a, b'"]),
        (["a,i,b", *(f"{3 * n % 7},{n},{n * n}" for n in range(20))], []),
    ],
)
def test_points_that_may_be_something_else_get_a_line(lines, words, tmp_path):
    file = write_csv(tmp_path / "x.csv", *lines)
    _, (_, *notes) = inspect_points(DataConfig(name="points", path=str(file)))
    assert all(word in str(notes) for word in words)
    assert bool(notes) == bool(words)


@pytest.mark.parametrize(
    ("wrong", "what"), [("1,oops", ": 'oops'"), ("1,nan", "nan"), ("1", "1 cells"), ("1,", "''")]
)
@pytest.mark.parametrize("head", [[], ["a,b"], ["# note", "", '"a\n(cm)",b']])
def test_rows_are_numbered_as_the_lines_of_their_file(head, wrong, what, tmp_path):
    found = refused(write_csv(tmp_path / "x.csv", *head, *ROWS, wrong, "2,2"))
    line = "\n".join([*head, *ROWS, wrong]).count("\n") + 1
    assert f"row {line}" in found
    assert what in found


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ([*ROWS, "nan,2", "1,inf"], "nan in row 21, coordinate 1"),
        (["a,b", *(f"{number},7" for number in range(20))], "in b;"),
        (ROWS[:15], "16"),
        (["a;b", *(row.replace(",", ",1;") for row in ROWS)], "'0,1'"),
        ([f"{n},{n % 4}5" for n in range(20)], "decimal"),
        (["title", *ROWS], "row 2: 2 cells, but row 1 has 1"),
    ],
)
def test_wrong_lines_are_named(lines, word, tmp_path):
    assert word in refused(write_csv(tmp_path / "x.csv", *lines))


@pytest.mark.parametrize("value", [np.finfo(float).max, -1e200, 1e-200])
def test_values_whose_square_leaves_float64_are_refused_by_their_column(value, tmp_path):
    points = own_points()
    points[:, 1] *= value if value == 1e-200 else 1
    points[7, 1] = value
    assert "coordinate 2" in refused(write_points(tmp_path / "x.npy", points))


def test_other_points_than_before_are_refused(tmp_path):
    config = inspected("points", write_points(tmp_path / "x.npy"))
    moved = (tmp_path / "x.npy").rename(tmp_path / "moved.npy")
    read_points(replace(config, path=str(moved)))
    points = own_points()
    points[7, 1] = np.nextafter(points[7, 1], 0)
    write_points(tmp_path / "x.npy", points)
    with pytest.raises(UserError, match=r"^data\.path = .*other points"):
        read_points(config)


def test_wrong_arrays_and_other_files_are_refused(tmp_path):
    wrong = {"complex128": np.ones((20, 2), complex), "(N, D)": np.arange(20.0)}
    for word, array in wrong.items():
        assert word in refused(write_points(tmp_path / f"{word}.npy", array))
    write_points(tmp_path / "text.npy", np.full((20, 2), "x"))
    np.savez(tmp_path / "two.npz", first=np.ones((20, 2)), second=np.ones(3))
    for name in ("damaged.csv", "damaged.npy", "damaged.npz", "x.xlsx"):
        (tmp_path / name).write_bytes(bytes(range(128, 256)))
    for file in (*tmp_path.iterdir(), tmp_path, tmp_path / "missing.csv"):
        assert ("no such file" in refused(file)) is not file.is_file()


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
    assert [table(numbered, columns=one)[0].size for one in ("2020", None)] == [20, 40]
    rows = table(write_csv(tmp_path / "y.csv", *ROWS), columns="2,1")[0]
    assert rows.tolist() == [[n * n, n] for n in range(20)]
    array = write_points(tmp_path / "z.npy")
    assert np.array_equal(table(array, columns="3,1")[0], own_points()[:, [2, 0]])


def test_array_is_chosen_by_its_key(tmp_path):
    np.savez(tmp_path / "x.npz", first=own_points(), second=-own_points())
    assert np.array_equal(table(tmp_path / "x.npz", key="second")[0], -own_points())
    for key in (None, "third"):
        found = refused(tmp_path / "x.npz", key=key)
        assert "data.key" in found
        assert "first, second" in found
    for place in (write_points(tmp_path / "x.npy"), tmp_path / "x.csv", tmp_path):
        with pytest.raises(UserError, match=r"^data\.key = first: "):
            table(place, key="first")
