"""Phase 1 with classes: each flow has one class, which its pairs have as label."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from nsgf.data.images import to_unit_range
from nsgf.phases.nsgf import NSGFTask
from nsgf.pool import TrajectoryPool
from nsgf.run.folder import RunFolder
from nsgf.run.log import RunLog
from nsgf.training.task import Session
from nsgf.user_data import load_data
from tests.conftest import CPU, new_phase, shipped
from tests.pool.test_build import Apart


@pytest.mark.parametrize("size", [1, 3])
def test_flows_end_at_images_of_the_class_of_their_label(size, tmp_path):
    """A whole pool, whose images have pixels of the value of their class; other numbers of targets
    than of particles, chunks that are no whole turn of the classes, several processes."""
    flags = ("--data.conditional=true", "--sinkhorn-batch=4", "--pool-batches=25")
    flags += ("--pool.build_batch=3", "--flow.schedule=harmonic", "--sinkhorn.target_batch=6")
    config = shipped("digits", *flags, "--phases=[nsgf]")
    data = load_data(config.data, 0)
    data._samples = (25 * data.labels).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    ends, labels = [], []
    for rank in range(size):
        run = RunFolder(tmp_path / f"{rank}")
        log = RunLog(tmp_path, quiet=True)
        session = Session(config, data.record, run, log, CPU, Apart(rank, size))
        task = new_phase("nsgf", config).task(session, data)
        ends.append(task.pool._positions[:, -1])
        labels.append(task._labels)
    last, labels_of_pairs = torch.cat(ends), torch.cat(labels)
    assert last.shape == (25 * 4, 1, 8, 8)
    classes = to_unit_range((25 * torch.arange(10)).to(torch.uint8)).view(-1, 1).expand(-1, 64)
    nearest = torch.cdist(last.flatten(1), classes).argmin(1)
    assert torch.equal(nearest, (torch.arange(25) % 10).repeat_interleave(4))
    assert torch.equal(nearest.int(), labels_of_pairs)
    plain = load_data(replace(config.data, conditional=False), 0)
    everyone = plain.target_by_class("pool", run=6).at(range(50))
    assert torch.equal(everyone, plain.target("pool").at(range(50)))


def test_pool_pairs_have_the_label_of_their_trajectory():
    """Positions are the class of their trajectory."""
    labels = (torch.arange(40) // 4 % 3).int()
    pool = TrajectoryPool(torch.empty(40, 3, 1, 1, 1), 1.0)
    pool.append(labels.float().view(-1, 1, 1, 1, 1).expand(-1, 3, -1, -1, -1))
    task = NSGFTask(nn.Identity(), pool, 0, labels=labels, classes=3)
    x, _, _, labels_of_pairs = task.draw(range(600))
    kept = labels_of_pairs < 3
    assert torch.equal(labels_of_pairs[kept], x[kept].flatten().int())
    assert 490 < int(kept.sum()) < 580
    assert torch.equal(task.draw(range(50, 60))[3], labels_of_pairs[50:60])
    assert len(task.batch(*task.draw(range(5))).inputs) == 3
    plain = NSGFTask(nn.Identity(), pool, 0)
    assert torch.equal(plain.draw(range(600))[0], x)
    assert len(plain.batch(*plain.draw(range(5))).inputs) == 2
