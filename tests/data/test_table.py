"""Files of points: types and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nsgf.config.schema import DataConfig
from nsgf.data.table import checksum, inspect_points, read_points, read_table
from nsgf.system.errors import UserError
from tests.data.own_files import own_points, write_points

ROWS = [f"{number},{number * number}" for number in range(20)]


def write_csv(file: Path, *lines: str) -> Path:
    file.write_text("\n".join(lines))
    return file


def refused(file: Path) -> str:
    with pytest.raises(UserError) as refusal:
        read_table(file)
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
        values, names = read_table(file)
        assert np.array_equal(values, points)
        assert names == ("coordinate 1", "coordinate 2", "coordinate 3")
        assert checksum(values) == "054dd0607581"  # by which earlier runs find their points again


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float16", "float32"])
def test_real_numbers_of_every_type_are_taken(dtype, tmp_path):
    points = np.arange(60).reshape(20, 3).astype(dtype)
    np.save(tmp_path / "x.npy", points)
    assert np.array_equal(read_table(tmp_path / "x.npy")[0], points.astype(float))


def test_a_first_line_of_names_is_no_point(tmp_path):
    values, names = read_table(write_csv(tmp_path / "x.csv", "\ufeffheight,weight", "", *ROWS, ""))
    assert names == ("height", "weight")
    assert values[:3].tolist() == [[0, 0], [1, 1], [2, 4]]
    assert len(values) == 20
    assert read_table(write_csv(tmp_path / "y.csv", *ROWS))[0].shape == (20, 2)


@pytest.mark.parametrize("separator", ";\t")
def test_values_may_be_separated_otherwise(separator, tmp_path):
    lines = [row.replace(",", separator) for row in ("a,b", *ROWS)]
    values, names = read_table(write_csv(tmp_path / "x.csv", *lines))
    assert names == ("a", "b")
    assert values[:3].tolist() == [[0, 0], [1, 1], [2, 4]]


def test_names_cannot_command_the_terminal(tmp_path):
    """matplotlib prints the characters of a name for which its font has no picture."""
    file = write_csv(tmp_path / "x.csv", "\x1b]0;title\x07height,\x9b2Jweight", *ROWS)
    assert read_table(file)[1] == (r"\x1b]0;title\x07height", r"\x9b2Jweight")


def test_points_on_a_line_have_one_column(tmp_path):
    assert read_table(write_csv(tmp_path / "x.csv", *map(str, range(20))))[0].shape == (20, 1)


def test_other_points_than_before_are_refused(tmp_path):
    file = write_points(tmp_path / "x.npy")
    config = DataConfig(name="points", path=str(file))
    found = inspect_points(config).found
    assert (found.samples, found.shape, found.classes) == (40, [3], 0)
    config = replace(config, found=found._asdict())
    moved = file.rename(tmp_path / "moved.npy")
    read_points(replace(config, path=str(moved)))
    points = own_points()
    points[7, 1] = np.nextafter(points[7, 1], 0)
    np.save(file, points)
    with pytest.raises(UserError, match=r"^data\.path = .*other points"):
        read_points(config)


@pytest.mark.parametrize("name", [".", "x.csv", "x.txt"])
def test_what_is_no_file_of_a_known_type_is_refused(name, tmp_path):
    write_csv(tmp_path / "x.txt", *ROWS)
    message = refused(tmp_path / name)
    for part in (".npz, .npy, .csv", "--data.path", "--exp images"):
        assert part in message


WRONG_LINES = {
    "text": ([*ROWS, "1,abc"], "row 20", "'abc'"),
    "missing": (["a,b", *ROWS, "1,"], "row 20", "''"),
    "ragged": ([*ROWS, "1,2,3"], "from 2 to 3 at row 21"),
    "nan": ([*ROWS, "nan,2", "1,inf"], "2 values", "nan in point 21, coordinate 1"),
    "constant": (["a,b", *(f"{number},7" for number in range(20))], "same value everywhere in b;"),
    "few": (ROWS[:15], "15 points", "at least 16"),
    "empty": ([], "0 points"),
    "only names": (["a,b"], "0 points"),
    "one name": (["1,b", *ROWS], "row 0", "'b'"),
}


@pytest.mark.parametrize("kind", WRONG_LINES)
def test_wrong_lines_are_named(kind, tmp_path):
    lines, *words = WRONG_LINES[kind]
    message = refused(write_csv(tmp_path / "x.csv", *lines))
    assert all(word in message for word in words)


WRONG_ARRAYS = {
    "objects": (np.array([[object()]] * 20), "one whole array of numbers"),
    "complex": (np.ones((20, 2), complex), "complex128"),
    "texts": (np.array([["a"]] * 20), "real numbers"),
    "one dimension": (np.arange(20.0), "(N, D)"),
    "three dimensions": (np.ones((20, 2, 2)), "shape (20, 2, 2)"),
    "no columns": (np.ones((20, 0)), "(N, D)"),
    "infinite": (np.full((20, 2), np.inf), "40 values are not finite"),
    "huge": (1e200 * np.arange(20.0)[:, None], "1e100"),
    "rounding": (1e9 + 1e-7 * np.arange(20.0)[:, None], "coordinate 1"),
}


@pytest.mark.parametrize("kind", WRONG_ARRAYS)
def test_wrong_arrays_are_refused(kind, tmp_path):
    array, words = WRONG_ARRAYS[kind]
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    assert words in refused(tmp_path / "x.npy")


@pytest.mark.parametrize("arrays", [{}, {"first": np.ones((20, 2)), "second": np.ones(3)}])
def test_files_without_a_single_array_are_refused(arrays, tmp_path):
    np.savez(tmp_path / "x.npz", **arrays)
    assert "one whole array" in refused(tmp_path / "x.npz")


@pytest.mark.parametrize("name", ["x.csv", "x.npy", "x.npz"])
def test_damaged_files_end_in_one_line(name, tmp_path):
    (tmp_path / name).write_bytes(bytes(range(128, 256)))
    assert "pickle" not in refused(tmp_path / name)
