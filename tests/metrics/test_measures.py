import pytest

from nsgf.metrics.measures import MEASURES, describe, is_better_higher, is_measure, keys_of

HIGHER = {"inception_score"} | {
    f"{group}{name}" for group in ("", "imagenet_") for name in ("precision", "recall")
}


def test_each_measure_has_a_name_with_its_direction():
    measures = {
        "w2",
        "w2_standardised",
        "1000 energy",
        "fid",
        "kid",
        "imagenet_frechet",
        "1000 imagenet_kid",
        *HIGHER,
    }
    assert set(filter(is_measure, keys_of(MEASURES))) == measures
    assert set(filter(is_better_higher, keys_of(MEASURES))) == HIGHER


@pytest.mark.parametrize("value", [1.5, None])
def test_spread_and_floor_are_in_the_line_of_their_measure(value):
    metrics = {"w2": 2.0, "w2_std": 0.5, "w2_floor": value, "w2_floor_std": 0.25, "tau_std": 0.1}
    floor = "not known" if value is None else "1.5 ± 0.25"
    old = {"precision": "fp32"}  # of sampling, in files of earlier versions
    assert describe({**metrics, **old}) == [("w2", "2 ± 0.5", floor), ("tau_std", "0.1", "")]
