"""Algorithms 2 and 4 with networks given by formulas, classes, and how calls are shared."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from nsgf.commands.preview import preview_samples
from nsgf.commands.sample import sample_run
from nsgf.commands.train import train
from nsgf.config.schema import Config, FlowConfig, MLPConfig, SamplingConfig
from nsgf.experiment import Experiment
from nsgf.models import VelocityMLP
from nsgf.run import checkpoint
from nsgf.sampling.sampler import (
    EntryTimes,
    FlowSampler,
    InferenceNetwork,
    NSGFSteps,
    OneCall,
    ResidualCall,
    StraightFlow,
)
from nsgf.system.errors import UserError
from nsgf.training.precision import sampling_precision
from nsgf.user_data import find_target, load_data
from tests.conftest import CPU, new_network, new_phase, new_session, shipped

ALGORITHM_4 = (NSGFSteps, EntryTimes, StraightFlow)


def config(steps=3, eta=0.2, **sampling):
    return Config(flow=FlowConfig(steps=steps, eta=eta), sampling=SamplingConfig(**sampling))


def build_sampler(config, *legs):
    """A sampler of legs, each of a kind and with a network."""
    target = find_target(config.data)
    settings = config.sampling, config.flow, target.classes
    return FlowSampler([kind(network, *settings) for kind, network in legs], target)


def plus_plus(config, straight, predictor=None):
    """Algorithm 4, with a velocity of one in its NSGF steps."""
    times = [(EntryTimes, predictor)] if config.sampling.tau is None else []
    first = NSGFSteps, lambda x, t: 0 * x + 1
    return build_sampler(config, first, *times, (StraightFlow, straight))


def growing(x, t):
    """dx/dt = 2 t x, so x(1) = x(tau) exp(1 - tau^2)."""
    return 2 * t.view(-1, *[1] * (x.ndim - 1)) * x


def half(x):
    return x.new_full((len(x),), 0.5)


@pytest.mark.parametrize(
    ("settings", "calls", "expected"),
    [
        ({"straight_steps": 10}, 3 + 1 + 10, 14),
        ({"straight_steps": 10, "nsgf_steps": 2}, 2 + 1 + 10, 13),
        ({"straight_steps": 10, "solver": "heun"}, 3 + 1 + 20, 24),
        ({"straight_steps": 10, "solver": "heun", "tau": 0.5}, 3 + 20, 23),
        ({"omega": 0.1}, 3 + 1 + 5, None),  # half of 10, by the predicted times
        ({"omega": 0.25, "tau": 0.5}, 3 + 2, None),
        ({"solver": "dopri5"}, None, None),
    ],
)
def test_nfe_counts_every_network_call(settings, calls, expected):
    made = []

    def straight(x, t):
        made.append(len(x))
        return growing(x, t)

    sampler = plus_plus(config(**settings), straight, half)
    assert sampler.expected_nfe == expected
    for _ in range(2):  # of one call of the sampler
        made.clear()
        assert sampler(torch.zeros(6, 2)).nfe == (calls or 3 + 1 + sum(made) / 6)


def test_predicted_time_decides_where_the_straight_flow_starts():
    """With u = 1 a sample moves by 1 - tau; tau is predicted after the NSGF steps."""
    sampler = plus_plus(config(2, 0.5), lambda x, t: 0 * x + 1, lambda x: x[:, 0] / 10)
    start = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
    samples = sampler(start)
    torch.testing.assert_close(samples.tau, torch.tensor([0.1, 0.5]))
    torch.testing.assert_close(samples.x[:, 0], torch.tensor([1 + 0.9, 5 + 0.5]))
    assert samples.nfe == 2 + 1 + 10
    sized = sampler.with_settings(replace(sampler.sampling, omega=0.25))
    assert sized(start).nfe == 2 + 1 + (4 + 2) / 2


@pytest.mark.parametrize("steps", [1, 4, 10, 100])
@pytest.mark.parametrize(("schedule", "expected"), [("constant", 10 * 0.2), ("harmonic", 1.0)])
def test_any_number_of_nsgf_steps_covers_the_whole_flow(schedule, expected, steps):
    """A network trained for 10 steps: the way has the same length, and times run from 0 to 1."""
    times = []

    def network(x, t):
        times.append(float(t[0]))
        return torch.ones_like(x)

    flow = FlowConfig(steps=10, eta=0.2, schedule=schedule)
    settings = Config(flow=flow, sampling=SamplingConfig(nsgf_steps=steps))
    samples = build_sampler(settings, (NSGFSteps, network))(torch.zeros(2, 2))
    torch.testing.assert_close(samples.x, torch.full((2, 2), expected))
    assert times == pytest.approx([step / steps for step in range(steps)])


@pytest.mark.parametrize("tau", [0.0, 0.75])
def test_fixed_time_replaces_the_predictor(tau):
    """Three NSGF steps of 0.2, then the way from tau to 1."""
    settings = {"solver": "heun", "straight_steps": 500}
    samples = plus_plus(config(tau=tau, **settings), growing)(torch.ones(2, 2))
    assert torch.equal(samples.tau, torch.tensor([tau, tau]))
    exact = torch.full((2, 2), 1.6 * math.exp(1 - tau**2))
    torch.testing.assert_close(samples.x, exact, rtol=1e-3, atol=0)


@pytest.mark.parametrize("solver", ["euler", "heun", "dopri5"])
def test_path_holds_start_and_every_step_on_request(solver):
    sampler = plus_plus(config(straight_steps=4, solver=solver), growing, half)
    start = torch.zeros(2, 2)
    samples = sampler(start, keep_path=True)
    straight = [f"straight flow {step}/4" for step in (1, 2, 3, 4)]
    assert samples.marks == ["start", "NSGF 1/3", "NSGF 2/3", "NSGF 3/3", *straight]
    assert len(samples.path) == len(samples.marks)
    assert torch.equal(samples.path[0], start)
    torch.testing.assert_close(samples.path[2], start + 0.4)
    assert torch.equal(samples.path[-1], samples.x)
    alone = sampler(start)
    assert (alone.path, alone.nfe) == ([], samples.nfe)
    assert torch.equal(alone.x, samples.x)


def with_classes(**sampling):
    flags = ("--data.conditional=true", "--batch-size=22", "--generator.targets=null")
    sampling = SamplingConfig(straight_steps=3, **sampling)
    return replace(shipped("digits/onecall", *flags), sampling=sampling)


def answers(x, t, labels):
    """The class; 10 stands for none."""
    return labels.to(x.dtype).view(-1, *[1] * (x.ndim - 1)).expand_as(x)


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
@pytest.mark.parametrize(
    "legs", [(OneCall,), (ResidualCall,), (NSGFSteps,), (StraightFlow,), ALGORITHM_4]
)
def test_guidance_equals_its_formula_and_counts_both_calls(legs, weight):
    """The time predictor is given no class, and is called once."""

    def network(x, *others):
        return answers(x, *others) if others else torch.zeros(len(x))

    stages = [(leg, network) for leg in legs]
    sampler = build_sampler(with_classes(guidance=weight), *stages)
    labels, single = torch.tensor([1, 2, 3]), torch.tensor([1])
    found = sampler(torch.zeros(3, 1, 8, 8), labels)
    unguided = build_sampler(with_classes(), *stages)
    unit = unguided(torch.zeros(1, 1, 8, 8), single).x.mean()  # the length of the way
    moved = (10 + weight * (labels - 10.0)) * unit
    torch.testing.assert_close(found.x[:, 0, 0, 0], moved)
    calls = {OneCall: 1, ResidualCall: 1, NSGFSteps: 5, StraightFlow: 3, EntryTimes: 1}
    twice = 1 if weight == 1 else 2
    expected = sum(calls[leg] * (1 if leg is EntryTimes else twice) for leg in legs)
    assert found.nfe == sampler.expected_nfe == expected


def test_labels_choose_the_classes():
    sampler = build_sampler(with_classes(), (OneCall, answers))
    bytes_ = torch.tensor([9, 0, 4], dtype=torch.uint8)
    chosen = [bytes_, [9, 0, 4], ["9", "0", "4"], np.array(["9", "0", "4"])]
    for labels, expected in ((None, [0, 1, 2]), *((labels, [9, 0, 4]) for labels in chosen)):
        found = sampler(torch.zeros(3, 1, 8, 8), labels)
        assert found.labels.dtype == torch.int64
        assert found.labels.tolist() == found.x[:, 0, 0, 0].tolist() == expected


@pytest.mark.parametrize(
    "labels",
    [
        torch.tensor([0, 10, 1]),  # which stands for no class
        torch.tensor([0, 1, -1]),
        torch.tensor([0, 1]),
        torch.tensor(1),
        torch.tensor([0.0, 1.5, 2.0]),
        ["0", "1", "ten"],
        ["0", "1"],
    ],
)
def test_wrong_labels_are_a_one_line_error(labels):
    sampler = build_sampler(with_classes(), (OneCall, lambda *_: pytest.fail("called")))
    with pytest.raises(UserError, match=r"^labels: must be 3 whole numbers"):
        sampler(torch.zeros(3, 1, 8, 8), labels)
    without = build_sampler(shipped("digits/onecall"), (OneCall, lambda x, t: x))
    assert without(torch.ones(3, 1, 8, 8)).labels is None
    with pytest.raises(UserError, match=r"^labels: have no effect without data\.conditional"):
        without(torch.zeros(3, 1, 8, 8), torch.tensor([0, 1, 2]))


NOISE = [[0.5, -1.0], [2.0, 0.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    "x",
    [
        NOISE,
        np.array(NOISE),
        np.array(NOISE, dtype="float32"),
        torch.tensor(NOISE).double(),
        torch.tensor(NOISE).half(),
        torch.tensor(NOISE, requires_grad=True),
    ],
)
def test_noise_may_be_any_numbers(x):
    network = inference(VelocityMLP(2, 2, MLPConfig(8)), [])
    sampler = build_sampler(Config(), (NSGFSteps, network))
    expected = sampler(torch.tensor(NOISE)).x
    found = sampler(x, keep_path=True)
    assert torch.equal(found.x, expected)
    assert {part.dtype for part in found.path} == {torch.float32}


def test_noise_is_moved_to_the_device_of_the_networks():
    network = inference(VelocityMLP(2, 2, MLPConfig(8)), []).to("meta")
    sampler = build_sampler(Config(), (NSGFSteps, network))
    assert sampler(torch.tensor(NOISE)).x.device.type == "meta"


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(4, 3),
        torch.zeros(2),
        torch.zeros(0, 2),
        torch.tensor(1.0),
        torch.zeros(4, 2, dtype=torch.complex64),
        np.ma.masked_less(NOISE, 0),
        None,
        5,
    ],
)
def test_wrong_noise_is_a_one_line_error(x):
    sampler = build_sampler(Config(), (NSGFSteps, lambda *_: pytest.fail("called")))
    with pytest.raises(UserError, match=r"^x(:| is )"):
        sampler(x)


class Full(nn.Module):
    """A network on a card that holds ``room`` samples; u = 2 t x, or 2 x without a time."""

    def __init__(self, room=math.inf):
        super().__init__()
        self.room, self.sizes = room, []

    def forward(self, x, t=None):
        self.sizes.append(len(x))
        if len(x) > self.room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return 2 * x if t is None else 2 * t[:, None] * x


def inference(model, lines=None, config=None):
    config = config or Config()
    setting, solver = config.train.precision, config.sampling.solver
    is_images = find_target(config.data).is_images
    precision = sampling_precision(setting, solver, CPU, is_images)
    return InferenceNetwork(model, precision, pytest.fail if lines is None else lines.append)


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
    assert "with 3 samples at a time" in lines[0]
    with pytest.raises(UserError, match="memory is full, even with one sample"):
        inference(Full(room=0), [])(x)


def test_full_card_does_not_change_samples_or_nfe():
    """dopri5 takes the steps of the whole batch also where the network sees parts of it."""

    def drawn(room):
        config = Config(flow=FlowConfig(steps=2), sampling=SamplingConfig(solver="dopri5"))
        legs = [(leg, inference(Full(room), [], config)) for leg in (NSGFSteps, StraightFlow)]
        return build_sampler(config, *legs)(x)

    x = 3 * torch.randn(16, 2)
    whole, parts = drawn(math.inf), drawn(5)
    assert torch.equal(whole.x, parts.x)
    assert whole.nfe == parts.nfe


@pytest.mark.parametrize("name", ["nsgf", "predictor"])
def test_weights_are_cast_once(name):
    """Autocast caches its casts of trained weights only. The answer is the same, bit for bit.

    Past mistake: Autocast cast frozen weights in every call: 637 launches in a sampling step in
    place of about 330.
    """
    config = shipped("digits", "--precision=bf16", "--device=cpu")
    model = new_network(name, config).eval().requires_grad_(False)
    inputs = (torch.randn(2, 1, 8, 8), torch.rand(2))[: 2 if name == "nsgf" else 1]
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(*inputs).float()
    assert torch.equal(inference(model, config=config)(*inputs), expected)
    layers = [part for part in model.modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    assert {layer.weight.dtype for layer in layers} == {torch.bfloat16}


def test_samples_and_previews_use_the_configured_precision(small, small_run):
    """Samples and pictures: each is near the one in float32, and another one.

    Past mistake: Trained networks sampled in float32 whatever the run's precision: an estimated
    three hours in place of 45 minutes for 50,000 CIFAR-10 samples on a T4.
    """
    data = load_data(small.data, small.seed)

    def found(precision):
        config = in_precision(small, precision)
        yield preview_samples(Experiment(config), small_run, "predictor", data)
        small_run.write_config(config)
        sample_run(Experiment(config), small_run)
        saved = np.load(small_run.samples / "samples.npz", allow_pickle=False)
        yield torch.from_numpy(saved["x"])

    for full, half in zip(found("fp32"), found("bf16"), strict=True):
        assert not torch.equal(full, half)
        torch.testing.assert_close(full, half, rtol=0, atol=0.05)


def learned_from(config, runs):
    """What the lines of one run start from, and where the paths of the other one's reflow end."""
    data = load_data(config.data, config.seed)
    handed = replace(config, nsf=replace(config.nsf, source="nsgf"))
    nsgf, peer = (
        new_session(settings, run) for settings, run in zip((handed, config), runs, strict=True)
    )
    starts, _ = new_phase("nsf", handed).pairs(nsgf, data).at(range(32))
    reflowed = new_phase("reflow", config).task(peer, data)
    return starts, reflowed.draw(range(32))[1]


def trained_in(precision, *files):
    """Let checkpoints say that they were trained so."""
    for file in files:
        checkpoint.save(file, {**checkpoint.load(file), "precision": precision})


def test_sampling_settings_do_not_change_training_paths(tiny, tiny_run):
    """Nor does another precision at a resume: the other half would be learned from other paths.

    Past mistake: Paths that later phases learn from used `sampling.precision`, and a resume
    continued with different pairs.
    """
    reflow = replace(tiny.reflow, pairs=32)
    config = replace(tiny, peer=replace(tiny.peer, method="rf"), reflow=reflow)
    runs, found = (tiny_run, train(Experiment(replace(config, phases=["peer"])))), []
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
