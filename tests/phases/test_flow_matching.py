import json
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from nsgf.config.schema import PeerConfig
from nsgf.data import Data, PointSampler
from nsgf.experiment import train
from nsgf.metrics.evaluate import evaluate_run
from nsgf.phases import flow_matching, get_phase, load_sampler
from nsgf.phases.flow_matching import PeerTask, StoredPairs, build_matcher, path_ends
from nsgf.phases.lines import NSFTask, Pairs
from nsgf.run.log import RunLog
from nsgf.run.session import Session
from nsgf.run.stop import Stopped, StopRequest
from nsgf.sinkhorn.exact import SIMPLEX_ITERATIONS
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from tests.conftest import shipped

CPU = torch.device("cpu")


class Grid:
    """mu on the line: -8, -7.75, ..., far apart, so that pairs can be told by their ends."""

    shape = (1,)

    def __init__(self, shift: float) -> None:
        self.shift = shift

    def draw(self, n: int, generator: torch.Generator) -> torch.Tensor:
        places = torch.randint(-32, 32, (n, 1), generator=generator) / 4
        return places + self.shift


class ByClass:
    """Ends from 100 c - 8 to 100 c + 8 at the positions of class c of 3."""

    def at(self, positions: range) -> torch.Tensor:
        return torch.tensor([[100.0 * (i % 3) + (7 * i) % 13 - 6] for i in positions])


def task(method: str, sigma: float = 0.0, seed: int = 3) -> PeerTask:
    pairs = Pairs(PointSampler(Grid(0.0), 1), PointSampler(Grid(100.0), 2), CPU)
    return PeerTask(nn.Identity(), pairs, PeerConfig(method=method, sigma=sigma), seed)


def drawn(method: str, sigma: float = 0.0, seed: int = 3, first: int = 0):
    """Return the first 64 pairs and times from a position on, the points of their lines, and the
    batch."""
    peer = task(method, sigma, seed)
    start, end, t, position = peer.draw(range(first, first + 64))
    line = (1 - t[:, None]) * start + t[:, None] * end
    return start, end, line, peer.batch(start, end, t, position)


def test_lines_between_pairs_have_noise_of_width_sigma_except_for_rectified_flow():
    """x = (1 - t) X0 + t X1 and u = X1 - X0; with another noise for each batch and seed."""
    start, end, line, batch = drawn("rf", sigma=0.7)
    torch.testing.assert_close(batch.inputs[0], line)
    torch.testing.assert_close(batch.target, end - start)
    start, end, line, batch = drawn("icfm", sigma=0.3)
    noise = batch.inputs[0] - line
    assert float(noise.std()) == pytest.approx(0.3, rel=0.25)
    torch.testing.assert_close(batch.target, end - start)
    for others in ({"first": 64}, {"seed": 4}):
        _, _, line, batch = drawn("icfm", sigma=0.3, **others)
        assert float((batch.inputs[0] - line - noise).abs().mean()) > 0.1


@pytest.mark.parametrize("method", ["otcfm", "sbcfm"])
def test_exact_plan_has_enough_iterations_for_large_batches(method):
    """POT's own limit ends before the optimum from about 2,500 points on."""
    matcher = build_matcher(PeerConfig(method=method, sigma=0.1))
    assert matcher.ot_sampler.ot_fn.keywords["numItermax"] == SIMPLEX_ITERATIONS


def test_samples_paired_in_groups_are_not_paired_again(tiny, tiny_run):
    """torchcfm would pair them anew within the batch."""
    peer = PeerConfig(method="otcfm", sigma=0.0, coupling_batch=32)
    run = Session(replace(tiny, peer=peer), tiny_run, RunLog(tiny_run.path), CPU)
    task = get_phase("peer").task(run, Data(tiny.data, 0))
    start, end, t, first = task.draw(range(8))
    streams = (Data(tiny.data, 0).source("peer"), Data(tiny.data, 0).target("peer"))
    whole = Pairs(*streams, CPU, group=32).at(range(8))
    assert torch.equal(start, whole[0])
    assert torch.equal(end, whole[1])
    torch.testing.assert_close(task.batch(start, end, t, first).target, end - start)


def test_otcfm_pairs_by_optimal_transport():
    """On a line the optimal plan is monotone: larger starts go to larger ends."""
    batch = drawn("otcfm")[3]
    x, t = batch.inputs[0][:, 0], batch.inputs[1]
    start = x - t * batch.target[:, 0]
    end = start + batch.target[:, 0]
    order = torch.argsort(start + 1e-4 * end)
    assert (end[order].diff() >= -1e-3).all()
    assert float((end - start).std()) < 2  # independent pairs: about 6.5


def test_samples_are_paired_within_their_class():
    """Pair i has class i mod K, ends of the class, and its label; a tenth has none."""
    pairs = Pairs(PointSampler(Grid(0.0), 1), ByClass(), CPU)
    peer = PeerTask(nn.Identity(), pairs, PeerConfig(method="otcfm", sigma=0.0), 3, classes=3)
    (x, t, labels), velocity = (batch := peer.batch(*peer.draw(range(4, 68)))).inputs, batch.target
    end = (x + (1 - t[:, None]) * velocity)[:, 0]
    classes = (end / 100).round().long()
    kept = labels < 3
    assert 0.7 < float(kept.float().mean()) < 1
    assert torch.equal(labels[kept].long(), classes[kept])
    for label in range(3):
        start = (x - t[:, None] * velocity)[:, 0][classes == label]
        rank = torch.argsort(start + 1e-4 * end[classes == label])
        assert (end[classes == label][rank].diff() >= -1e-3).all()


def test_bridge_has_the_width_of_a_brownian_bridge():
    """Without noise in the line's normal form: (x - mean) / sigma = eps (t (1 - t))^(1/2)."""
    narrow, wide = (drawn("sbcfm", sigma=sigma)[3] for sigma in (1e-4, 0.5))
    t = wide.inputs[1]
    scaled = (wide.inputs[0] - narrow.inputs[0])[:, 0] / (0.5 * (t * (1 - t)).sqrt())
    assert float(scaled.std()) == pytest.approx(1, rel=0.3)


@pytest.mark.parametrize("method", ["icfm", "otcfm", "sbcfm", "rf"])
def test_batches_depend_only_on_seed_and_position(method):
    """In any order, and whatever was drawn from the global generators in between."""
    expected = drawn(method, sigma=0.2)[3]
    again = task(method, sigma=0.2)
    again.batch(*again.draw(range(64, 128)))
    torch.rand(3)
    batch = again.batch(*again.draw(range(64)))
    assert torch.equal(batch.target, expected.target)
    assert torch.equal(batch.inputs[0], expected.inputs[0])
    assert not torch.equal(drawn(method, 0.2, seed=4)[3].inputs[0], expected.inputs[0])


def test_missing_torchcfm_is_a_one_line_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchcfm.conditional_flow_matching", None)
    with pytest.raises(UserError, match="pip install torchcfm"):
        get_phase("peer").plan(shipped("2d"), CPU, None, World())


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
    monkeypatch.setattr("nsgf.phases.flow_matching.PATHS", 12)
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


def test_reflow_learns_paths_within_their_class(monkeypatch, tiny_run):
    """Stored path i, pair i and label i have class i mod K; a tenth of the labels is left out."""

    def carry(x, labels):
        return labels.view(-1, 1, 1, 1) + x / 100

    monkeypatch.setattr(flow_matching, "starting_network", lambda *_: nn.Identity())
    monkeypatch.setattr(flow_matching, "load_euler_steps", lambda *_: carry)
    config = shipped("digits/2rf", "--data.conditional=true", "--reflow.pairs=50")
    session = Session(config, tiny_run, RunLog(tiny_run.path), CPU)
    task = get_phase("reflow").task(session, Data(config.data, 0))
    start, end, _, labels = task.draw(range(3, 203))
    classes = torch.arange(3, 203) % 10
    torch.testing.assert_close(end, carry(start, classes))
    assert torch.equal(labels[labels < 10], classes[labels < 10].int())
    assert 0 < int((labels == 10).sum()) < 50
    assert len(start[:, 0, 0, 0].unique()) > 40  # all turns of a class, not one
