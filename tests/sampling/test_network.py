"""Trained networks for sampling: their precision, and a card that is full."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from nsgf.config.schema import Config, FlowConfig, SamplingConfig
from nsgf.data import Data
from nsgf.experiment import train
from nsgf.phases import get_phase
from nsgf.phases.base import new_network
from nsgf.phases.lines import make_pairs
from nsgf.run import checkpoint
from nsgf.run.log import RunLog
from nsgf.run.session import Session
from nsgf.samples import preview_samples, sample_run
from nsgf.sampling.network import InferenceNetwork
from nsgf.sampling.sampler import FlowSampler, NSGFSteps, StraightFlow
from nsgf.system.errors import UserError
from nsgf.training.precision import sampling_precision
from tests.conftest import shipped

CPU = torch.device("cpu")


class Full(nn.Module):
    """A network on a card that holds ``room`` samples; u = 2 t x, or 2 x without a time."""

    def __init__(self, room: float = math.inf) -> None:
        super().__init__()
        self.room, self.sizes = room, []

    def forward(self, x, t=None):
        self.sizes.append(len(x))
        if len(x) > self.room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return 2 * x if t is None else 2 * t[:, None] * x


def inference(model, lines=None, config=None):
    precision = sampling_precision(config or Config(), CPU)
    return InferenceNetwork(model, precision, CPU, pytest.fail if lines is None else lines.append)


def in_precision(config, precision):
    return replace(config, train=replace(config.train, precision=precision))


def test_batch_that_does_not_fit_is_split_and_logged_once():
    model, lines, x, t = Full(room=3), [], torch.randn(20, 2), torch.rand(20)
    network = inference(model, lines)
    assert torch.equal(network(x, t), Full()(x, t))
    assert model.sizes[:4] == [20, 10, 5, 3]
    model.sizes.clear()
    assert torch.equal(network(x, t), Full()(x, t))
    assert model.sizes == [3] * 6 + [2]
    assert len(lines) == 1
    assert "with 3 at a time" in lines[0]
    with pytest.raises(UserError, match="memory is full, even with one sample"):
        inference(Full(room=0), [])(x)


@pytest.mark.parametrize("solver", ["euler", "dopri5"])
def test_full_card_does_not_change_samples_or_nfe(solver):
    """dopri5 takes the steps of the whole batch also where the network sees parts of it."""

    def drawn(room):
        config = Config(flow=FlowConfig(steps=2), sampling=SamplingConfig(solver=solver))
        networks = [inference(Full(room), [], config) for _ in range(2)]
        legs = [NSGFSteps(config, networks[0]), StraightFlow(config, networks[1])]
        return FlowSampler(legs)(x)

    x = 3 * torch.randn(16, 2)
    whole, parts = drawn(math.inf), drawn(5)
    assert torch.equal(whole.x, parts.x)
    assert whole.nfe == parts.nfe


def test_layers_use_the_precision_and_outputs_are_float32():
    class Seen(nn.Linear):
        def forward(self, x, t):
            answer = super().forward(x)
            types.append((x.dtype, answer.dtype))
            return answer

    for precision, inside in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        types, config = [], in_precision(Config(), precision)
        network = inference(Seen(2, 2).requires_grad_(False), config=config)
        states = FlowSampler([StraightFlow(config, network)])(torch.randn(4, 2), keep_path=True)
        assert {state.dtype for state in states.path} == {torch.float32}
        assert set(types) == {(torch.float32, inside)}


@pytest.mark.parametrize("name", ["nsgf", "predictor"])
def test_weights_are_cast_once(name):
    """Autocast caches its casts of trained weights only. The answer is the same, bit for bit."""
    config = shipped("digits", "--precision=bf16", "--device=cpu")
    model = new_network(get_phase(name), config, CPU).eval().requires_grad_(False)
    inputs = (torch.randn(2, 1, 8, 8), torch.rand(2))[: 2 if name == "nsgf" else 1]
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(*inputs).float()
    assert torch.equal(inference(model, config=config)(*inputs), expected)
    layers = [part for part in model.modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    assert {layer.weight.dtype for layer in layers} == {torch.bfloat16}


def test_samples_and_previews_use_the_configured_precision(small, small_run):
    """Samples and pictures: each is near the one in float32, and another one."""
    data = Data(small.data, small.seed)

    def found(precision):
        config = in_precision(small, precision)
        yield preview_samples(config, small_run, get_phase("predictor"), data, CPU)
        sample_run(config, small_run)
        saved = np.load(small_run.samples / "samples.npz", allow_pickle=False)
        yield torch.from_numpy(saved["x"])

    small_run.write_config(in_precision(small, "fp32"))
    for full, half in zip(found("fp32"), found("bf16"), strict=True):
        assert not torch.equal(full, half)
        torch.testing.assert_close(full, half, rtol=0, atol=0.05)


def learned_from(config, runs):
    """What the lines of one run start from, and where the paths of the other one's reflow end."""
    nsgf, peer = (Session(config, run, RunLog(run.path), CPU) for run in runs)
    data = Data(config.data, config.seed)
    reflowed = get_phase("reflow").task(peer, data)
    return line_starts(nsgf), reflowed.draw(range(32))[1]


def line_starts(session):
    """Where the lines of 32 samples start, after NSGF steps."""
    config = session.config
    session.config = replace(config, nsf=replace(config.nsf, source="nsgf"))
    return make_pairs(get_phase("nsf"), session, Data(config.data, 0))[0].at(range(32))[0]


def trained_in(precision, *files):
    """Let checkpoints say that they were trained so."""
    for file in files:
        checkpoint.save(file, {**checkpoint.load(file), "precision": precision})


def test_sampling_settings_do_not_change_training_paths(tiny, tiny_run):
    """Nor does another precision at a resume: the other half would be learned from other paths."""
    reflow = replace(tiny.reflow, pairs=32)
    config = replace(tiny, peer=replace(tiny.peer, method="rf"), reflow=reflow)
    runs, found = (tiny_run, train(replace(config, phases=["peer"]))), []
    files = [run.checkpoint_file(name) for run, name in zip(runs, ("nsgf", "peer"), strict=True)]
    half = replace(config, train=replace(config.train, precision="bf16"))
    other = replace(half, sampling=replace(half.sampling, solver="dopri5"))
    for precision in ("fp32", "bf16"):
        trained_in(precision, *files)
        found.append(learned_from(config, runs))
        for changed in (half, other):
            for one, same in zip(learned_from(changed, runs), found[-1], strict=True):
                assert torch.equal(one, same)
    for full, short in zip(*found, strict=True):
        assert not torch.equal(full, short)
    trained_in("fp16", *files)  # which a CPU has not
    assert torch.equal(learned_from(config, runs)[0], found[0][0])
