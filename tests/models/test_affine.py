import pytest
import torch
from torch import nn

from nsgf.models.affine import AffineStartNetwork

MEAN = torch.tensor([3.0, -1.0], dtype=torch.float64)
COVARIANCE = torch.tensor([[2.0, 0.6], [0.6, 0.5]], dtype=torch.float64)


@pytest.mark.parametrize("covariance", [COVARIANCE, torch.ones(2, 2, dtype=torch.float64)])
@pytest.mark.parametrize("part", [0.0, 0.36, 1.0])
def test_map_goes_a_part_of_the_way_to_the_moments(part, covariance):
    """The transport T(z) = m + C^(1/2) z is linear, so (1 - a) z + a T(z) has known moments."""
    network = AffineStartNetwork(nn.Identity(), (1, 1, 2))
    network.set_map(MEAN, covariance, part)
    noise = torch.randn(200_000, 1, 1, 2, generator=torch.Generator().manual_seed(0))
    found = network.start(noise)
    assert found.shape == noise.shape
    if part == 0:
        torch.testing.assert_close(found, noise)
    values, vectors = torch.linalg.eigh(covariance)
    spread = (vectors * ((1 - part) + part * values.clamp_min(0).sqrt()) ** 2) @ vectors.T
    torch.testing.assert_close(found.flatten(1).mean(0), part * MEAN.float(), atol=0.01, rtol=0)
    torch.testing.assert_close(found.flatten(1).T.cov(), spread.float(), atol=0.02, rtol=0)


def test_map_is_saved_and_is_no_parameter():
    network = AffineStartNetwork(nn.Linear(2, 2), (2,))
    network.set_map(MEAN, COVARIANCE, 0.5)
    assert [name for name, _ in network.named_parameters()] == ["network.weight", "network.bias"]
    other = AffineStartNetwork(nn.Linear(2, 2), (2,))
    other.load_state_dict(network.state_dict())
    x = torch.randn(5, 2)
    assert torch.equal(other.start(x), network.start(x))
    assert torch.equal(other(x), network(x))
