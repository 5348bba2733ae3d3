"""The completion scripts: real commands, flags and values, that a shell can read."""

import re
import subprocess
import sys

import pytest

from nsgf.cli import main
from nsgf.command_line import parse
from nsgf.completion import places, script
from nsgf.flags import COMMANDS, command_parser
from nsgf.system.errors import UserError

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
    assert completed("nsgf", "train", "--exp", "dig") == ["digits"]
    assert completed("nsgf", "sample", "--resume-ph") == []


def test_paths_are_completed_by_what_is_there():
    assert places() == {
        **dict.fromkeys(("--config", "--inception-weights"), "FILE"),
        **dict.fromkeys(("--data.path", "--evaluation.inception_weights"), "FILE"),
        **dict.fromkeys(("--run", "--compare", "--to", "--out-dir", "--out_dir"), "DIRECTORY"),
        **dict.fromkeys(("--data-root", "--data.root"), "DIRECTORY"),
    }
    assert places().keys() <= {flag for name in COMMANDS for flag in command_parser(name).flags}
    assert "_shtab_nsgf_report___compare_COMPGEN=_shtab_compgen_dirs" in script("bash")


def test_what_a_command_refuses_is_not_offered():
    offered = completed("nsgf", "list", "-")
    assert sorted(offered) == ["--help", "--out-dir", "-h"]
    with pytest.raises(UserError, match="takes --out-dir alone"):
        parse(["list", "--nsgf.lr=1"])
    assert "--data.fit" in completed("nsgf", "train", "--data.f")
    assert not [flag for flag in completed("nsgf", "train", "--data.f") if "found" in flag]


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
    for words in ("--print-completion", "--print-completion="):
        assert main([words]) == 2
        said = capsys.readouterr().err
        assert said.startswith("nsgf: error: --print-completion: needs a shell: bash, zsh")
        assert re.search(r"(, |or )tcsh.*\n$", said)  # later versions of shtab know more
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--print-completion", "bash"]) == 2
    said = capsys.readouterr().err
    assert said == "nsgf: error: --print-completion: needs shtab; pip install shtab\n"
