from nsgf.metrics.measures import MEASURES, is_better_higher, is_measure, keys_of

HIGHER = {"inception_score"} | {
    f"{group}{name}" for group in ("", "imagenet_") for name in ("precision", "recall")
}


def test_each_measure_has_a_name_with_its_direction():
    measures = {
        "w2",
        "w2_standardised",
        "1000 energy",
        "1000 energy_standardised",
        "fid",
        "kid",
        "imagenet_frechet",
        "1000 imagenet_kid",
        *HIGHER,
    }
    assert set(filter(is_measure, keys_of(MEASURES))) == measures
    assert set(filter(is_better_higher, keys_of(MEASURES))) == HIGHER
