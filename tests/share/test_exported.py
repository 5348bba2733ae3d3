"""Exported folders, and runs on the hub; damaged and hostile ones are one line, no code runs."""

import hashlib
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save

import nsgf
from nsgf import UserError
from nsgf.cli import main
from nsgf.commands.export import export_run
from nsgf.config.files import PRETRAINED
from nsgf.experiment import Experiment
from nsgf.run.folder import RunFolder
from tests.conftest import tiny_config
from tests.run.test_checkpoint import serialized

WEIGHTS = "phase1_nsgf.safetensors"


@pytest.fixture(scope="session")
def exported_once(tmp_path_factory, trained_once):
    config = tiny_config(trained_once.parent)
    folder = tmp_path_factory.mktemp("exported") / "run"
    export_run(Experiment(config), RunFolder(trained_once), folder)
    return folder


@pytest.fixture
def exported(tmp_path, exported_once):
    return Path(shutil.copytree(exported_once, tmp_path / "run"))


def index(folder):
    return json.loads((folder / "config.json").read_text())


def write_index(folder, content):
    (folder / "config.json").write_text(json.dumps(content))


def put(folder, content):
    """Weights whose checksum fits: who writes a hostile file writes that too."""
    (folder / WEIGHTS).write_bytes(content)
    changed = index(folder)
    changed["files"][WEIGHTS] = hashlib.sha256(content).hexdigest()
    write_index(folder, changed)


def refusal(folder, **how):
    with pytest.raises(UserError) as error:
        nsgf.load(folder, **how)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model_type": "gpt2"}, "no exported run"),
        ({"nsgf_export": 2}, "newer format 2, this program reads 1"),
        (
            {"nsgf_export": 1, "updates": {}, "files": {}},
            "nsgf_export, settings, updates",
        ),
        ({"colour": "blue"}, "colour: unknown key"),
        ({"seed": "x"}, "seed = x: must be an integer"),
        ({"flow": {"steps": 10**9}}, "flow.steps = 1000000000: must be"),
        ({"sampling": {"omega": 1e-9}}, "sampling.omega = 1e-09: must be"),
        # 34 GB of weights, within the bounds of the settings: never made
        ({"model": {"mlp": {"width": 2**16}}}, "does not fit the network"),
    ],
)
def test_a_foreign_index_or_wrong_settings(exported, content, words):
    settings = index(exported)["settings"]
    if content and set(content) <= {"colour", *settings}:
        content = index(exported) | {"settings": settings | content}
    write_index(exported, content)
    assert words in refusal(exported)


def test_only_settings_of_sampling_are_free(exported):
    words = refusal(exported, overrides={"model.mlp.width": 32})
    assert "model.mlp.width" in words
    run = nsgf.load(exported, overrides={"sampling.straight_steps": 2}, device="cpu")
    assert run.sampler(torch.randn(3, 2)).nfe == 3 + 1 + 2


@pytest.mark.parametrize(
    "content", [(2).to_bytes(8, "little") + b"{}", serialized({"x": torch.ones(2)})]
)
def test_weights_that_are_none(exported, content):
    put(exported, content)
    assert WEIGHTS in refusal(exported)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state, key: state.pop(key), "Missing key"),
        (lambda state, key: state.update(x=state[key] + 1), "Unexpected key"),
        (lambda state, key: state.update({key: state[key][:1] + 0}), "does not fit the network"),
        (lambda state, key: state.update({key: state[key].double()}), "float64, not"),
        (lambda state, key: state.update({key: state[key].to(torch.float8_e4m3fn)}), "float8"),
        (lambda state, key: state[key].view(-1)[0].fill_(torch.nan), "not finite"),
    ],
)
def test_weights_of_another_network(exported, change, words):
    state = load_file(exported / WEIGHTS)
    change(state, next(iter(state)))
    put(exported, save(state))
    assert words in refusal(exported)


def test_flipped_bits_and_links_out_of_the_folder_are_refused(exported, tmp_path):
    content = bytearray((exported / WEIGHTS).read_bytes())
    content[-5] ^= 1
    (exported / WEIGHTS).write_bytes(content)
    assert "its checksum differs" in refusal(exported)
    outside = tmp_path / "outside.safetensors"
    (exported / WEIGHTS).rename(outside)
    assert f"{WEIGHTS} cannot be read" in refusal(exported)
    (exported / WEIGHTS).symlink_to(outside)
    assert "link out of that folder" in refusal(exported)


def test_no_file_is_named_by_the_folder(exported, tmp_path):
    """Only names that follow from phases are opened."""
    content = index(exported)
    content["files"] = {"../outside": hashlib.sha256(b"x").hexdigest(), **content["files"]}
    write_index(exported, content)
    (tmp_path / "outside").mkdir()  # to open it would fail
    assert nsgf.load(exported).sample(2).shape == (2, 2)


@pytest.fixture
def shipped_run(exported, monkeypatch):
    """An export that stands in for those of the package."""
    for module in ("share", "settings.resolve"):
        monkeypatch.setattr(f"nsgf.{module}.PRETRAINED", {"roll": exported})


def test_pretrained_run_is_opened_by_its_name(shipped_run, exported, tmp_path, monkeypatch, capsys):
    """A run in a folder of that name comes first."""
    monkeypatch.chdir(tmp_path)
    assert nsgf.load("roll").path == exported
    assert main(["sample", "--pretrained=roll", "--num-samples=5"]) == 0
    assert Path(capsys.readouterr().out.splitlines()[1]).parts[:2] == ("runs", "pretrained-run")
    with pytest.raises(UserError, match="roll"):
        nsgf.load("other")
    (tmp_path / "roll").mkdir()
    (tmp_path / "roll" / "config.json").write_text('{"model_type": "gpt2"}')
    assert main(["sample", "--run=roll"]) == 2
    assert nsgf.load("roll").path == exported
    shutil.copytree(exported, tmp_path / "roll", dirs_exist_ok=True)
    assert nsgf.load("roll").path == Path("roll").absolute()


SHIPPED = {
    "digits-onecall": (-0.378497, 0.715107, 0.597855),
    "mnist": (-0.743539, 0.602997, 0.132723),
    "roll": (3.844884, 9.228881, 11.518823),
}
"""Mean, standard deviation and mean step to the next column of 16 samples of each run."""


@pytest.mark.parametrize("name", PRETRAINED)
def test_samples_of_every_shipped_run_are_unchanged(name):
    """Past mistake: A formatter for Python added trailing commas to the `config.json` of shipped
    weights. They are not JSON, but the YAML reader accepts them.
    """
    run = nsgf.load(name, device="cpu")
    assert index(run.path)["files"]  # JSON, for programs of others
    samples = run.sample(16, seed=0, **({"nfe": 10} if name == "mnist" else {}))
    assert samples.shape == (16, *run.shape)
    steps = samples.diff(dim=-1).abs()
    found = (float(samples.mean()), float(samples.std()), float(steps.mean()))
    assert found == pytest.approx(SHIPPED[name], rel=0.01)


@pytest.fixture
def cached(small, small_run, tmp_path):
    """A snapshot as the hub's cache has it: links to files beside it."""
    export_run(Experiment(small), small_run, tmp_path / "export")
    blobs = Path(shutil.copytree(tmp_path / "export", tmp_path / "models--me--moons" / "blobs"))
    snapshot = tmp_path / "models--me--moons" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for blob in blobs.iterdir():
        (snapshot / blob.name).symlink_to(Path("../../blobs") / blob.name)
    return snapshot


@pytest.fixture
def asked(monkeypatch, cached):
    """What a stand-in for huggingface_hub was asked for; it has the snapshot."""
    calls = []

    def snapshot_download(repo_id, *, revision, allow_patterns):
        calls.append((repo_id, revision, allow_patterns))
        return str(cached)

    stand_in = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", stand_in)
    return calls


@pytest.mark.parametrize(
    ("address", "name", "revision"),
    [
        ("hf://me/moons", "me/moons", None),
        ("hf://some-one/a_b.c@refs/pr/3", "some-one/a_b.c", "refs/pr/3"),
    ],
)
def test_a_run_is_fetched_and_read(asked, small_run, address, name, revision):
    run = nsgf.load(address)
    assert torch.equal(run.sample(6, seed=0), nsgf.load(small_run.path).sample(6, seed=0))
    ((its_name, its_revision, patterns),) = asked
    assert (its_name, its_revision) == (name, revision)
    assert set(patterns) == {"config.json", "*.safetensors", "README.md"}


def test_a_snapshot_may_lead_to_the_files_beside_it_and_no_further(cached, tmp_path):
    assert nsgf.load(cached).sample(2).shape == (2, 2)
    (cached / "other").symlink_to(tmp_path / "export" / "config.json")
    with pytest.raises(UserError, match="other is a pipe or a link out of that folder"):
        nsgf.load(cached)


def test_a_hub_that_is_missing_or_cannot_be_reached_is_one_line(monkeypatch):
    def snapshot_download(*_, **__):
        raise ConnectionError("no route\nto the host")

    stand_in = SimpleNamespace(snapshot_download=snapshot_download)
    for module, words in ((stand_in, "no route to the host"), (None, "[hub]")):
        monkeypatch.setitem(sys.modules, "huggingface_hub", module)
        with pytest.raises(UserError, match=f"hf://me/moons: .*{words}"):
            nsgf.load("hf://me/moons")
