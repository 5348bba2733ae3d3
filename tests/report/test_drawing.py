import torch

from nsgf.data import Data
from nsgf.report.drawing import velocity_fields
from nsgf.sampling.sampler import FlowSampler, NSGFSteps, StraightFlow
from nsgf.sinkhorn import build_solver
from tests.sinkhorn.reference import first_velocity

CPU = torch.device("cpu")


def test_fields_are_the_flow_s_and_the_network_s(tiny):
    """At the first step the flow's is the solver's; a network that answers its time tells it."""
    sampler = FlowSampler([NSGFSteps(tiny, lambda x, t: t[:, None].expand(-1, 2))])
    data = Data(tiny.data, tiny.seed)
    fields = velocity_fields(tiny, sampler, data, CPU)
    steps = tiny.flow.steps
    assert [title for title, *_ in fields] == [f"Step {k} of {steps}" for k in (1, 2, 3)]
    for (_, _, learned, _), time in zip(fields, (0, 1 / 3, 2 / 3), strict=True):
        assert (learned == torch.tensor(time)).all()
    target = Data(tiny.data, tiny.seed).target("report", "field").sample(tiny.sinkhorn.targets)
    _, x, _, velocity = fields[0]
    expected = first_velocity(build_solver(tiny.sinkhorn), x, target)
    torch.testing.assert_close(velocity, expected, rtol=1e-3, atol=1e-4)


def test_without_steps_of_the_flow_there_is_no_field(tiny):
    straight = FlowSampler([StraightFlow(tiny, lambda x, t: x)])
    assert velocity_fields(tiny, straight, Data(tiny.data, 0), CPU) == []
