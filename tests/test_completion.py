"""The completion scripts: real commands, flags and values, that a shell can read."""

import subprocess
import sys

import pytest

from nsgf.cli import main
from nsgf.completion import script
from nsgf.flags import COMMANDS

pytest.importorskip("shtab", reason="the extra `test` has it")


def completed(*words: str) -> list[str]:
    """What bash offers for the last of these words."""
    asked = " ".join(f'"{word}"' for word in words)
    code = f"""
    {script("bash")}
    COMP_WORDS=({asked}); COMP_CWORD={len(words) - 1}; COMPREPLY=()
    _shtab_nsgf
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash"], input=code, capture_output=True, text=True, check=True)
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def test_bash_completes_commands_flags_and_values():
    assert completed("nsgf", "tr") == ["train"]
    assert set(completed("nsgf", "")) >= set(COMMANDS)
    assert completed("nsgf", "train", "--train-i") == ["--train-iters"]
    assert "--nsf.coupling_batch" in completed("nsgf", "train", "--nsf.c")
    assert completed("nsgf", "train", "--tracker", "te") == ["tensorboard"]
    assert set(completed("nsgf", "train", "--exp", "digits")) == {"digits", "digits-paper"}
    assert completed("nsgf", "sample", "--resume-ph") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_script_is_what_the_command_prints(shell, capsys):
    assert main([f"--print-completion={shell}"]) == 0
    first = capsys.readouterr().out
    assert main(["--print-completion", shell]) == 0
    assert capsys.readouterr().out == first
    assert "train-iters" in first
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=first, text=True, check=True)


def test_what_cannot_be_is_one_line(capsys, monkeypatch):
    assert main(["--print-completion", "cmd"]) == 2
    assert "--print-completion cmd: must be one of bash" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--print-completion", "bash"]) == 2
    said = capsys.readouterr().err
    assert said == "nsgf: error: --print-completion: needs shtab; pip install shtab\n"
