"""Help texts and shell completion."""

import re
import runpy
from pathlib import Path

import pytest

from nsgf.cli import main
from nsgf.cli.arguments import COMMANDS, SHORT_FLAGS, flags_of
from nsgf.cli.help import setting_docs
from nsgf.config.files import EXPERIMENT_NAMES, METHOD_NAMES
from nsgf.config.layers import KEYS, is_inherited


@pytest.fixture
def shown(capsys):
    """A function that returns flags and words of a help text."""

    def show_help(*argv):
        assert main([*argv]) == 0
        text = capsys.readouterr().out
        flags = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
        return flags, " ".join(text.split())

    return show_help


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_whole_descriptions_and_choices(command, shown):
    """Past mistake: `--help` listed 150 settings before the flags that people need.

    Past mistake: Help cut off 64 of 159 lines.
    """
    flags, words = shown(command, "--exp", "2d", "--help")
    docs = setting_docs()
    for flag in flags:
        (key, *_) = flags_of(command)[flag[2:]] or [flag[2:]]
        assert key not in KEYS or docs[key] in words
    names = {"--exp": EXPERIMENT_NAMES, "--method": METHOD_NAMES, "--dataset": ["moons", "mnist"]}
    for flag in names.keys() & {*flags}:
        assert all(name in words for name in names[flag])


def test_help_of_a_command_shows_no_flags_of_others(shown):
    assert shown("list", "--help")[0] == ["--out-dir", "--help"]
    assert {"--train-iters", "--fake-data", "--tracker"}.isdisjoint(shown("sample", "-h")[0])
    assert "--sinkhorn.blur" not in shown("evaluate", "--help=all")[0]


def test_help_all_has_every_setting_once(shown):
    flags = shown("train", "--help", "all")[0]
    others = ("evaluation", "compare")
    for key in {*KEYS} - {"out_dir"}:
        is_shown = not is_inherited(key) and key.partition(".")[0] not in others
        assert flags.count(f"--{key}") == is_shown, key
    assert {f"--{flag}" for flag in SHORT_FLAGS} - {"--inception-weights", "--bits-per-dim"} < {
        *flags
    }


EXPLAINED = [  # topic, words of the explanation, flags
    ("lr", "Adam's learning rate after warm-up.", "--lr"),
    ("--nsf.lr", "(a number, > 0 and <= 1; default: 0.001)", "--nsf.lr"),
    ("flow", "discretized gradient flow", "--flow.kind --flow.steps --flow.eta --flow.schedule"),
    ("data.name", "one of 8gaussians, moons", "--dataset --data.name"),
    ("resume", "newest checkpoint", "--resume"),
]


@pytest.mark.parametrize(("topic", "text", "flags"), EXPLAINED)
def test_help_explains_a_flag_a_setting_or_a_section(topic, text, flags, shown):
    found, words = shown("train", "--help", topic)
    assert text in words
    assert found == flags.split()


def test_help_of_an_unknown_name_suggests_another(capsys):
    assert main(["train", "--help", "learning_rate"]) == 2
    assert "did you mean --lr?" in capsys.readouterr().err


def test_version_and_the_list_of_commands(capsys):
    for argv in (["--version"], ["--help"], []):
        assert main(argv) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)


def test_completion_knows_commands_flags_and_names(capsys):
    assert main(["--print-completion", "bash"]) == 0
    script = capsys.readouterr().out
    for flag, known in {
        "exp": EXPERIMENT_NAMES,
        "method": METHOD_NAMES,
        "dataset": ["moons"],
    }.items():
        choices = re.search(rf"_train___{flag}_choices=\((.*)\)", script)[1].split()
        assert {*known} <= {*choices}
    for word in ("preflight", "--train-iters", "--sampling.solver", "dopri5"):
        assert word in script


ROOT = Path(__file__).parents[2]


def test_every_setting_is_described_once_and_inherited_ones_under_optim():
    inherited = set(filter(is_inherited, KEYS))
    assert {"nsgf.lr", "generator.iterations"} < inherited
    assert not {"optim.lr", "nsf.coupling", "generator.tolerance"} & inherited
    sections = {key.rpartition(".")[0] for key in KEYS}
    found = setting_docs()
    assert found.keys() - {"model"} == (KEYS.keys() | sections) - inherited - {"model"}
    assert all(text.endswith(".") for text in found.values())


def test_configuration_page_is_up_to_date_with_the_schema():
    script = runpy.run_path(str(ROOT / "scripts" / "write_configuration_doc.py"))
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == script["document"](), "python scripts/write_configuration_doc.py"
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    ends = {key: row.rpartition(" | ")[2].strip(" |") for key, row in rows.items()}
    assert ends["seed"] == ends["model.unet.mult"] == ends["nsf.coupling"] == "no"
    assert ends["optim.lr"] == "after the phase"
    assert ends["data.root"] == ends["train.log_every"] == ends["optim.iterations"] == "yes"
