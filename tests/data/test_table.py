"""Files of points: types, units, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nsgf.config.schema import DataConfig
from nsgf.data.own import in_units
from nsgf.data.table import look_at_points, read_points, read_table
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
    tables = [read_table(file) for file in sorted(tmp_path.iterdir())]
    assert len({table.checksum for table in tables}) == 1
    for table in tables:
        assert np.array_equal(table.values, points)
        assert table.names == ("coordinate 1", "coordinate 2", "coordinate 3")
    assert (
        len({tables[0].checksum, *(replace(tables[0], values=points[k:]).checksum for k in (1, 2))})
        == 3
    )


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float16", "float32"])
def test_real_numbers_of_every_type_are_taken(dtype, tmp_path):
    points = np.arange(60).reshape(20, 3).astype(dtype)
    np.save(tmp_path / "x.npy", points)
    assert np.array_equal(read_table(tmp_path / "x.npy").values, points.astype(float))


def test_a_first_line_of_names_is_no_point(tmp_path):
    table = read_table(write_csv(tmp_path / "x.csv", "﻿height,weight", "", *ROWS, ""))
    assert table.names == ("height", "weight")
    assert table.values[:3].tolist() == [[0, 0], [1, 1], [2, 4]]
    assert len(table.values) == 20
    assert read_table(write_csv(tmp_path / "y.csv", *ROWS)).values.shape == (20, 2)


def test_names_cannot_command_the_terminal(tmp_path):
    """matplotlib prints the characters of a name for which its font has no picture."""
    table = read_table(write_csv(tmp_path / "x.csv", "\x1b]0;title\x07height,\x9b2Jweight", *ROWS))
    assert table.names == (r"\x1b]0;title\x07height", r"\x9b2Jweight")


def test_points_on_a_line_have_one_column(tmp_path):
    assert read_table(write_csv(tmp_path / "x.csv", *map(str, range(20)))).values.shape == (20, 1)


def back_in_units(file: Path, x: torch.Tensor) -> torch.Tensor:
    """By what is found of the file, as a run keeps it."""
    found = look_at_points(DataConfig(name="points", path=str(file))).found
    return in_units(DataConfig(name="points", found=found), x)


def test_points_are_standardised_and_come_back(tmp_path):
    file = write_points(tmp_path / "x.npy", 50, 4)
    table = read_table(file)
    x = table.standardised()
    assert x.dtype == torch.float32
    torch.testing.assert_close(x.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(4), atol=1e-5, rtol=0)
    back = back_in_units(file, x)
    assert back.dtype == torch.float64
    torch.testing.assert_close(back, torch.from_numpy(table.values), rtol=1e-5, atol=1e-5)


def test_large_numbers_keep_their_differences(tmp_path):
    """Seconds since 1970: float32 has steps of 128 there."""
    np.save(tmp_path / "x.npy", 1.7e9 + np.arange(100.0)[:, None])
    table = read_table(tmp_path / "x.npy")
    back = back_in_units(tmp_path / "x.npy", table.standardised())
    assert float((back - torch.from_numpy(table.values)).abs().max()) < 1e-3


def test_other_points_than_before_are_refused(tmp_path):
    file = write_points(tmp_path / "x.npy")
    config = DataConfig(name="points", path=str(file))
    seen = look_at_points(config)
    assert (seen.found.samples, seen.found.shape, seen.found.classes) == (40, [3], 0)
    config = replace(config, found=seen.found)
    moved = file.rename(tmp_path / "moved.npy")
    read_points(replace(config, path=str(moved)))
    points = own_points()
    points[7, 1] = np.nextafter(points[7, 1], 0)
    np.save(file, points)
    with pytest.raises(UserError, match="holds other points than the run was begun with"):
        read_points(config)


def test_files_that_are_none_are_refused(tmp_path):
    assert "is a folder; images are --exp images" in refused(tmp_path)
    assert "no such file; name a file with --data.path FILE" in refused(tmp_path / "x.csv")
    assert "must end in .npz, .npy, .csv" in refused(write_csv(tmp_path / "x.txt", *ROWS))


WRONG_LINES = {
    "text": ([*ROWS, "1,abc"], "line 21, column 2 has 'abc', must be a number"),
    "missing": (["a,b", *ROWS, "1,"], "line 22, column 2 has nothing, must be a number"),
    "ragged": ([*ROWS, "1,2,3"], "line 21 has 3 values, the first one 2"),
    "nan": (
        [*ROWS, "nan,2", "1,inf"],
        "2 values are not finite, the first is nan in point 21, coord",
    ),
    "other separator": ([row.replace(",", ";") for row in ROWS], "line 2, column 1 has '1;1'"),
    "constant": (["a,b", *(f"{number},7" for number in range(20))], "same value everywhere in b;"),
    "few": (ROWS[:15], "15 points, must be at least 16"),
    "empty": ([], "0 points, must be at least 16"),
    "names alone": (["a,b"], "0 points, must be at least 16"),
    "one name": (["1,b", *ROWS], "line 1, column 2 has 'b', must be a number"),
}


@pytest.mark.parametrize("kind", WRONG_LINES)
def test_wrong_lines_are_named(kind, tmp_path):
    lines, words = WRONG_LINES[kind]
    assert words in refused(write_csv(tmp_path / "x.csv", *lines))


WRONG_ARRAYS = {
    "objects": (np.array([[object()]] * 20), "one of objects"),
    "complex": (np.ones((20, 2), complex), "an array of complex128, must be of real numbers"),
    "texts": (np.array([["a"]] * 20), "must be of real numbers"),
    "one dimension": (
        np.arange(20.0),
        "must be (N, D): a row for each point, a column for each coo",
    ),
    "three dimensions": (np.ones((20, 2, 2)), "an array of shape (20, 2, 2), must be (N, D)"),
    "no columns": (np.ones((20, 0)), "must be (N, D)"),
    "infinite": (np.full((20, 2), np.inf), "40 values are not finite"),
    "huge": (1e200 * np.arange(20.0)[:, None], "must be at most 1e100"),
    "rounding": (
        1e9 + 1e-7 * np.arange(20.0)[:, None],
        "the same value everywhere in coordinate 1",
    ),
}


@pytest.mark.parametrize("kind", WRONG_ARRAYS)
def test_wrong_arrays_are_refused(kind, tmp_path):
    array, words = WRONG_ARRAYS[kind]
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    assert words in refused(tmp_path / "x.npy")


def test_files_of_several_arrays_are_refused_with_their_names(tmp_path):
    np.savez(tmp_path / "x.npz", first=np.ones((20, 2)), second=np.ones(3))
    assert "has 2 arrays (first, second), must have one" in refused(tmp_path / "x.npz")


@pytest.mark.parametrize("name", ["x.csv", "x.npy", "x.npz"])
def test_damaged_files_end_in_one_line(name, tmp_path):
    (tmp_path / name).write_bytes(bytes(range(128, 256)))
    message = refused(tmp_path / name)
    assert "pickle" not in message  # numpy advises to load it
    assert "\n" not in message
