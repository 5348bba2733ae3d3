"""``--help``: short, in groups, at 80 columns."""

import re

import pytest

from nsgf.cli import main
from nsgf.config.files import experiments
from nsgf.flags import COMMANDS, OF_ONE_COMMAND, command_parser, usage
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


def test_a_new_command_has_help_at_once(monkeypatch, capsys):
    """Its examples and groups of flags may come later."""
    monkeypatch.setitem(COMMANDS, "probe", "try something new")
    for words in ([], ["probe", "--help"], ["probe", "--help-all"]):
        assert main(words) == 0
        text = capsys.readouterr().out
        assert "try something new" in text
        assert "nsgf probe" in text


@pytest.mark.parametrize("flag", OF_ONE_COMMAND)
def test_flags_of_one_command_are_in_its_help(flag):
    groups = GROUPS[OF_ONE_COMMAND[flag]]
    assert flag in [one for flags in groups.values() for one in flags]


@pytest.mark.parametrize("command", COMMANDS)
def test_usage_names_flags_that_there_are(command, capsys):
    """The same in both helps."""
    named = re.findall(r"--[\w-]+", usage(command))
    assert named
    assert command_parser(command).flags.keys() >= set(named)
    for flag in ("--help", "--help-all"):
        assert main([command, flag]) == 0
        assert capsys.readouterr().out.startswith(f"usage: {usage(command)}\n")
    assert ("--compare" in named) == (command == "report")


@pytest.mark.parametrize("flag", ["--help", "--help-all"])
def test_every_experiment_is_named_whole(flag, capsys):
    assert main(["train", flag]) == 0
    text = capsys.readouterr().out
    told = re.search(r"experiment: ([\w,\s-]+?)\n +--", text)
    assert told is not None
    assert told[1].replace(",", "").split() == experiments()
    assert {"2d", "digits", "mnist"} <= set(experiments())


def test_all_flags_are_no_longer_those_of_the_short_help():
    """A parser that is shared must not be changed by what is shown of it."""
    before = command_parser("train").format_help()
    assert main(["train", "--help"]) == 0
    assert command_parser("train").format_help() == before


def test_overview_fits_a_terminal(capsys):
    assert main([]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= WIDTH
