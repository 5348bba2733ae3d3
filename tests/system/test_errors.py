"""Errors in Python name settings and arguments; errors of commands name flags.

Past mistake: Messages for Python were translated by regular expressions, which gave
`pip install torchcfm no_deps`.
"""

import pytest

import nsgf
from nsgf.cli import main
from nsgf.system.errors import UserError, name_setting, naming, one_line, suggest


@pytest.mark.parametrize("error", [ValueError(), KeyError(), OSError(), ValueError(" ")])
def test_errors_without_words_are_named_by_their_type(error):
    assert one_line(error) == type(error).__name__


@pytest.mark.parametrize(
    ("names", "are_flags", "expected"),
    [
        ({}, False, ("a.b = 1", "a.b=2", "a.b")),
        ({"a.b": "b"}, False, ("b = 1", "b=2", "b")),
        ({}, True, ("a.b = 1", "--a.b 2", "--a.b")),
        ({"a.b": "--bee"}, True, ("a.b = 1", "--bee 2", "--bee")),
    ],
)
def test_settings_are_named_as_the_caller_writes_them(names, are_flags, expected):
    with naming(names, are_flags=are_flags):
        assert (name_setting("a.b", 1), suggest("a.b", 2), suggest("a.b")) == expected
    assert suggest("a.b") == "a.b"


def test_file_names_in_messages_stay_as_they_are(tmp_path, capsys):
    """The same fault on the command line and in Python, of a file whose name looks like flags."""
    file = tmp_path / "--out-dir {data.path} compare.nfe.csv"
    file.write_text("1,a\n" * 30)
    with pytest.raises(UserError) as error:
        nsgf.train("points", overrides={"data.path": file})
    assert str(error.value).startswith(f"data = {file}: ")
    assert "columns=A,B" in str(error.value)
    assert main(["train", "--exp", "points", "--data.path", str(file)]) == 2
    said = capsys.readouterr().err
    assert f"data.path = {file}: " in said
    assert "--data.columns A,B" in said
