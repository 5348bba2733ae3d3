"""``--help``: short, in groups, at 80 columns."""

import re

import pytest

from nsgf.cli import main
from nsgf.flags import COMMANDS, command_parser
from nsgf.help import GROUPS, MEANINGS, WIDTH


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_is_short_and_whole(command, flag, capsys):
    assert main([command, "--exp", "2d", flag]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) <= 52
    assert "..." not in text
    assert re.search(r"null|\[false\]| X ", text) is None
    shown = re.findall(r"^  (--[\w.-]+)", text, re.M)
    assert shown == [flag for flags in GROUPS[command].values() for flag in flags]
    titles = re.findall(r"^([\w ]+):$", text, re.M)
    assert titles == [*GROUPS[command], "examples"]
    assert ("--help-all" in text) == (command != "list")


def test_flags_with_a_meaning_of_their_own_are_in_a_group():
    shown = {flag for groups in GROUPS.values() for flags in groups.values() for flag in flags}
    assert MEANINGS.keys() <= shown
    assert GROUPS.keys() == COMMANDS.keys()


def test_all_flags_are_no_longer_those_of_the_short_help():
    """A parser that is shared must not be changed by what is shown of it."""
    before = command_parser("train").format_help()
    assert main(["train", "--help"]) == 0
    assert command_parser("train").format_help() == before


def test_overview_fits_a_terminal(capsys):
    assert main([]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= WIDTH
