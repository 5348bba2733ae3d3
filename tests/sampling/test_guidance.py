"""What networks are told of classes while samples are drawn, and how often they are asked."""

from dataclasses import replace

import pytest
import torch

from nsgf.config.schema import SamplingConfig
from nsgf.phases import get_phase
from nsgf.phases.base import new_network
from nsgf.sampling.guidance import asked_labels, guided
from nsgf.sampling.sampler import EntryTimes, FlowSampler, NSGFSteps, OneCall, StraightFlow
from nsgf.system.errors import UserError
from tests.conftest import shipped


def told(**sampling):
    config = shipped(
        "digits/onecall", "--data.conditional=true", "--batch-size=22", "--generator.targets=null"
    )
    own = SamplingConfig(straight_steps=3, **sampling)
    return replace(config, sampling=own)


def answers(x, t, labels):
    """10 asked without a class, else the class."""
    return labels.to(x.dtype).view(-1, *[1] * (x.ndim - 1)).expand_as(x)


def test_guidance_is_the_formula():
    x, t, labels = torch.zeros(3, 2), torch.zeros(3), torch.tensor([1, 2, 3])
    none = torch.full_like(labels, 10)
    for weight in (0.0, 1.0, 2.5):
        found = guided(answers, labels, none, weight, x, t)
        assert torch.allclose(found[:, 0], 10 + weight * (labels - 10.0))


@pytest.mark.parametrize(
    ("legs", "calls"),
    [
        ((OneCall,), 1),
        ((NSGFSteps,), 5),
        ((StraightFlow,), 3),
        ((NSGFSteps, EntryTimes, StraightFlow), 5 + 1 + 3),
    ],
)
def test_guided_networks_count_both_calls(legs, calls):
    """The time predictor is told no class, and asked once."""

    def network(x, *others):
        return answers(x, *others) if others else torch.zeros(len(x))

    for weight in (1.0, 0.0, 2.0):
        config = told(guidance=weight)
        sampler = FlowSampler([leg(config, network) for leg in legs])
        twice = 1 if weight == 1 else 2
        expected = calls * twice - (twice - 1) * (EntryTimes in legs)
        assert sampler(torch.zeros(4, 1, 8, 8)).nfe == sampler.expected_nfe == expected


@pytest.mark.parametrize("leg", [OneCall, NSGFSteps, StraightFlow])
def test_each_sample_is_asked_with_its_class(leg):
    sampler = FlowSampler([leg(told(), answers)])
    found = sampler(torch.zeros(12, 1, 8, 8))
    classes = torch.arange(12) % 10
    assert torch.equal(found.labels, classes)
    scale = found.x[1].mean()  # class 1 moves by the length of the way
    assert torch.allclose(found.x[:, 0, 0, 0], classes * scale)
    own = sampler(torch.zeros(2, 1, 8, 8), torch.tensor([7, 3]))
    assert torch.allclose(own.x[:, 0, 0, 0], torch.tensor([7.0, 3.0]) * scale)


def test_settings_choose_classes():
    assert asked_labels(told())(range(8, 12)).tolist() == [8, 9, 0, 1]
    assert asked_labels(told(label=7))(range(8, 12)).tolist() == [7] * 4
    assert asked_labels(shipped("digits/onecall")) is None


def test_without_classes_networks_are_told_none():
    sampler = FlowSampler([OneCall(shipped("digits/onecall"), lambda x, t: x)])
    found = sampler(torch.ones(3, 1, 8, 8))
    assert found.labels is None
    assert found.nfe == sampler.expected_nfe == 1


def test_network_answers_by_class():
    config = told()
    network = new_network(get_phase("generator"), config, torch.device("cpu"))
    for weight in network.parameters():  # those of output layers begin as zero
        torch.nn.init.normal_(weight, std=0.1)
    found = FlowSampler([OneCall(config, network)])(torch.ones(11, 1, 8, 8))
    assert torch.allclose(found.x[0], found.x[10], atol=1e-5)
    assert not torch.allclose(found.x[0], found.x[1], atol=1e-3)


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (torch.tensor([0, 11, 1]), "labels = 11: must be of 0 to 9"),
        (torch.tensor([0, 10, 1]), "labels = 10: must be of 0 to 9"),
        (torch.tensor([0, 1, -1]), "labels = -1: must be of 0 to 9"),
        (torch.tensor([0, 1]), "(3,), one for each sample, not int64, (2,)"),
        (torch.tensor(1), "(3,), one for each sample, not int64, ()"),
        (torch.tensor([0.0, 1.0, 2.0]), "(3,), one for each sample, not float32, (3,)"),
        (torch.tensor([True, False, True]), "not bool, (3,)"),
        ([0, 1, 2], "one for each sample, not list"),
        (1, "one for each sample, not int"),
    ],
)
def test_wrong_labels_are_one_line(labels, why):
    """What stands for no class, K, is none that can be asked for."""
    sampler = FlowSampler([OneCall(told(), lambda *_: pytest.fail("asked"))])
    with pytest.raises(UserError) as error:
        sampler(torch.zeros(3, 1, 8, 8), labels)
    assert str(error.value).startswith("labels")
    assert str(error.value).endswith(why)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8])
def test_whole_numbers_of_any_size_are_labels(kind):
    sampler = FlowSampler([OneCall(told(), answers)])
    found = sampler(torch.zeros(3, 1, 8, 8), torch.tensor([9, 0, 4], dtype=kind))
    assert found.labels.dtype == torch.int64
    assert found.x[:, 0, 0, 0].tolist() == [9, 0, 4]


def test_labels_of_a_run_without_classes_are_refused():
    sampler = FlowSampler([OneCall(shipped("digits/onecall"), lambda *_: pytest.fail("asked"))])
    with pytest.raises(UserError, match=r"^labels: have no effect without data\.conditional"):
        sampler(torch.zeros(2, 1, 8, 8), torch.tensor([0, 1]))
