"""Train, resume and sample the methods that NSGF is compared with."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from nsgf.experiment import train
from nsgf.metrics.evaluate import evaluate_run
from nsgf.phases import load_sampler
from nsgf.phases.lines import NSFTask
from nsgf.phases.reflow import StoredPairs, path_ends
from nsgf.run.log import RunLog
from nsgf.run.session import Session
from nsgf.run.stop import Stopped, StopRequest
from tests.conftest import shipped

CPU = torch.device("cpu")
LOSSES = [13.070021, 13.793293, 13.676622]
"""Means of four updates each of the first method of ``peer``."""


@pytest.fixture
def peer(tiny):
    """Return settings of 1-RF and 2-RF on points that train in a second."""
    return replace(
        tiny,
        phases=["peer", "reflow"],
        peer=replace(tiny.peer, method="rf"),
        reflow=replace(tiny.reflow, pairs=32),
        evaluation=replace(tiny.evaluation, num_samples=64),
    )


def test_peer_and_reflow_train_sample_and_evaluate(peer):
    run = train(peer)
    assert run.checkpoint_file("reflow").name == "phase2_reflow.pt"
    assert load_sampler(peer, run, CPU)[1] == {"reflow": "12 of 12"}
    lines = map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if line["phase"] == "peer"]
    means = torch.tensor(losses).view(3, 4).mean(1).tolist()
    assert means == pytest.approx(LOSSES, rel=1e-3)  # as in earlier versions
    _, found = evaluate_run(peer, run)
    assert found["nfe"] == peer.sampling.straight_steps == found["expected_nfe"]
    assert found["w2"] > 0


def test_flow_matching_trains_with_the_settings_of_nsgf():
    """Equal terms in the plane: updates, batch, rate, schedule and average."""
    config = shipped("2d")
    for name in ("iterations", "batch_size", "lr", "schedule", "ema_decay", "clip_norm"):
        values = {getattr(getattr(config, phase), name) for phase in ("nsgf", "peer", "reflow")}
        assert len(values) == 1, name


def test_reflow_learns_the_straight_line_between_the_ends_of_a_path(tiny, tiny_run, monkeypatch):
    """Paths are computed in parts of a fixed size, since sums are rounded by it."""
    monkeypatch.setattr("nsgf.phases.reflow.PATHS", 12)
    starts, sizes = torch.arange(32.0).view(-1, 1), []
    session = Session(tiny, tiny_run, RunLog(tiny_run.path), CPU)
    ends = path_ends(starts, lambda x: sizes.append(len(x)) or 2 * x + 50, session)
    assert sizes == [12, 12, 8]
    torch.testing.assert_close(ends, 2 * starts + 50)
    session.stop = StopRequest(max_hours=0)
    with pytest.raises(Stopped):
        path_ends(starts, lambda x: x, session)


def test_pairs_and_times_of_reflow_are_unchanged():
    pairs = StoredPairs(torch.arange(50.0), 100 + torch.arange(50.0), seed=7)
    start, end, t = NSFTask(nn.Identity(), pairs, seed=7).draw(range(3, 7))
    assert start.tolist() == [48, 35, 15, 7]
    assert torch.equal(end, start + 100)
    torch.testing.assert_close(t, torch.tensor([0.474256, 0.601518, 0.286646, 0.243692]))
