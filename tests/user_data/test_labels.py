"""Classes of points: the column of a table that holds the class of each row."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from nsgf.config.schema import Config, DataConfig
from nsgf.settings.choices import SOURCE_INSPECTORS, choose_settings
from nsgf.system.errors import UserError
from nsgf.user_data import find_target, load_data
from nsgf.user_data.files import saved_facts, split_rows
from nsgf.user_data.points import inspect_points, read_table
from nsgf.user_data.starts import labels_of, read_starts
from tests.user_data.user_files import inspected, own_points

KINDS = np.array(["wolf", "cat"])[(np.arange(40) % 3 > 0).astype(int)]
"""14 wolves and 26 cats."""
NUMBERS = (KINDS == "wolf").astype(int)
FRAME = pd.DataFrame(own_points(40, 2), columns=["a", "b"])


def write(folder, labels=KINDS, name="t.csv", title="kind"):
    """A table whose second column has the classes."""
    file = folder / name
    frame = FRAME.copy()
    frame.insert(1, title, labels)
    if file.suffix == ".parquet":
        frame.to_parquet(file)
    elif file.suffix == ".npy":
        np.save(
            file, frame.to_records(index=False).astype([("a", "f8"), (title, "U9"), ("b", "f8")])
        )
    else:
        frame.to_csv(file, index=False)
    return file


def section(folder, labels=KINDS, label="kind", **settings):
    return inspected("points", write(folder, labels), label=label, conditional=True, **settings)


def test_facts_have_the_classes_and_not_their_column(tmp_path):
    """For a column by name or number, in each type of file."""
    FRAME.to_csv(tmp_path / "plain.csv", index=False)
    plain = inspected("points", tmp_path / "plain.csv")
    checksums = set()
    for file in [write(tmp_path, name=f"t.{kind}") for kind in ("csv", "parquet", "npy")]:
        for label in ("kind", "2"):
            config = DataConfig(name="points", path=str(file), label=label)
            facts, notes = inspect_points(config)
            assert facts.class_names == ["cat", "wolf"]
            assert (facts.classes, facts.label_name) == (2, "kind")
            assert (facts.names, facts.mean) == (plain.found.names, plain.found.mean)
            assert "2 classes of kind: cat, wolf" in str(notes)
            checksums.add(facts.checksum)
    assert len(checksums) == 1
    assert plain.found.checksum not in checksums


def test_checksum_of_a_table_without_classes_stays(tmp_path):
    """Runs of earlier versions resume."""
    points = np.arange(40.0).reshape(20, 2) ** 1.5
    np.save(tmp_path / "x.npy", points)
    facts = inspected("points", tmp_path / "x.npy").found
    assert facts.checksum == "74e474b3ad1e"
    assert (facts.classes, facts.class_names, facts.label_name) == (0, None, None)


def test_data_have_the_class_of_each_row(tmp_path):
    config = section(tmp_path, held_out=0.4)
    trained, held_out = split_rows(config, 40)
    data = load_data(config, 0)
    assert data.classes == 2
    assert data.labels.tolist() == NUMBERS[trained].tolist()
    assert data.measured().labels.tolist() == NUMBERS[held_out].tolist()
    wolves = {*map(tuple, data.user_points[data.labels == 1].tolist())}
    drawn = data.in_units(data.of_class(1, "x").sample(len(wolves)))
    expected = torch.tensor(sorted(wolves), dtype=torch.float64)
    torch.testing.assert_close(drawn[drawn[:, 0].argsort()], expected, rtol=1e-5, atol=1e-4)
    plain = load_data(replace(config, conditional=False), 0)
    assert (plain.classes, plain.labels) == (0, None)
    assert find_target(replace(config, conditional=False)).label_name is None


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (np.where(NUMBERS, 10, 9), ["9", "10"]),
        (np.where(NUMBERS, -1.0, 3.0), ["-1", "3"]),
        (NUMBERS == 1, ["0", "1"]),
        (np.where(NUMBERS, "b", "1"), ["1", "b"]),
    ],
)
def test_classes_are_text_or_whole_numbers(labels, names, tmp_path):
    assert section(tmp_path, labels).found.class_names == names


def replaced(*cells):
    """The classes with the first cells replaced."""
    return [*cells, *KINDS[len(cells) :]]


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (replaced("dog"), "kind, the classes: 1 points of class dog, must be 10 or more"),
        (["cat"] * 40, "one class only"),
        (replaced("cat", None), "line 3, kind: missing"),
        ([*NUMBERS[:39], None], "line 41, kind: missing"),
        (NUMBERS + 0.5, "line 2, kind: .*5: a class must be text or a whole number"),
        (NUMBERS + 2**60, "kind: .*whole number below"),
        (replaced("w" * 70), "line 2, kind: .*fewer than 64"),
    ],
)
def test_a_column_that_has_no_classes_is_refused(labels, reason, tmp_path):
    with pytest.raises(UserError, match=f"^data.path = .*{reason}"):
        section(tmp_path, labels)


@pytest.mark.parametrize("label", ["age", "4", "0", "3"])
def test_a_label_must_be_one_column(label, tmp_path):
    file = write(tmp_path, title="3")
    with pytest.raises(UserError, match=rf"data\.label = {label}: must be one column of a, 3, b"):
        inspect_points(DataConfig(name="points", path=str(file), label=label))


def test_columns_may_not_have_the_classes(tmp_path):
    assert section(tmp_path, columns="b").found.names == ["b"]
    assert section(tmp_path, columns="3,1").found.names == ["b", "a"]
    with pytest.raises(UserError, match=r"data\.columns = a,kind: kind has the classes"):
        section(tmp_path, columns="a,kind")


def test_a_text_column_suggests_classes(tmp_path):
    with pytest.raises(UserError, match=r"kind: 'wolf' is text.*data\.label"):
        inspect_points(DataConfig(name="points", path=str(write(tmp_path))))


def test_resuming_needs_the_same_classes(tmp_path):
    config = section(tmp_path)
    read_table(config)
    write(tmp_path, replaced("cat"))
    with pytest.raises(UserError, match=r"^data\.path = .*other points"):
        read_table(config)
    write(tmp_path, np.where(NUMBERS, "fox", "cat"))
    with pytest.raises(UserError, match=r"^data\.path = .*other points"):
        read_table(config)


def test_facts_that_contradict_each_other_are_refused(tmp_path):
    config = section(tmp_path)
    for change in ({"label_name": None}, {"classes": 3}, {"class_names": None}):
        damaged = replace(config, found=replace(config.found, **change))
        with pytest.raises(UserError, match=r"^data\.found"):
            saved_facts(damaged)


def test_labels_may_be_an_array_of_the_file(tmp_path):
    points = FRAME.to_numpy()
    file = tmp_path / "t.npz"
    np.savez(file, points=points, labels=KINDS[:, None])
    config = DataConfig(name="points", path=str(file))
    assert inspect_points(config)[0].classes == 0
    facts, _ = inspect_points(replace(config, label="labels"))
    assert (facts.class_names, facts.label_name) == (["cat", "wolf"], "labels")
    np.savez(file, points=points, labels=KINDS[:39])
    with pytest.raises(UserError, match=r"labels: \(39,\), must be one for each of 40 points"):
        inspect_points(replace(config, label="labels"))


# --- a source with classes ----------------------------------------------------------------------


def with_source(folder, source, conditional=True):
    source.to_csv(folder / "s.csv", index=False)
    config = section(folder)
    path = str(folder / "s.csv")
    config = replace(config, source="file", source_path=path, conditional=conditional)
    facts, _ = SOURCE_INSPECTORS["points"](config)
    return replace(config, found=replace(config.found, source=facts))


def test_pairs_with_a_source_stay_within_classes(tmp_path):
    source = (FRAME + 7).assign(kind=KINDS[::-1])
    data = load_data(with_source(tmp_path, source), 0)
    assert data.source_data.labels.tolist() == NUMBERS[::-1].tolist()
    starts = data.in_units(data.source_by_class("x").sample(40))
    for label, name in enumerate(("cat", "wolf")):
        rows = source[source.kind == name][["a", "b"]].to_numpy()
        distances = np.abs(starts[label::2, None].numpy() - rows).max(2)
        assert distances.min(1).max() < 1e-3


def test_a_source_needs_the_classes_of_the_target(tmp_path):
    with pytest.raises(UserError, match=r"^data\.source = .*kind, the classes, is missing"):
        with_source(tmp_path, FRAME)
    with pytest.raises(UserError, match=r"^data\.source = .*classes cat, dog, must be .*cat, wolf"):
        with_source(tmp_path, FRAME.assign(kind=np.where(NUMBERS, "dog", "cat")))
    config = with_source(tmp_path, FRAME, conditional=False)
    assert load_data(config, 0).source_data.labels is None


def test_starts_have_the_classes_of_their_column(tmp_path):
    config = section(tmp_path)
    target = find_target(config)
    starts = read_starts(config, target, write(tmp_path, name="new.csv"))
    assert labels_of(starts, target, None).tolist() == NUMBERS.tolist()
    assert labels_of(starts, target, "cat").tolist() == [0] * 40
    FRAME.to_csv(tmp_path / "plain.csv", index=False)
    starts = read_starts(config, target, tmp_path / "plain.csv")
    assert labels_of(starts, target, "wolf").tolist() == [1] * 40
    with pytest.raises(UserError, match=r"sampling\.label"):
        labels_of(starts, target, None)


def test_a_table_without_names_has_its_classes_in_the_same_column(tmp_path):
    """A table that has only the coordinates has no classes, although its column of the same number
    exists.
    """
    cells = np.column_stack([FRAME.a, NUMBERS, FRAME.b])
    np.save(tmp_path / "t.npy", cells)
    config = inspected("points", tmp_path / "t.npy", label="2", conditional=True)
    target = find_target(config)
    assert target.axes == ("coordinate 1", "coordinate 3")
    starts = read_starts(config, target, tmp_path / "t.npy")
    assert labels_of(starts, target, None).tolist() == NUMBERS.tolist()
    np.save(tmp_path / "plain.npy", FRAME.to_numpy())
    starts = read_starts(config, target, tmp_path / "plain.npy")
    assert starts.labels is None
    torch.testing.assert_close(starts.at(range(40)), torch.tensor(FRAME.to_numpy()).float())


def test_settings_are_chosen_for_the_coordinates(tmp_path):
    config = Config(data=section(tmp_path))
    plain = Config(data=inspected("points", tmp_path / "t.csv", columns="a,b"))
    assert choose_settings(config)[0] == choose_settings(plain)[0]
