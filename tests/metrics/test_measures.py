import pytest

from nsgf.metrics.measures import (
    MEASURES,
    describe_columns,
    describe_limits,
    is_better_higher,
    is_measure,
    keys_of,
    report,
)

HIGHER = {"inception_score"} | {
    f"{group}{name}" for group in ("", "imagenet_") for name in ("precision", "recall")
}


def test_each_measure_has_a_name_with_its_direction():
    measures = {
        "w2",
        "w2_standardised",
        "1000 energy",
        "1000 energy_standardised",
        "auc",
        "ks_worst",
        "fid",
        "kid",
        "imagenet_frechet",
        "1000 imagenet_kid",
        *HIGHER,
    }
    assert set(filter(is_measure, keys_of(MEASURES))) == measures
    assert set(filter(is_better_higher, keys_of(MEASURES))) == HIGHER


COLUMN = {"column": "a", "ks": 0.25, "ks_floor": 0.1, "outside": 0.08, "outside_floor": 0.0}
COLUMN |= {"min": 0, "max": 2.5}


@pytest.mark.parametrize(
    ("records", "count"),
    [
        ([COLUMN], 1),
        ([COLUMN, {**COLUMN, "ks": "x"}, {"column": "b"}, 3, None], 1),
        ({"a": COLUMN}, 0),
        ("text", 0),
        (None, 0),
    ],
)
def test_damaged_columns_are_skipped(records, count):
    """The file may come from someone else."""
    lines = describe_columns({"worst_columns": records})
    assert len(lines) == count
    assert all("8.0% outside of 0 to 2.5" in text for _, text, _ in lines)
    assert len(report({"worst_columns": records})) == count


@pytest.mark.parametrize(
    ("metrics", "number"),
    [
        ({"w2_floor": 1.0, "w2_floor_std": 0.32}, "32%"),
        ({"w2_standardised_floor": 2.0, "w2_standardised_floor_std": 0.5}, "25%"),
        ({"w2_floor": 1.0, "w2_floor_std": 0.01}, ""),
        ({"w2_floor": 0.0, "w2_floor_std": 0.01}, ""),
        ({"w2_floor": "1", "w2_floor_std": None}, ""),
        ({"auc_floor_std": 0.08}, "0.08"),
        ({"auc_floor_std": 0.01}, ""),
        ({}, ""),
    ],
)
def test_a_wide_floor_is_put_into_words(metrics, number):
    lines = describe_limits({**metrics, "w2_samples": 30})
    assert [number in line for line in lines] == ([True] if number else [])
