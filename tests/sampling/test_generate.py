import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nsgf.config.layers import fixed_values
from nsgf.config.schema import SamplingConfig
from nsgf.data import STANDARD, build_source
from nsgf.data.images import to_bytes
from nsgf.experiment import Experiment
from nsgf.sampling.generate import SAMPLE_SECTIONS, batch_folder, generate
from nsgf.sampling.sampler import FlowSampler, Samples
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from tests.conftest import CPU


class Copies(FlowSampler):
    """Returns its noise, in batches of 8, and keeps their sizes."""

    sampling = SamplingConfig(batch_size=8)

    def __init__(self, classes=0, *legs):
        self.legs, self.sizes, self.classes = legs, [], classes

    def labels(self, positions):
        return torch.tensor(positions) % self.classes if self.classes else None

    def __call__(self, x, labels=None, *, keep_path=False):
        self.sizes.append(len(x))
        path = [x, x + 1] if keep_path else []
        return Samples(x=x, nfe=float(len(x)), tau=x[:, 0, 0, 0], labels=labels, path=path)


def noise():
    return build_source(STANDARD, (1, 8, 8), 0, "x")


def drawn(folder, sampler=None, **how):
    """20 samples in batches of 8, 8 and 4, and the sizes of those that are not read."""
    sampler = sampler or Copies()
    return generate(sampler, noise(), 20, CPU, folder=folder, **how), sampler.sizes


def assert_same(one, other):
    for name in ("x", "tau", "labels", "pixels"):
        ours, theirs = getattr(one, name), getattr(other, name)
        assert ours is theirs is None or torch.equal(ours, theirs)
    assert (one.nfe, one.finite) == (other.nfe, other.finite)


@pytest.mark.parametrize("keep", [None, 11])
@pytest.mark.parametrize("classes", [0, 3])
def test_saved_batches_are_read_unchanged_and_joined(keep, classes, tmp_path):
    x = noise().at(range(20))
    whole, sizes = drawn(tmp_path / "new", Copies(classes), keep=keep)
    assert sizes == [8, 8, 4]
    assert torch.equal(whole.x, x[:keep])
    assert torch.equal(whole.tau, x[:, 0, 0, 0])
    assert whole.nfe == (8 * 8 + 8 * 8 + 4 * 4) / 20
    assert keep is None or torch.equal(whole.pixels, to_bytes(x))
    assert not classes or torch.equal(whole.labels, torch.arange(20) % 3)
    (tmp_path / "new" / "1.pt").unlink()
    again, sizes = drawn(tmp_path / "new", Copies(classes), keep=keep)
    assert sizes == [8]
    assert_same(again, whole)


def test_path_is_that_of_the_first_samples():
    x = noise().at(range(3))
    for state, expected in zip(drawn(None, path=3)[0].path, (x, x + 1), strict=True):
        assert torch.equal(state, expected)
    assert drawn(None)[0].path == []


def test_samples_that_are_not_finite_are_noticed():
    """Past mistake: Only nan and infinity counted as diverged samples. One of 4,096 samples at
    3e16 left the energy distance small or below 0, so a search could choose its setting.
    """

    class Broken(Copies):
        def __call__(self, x, labels=None, *, keep_path=False):
            return Samples(x=x / (len(x) - 4 + 1e-8), nfe=1.0)  # far away in the last batch

    assert drawn(None)[0].finite
    assert not drawn(None, Broken(), keep=3)[0].finite


def test_damaged_and_foreign_batch_files_are_not_used(tmp_path):
    """Past mistake: A stored batch was checked for damage but not for its content, and arrays of
    another kind ended in tracebacks.
    """
    whole, _ = drawn(tmp_path)
    content = bytearray((tmp_path / "0.pt").read_bytes())
    content[content.index(whole.x[:8].numpy().tobytes())] ^= 1
    (tmp_path / "0.pt").write_bytes(content)
    (tmp_path / "1.pt").write_bytes(content[: len(content) // 2])
    torch.save({"x": torch.zeros(3)}, tmp_path / "2.pt")
    again, sizes = drawn(tmp_path)
    assert sizes == [8, 8, 4]
    assert_same(again, whole)


def test_saved_batches_of_other_noise_settings_or_weights_are_not_used(
    small, small_run, tmp_path, monkeypatch
):
    drawn(tmp_path / "a" / "0")
    shutil.copytree(tmp_path / "a" / "0", tmp_path / "a" / "1")
    assert drawn(tmp_path / "a" / "1")[1] == [8, 8, 4]
    shutil.copy(tmp_path / "a" / "0" / "0.pt", tmp_path / "a" / "0" / "1.pt")
    assert drawn(tmp_path / "a" / "0")[1] == [8]
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert drawn(tmp_path / "b" / "0")[1] == [8, 8, 4]

    def missing(config=small, change=0):
        sampler, _ = Experiment(config).load_sampler(small_run)
        with torch.no_grad():
            next(sampler.legs[-1].network.parameters())[0] += change
        return drawn(tmp_path / "c", Copies(0, *sampler.legs))[1]

    half = replace(small, train=replace(small.train, precision="bf16"))
    for how in ({}, {"change": 1}, {"config": half}):
        assert missing(**how) == [8, 8, 4]
        assert missing(**how) == []
    monkeypatch.setattr("nsgf.sampling.generate.versions", lambda: {"torch": "0"})
    assert missing(half) == [8, 8, 4]


def test_full_disk_does_not_end_sampling(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert drawn(tmp_path / "file" / "in it")[1] == [8, 8, 4]
    assert capsys.readouterr().out.count("an interruption would lose all samples") == 1


def test_batch_folder_depends_only_on_settings_and_device(small, tmp_path):
    def name(config, keep=None, device=CPU):
        settings = fixed_values(config, SAMPLE_SECTIONS)
        return batch_folder(tmp_path, settings, config.evaluation.num_samples, device, keep)

    folder = name(small)
    assert folder.parent == tmp_path
    changed = {
        name(replace(small, seed=1)),
        name(replace(small, sampling=replace(small.sampling, batch_size=5))),
        name(replace(small, sampling=replace(small.sampling, solver="heun"))),
        name(replace(small, evaluation=replace(small.evaluation, num_samples=23))),
        name(small, keep=23),
        name(small, device=torch.device("cuda:1")),
    }
    assert len({folder, *changed}) == 7
    evaluation = replace(small.evaluation, inception_weights="w.pth")
    data = replace(small.data, root="elsewhere", download=False)
    assert name(replace(small, evaluation=evaluation, data=data, out_dir="x")) == folder


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("there", [[], [1], [0, 1, 2]])
def test_processes_divide_the_missing_batches(size, there, tmp_path, monkeypatch):
    alone, _ = drawn(tmp_path, keep=11)
    missing, parts, sampler = [number for number in range(3) if number not in there], [], Copies()
    for number in missing:
        (tmp_path / f"{number}.pt").unlink()
    monkeypatch.setattr(World, "agree", lambda *_: missing)
    monkeypatch.setattr(World, "gather", lambda world, value: [*parts, parts.append(value)][:-1])
    for rank in range(size - 1, -1, -1):  # the first process comes last, and gets all
        shared, sizes = drawn(tmp_path, sampler, keep=11, world=World(rank, size))
        assert rank == 0 or len(shared.x) == 0
    assert sorted(sizes) == sorted([8, 8, 4][number] for number in missing)
    assert_same(shared, alone)


def test_processes_stop_after_the_current_batch_when_torchrun_ends(monkeypatch, tmp_path):
    monkeypatch.setattr(World, "agree", lambda _, value: value)
    stop = SimpleNamespace(reason=None)
    monkeypatch.setattr("nsgf.sampling.generate.StopRequest", lambda: stop)

    class Last(Copies):
        def __call__(self, x, labels=None, *, keep_path=False):
            stop.reason = "torchrun has ended"
            return super().__call__(x, labels)

    with pytest.raises(UserError, match="torchrun has ended; repeat the command"):
        drawn(tmp_path, Last(), world=World(0, 2))
    assert [file.name for file in tmp_path.iterdir()] == ["0.pt"]
