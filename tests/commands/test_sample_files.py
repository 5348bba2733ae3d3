import sys
import weakref
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from nsgf.commands.sample import sample_run
from nsgf.commands.sample_files import BatchReader, check_output, write_samples
from nsgf.config.schema import DataConfig, DataFacts
from nsgf.data.images import to_bytes
from nsgf.experiment import Experiment
from nsgf.sampling.sampler import FlowSampler, Samples
from nsgf.system.errors import UserError
from nsgf.user_data import find_target

READERS = {
    ".csv": lambda file: pd.read_csv(file).to_numpy(),
    ".tsv": lambda file: pd.read_csv(file, sep="\t").to_numpy(),
    ".parquet": lambda file: pd.read_parquet(file).to_numpy(),
    ".npz": lambda file: np.load(file)["x"],
    ".npy": np.load,
}


def table_set(names, scale=1e-3):
    dim = len(names)
    facts = DataFacts(16, [dim], "x", names=names, mean=[1.7e9] * dim, scale=[scale] * dim)
    return find_target(DataConfig(name="points", path="x", found=facts))


def batches_of(x, size, **others):
    return BatchReader(
        Samples(x=x[first : first + size], nfe=first + 1.0, **others)
        for first in range(0, len(x), size)
    )


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("size", [3, 100])
def test_each_format_has_all_digits_of_all_batches(suffix, size, tmp_path, monkeypatch):
    """Also of microseconds in seconds since 1970."""
    monkeypatch.setattr("nsgf.commands.sample_files.GROUP_ROWS", 7)
    target = table_set(["a\tb", 'c,"d"'])
    x = torch.randn(20, 2)
    write_samples(target, batches_of(x, size), 20, file := tmp_path / f"x{suffix}", suffix)
    written = READERS[suffix](file)
    assert written.dtype == np.float64
    assert np.array_equal(written, target.in_units(x))
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_tables_have_the_names_of_the_columns(suffix, small, tmp_path):
    """And x1, x2 for sets without names. Values are float64."""
    read = {".csv": pd.read_csv, ".tsv": pd.read_table, ".parquet": pd.read_parquet}[suffix]
    x = torch.randn(20, 2)
    named = table_set(["a\tb", 'c,"d"'])
    for target, names in ((named, ["a\tb", 'c,"d"']), (find_target(small.data), None)):
        write_samples(target, batches_of(x, 9), 20, file := tmp_path / f"{names}{suffix}", suffix)
        table = read(file)
        assert [*table.columns] == (names or ["x1", "x2"])
        assert {*table.dtypes} == {np.dtype("f8")}


def test_values_that_are_not_finite_are_written(tmp_path):
    target = table_set(["a"], scale=1.0)
    x = torch.tensor([[torch.nan], [torch.inf], [-torch.inf]])
    for suffix in (".csv", ".parquet", ".npy"):
        write_samples(target, batches_of(x, 2), 3, file := tmp_path / f"x{suffix}", suffix)
        assert np.array_equal(READERS[suffix](file), x.double().numpy(), equal_nan=True)


def test_arrays_have_calls_and_entry_times_of_all_batches(small, tmp_path):
    tau = torch.rand(4)
    batches = [Samples(x=torch.randn(4, 2), nfe=3.0, tau=tau), Samples(torch.randn(16, 2), 8.0)]
    batches[1].tau = torch.rand(16)
    write_samples(find_target(small.data), BatchReader(batches), 20, tmp_path / "x.npz", ".npz")
    saved = np.load(tmp_path / "x.npz", allow_pickle=False)
    assert saved["nfe"] == (4 * 3 + 16 * 8) / 20
    assert np.array_equal(saved["tau"], torch.cat([tau, batches[1].tau]))


@pytest.mark.parametrize("kind", ["x.npz", "x/"])
def test_images_of_all_batches_have_their_class(kind, told_run, tmp_path):
    """23 samples in batches of 8, with the classes in turn."""
    config, run = told_run
    sample_run(Experiment(config), run, out=f"{tmp_path}/{kind}")
    sample_run(Experiment(config), run, out=f"{tmp_path}/x.npy")
    x = np.load(tmp_path / "x.npy")
    assert x.shape == (23, 1, 8, 8)
    if kind == "x.npz":
        saved = np.load(tmp_path / kind)
        assert np.array_equal(saved["x"], x)
        assert [*saved["labels"]] == [number % 10 for number in range(23)]
    else:
        files = sorted((tmp_path / "x").iterdir())
        assert [file.name for file in files] == [f"{n:06d}-{n % 10}.png" for n in range(23)]
        pixels = np.stack([np.asarray(Image.open(file)) for file in files])
        assert np.array_equal(pixels[:, None], to_bytes(torch.from_numpy(x)))


@pytest.mark.parametrize("suffix", [*READERS, "/"])
def test_only_few_batches_are_in_memory(suffix, small, small_run, digits_run, tmp_path):
    """The bound does not depend on the number of samples."""
    config, run = digits_run if suffix == "/" else (small, small_run)
    sampling = replace(config.sampling, num_samples=90, batch_size=3)
    batches = []
    counts = []

    def call(sampler, x, labels=None, **_):
        samples = Samples(x=x.clone(), nfe=1.0)
        batches.append(weakref.ref(samples))
        counts.append(sum(batch() is not None for batch in batches))
        return samples

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FlowSampler, "__call__", call)
        patch.setattr("nsgf.commands.sample_files.GROUP_ROWS", 6)
        sample_run(Experiment(replace(config, sampling=sampling)), run, out=f"{tmp_path}/x{suffix}")
    assert len(counts) == 30
    assert 1 <= max(counts) <= 2


@pytest.mark.parametrize("suffix", [*READERS, "/"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_interrupted_sampling_leaves_no_file(
    suffix, error, small, small_run, digits_run, tmp_path, monkeypatch
):
    config, run = digits_run if suffix == "/" else (small, small_run)
    sampling = replace(config.sampling, num_samples=9, batch_size=3)
    calls = []
    sampled = FlowSampler.__call__

    def call(*given, **named):
        calls.append(1)
        if len(calls) == 3:
            raise error
        return sampled(*given, **named)

    monkeypatch.setattr(FlowSampler, "__call__", call)
    (tmp_path / "new").mkdir()
    with pytest.raises(type(error) if isinstance(error, OSError) else error):
        sample_run(
            Experiment(replace(config, sampling=sampling)), run, out=f"{tmp_path}/new/x{suffix}"
        )
    assert not [*(tmp_path / "new").iterdir()]


def test_parquet_needs_its_package_and_different_names(tmp_path, monkeypatch):
    file = str(tmp_path / "x.parquet")
    with pytest.raises(UserError, match=r"different names.*FILE\.csv"):
        check_output(file, table_set(["a", "a"]))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match="pip install pyarrow"):
        check_output(file, table_set(["a", "b"]))
    monkeypatch.undo()
    assert check_output(file, table_set(["a", "b"]))[1] == ".parquet"
