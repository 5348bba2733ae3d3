"""Streams of random numbers; settings of torch that the caller made change no result, and stay."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

import nsgf
from nsgf.commands.train import train
from nsgf.experiment import Experiment
from nsgf.metrics.features import ImageNet
from nsgf.system.seeding import derive_seed
from tests.conftest import CPU, shipped
from tests.test_api import SMALL

X = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))


@contextmanager
def setting(change, value, before):
    change(value)
    try:
        yield
    finally:
        change(before)


def newer(value):
    torch.backends.cuda.matmul.fp32_precision = value


CALLERS = {
    "float64": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
    "device": lambda: setting(torch.set_default_device, "meta", None),
    "context of a device": lambda: torch.device("meta"),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "products": lambda: setting(torch.set_float32_matmul_precision, "medium", "highest"),
    "newer": lambda: setting(newer, "tf32", torch.backends.cuda.matmul.fp32_precision),
}


def settings():
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:
        precision = torch.backends.cuda.matmul.fp32_precision
    kind, place = torch.get_default_dtype(), torch.empty(0).device
    return kind, place, torch.is_autocast_enabled("cpu"), precision, modes


def results(folder):
    run = nsgf.train(data=X, out_dir=folder, overrides=SMALL, quiet=True)
    yield run.sample(5, seed=0)
    yield nsgf.load(run.path).sample(5, seed=0)
    yield run.sampler(X).x
    assert run.networks["nsgf"](X, X[:, 0]).dtype == X.dtype
    yield nsgf.sinkhorn_velocity(X[:20].numpy(), X[20:].numpy())
    yield nsgf.sinkhorn_divergence(X[:20], X[20:])
    pool = nsgf.SinkhornPool(X.numpy(), X + 1, num_batches=2, batch_size=8, steps=2)
    torch.manual_seed(0)
    yield from next(iter(pool))
    yield from pool.sample(3, torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return list(results(tmp_path_factory.mktemp("runs")))


@pytest.mark.parametrize("caller", CALLERS)
def test_settings_of_the_caller_change_no_result(caller, expected, tmp_path):
    if caller == "newer" and not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this torch has no newer names")
    with CALLERS[caller]():
        before = settings()
        found = list(results(tmp_path))
        assert settings() == before
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


METHODS = {  # with flags
    "2d/nsgf++": "--nsf.coupling=ot --sampling.solver=dopri5",
    "2d/nsgf++h": "--data.name=moons --flow.kind=energy --sampling.solver=heun",
    "2d/nsgf": "--data.name=scurve --data.source=8gaussians --flow.kind=geomloss",
    "2d/affine": "--data.name=checkerboard",
    "2d/sbcfm": "",
    "2d/2rf": "",
    "2d/onecall+": "",
    "digits/nsgf++": "--model.unet.dropout=0.2",
    "digits/onecall": "--data.conditional=true --data.flip=true",
    "points/nsgf++h": "",
    "images/otcfm": "",
}


@pytest.mark.e2e
@pytest.mark.parametrize("name", METHODS)
def test_no_tensor_has_the_default_dtype_of_the_caller(name, tmp_path, own_data):
    """It belongs to all threads, so it stays what the caller has set."""
    flags = [*own_data.get(name.partition("/")[0], ()), *METHODS[name].split()]
    found = []
    for dtype in (torch.float32, torch.float64):
        with setting(torch.set_default_dtype, dtype, torch.float32):
            config = shipped(name, *flags, "--smoke", "--device=cpu", "--train.preview=false")
            run = nsgf.load(train(Experiment(replace(config, out_dir=str(tmp_path)))).path)
            measures = run.evaluate()
            assert torch.get_default_dtype() == dtype
        weights = [run.folder.weights(phase).state for phase in config.phases]
        seconds = [key for key in measures if "second" in key]
        found.append(([run.sample(5, seed=0)], weights, {**measures, **dict.fromkeys(seconds)}))
    (x,), first, measures = found[0]
    (same,), second, others = found[1]
    torch.testing.assert_close([x, first], [same, second], rtol=0, atol=0)
    assert measures == others


def test_the_network_of_measures_is_float32_and_draws_no_number_of_the_caller():
    images = torch.arange(4 * 3 * 8 * 8).remainder(251).byte().view(4, 3, 8, 8)
    before = torch.get_rng_state()
    expected = ImageNet().features(images, "images", CPU)
    with setting(torch.set_default_dtype, torch.float64, torch.float32):
        found = ImageNet().features(images, "images", CPU)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_streams_differ_by_seed_and_by_each_name():
    seeds = {
        derive_seed(seed, *names)
        for seed in (0, 1)
        for names in ((), ("a",), ("b",), ("a", "b"), ("b", "a"), ("ab",), ("a", 0), ("a", 1))
    }
    assert len(seeds) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)
