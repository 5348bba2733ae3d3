import pytest

from nsgf.system.errors import cause, one_line


@pytest.mark.parametrize("error", [ValueError(), KeyError(), OSError(), ValueError(" ")])
def test_errors_without_words_are_named_by_their_type(error):
    assert one_line(error) == type(error).__name__


def test_cause_is_what_the_system_says_without_the_file():
    assert cause(FileNotFoundError(2, "No such file", "x/y")) == "No such file"
    assert cause(OSError("only words")) == "only words"
    assert cause(OSError()) == "OSError"
