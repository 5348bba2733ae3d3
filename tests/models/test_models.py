import pytest
import torch

from nsgf.models import count_parameters
from nsgf.phases import get_phase
from tests.conftest import shipped


@pytest.mark.parametrize("phase", ["nsgf", "nsf", "predictor"])
@pytest.mark.parametrize(("name", "shape"), [("2d", (2,)), ("digits", (1, 8, 8))])
def test_networks_of_an_experiment(name, shape, phase):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = (
        get_phase(phase).build(shipped(name).model, shape, seed) for seed in (0, 0, 1)
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


def test_parameters_are_counted():
    assert count_parameters(torch.nn.Linear(3, 4)) == 16
