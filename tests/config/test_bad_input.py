"""Any file and any command line gives a valid request, or a one-line error and exit code 2."""

import os

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from nsgf import cli
from nsgf.cli.arguments import SHORT_FLAGS, parse
from nsgf.config.files import CONFIGS
from nsgf.config.layers import SECTIONS as CLASSES
from nsgf.config.layers import SETTINGS
from nsgf.experiment import Experiment
from nsgf.settings.checks import check
from nsgf.system.errors import UserError, one_line
from tests.conftest import shipped

NAMES = ("2d", "cifar10", "digits", "mnist")
KEYS = [*SETTINGS]
SECTIONS = sorted({*CLASSES} - {""})
EXECUTES = "!!python/object/apply:os.system ['touch executed']"
TEXTS = [
    *("", "x", "1e3", "1e-4", "no", "²", "null", "true", "5.0", "0x10", "010"),
    *("[1,2]", "{a: 1}", "&a [*a]", "!!int ''", "!!timestamp x", EXECUTES, "\x00"),
    *("a\nb", "\x1b[31m", "~nobody/x", "..", "../../x", "**/", "a b", "--", "=", "cuda:²"),
]
VALUES = [
    *(None, True, False, 0, -1, 1, 2**63, 1e300, 5e-324, [], {}, [[1]]),
    *(float("nan"), float("inf"), [None], {"lr": 1}, {1: 2}, b"x", *TEXTS),
]
SOME_VALUES = st.sampled_from(VALUES) | st.text(max_size=20) | st.integers() | st.floats()
FLAGS = [*KEYS, *SECTIONS, *SHORT_FLAGS, "config", "run", "exp", "resume"]
FLAGS += ["resume-phase", "smoke", "print-config", "nsgf.lr.x", "phases+", "", "nsgf.help"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def outcome(argv):
    """Return the error line of a command line; None if the request is valid."""
    line = None
    try:
        request = parse(argv)
    except (UserError, OSError) as error:  # main reports both in one line
        line = one_line(error)
    if line is not None:
        assert line.isprintable()
        assert len(line) < 2500
        return line
    check(Experiment(request.config))
    return None


def changed(name, key, value):
    """Return a shipped file with another value for one key."""
    content = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    *sections, last = key.split(".")
    node = content
    for section in sections:
        node = node.setdefault(section, {})
    node[last] = value
    return yaml.safe_dump(content).encode("utf-8", "surrogatepass")


def entries(folder):
    return {entry.name for entry in folder.iterdir()}


@given(st.sampled_from(NAMES), st.sampled_from([*KEYS, *SECTIONS, "speed"]), SOME_VALUES)
@example("2d", "data.source", "!!int ''")
@example("2d", "exp", "../x")
def test_one_changed_key_is_valid_or_a_one_line_error(here, name, key, value):
    """Past mistake: null passed for every type, a repeated key counted once, and odd tags ended
    in tracebacks. Wrong values had been tried one by one, not at random.
    """
    (here / "c.yaml").write_bytes(changed(name, key, value))
    outcome(["train", "--config", "c.yaml"])
    assert entries(here) == {"c.yaml"}


SOME_TEXTS = (st.sampled_from(VALUES) | st.text(max_size=12)).map(str)


@given(
    st.sampled_from(NAMES),
    st.lists(st.tuples(st.sampled_from(FLAGS), SOME_TEXTS), min_size=1, max_size=3),
    st.booleans(),
)
@example("2d", [("config", "--")], True)
@example("2d", [("run", "~no_such_user/x"), ("resume", "")], True)
def test_any_flags_are_valid_or_a_one_line_error(here, name, flags, is_joined):
    argv = ["train", "--exp", name]
    for flag, value in flags:
        argv += [f"--{flag}={value}"] if is_joined else [f"--{flag}", value]
    outcome(argv)
    assert entries(here) == set()


FILES = [  # content of a file, words of the message
    (b"", "must hold keys"),
    (b"exp: a\nnsgf:\n  lr: 1\n  lr: 2\n", "lr: twice"),
    (b"exp: a\nnsgf:\n\tlr: 1\n", "cannot be read"),
    ("exp: a".encode("utf-16"), "UTF-8"),
    ("exp: a  # Größe".encode("latin-1"), "UTF-8"),
    (b"exp: &a [*a]\n", "an alias"),
    (b"exp: a\nnsgf: &one {lr: 1}\nnsf: *one\n", "use the section optim"),
    (f"exp: a\nnsgf:\n  lr: {EXECUTES}\n".encode(), "python/object"),
    (b"nsgf:\n  learning_rate: 1\n", "nsgf.learning_rate: unknown key"),
    (b"model:\n  unet: 3\n", "model.unet is a section"),
    (b"exp: a\nseed: true\n", "seed = True: must be an integer"),
    (b"exp: mnist\ndata:\n  root: ''\n", "data.root"),
    (b"exp: a\nout_dir: null\n", "out_dir = null: must"),
    (b"exp: a\nmethods: {nsgf: {nsfg: {lr: 1}}}\n", "methods.nsgf.nsfg"),
]


@pytest.mark.parametrize(("content", "words"), FILES)
def test_wrong_files_give_a_one_line_error(here, content, words, capsys):
    """Past mistake: Limits were checked after parsing, and messages quoted whole values. A few
    lines of YAML aliases stand for billions of values and used up the memory.
    """
    (here / "c.yaml").write_bytes(content)
    assert cli.main(["train", "--config", "c.yaml"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("nsgf: error: ")
    assert printed.err.count("\n") == 1
    assert len(printed.err) < 2500
    assert words in printed.err
    assert entries(here) == {"c.yaml"}


def test_byte_order_mark_is_ignored(here):
    (here / "c.yaml").write_bytes(b"\xef\xbb\xbfexp: 2d\nseed: 7\n")
    assert parse(["train", "--config", "c.yaml"]).config.seed == 7


def test_no_is_a_text_unless_the_setting_is_true_or_false(here):
    """YAML 1.1, which PyYAML reads, converts it to false everywhere."""
    (here / "c.yaml").write_text("exp: no\ndata: {flip: no}\n")
    config = parse(["train", "--config", "c.yaml", "--data.root=no", "--data.name=mnist"]).config
    assert (config.exp, config.data.root) == ("no", "no")
    assert config.data.flip is False
    assert shipped("digits", "--data.flip=yes").data.flip is True


@pytest.mark.parametrize("kind", ["folder", "pipe", "missing", "long", "NUL"])
def test_path_that_is_not_a_regular_file_gives_a_one_line_error(here, kind, capsys):
    name = {"long": "x" * 5000, "NUL": "a\0b"}.get(kind, "it")
    if kind == "folder":
        (here / name).mkdir()
    elif kind == "pipe":
        os.mkfifo(here / name)
    for flag in ("--config", "--run"):
        assert cli.main(["sample", flag, name]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_brackets_in_a_path_are_not_a_pattern(here):
    """A parser that expands patterns would read another file, or none.

    Past mistake: jsonargparse expanded the name of a configuration file as a pattern, and a run
    in `runs[1]/` was sampled with default settings.
    """
    folder = here / "runs[1]"
    folder.mkdir()
    (folder / "config.yaml").write_text("exp: mine\nseed: 7\n")
    assert parse(["sample", "--run", str(folder)]).config.seed == 7


@pytest.mark.parametrize("exp", ["/abs", "**/", "..", "", "a\nb"])
def test_invalid_experiment_name_is_refused_before_looking_for_runs(here, exp):
    (here / "c.yaml").write_text(yaml.safe_dump({"exp": exp}))
    assert (outcome(["train", "--config", "c.yaml", "--resume"]) or "").startswith("exp = ")
