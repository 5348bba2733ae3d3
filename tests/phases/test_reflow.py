"""The methods NSGF is compared with, through the same training, resume and sampling."""

import json
from dataclasses import replace

import pytest
import torch

from nsgf.cli import main
from nsgf.experiment import train
from nsgf.metrics.evaluate import evaluate_run
from nsgf.phases import load_sampler
from nsgf.phases.reflow import ReflowTask
from nsgf.report.samples import sample_run
from nsgf.run import checkpoint
from tests.conftest import shipped

CPU = torch.device("cpu")
LOSSES = [13.070021, 13.793293, 13.676622]
"""Of the first method of ``peer``, where it logs them."""


@pytest.fixture
def peer(tiny):
    """1-RF and 2-RF on points, in a second."""
    reflow = replace(tiny.reflow, pairs=32)
    evaluation = replace(tiny.evaluation, num_samples=64)
    method = replace(tiny.peer, method="rf")
    return replace(
        tiny, phases=["peer", "reflow"], peer=method, reflow=reflow, evaluation=evaluation
    )


def test_peer_and_reflow_train_sample_and_evaluate(peer):
    run = train(peer)
    assert run.checkpoint_file("reflow").name == "phase2_reflow.pt"
    sampler, progress = load_sampler(peer, run, CPU)
    assert progress == {"reflow": "12 of 12"}
    lines = map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if line["phase"] == "peer"]
    assert losses == pytest.approx(LOSSES, rel=1e-3)  # as in earlier versions
    assert sampler(torch.randn(4, 2)).nfe == peer.sampling.straight_steps
    sample_run(peer, run)
    _, found = evaluate_run(peer, run)
    assert found["nfe"] == peer.sampling.straight_steps == found["expected_nfe"]
    assert found["w2"] > 0


def test_reflow_goes_on_in_the_run_of_its_teacher(peer):
    """1-RF is not trained again, and reflow begins with its averaged weights."""
    run = train(replace(peer, phases=["peer"]))
    before = checkpoint.load(run.checkpoint_file("peer"))
    train(replace(peer, reflow=replace(peer.reflow, iterations=0)), run)
    after = checkpoint.load(run.checkpoint_file("peer"))
    start = checkpoint.load(run.checkpoint_file("reflow"))["model"]
    for name, value in before["ema"].items():
        assert torch.equal(after["ema"][name], value)
        assert torch.equal(start[name], value)


def test_interrupted_peer_ends_as_one_that_was_not(peer):
    """The matcher's own draws follow from seed and position too."""
    config = replace(peer, phases=["peer"], peer=replace(peer.peer, method="otcfm", sigma=0.1))
    whole = train(config)
    half = train(replace(config, peer=replace(config.peer, iterations=5, schedule="constant")))
    half = train(replace(config, peer=replace(config.peer, schedule="constant")), half)
    constant = train(replace(config, peer=replace(config.peer, schedule="constant")))
    ends = [checkpoint.load(run.checkpoint_file("peer"))["model"] for run in (half, constant)]
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    assert whole.path != half.path


def test_another_method_cannot_take_over_a_run(peer):
    run = train(replace(peer, phases=["peer"]))
    other = replace(peer, phases=["peer"], peer=replace(peer.peer, method="icfm"))
    with pytest.raises(Exception, match=r"peer\.method: the checkpoint has rf, this command icfm"):
        train(other, run)


def test_so_many_paths_are_walked_together(peer, monkeypatch):
    sizes = []
    monkeypatch.setattr("nsgf.phases.reflow.PATHS", 12)
    monkeypatch.setattr(
        "nsgf.phases.reflow.nsgf_steps", lambda _, x, **how: sizes.append(len(x)) or x
    )
    train(replace(peer, reflow=replace(peer.reflow, iterations=0)))
    assert sizes == [12, 12, 8]


def test_settings_of_the_flow_do_not_concern_a_peer(peer):
    run = train(replace(peer, phases=["peer"]))
    other = replace(peer, flow=replace(peer.flow, steps=2), phases=["peer"])
    train(other, run)
    load_sampler(other, run, CPU)


def test_bridge_without_width_is_refused(capsys):
    flags = ["--phases=[peer]", "--peer.method=sbcfm", "--peer.sigma=0"]
    assert main(["train", "--exp", "2d", *flags]) == 2
    assert "peer.sigma = " in capsys.readouterr().err


def test_peers_have_the_settings_of_the_velocity_network():
    """Equal terms in the plane: updates, batch, rate, schedule and average."""
    config = shipped("2d")
    for name in ("iterations", "batch_size", "lr", "schedule", "ema_decay", "clip_norm"):
        values = {getattr(getattr(config, phase), name) for phase in ("nsgf", "peer", "reflow")}
        assert len(values) == 1, name


def test_pairs_and_times_of_reflow_are_those_of_earlier_versions():
    ends = torch.arange(50.0), 100 + torch.arange(50.0)
    start, end, t = ReflowTask(torch.nn.Identity(), ends, seed=7).draw(range(3, 7))
    assert start.tolist() == [48, 35, 15, 7]
    assert torch.equal(end, start + 100)
    torch.testing.assert_close(t, torch.tensor([0.474256, 0.601518, 0.286646, 0.243692]))
