from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from nsgf.config.schema import UNetConfig
from nsgf.data import DATA_SETS
from nsgf.experiment import Experiment
from nsgf.models import AffineStartNetwork
from nsgf.models.unet import UNet
from nsgf.settings.checks import check
from nsgf.system.errors import UserError
from tests.conftest import new_network, shipped


@pytest.mark.parametrize("phase", ["nsgf", "nsf", "predictor"])
@pytest.mark.parametrize(("name", "shape"), [("2d", (2,)), ("digits", (1, 8, 8))])
def test_new_networks_depend_on_the_seed_and_return_the_right_shapes(name, shape, phase):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = (
        new_network(phase, replace(shipped(name), seed=seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(before, torch.get_rng_state())
    weights = [torch.cat([p.flatten() for p in m.parameters()]) for m in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    x = torch.randn(3, *shape)
    if phase == "predictor":
        assert first(x).shape == (3,)
    else:
        assert first(x, torch.rand(3)).shape == x.shape


SIZES = {  # velocity network, time predictor
    "2d": (141_058, 132_609),
    "digits": (704_705, 92_801),
    "mnist": (1_191_233, 388_097),
    "cifar10": (38_307_203, 389_441),
}


@pytest.mark.parametrize("name", SIZES)
def test_networks_of_shipped_experiments_have_the_known_number_of_weights(name):
    config = shipped(f"{name}/nsgf++")
    phases = Experiment(config).phases(("nsgf", "nsf", "predictor"))
    with torch.device("meta"):
        networks = [phase.network() for phase in phases]
    counts = [sum(weight.numel() for weight in network.parameters()) for network in networks]
    velocity, predictor = SIZES[name]
    assert counts == [velocity, velocity, predictor]


@given(
    name=st.sampled_from(["digits", "mnist", "cifar10"]),
    mult=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    attended=st.lists(st.integers(0, 3), max_size=1),
    heads=st.sampled_from([1, 3, 4, 32]),
    res_blocks=st.integers(1, 2),
    batch=st.integers(1, 2),
)
@example("digits", [2], [], 1, 1, 1)
@example("digits", [1, 1, 1, 1], [3], 1, 1, 1)
def test_every_accepted_architecture_works(name, mult, attended, heads, res_blocks, batch):
    """On torch's meta device, which computes shapes alone.

    Past mistake: The UNet's output layer had the wrong number of channels unless the multipliers
    begin with 1, as they do in all shipped files.
    """
    config, shape = shipped(name), DATA_SETS[name].shape
    attention = [shape[1] >> level for level in attended]
    unet = UNetConfig(32, res_blocks, mult, attention, heads)
    config = replace(config, model=replace(config.model, unet=unet))
    try:
        check(Experiment(config))
    except UserError:
        return
    with torch.device("meta"):
        x, t = torch.randn(batch, *shape), torch.rand(batch)
        assert UNet(shape, unet)(x, t).shape == x.shape


# --- the affine map ---

MEAN = torch.tensor([3.0, -1.0], dtype=torch.float64)
COVARIANCE = torch.tensor([[2.0, 0.6], [0.6, 0.5]], dtype=torch.float64)


@pytest.mark.parametrize("covariance", [COVARIANCE, torch.ones(2, 2, dtype=torch.float64)])
@pytest.mark.parametrize("part", [0.0, 0.36, 1.0])
def test_map_goes_a_part_of_the_way_to_the_moments(part, covariance):
    """The transport T(z) = m + C^(1/2) z is linear, so (1 - a) z + a T(z) has known moments."""
    network = AffineStartNetwork(nn.Identity(), (1, 1, 2))
    network.set_map(MEAN, covariance, part)
    assert not list(network.parameters())
    noise = torch.randn(200_000, 1, 1, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(network(noise), noise)
    found = network.start(noise)
    assert found.shape == noise.shape
    if part == 0:
        torch.testing.assert_close(found, noise)
    values, vectors = torch.linalg.eigh(covariance)
    spread = (vectors * ((1 - part) + part * values.clamp_min(0).sqrt()) ** 2) @ vectors.T
    torch.testing.assert_close(found.flatten(1).mean(0), part * MEAN.float(), atol=0.01, rtol=0)
    torch.testing.assert_close(found.flatten(1).T.cov(), spread.float(), atol=0.02, rtol=0)
