"""A user's own data: their records, files of points, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from nsgf.config.files import read_facts
from nsgf.config.schema import Config, DataConfig, DataFacts
from nsgf.settings.choices import INSPECTORS, choose_settings
from nsgf.system.errors import UserError
from nsgf.user_data import find_target, load_data
from nsgf.user_data.files import split_rows
from nsgf.user_data.points import inspect_points, read_table
from tests.user_data.user_files import inspected, own_points, write_csv, write_images, write_points


# the second are seconds since 1970, where float32 has steps of 128
@pytest.mark.parametrize("points", [own_points(), 1.7e9 + np.arange(120.0).reshape(40, 3)])
def test_points_are_standardised_for_networks_and_measured_in_their_units(points, tmp_path):
    data = load_data(inspected("points", write_points(tmp_path / "x.npy", points)), seed=0)
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
    """Past mistake: Classes, a held-out part and features each had a test. A run that used all
    three ended in a traceback.
    """
    name, how = ("points", {}) if kind == "points" else ("images", {"size": 8, "conditional": True})
    place = tmp_path / "x.npy"
    place = write_points(place) if name == "points" else write_images(tmp_path, 40, classes=2)
    whole = load_data(inspected(name, place, **how), 0)
    if kind == "arrays":
        np.savez(place := tmp_path / "x.npz", images=whole.images, labels=whole.labels)
    config = inspected(name, place, held_out=0.4, **how)
    data, other = load_data(config, 0), load_data(config, 5)
    rows, (trained, held_out) = whole.user_points, split_rows(config, 40)
    assert torch.equal(torch.cat([trained, held_out]).sort().values, torch.arange(40))
    for one in (data, other):
        if name == "images":
            rows, found = whole.images, (one.images, one.measured().images)
            assert torch.equal(one.labels, whole.labels[trained])
            tested = find_target(config).labels(config, 16, held_out=True)
            assert torch.equal(tested, whole.labels[held_out])
        else:
            found = (one.user_points, one.measured().user_points)
        assert torch.equal(found[0], rows[trained])
        assert torch.equal(found[1], rows[held_out])
        for part, own in zip((one, one.measured()), found, strict=True):
            drawn = part.reference("x").sample(part.count)
            assert part.count == len(own) == len(drawn.unique(dim=0))
    assert whole.measured() is whole
    with pytest.raises(UserError, match=r"data\.held_out = 0\.1"):
        choose_settings(replace(Config(), data=replace(config, held_out=0.1)))


FACTS = {"samples": 40, "shape": [1, 8, 8], "checksum": "x"}


def target_of(facts):
    """The record of images that a file of facts describes."""
    layer = read_facts({"data": {"found": facts}})
    return find_target(DataConfig(name="images", path="x", size=8, found=layer["data.found"]))


def test_a_description_is_read_as_it_is_saved():
    assert target_of(FACTS).shape == (1, 8, 8)
    assert target_of(DataFacts(**FACTS).plain()).shape == (1, 8, 8)


@pytest.mark.parametrize(
    "wrong",
    [
        {"classes": 10**8, "samples": 10**9},
        {"class_names": 7},
        {"class_names": ["a"]},
        {"classes": 2},
        {"colour": 1},
        {"broken": [1]},
        {"shape": [8]},
        {"samples": None},
    ],
)
def test_a_strangers_description_is_checked(wrong):
    with pytest.raises(UserError, match=r"^data\.found"):
        target_of({**FACTS, **wrong})


@pytest.mark.parametrize("facts", ["x", [1], 7, {"samples": 40}])
def test_a_strangers_description_that_is_none_is_refused(facts):
    with pytest.raises(UserError, match=r"^data\.found"):
        target_of(facts)


@pytest.mark.parametrize("name", INSPECTORS)
def test_data_that_were_not_inspected_are_refused(name):
    with pytest.raises(UserError, match=rf"data\.path = x: .*{name}"):
        load_data(DataConfig(name=name, path="x"), seed=0)


@pytest.mark.parametrize("value", [-1e200, 1e-200, np.nan])
def test_values_that_no_network_can_learn_are_refused_by_their_column(value, tmp_path):
    points = own_points()
    points[:, 1] *= value if value == 1e-200 else 1
    points[7, 1] = value
    place = write_points(tmp_path / "x.npy", points)
    with pytest.raises(UserError, match=r"^data\.path = .*coordinate 2"):
        inspect_points(DataConfig(name="points", path=str(place), columns="1,2"))


def test_other_points_than_before_are_refused(tmp_path):
    config = inspected("points", write_points(tmp_path / "x.npy"))
    moved = (tmp_path / "x.npy").rename(tmp_path / "moved.npy")
    read_table(replace(config, path=str(moved)))
    points = own_points()
    points[7, 1] = np.nextafter(points[7, 1], 0)
    write_points(tmp_path / "x.npy", points)
    with pytest.raises(UserError, match=r"^data\.path = .*other points"):
        read_table(config)


def test_rows_that_are_held_out_decide_nothing(tmp_path):
    """Neither mean and scale, nor whether a column is constant or counts the rows.

    Past mistake: Mean and scale came from all rows, so held-out rows decided what networks saw.
    """
    config = DataConfig(name="points", path=str(tmp_path / "x.npy"), held_out=0.2)
    trained, held_out = split_rows(config, 100)
    points = own_points(100)
    points[:, 0] = range(100)
    points[held_out[3], :2] = [5, 1e6]
    np.save(config.path, points)
    found, notes = inspect_points(config)
    assert found.samples == 100
    np.testing.assert_allclose(found.mean, points[trained].mean(0))
    np.testing.assert_allclose(found.scale, points[trained].std(0))
    assert "coordinate 1 counts the rows" in str(notes)
    assert f"1e+06 in row {held_out[3] + 1}" in str(notes)
    points[trained, 1] = 7
    np.save(config.path, points)
    with pytest.raises(UserError, match=r"constant.* coordinate 2"):
        inspect_points(replace(config, columns="1,2"))
    assert inspect_points(config)[0].names == ["coordinate 1", "coordinate 3"]


@pytest.mark.parametrize(
    ("value", "share", "is_far"), [(-999, 0.01, True), (22.5, 0.001, True), (20, 0.001, False)]
)
def test_a_value_far_out_is_named(value, share, is_far, tmp_path):
    points = np.random.default_rng(0).standard_normal((1000, 3))
    points[:, 1] = [-1, 0, 0, 1] * 250  # standard deviation 0.7
    points[100 : 100 + round(1000 * share), 1] = value
    config = DataConfig(name="points", path=str(write_points(tmp_path / "x.npy", points)))
    _, (_, *notes) = inspect_points(config)
    assert [f"coordinate 2: {value:g} in row 101" in note for note in notes] == [True] * is_far


def test_wrong_arrays_and_other_files_are_refused(tmp_path):
    wrong = {"complex128": np.ones((20, 2), complex), "(N, D)": np.arange(20.0)}
    wrong["(20, 3)"] = np.ones(20, [("place", float, 2), ("w", float)])
    for name, array in {**wrong, "text": np.full((20, 2), "x"), "one": np.float64(1)}.items():
        write_points(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "two.npz", first=np.ones((20, 2)), second=np.ones(3))
    for name in ("csv", "npy", "npz", "xlsx", "parquet", "jpg"):
        (tmp_path / f"damaged.{name}").write_bytes(bytes(range(128, 256)))
    for file in (*tmp_path.iterdir(), tmp_path, tmp_path / "missing.csv"):
        with pytest.raises(UserError, match=r"^data\.path = ") as refusal:
            read_table(DataConfig(name="points", path=str(file)))
        assert file.stem not in wrong or file.stem in str(refusal.value)


@pytest.mark.parametrize(
    ("titles", "columns", "chosen"),
    [
        ("id,kind,b,a", None, None),
        ("id,kind,b,a", "a, b", "ab"),
        ("id,kind,b,a", "4", "a"),
        ("id,kind,b,a", "4,1", ["a", "id"]),
        ("id,kind,b,a", "c", None),
        ("id,kind,b,a", "a,a", None),
        ("id,kind,b,2020", "2020", ["2020"]),
        ("id,4,b,a", "1,3,4", None),
        ("b,x,b,a", "b", None),
        ("b,x,b,a", "1,4", "ba"),
        ('"id,b",x,c,a', '"id,b",a', ["id,b", "a"]),
    ],
)
def test_columns_are_chosen_by_name_or_number(titles, columns, chosen, tmp_path):
    """Past mistake: With chosen columns, a header with a numeric name was read as a point,
    because only the chosen cells were checked.
    """
    columns_of = {"id": 0, "b": 2, "a": 3, "2020": 3, "id,b": 0}
    file = write_csv(tmp_path / "x.csv", titles, *(f"{n},x,{n * n},{-n}" for n in range(20)))
    config = DataConfig(name="points", path=str(file), columns=columns)
    if chosen is None:
        with pytest.raises(UserError, match=r"^data\.path = .*data\.columns"):
            read_table(config)
        return
    values, names, *_ = read_table(config)
    assert names == [*chosen]
    whole = np.array([[n, 0, n * n, -n] for n in range(20)])
    picked = [0, 3] if columns == "1,4" else [columns_of[name] for name in chosen]
    assert np.array_equal(values, whole[:, picked])


def test_array_is_chosen_by_its_key(tmp_path):
    np.savez(tmp_path / "x.npz", first=own_points(), second=-own_points())
    config = DataConfig(name="points", path=str(tmp_path / "x.npz"))
    assert np.array_equal(read_table(replace(config, key="second"))[0], -own_points())
    for key in (None, "third"):
        with pytest.raises(UserError, match=r"data\.key.*first, second"):
            read_table(replace(config, key=key))
    for place in (write_points(tmp_path / "x.npy"), tmp_path / "x.csv", tmp_path):
        with pytest.raises(UserError, match=r"^data\.key = first: "):
            read_table(replace(config, path=str(place), key="first"))


def test_an_array_of_records_may_have_many_columns(tmp_path):
    names = [f"feature_{number:04}" for number in range(600)]
    np.save(tmp_path / "x.npy", np.ones(20, [(name, float) for name in names]))
    assert [*read_table(DataConfig(name="points", path=str(tmp_path / "x.npy"))).names] == names
