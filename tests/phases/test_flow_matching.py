import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from nsgf.config.schema import PeerConfig
from nsgf.data import Data, PointSampler
from nsgf.phases import get_phase
from nsgf.phases.coupling import Pairs
from nsgf.phases.flow_matching import (
    SIMPLEX_ITERATIONS,
    PeerTask,
    build_matcher,
    check_installed,
)
from nsgf.phases.reflow import ReflowTask, path_ends
from nsgf.run.log import RunLog
from nsgf.run.session import Session
from nsgf.run.stop import Stopped, StopRequest
from nsgf.system.errors import UserError


class Grid:
    """mu on the line: -8, -7.75, ..., far apart, so that pairs can be told by their ends."""

    shape = (1,)

    def __init__(self, shift: float) -> None:
        self.shift = shift

    def draw(self, n: int, generator: torch.Generator) -> torch.Tensor:
        places = torch.randint(-32, 32, (n, 1), generator=generator) / 4
        return places + self.shift


def task(method: str, sigma: float = 0.0, seed: int = 3) -> PeerTask:
    pairs = Pairs(PointSampler(Grid(0.0), 1), PointSampler(Grid(100.0), 2), torch.device("cpu"))
    return PeerTask(nn.Identity(), pairs, PeerConfig(method=method, sigma=sigma), seed)


def drawn(method: str, sigma: float = 0.0, seed: int = 3):
    peer = task(method, sigma, seed)
    return peer, peer.draw(range(64)), peer.batch(*peer.draw(range(64)))


def test_rectified_flow_regresses_the_line_between_the_pair():
    """x = (1 - t) X0 + t X1 and u = X1 - X0, without noise whatever sigma says."""
    _, (start, end, t, _), batch = drawn("rf", sigma=0.7)
    x, time = batch.inputs
    torch.testing.assert_close(time, t)
    torch.testing.assert_close(x, (1 - t[:, None]) * start + t[:, None] * end)
    torch.testing.assert_close(batch.target, end - start)


def test_icfm_has_noise_of_width_sigma_around_the_line():
    _, (start, end, t, _), batch = drawn("icfm", sigma=0.3)
    noise = batch.inputs[0] - ((1 - t[:, None]) * start + t[:, None] * end)
    assert float(noise.std()) == pytest.approx(0.3, rel=0.25)
    torch.testing.assert_close(batch.target, end - start)


@pytest.mark.parametrize("method", ["otcfm", "sbcfm"])
def test_exact_plan_of_a_large_batch_has_the_steps_it_needs(method):
    """POT's own limit ends before the optimum from about 2,500 points on."""
    matcher = build_matcher(PeerConfig(method=method, sigma=0.1))
    assert matcher.ot_sampler.ot_fn.keywords["numItermax"] == SIMPLEX_ITERATIONS


def test_pairs_that_come_from_a_group_are_not_paired_again(tiny, tiny_run):
    """torchcfm would pair them anew within the batch."""
    peer = PeerConfig(method="otcfm", sigma=0.0, coupling_batch=32)
    run = Session(replace(tiny, peer=peer), tiny_run, RunLog(tiny_run.path), torch.device("cpu"))
    task = get_phase("peer").task(run, Data(tiny.data, 0))
    start, end, t, first = task.draw(range(8))
    streams = (Data(tiny.data, 0).source("peer"), Data(tiny.data, 0).target("peer"))
    whole = Pairs(*streams, torch.device("cpu"), group=32).at(range(8))
    assert torch.equal(start, whole[0])
    assert torch.equal(end, whole[1])
    torch.testing.assert_close(task.batch(start, end, t, first).target, end - start)


def test_otcfm_pairs_by_optimal_transport():
    """On a line the optimal plan is monotone: larger starts go to larger ends."""
    _, _, batch = drawn("otcfm")
    x, t = batch.inputs[0][:, 0], batch.inputs[1]
    start = x - t * batch.target[:, 0]
    end = start + batch.target[:, 0]
    order = torch.argsort(start + 1e-4 * end)
    assert (end[order].diff() >= -1e-3).all()
    assert float((end - start).std()) < 2  # independent pairs: about 6.5


def test_bridge_has_the_width_of_a_brownian_bridge():
    """Without noise in the line's normal form: (x - mean) / sigma = eps (t (1 - t))^(1/2)."""
    narrow, wide = drawn("sbcfm", sigma=1e-4)[2], drawn("sbcfm", sigma=0.5)[2]
    t = wide.inputs[1]
    scaled = (wide.inputs[0] - narrow.inputs[0])[:, 0] / (0.5 * (t * (1 - t)).sqrt())
    assert float(scaled.std()) == pytest.approx(1, rel=0.3)


@pytest.mark.parametrize("method", ["icfm", "otcfm", "sbcfm", "rf"])
def test_batches_follow_seed_and_position(method):
    """In any order, and whatever was drawn from the global generators in between."""
    peer, _, expected = drawn(method, sigma=0.2)
    torch.rand(3)
    peer.batch(*peer.draw(range(64, 128)))
    again = task(method, sigma=0.2)
    batch = again.batch(*again.draw(range(64)))
    assert torch.equal(batch.target, expected.target)
    assert torch.equal(batch.inputs[0], expected.inputs[0])
    other = drawn(method, sigma=0.2, seed=4)[2]
    assert not torch.equal(other.inputs[0], expected.inputs[0])


def test_missing_torchcfm_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchcfm.conditional_flow_matching", None)
    with pytest.raises(UserError, match=r"needs torchcfm .* pip install"):
        check_installed()


def test_reflow_learns_the_straight_line_between_the_ends_of_a_path(tiny, tiny_run):
    starts = PointSampler(Grid(0.0), 1).sample(10)
    session = Session(tiny, tiny_run, RunLog(tiny_run.path), torch.device("cpu"))
    ends = path_ends(starts, lambda x: 2 * x + 50, session)
    assert len(ends) == 10
    reflow = ReflowTask(nn.Identity(), (starts, ends), seed=5)
    start, end, t = reflow.draw(range(32))
    torch.testing.assert_close(end, 2 * start + 50)
    batch = reflow.batch(start, end, t)
    torch.testing.assert_close(batch.target, end - start)
    torch.testing.assert_close(batch.inputs[0], start + t[:, None] * (end - start))
    assert len(start.unique()) > 4


def test_stop_while_paths_are_computed(tiny, tiny_run):
    stop = StopRequest(max_hours=0)
    device = torch.device("cpu")
    session = Session(tiny, tiny_run, RunLog(tiny_run.path), device, stop=stop)
    with pytest.raises(Stopped):
        path_ends(torch.zeros(4, 1), lambda x: x, session)


def test_noise_is_another_one_for_each_batch_and_seed():
    def noise(seed: int, first: int) -> torch.Tensor:
        peer = task("icfm", 0.3, seed)
        start, end, t, position = peer.draw(range(first, first + 64))
        x = peer.batch(start, end, t, position).inputs[0]
        return x - ((1 - t[:, None]) * start + t[:, None] * end)

    first = noise(3, 0)
    assert float((first - noise(3, 64)).abs().mean()) > 0.1
    assert float((first - noise(4, 0)).abs().mean()) > 0.1
