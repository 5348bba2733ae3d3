import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from nsgf.config.schema import DataConfig
from nsgf.data import build_source
from nsgf.sampling.drawn import Drawn, drawn_folder, fingerprint, forget_drawn
from nsgf.sampling.generate import generate, load_sampler
from nsgf.sampling.sampler import FlowSampler, Samples
from nsgf.system.distributed import World
from nsgf.system.errors import UserError

CPU = torch.device("cpu")
KIND = {"x": ("float32", (2, 3)), "finite": ("bool", ())}


def batch(value: float) -> dict[str, np.ndarray]:
    return {"x": np.full((2, 3), value, np.float32), "finite": np.array(True)}


def test_batches_are_found_as_they_were_kept(tmp_path):
    drawn = Drawn(tmp_path / "new")
    for number in (0, 2):
        drawn.keep(number, batch(number))
    found = Drawn(tmp_path / "new").find([KIND] * 4)
    assert list(found) == [0, 2]
    assert np.array_equal(found[2]["x"], batch(2)["x"])
    assert found[2]["x"].dtype == np.float32
    assert list(drawn.find([KIND] * 2)) == [0]


def test_damaged_and_foreign_files_are_no_batches(tmp_path):
    drawn = Drawn(tmp_path)
    for number in range(5):
        drawn.keep(number, batch(number))
    content = bytearray((tmp_path / "0.npz").read_bytes())
    (tmp_path / "1.npz").write_bytes(content[: len(content) // 2])
    content[content.index(batch(0)["x"].tobytes())] ^= 1
    (tmp_path / "0.npz").write_bytes(content)
    np.savez(tmp_path / "2.npz", x=np.array([{}], dtype=object))
    np.save((tmp_path / "3.npz").open("wb"), np.zeros(3))
    assert list(drawn.find([KIND] * 5)) == [4]


def test_renamed_batches_are_drawn_again(tmp_path):
    """Their samples would belong to other noise."""
    first, second = Drawn(tmp_path / "a" / "0"), Drawn(tmp_path / "a" / "1")
    for number in range(3):
        first.keep(number, batch(number))
        second.keep(number, batch(number))
    files = [tmp_path / "a" / name for name in ("0/0.npz", "0/1.npz", "1/2.npz")]
    for file, content in zip(files, [file.read_bytes() for file in files[::-1]], strict=True):
        file.write_bytes(content)
    assert list(first.find([KIND] * 3)) == [1, 2]
    assert list(second.find([KIND] * 3)) == [0, 1]
    shutil.move(tmp_path / "a", tmp_path / "b" / "a")
    assert list(Drawn(tmp_path / "b" / "a" / "0").find([KIND] * 3)) == [1, 2]


@pytest.mark.parametrize(
    "other",
    [{"pixels": ("uint8", (2, 3))}, {"x": ("float64", (2, 3))}, {"x": ("float32", (1, 3))}],
)
def test_arrays_that_are_not_those_of_a_batch_are_none(other, tmp_path):
    drawn = Drawn(tmp_path)
    drawn.keep(0, batch(0))
    assert not drawn.find([KIND | other])
    assert not drawn.find([{"x": KIND["x"]}])
    assert drawn.find([KIND])


def test_disk_that_is_full_ends_no_sampling(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    drawn = Drawn(tmp_path / "file" / "in it")
    for number in range(2):
        drawn.keep(number, batch(number))
    assert capsys.readouterr().out.count("samples are not kept for an interruption") == 1


def test_folder_follows_what_samples_follow_from_and_nothing_else(small, small_run, tmp_path):
    def name(config, floats=None, device=CPU):
        sampler, _ = load_sampler(config, small_run, CPU)
        return drawn_folder(tmp_path, config, sampler, device, floats)

    own = name(small)
    assert own.parent == tmp_path
    others = {
        name(replace(small, seed=1)),
        name(replace(small, sampling=replace(small.sampling, batch_size=5))),
        name(replace(small, sampling=replace(small.sampling, solver="heun"))),
        name(replace(small, train=replace(small.train, precision="bf16"))),
        name(replace(small, evaluation=replace(small.evaluation, num_samples=23))),
        name(small, floats=23),
        name(small, device=torch.device("cuda:1")),
    }
    assert len({own, *others}) == 8
    evaluation = replace(small.evaluation, inception_weights="w.pth")
    data = replace(small.data, root="elsewhere", download=False)
    assert name(replace(small, evaluation=evaluation, data=data, out_dir="x")) == own


def test_further_training_makes_other_samples(small, small_run):
    sampler, _ = load_sampler(small, small_run, CPU)
    before = fingerprint(sampler)
    assert before == fingerprint(load_sampler(small, small_run, CPU)[0])
    with torch.no_grad():
        next(sampler.legs[-1].network.network.parameters())[0] += 1
    assert fingerprint(sampler) != before


@pytest.mark.parametrize("keep", [False, True])
def test_what_is_forgotten_is_of_the_same_settings(keep, tmp_path):
    for name in ("a-1", "a-2", "b-1"):
        Drawn(tmp_path / f".drawn-{name}" / "0").keep(0, batch(0))
    (tmp_path / "samples.npz").write_text("")
    forget_drawn(tmp_path / ".drawn-a-2", keep=keep)
    left = [".drawn-a-2"] * keep + [".drawn-b-1", "samples.npz"]
    assert sorted(file.name for file in tmp_path.iterdir()) == left


class Copies(FlowSampler):
    """Does what a function says in the place of trained networks."""

    has_entry_times = True

    def __init__(self, sampled):
        super().__init__([])
        self.sampled = sampled

    def __call__(self, x, **_):
        return self.sampled(x)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("there", [[], [1], [0, 1, 2]])
def test_batches_are_shared_and_none_is_drawn_twice(size, there, tmp_path, monkeypatch):
    """20 samples in batches of 8, 8 and 4, some of which are there from before."""
    data, seen = DataConfig(name="digits"), []
    x = build_source(data, 0, "x").at(range(20))

    def sampler(part):
        seen.append(len(part))
        return Samples(x=part * len(part), nfe=float(len(part)), tau=part[:, 0, 0, 0])

    def drawn_by(world, drawn=None):
        return generate(sampler, build_source(data, 0, "x"), 20, 8, CPU, 11, world, drawn)

    sampler = Copies(sampler)
    alone = drawn_by(World(), Drawn(tmp_path))
    for number in {0, 1, 2} - set(there):
        (tmp_path / f"{number}.npz").unlink()
    missing, parts = [number for number in range(3) if number not in there], []
    monkeypatch.setattr("nsgf.sampling.generate.fingerprint", lambda _: "")
    monkeypatch.setattr(World, "agree", lambda _, value: missing if value != "" else "")
    monkeypatch.setattr(World, "gather", lambda world, value: [*parts, parts.append(value)][:-1])
    seen.clear()
    for rank in range(size - 1, -1, -1):  # the first process comes last, and gets all
        shared = drawn_by(World(rank, size), Drawn(tmp_path))
    assert sorted(seen) == sorted([8, 8, 4][number] for number in missing)
    for one, other in ((alone.x, shared.x), (alone.pixels, shared.pixels), (alone.tau, shared.tau)):
        assert torch.equal(one, other)
    assert torch.equal(alone.tau, x[:, 0, 0, 0])
    assert (alone.nfe, alone.finite) == (shared.nfe, shared.finite)


@pytest.mark.parametrize("floats", [None, 11])
def test_foreign_arrays_are_drawn_again(floats, tmp_path):
    """They would end the evaluation at each attempt."""
    source, sizes = build_source(DataConfig(name="digits"), 0, "x"), []

    def sampler(x):
        sizes.append(len(x))
        return Samples(x=x, nfe=1.0, tau=x[:, 0, 0, 0])

    def drawn():
        source = build_source(DataConfig(name="digits"), 0, "x")
        return generate(Copies(sampler), source, 20, 8, CPU, floats, drawn=Drawn(tmp_path))

    whole = drawn()
    assert torch.equal(whole.x, source.at(range(20))[:floats])
    sizes.clear()
    np.savez(tmp_path / "1.npz", x=np.zeros(3))
    (tmp_path / "2.npz").write_bytes((tmp_path / "0.npz").read_bytes())
    again = drawn()
    assert sizes == [8, 4]
    assert torch.equal(again.x, whole.x)
    assert torch.equal(again.tau, whole.tau)


def test_labels_are_kept_with_their_samples(tmp_path):
    """Batches without them, or of other ones, would be gone on with otherwise."""
    source, seen = build_source(DataConfig(name="digits"), 0, "x"), []

    class Told(Copies):
        def __call__(self, x, labels=None, **_):
            seen.append(len(x))
            return Samples(x=x, nfe=1.0, tau=x[:, 0, 0, 0], labels=labels)

    def drawn(labels):
        stream = build_source(DataConfig(name="digits"), 0, "x")
        batches = Drawn(tmp_path)
        return generate(Told(None), stream, 20, 8, CPU, None, drawn=batches, labels=labels)

    def labels(cut):
        return torch.tensor(cut) % 3

    drawn(None)
    found = drawn(labels)
    assert seen == [8, 8, 4] * 2
    (tmp_path / "1.npz").unlink()
    again = drawn(labels)
    assert seen == [*[8, 8, 4] * 2, 8]
    for one in (found, again):
        assert torch.equal(one.labels, torch.arange(20) % 3)
        assert torch.equal(one.x, source.at(range(20)))


def test_networks_that_differ_among_processes_are_refused(monkeypatch):
    """Training may replace a checkpoint while one process has read it and another has not."""
    monkeypatch.setattr("nsgf.sampling.generate.fingerprint", lambda _: "mine")
    monkeypatch.setattr(World, "agree", lambda *_: "that of the first")
    source = build_source(DataConfig(name="digits"), 0, "x")
    with pytest.raises(UserError, match="different networks"):
        generate(lambda _: pytest.fail("sampled"), source, 20, 8, CPU, world=World(1, 2))


def test_processes_do_not_outlive_torchrun_by_more_than_a_batch(monkeypatch, tmp_path):
    for key, value in (("WORLD_SIZE", "2"), ("RANK", "1"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(key, value)
    monkeypatch.setattr("nsgf.sampling.generate.fingerprint", lambda _: "")
    monkeypatch.setattr(World, "agree", lambda _, value: value)
    drawn = Drawn(tmp_path)

    def sampler(part):
        monkeypatch.setattr("os.getppid", lambda: 1)
        return Samples(x=part, nfe=1.0, tau=part[:, 0, 0, 0])

    source = build_source(DataConfig(name="digits"), 0, "x")
    with pytest.raises(UserError, match="torchrun is gone; give the command again"):
        generate(Copies(sampler), source, 40, 8, CPU, world=World(1, 2), drawn=drawn)
    assert [file.name for file in tmp_path.iterdir()] == ["1.npz"]
