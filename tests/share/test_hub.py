"""Runs on the hub, with a local folder in the place of a download."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import nsgf
from nsgf import UserError
from nsgf.run.folder import RunFolder
from nsgf.share.export import export_run


@pytest.fixture
def cached(small, small_run, tmp_path) -> Path:
    """A snapshot as the hub's cache has it: links to files beside it."""
    export_run(small, small_run, tmp_path / "export")
    blobs = Path(shutil.copytree(tmp_path / "export", tmp_path / "models--me--moons" / "blobs"))
    snapshot = tmp_path / "models--me--moons" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for blob in blobs.iterdir():
        (snapshot / blob.name).symlink_to(Path("../../blobs") / blob.name)
    return snapshot


@pytest.fixture
def asked(monkeypatch, cached) -> list[tuple]:
    """What a stand-in for huggingface_hub was asked for; it has the snapshot."""
    calls: list[tuple] = []

    def snapshot_download(repo_id: str, *, revision: str | None, allow_patterns: list[str]) -> str:
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
def test_a_run_is_fetched_and_read(asked, small_run: RunFolder, address, name, revision):
    run = nsgf.load(address)
    assert torch.equal(run.sample(6, seed=0), nsgf.load(small_run.path).sample(6, seed=0))
    ((its_name, its_revision, patterns),) = asked
    assert (its_name, its_revision) == (name, revision)
    assert set(patterns) == {"config.json", "*.safetensors", "README.md"}


def test_a_snapshot_may_lead_to_the_files_beside_it_and_no_further(cached, tmp_path):
    assert nsgf.load(cached).sample(2).shape == (2, 2)
    (cached / "other").symlink_to(tmp_path / "export" / "config.json")
    with pytest.raises(UserError, match="other is a link out of that folder"):
        nsgf.load(cached)


@pytest.mark.parametrize("address", ["hf://moons", "hf://a/b/c", "hf://a/b@", "hf://a/b c"])
def test_addresses_that_are_none(asked, address):
    with pytest.raises(UserError, match="must be hf://OWNER/NAME"):
        nsgf.load(address)
    assert not asked


def test_a_hub_that_is_missing_or_cannot_be_reached_is_one_line(monkeypatch):
    def snapshot_download(*_, **__):
        raise ConnectionError("no route\nto the host")

    stand_in = SimpleNamespace(snapshot_download=snapshot_download)
    for module, words in ((stand_in, "no route to the host"), (None, "needs huggingface_hub")):
        monkeypatch.setitem(sys.modules, "huggingface_hub", module)
        with pytest.raises(UserError, match=f"hf://me/moons: .*{words}"):
            nsgf.load("hf://me/moons")
