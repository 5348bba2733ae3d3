from typing import Literal

import pytest

from nsgf.config.types import from_text, type_words, typed, yaml_words

GOOD = [
    ("5", int, 5),
    ("-1", int, -1),
    ("5", float, 5.0),
    ("1e-4", float, 1e-4),
    ("null", float | None, None),
    ("true", bool, True),
    ("auto", bool | Literal["auto"], "auto"),
    ("7", int | Literal["auto"], 7),
    ("[1, 2]", list[int], [1, 2]),
    ("[]", list[int], []),
    ("5", str, "5"),
    ("[1", str, "[1"),
    ("null", str | None, None),
    ("", str, ""),
]
BAD = [
    *(("5.0", int), ("true", int), ("1", bool), ("no", bool), ("x", float), ("true", float)),
    *(("[1, x]", list[int]), ("[null]", list[int]), ("3", list[int]), ("b", Literal["a"])),
    *(("!!timestamp x", int), ("9" * 5000, int), ("1" + "0" * 400, float), ("{a: 1}", int)),
]


@pytest.mark.parametrize(("text", "kind", "value"), GOOD)
def test_text_of_a_flag_gets_the_type_of_its_leaf(text, kind, value):
    result = from_text(text, kind)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(("text", "kind"), BAD)
def test_text_of_another_type_is_refused(text, kind):
    with pytest.raises(ValueError):  # noqa: PT011
        from_text(text, kind)


def test_values_of_a_file_keep_their_type():
    assert typed("5", str) == "5"
    for value, kind in ((5, str), ("5", int), ("1e-4", float), (1.0, int)):
        with pytest.raises(ValueError):  # noqa: PT011
            typed(value, kind)


def test_types_and_values_in_words():
    assert type_words(float | None) == "a number or null"
    assert type_words(list[Literal["a", "b"]]) == "a list of a, b"
    assert type_words(int | Literal["auto"]) == "an integer or auto"
    assert [yaml_words(value) for value in (None, True, [1, "a"])] == ["null", "true", "[1, a]"]
