"""No file that is read can run code or write outside its run folder."""

import ast
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import nsgf
from nsgf import cli
from nsgf.cli.arguments import parse
from nsgf.run import checkpoint
from nsgf.run.checkpoint import previous_file
from nsgf.run.folder import drop_unsafe_settings, dump_config
from tests.run.test_checkpoint import Malicious, craft, serialized

SOURCES = sorted(Path(nsgf.__file__).parent.rglob("*.py"))


@pytest.fixture(autouse=True)
def _nothing_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not Path("executed").exists()


def fails(capsys, *argv):
    """The one line in which a command line ends."""
    capsys.readouterr()
    assert cli.main([str(word) for word in argv]) == 2
    *_, printed = capsys.readouterr().err.splitlines()
    assert printed.startswith("nsgf: error: ")
    return printed


PICKLE = pickle.dumps({"data": Malicious()}, protocol=2)
WEIGHTS = {
    "pickle": PICKLE,
    "torch": serialized({"x": Malicious()}),
    "list": serialized([torch.ones(2)]),
    "text": b"no weights",
}


def test_the_pickle_would_do_harm():
    pickle.loads(PICKLE)
    assert Path("executed").exists()
    Path("executed").unlink()


@pytest.mark.parametrize("kind", WEIGHTS)
def test_checkpoints_never_execute(kind, tiny_run, capsys):
    file = tiny_run.checkpoint_file("nsgf")
    previous_file(file).unlink()  # or it would be used
    craft(file, WEIGHTS[kind], **checkpoint.load(file, only_header=True))
    assert "phase1_nsgf.pt" in fails(capsys, "sample", "--run", tiny_run.path)
    longer = ("--run", tiny_run.path, "--resume", "--nsgf.iterations", "20")
    assert "phase1_nsgf.pt" in fails(capsys, "train", *longer)


# --- the run folder -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.txt", "samples", "checkpoints/x", "wandb"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_out_of_the_run_folder_are_refused(kind, name, tiny_run, tmp_path, capsys):
    """Pipes too: a program that opens one waits for ever."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    file = tiny_run.path / name
    if file.exists():
        file.rename(tmp_path / "moved")
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(victim)
    export = ["export", "--to", tmp_path / "to"]
    for command in (["train", "--resume"], ["sample"], ["evaluate"], ["report"], export):
        assert "is a pipe or a link out of" in fails(capsys, *command, "--run", tiny_run.path)
    argv = ["sample", "--exp", "2d", "--out-dir", tiny_run.path.parent]
    assert "is a pipe or a link out of" in fails(capsys, *argv)
    assert victim.read_text() == "precious"


def test_links_inside_the_run_folder_and_those_of_wandb_are_fine(tiny_run, tmp_path):
    (tiny_run.path / "newest").symlink_to("checkpoints")
    (tiny_run.path / "wandb").mkdir()
    (tiny_run.path / "wandb" / "debug.log").symlink_to(tmp_path / "elsewhere")
    assert parse(["sample", "--run", str(tiny_run.path)]).opened.path == tiny_run.path


def test_a_runs_own_settings_do_not_lead_out_of_it(tiny, tiny_run, tmp_path):
    """Past mistake: A run's `config.yaml` chose where downloads and compiled code go. Resuming a
    copied run wrote outside its folder.
    """
    outside = tmp_path / "outside"
    tiny_run.config_file.write_text(dump_config(replace(tiny, out_dir=str(outside))))
    argv = ["train", "--run", str(tiny_run.path), "--resume"]
    assert parse(argv).config.out_dir == str(tiny_run.path.parent)
    assert cli.main([*argv, "--train-iters", "13"]) == 0
    assert not outside.exists()


def test_a_runs_own_settings_download_into_no_foreign_folder(tmp_path):
    outside = {"data.root": str(tmp_path.parent / "home"), "data.download": True}
    for given in ({}, {"out_dir", "tracking.tracker"}):
        assert drop_unsafe_settings(outside, given) == {**outside, "data.download": False}
    for given in ({"data.root"}, {"data.download"}):
        assert drop_unsafe_settings(outside, given) == outside
    assert drop_unsafe_settings({"data.root": "data"}, {}) == {"data.root": "data"}


def test_a_runs_own_settings_upload_nothing(tiny, tiny_run):
    argv = ["train", "--run", str(tiny_run.path), "--resume"]
    for own, expected in (("wandb", "none"), ("tensorboard", "tensorboard")):
        tracked = replace(tiny, tracking=replace(tiny.tracking, tracker=own))
        tiny_run.config_file.write_text(dump_config(tracked))
        request = parse(argv)
        assert request.config.tracking.tracker == expected
        assert any(f"add --tracker {own}" in note for note in request.notes) == (own != expected)
        named = parse([*argv, "--tracker", "wandb-offline"])
        assert named.config.tracking.tracker == "wandb-offline"
        assert named.notes == []


def test_a_run_named_by_a_dot_lies_in_the_folder_above(tiny_run, monkeypatch):
    monkeypatch.chdir(tiny_run.path)
    assert Path(parse(["sample", "--run", "."]).config.out_dir) == tiny_run.path.parent


@pytest.mark.parametrize("content", [b"exp: ../x\n", PICKLE])
def test_hostile_settings_of_a_run_end_in_one_line(content, tiny_run, capsys):
    tiny_run.config_file.write_bytes(content)
    fails(capsys, "sample", "--run", tiny_run.path)


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        PICKLE,
        b'{"phases": "nsgf", "settings": {}}',
        b'{"phases": [["nsgf"]], "settings": {}}',
        b'{"phases": ["nsgf"], "settings": "seed: 1"}',
        b'{"phases": ["nsgf"], "settings": {"colour": 1}}',
        b'{"phases": ["nsgf"], "settings": {"exp": "../x"}}',
        b'{"phases": ["nsgf"], "settings": {"exp": "2d", "data": {"name": "\\ud800"}}}',
    ],
)
def test_hostile_restart_of_a_run_ends_in_one_line_and_changes_nothing(content, tiny_run, capsys):
    tiny_run.restart_file.write_bytes(content)
    files = {file: file.read_bytes() for file in tiny_run.path.rglob("*") if file.is_file()}
    fails(capsys, "sample", "--run", tiny_run.path)
    fails(capsys, "train", "--run", tiny_run.path, "--resume")
    assert files == {file: file.read_bytes() for file in files}


# --- the sources --------------------------------------------------------------------------------

UNSAFE = {
    *("np.load", "numpy.load", "pickle.load", "pickle.loads", "pickle.Unpickler", "joblib.load"),
    *("yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.load_all", "eval", "exec"),
    *("marshal.loads", "os.system", "torch.jit.load", "shelve.open", "torch.hub.load"),
}


def calls(text):
    """Calls in a source text, as (dotted name, keyword arguments as written)."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}


def unsafe(text):
    return [
        name
        for name, keywords in calls(text)
        if (name in UNSAFE and keywords.get("allow_pickle") != "False")
        or (name == "torch.load" and keywords.get("weights_only") != "True")
    ]


def test_sources_read_nothing_that_can_execute():
    assert len(SOURCES) > 40
    found = {file.name: unsafe(file.read_text()) for file in SOURCES}
    assert {name: names for name, names in found.items() if names} == {}
    assert any("torch.load" in dict(calls(file.read_text())) for file in SOURCES)
