"""Training on tensors, arrays and data sets of the caller."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import nsgf
from nsgf import UserError
from tests.data.own_files import own_points
from tests.test_api import SMALL

POINTS = torch.from_numpy(own_points(40, 3))
PIXELS = np.random.default_rng(0).integers(256, size=(40, 1, 8, 8), dtype=np.uint8)
LABELS = torch.arange(40) % 2


def train(folder, overrides=None, **how):
    settings = {**SMALL, **(overrides or {})}
    return nsgf.train(out_dir=folder, overrides=settings, quiet=True, **how)


def test_a_run_of_tensors_is_the_run_of_their_file(tmp_path):
    """Bit for bit, also resumed, with samples in the units of the data."""
    np.save(tmp_path / "own.npy", POINTS.numpy())
    ours = train(tmp_path, data=POINTS, iterations=2)
    other = train(
        tmp_path, {"data.path": tmp_path / "own.npy", "optim.iterations": 2}, exp="points"
    )
    assert torch.equal(ours.sample(30, seed=0), other.sample(30, seed=0))
    ours, other = (nsgf.train(resume=run.path, iterations=4, quiet=True) for run in (ours, other))
    samples = ours.sample(300, seed=0)
    assert torch.equal(samples, other.sample(300, seed=0))
    assert ((samples.mean(0) - POINTS.mean(0)).abs() < 2 * POINTS.std(0)).all()


def test_labels_make_a_run_conditional(tmp_path):
    run = train(tmp_path, data=TensorDataset(torch.from_numpy(PIXELS) / 127.5 - 1, LABELS))
    assert (run.config.data.conditional, run.config.method) == (True, "nsgf++h")
    assert run.config.nsf.coupling == "independent"
    assert run.sample(3, label=1).shape == (3, 1, 8, 8)
    again = nsgf.train(resume=run.path, data=PIXELS, labels=LABELS, quiet=True)
    assert torch.equal(again.sample(3, seed=0), run.sample(3, seed=0))


@pytest.mark.parametrize(
    ("how", "key"),
    [
        ({"data": POINTS, "exp": "points"}, "data: "),
        ({"data": POINTS.log()}, "data: nan in point"),
        ({"data": POINTS[:3]}, "data: .*N >= 16"),
        ({"data": PIXELS / 255}, r"data: .*\[-1, 1\]"),
        ({"data": ["a"]}, "data: "),
        ({"data": TensorDataset(POINTS, LABELS)}, "labels: points"),
        ({"data": PIXELS, "labels": LABELS[:9]}, "labels: .*40"),
        ({"data": POINTS, "method": "otcmf"}, "method = otcmf.*did you mean otcfm"),
        ({"data": POINTS, "overrides": {"optim.lr": -1}}, "lr = -1"),
    ],
)
def test_wrong_data_are_refused_by_their_argument(how, key, tmp_path):
    with pytest.raises(UserError, match=f"^[^-]*{key}"):
        train(tmp_path, **how)
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_errors_name_settings_and_no_flags(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"name a folder for the results with out_dir DIR"):
        train(tmp_path / "file", data=POINTS)
