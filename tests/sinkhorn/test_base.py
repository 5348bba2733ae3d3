import pytest
import torch

from nsgf.config.schema import Config, FlowConfig, PoolConfig, SinkhornConfig
from nsgf.data import Data
from nsgf.sampling.sampler import FlowSampler, NSGFSteps
from nsgf.sinkhorn.base import flow_time, gaussian_part, step_sizes, time_step
from tests.pool.conftest import build

HARMONIC = FlowConfig(steps=4, schedule="harmonic", eta=0.7)


@pytest.mark.parametrize(
    ("flow", "sizes", "time"),
    [(HARMONIC, [1 / 4, 1 / 3, 1 / 2, 1], 1), (FlowConfig(steps=3, eta=0.2), [0.2] * 3, 0.6)],
)
def test_step_sizes_and_the_clock(flow, sizes, time):
    assert step_sizes(flow) == sizes
    assert flow.steps * time_step(flow) == pytest.approx(flow_time(flow)) == pytest.approx(time)


def test_a_flow_between_gaussians_goes_this_part_of_the_way():
    assert gaussian_part(FlowConfig(steps=2, eta=0.2)) == pytest.approx(0.36)
    assert gaussian_part(HARMONIC) == 1


def test_harmonic_pool_and_sampler_use_one_clock():
    """A sampler that follows a flow's own velocities ends where the flow does."""
    one = {"sinkhorn": SinkhornConfig(batch_size=1), "pool": PoolConfig(num_batches=1)}
    config = Config(phases=["nsgf"], flow=HARMONIC, **one)
    data = Data(config.data, 0)
    start, end = data.source("p").at(range(1)), data.target("p").at(range(1))
    pairs = build(config).pairs(torch.arange(4))
    assert torch.allclose(pairs.v, (end - start).expand(4, 2), atol=1e-4)
    sampler = FlowSampler([NSGFSteps(config, lambda x, t: pairs.v[:1].expand_as(x))])
    assert torch.allclose(sampler(start).x, end, atol=1e-4)
