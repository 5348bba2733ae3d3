"""The CUDA paths on a pretended card, and faults that the pretended card must find."""

import threading
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from nsgf import method
from nsgf.cli import main
from nsgf.config.schema import OptimConfig, SamplingConfig, TrainConfig
from nsgf.run.checkpoint import is_finite
from nsgf.run.folder import RunFolder
from nsgf.run.log import RunLog
from nsgf.sampling import solvers
from nsgf.sampling.sampler import NSGFSteps, OneCall, StraightFlow
from nsgf.sinkhorn.batched import BatchedSolver
from nsgf.system.distributed import World
from nsgf.training.loop import PhaseLoop, fit
from nsgf.training.state import PendingStats, TrainState
from nsgf.training.task import Session, load_batches
from nsgf.user_data import find_target
from tests.system.pretended_card import (
    CARD,
    Card,
    Event,
    MixedDevices,
    Stream,
    StreamRace,
    pretended_card,
)
from tests.training.toys import Quadratic

TURING, HOPPER = (7, 5), (9, 0)
"""Capabilities of cards that train in fp16 and in bf16."""


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("exp", "card", "other"), [("2d", TURING, HOPPER), ("digits", HOPPER, TURING)]
)
def test_each_experiment_keeps_to_the_rules_of_a_card(exp, card, other, tmp_path):
    """Train the first phase on one card, resume it and the others on another, use the run. An
    update waits once, for the one before, and a leg of sampling never.

    Past mistake: On a card, batches drawn ahead did not wait for what the task had computed on
    the main stream. A batch could be made from unfinished values.
    """
    where = ["--exp", exp, "--smoke", "--out-dir", str(tmp_path)]
    flags = ["--device=cuda", "--pool-batches=1", "--steps=2", "--sinkhorn.blur=2"]
    flags += ["--sampling.straight_steps=2", "--num-samples=2"]
    flags += [f"--train.preview={exp == '2d'}".lower()]
    flags += ["--nsf.coupling_batch=16", "--nsf.starts=256"] * (exp == "digits")
    first = [["train", *where, *flags, "--train-iters=1", "--phases=[nsgf]"]]
    then = [
        ["train", *where, "--resume", "--train-iters=2", "--phases=[nsgf,nsf,predictor]"],
        ["sample", *where],
        ["evaluate", *where, "--evaluation.features=none"],
    ]
    for capability, commands in ((card, first), (other, then)):
        with (
            pretended_card(capability) as pretended,
            pretended.counted(PhaseLoop, "_update") as updates,
            pretended.counted(PendingStats, "read") as outcomes,
            pretended.counted(NSGFSteps, "carry") as first_leg,
            pretended.counted(StraightFlow, "carry") as last_leg,
        ):
            for command in commands:
                assert main(command) == 0
        assert updates.calls == outcomes.calls > 0
        assert not updates.waits
        assert outcomes.waits == {"event": outcomes.calls}
        assert not first_leg.waits + last_leg.waits


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("exp", "card", "method"), [("2d", HOPPER, "onecall+"), ("digits", TURING, "onecall")]
)
def test_generator_mixes_no_devices(exp, card, method, tmp_path):
    """Its updates wait for the transport problems, sampling for nothing."""
    where = ["--exp", exp, "--smoke", "--out-dir", str(tmp_path)]
    flags = [f"--method={method}", "--device=cuda", "--train-iters=2"]
    with pretended_card(card) as pretended, pretended.counted(OneCall, "carry") as leg:
        assert main(["train", *where, *flags]) == 0
        assert main(["sample", *where]) == 0
    assert leg.calls > 0
    assert not leg.waits


@pytest.mark.e2e
def test_preflight_measures_a_card_by_its_rules(capsys, tmp_path):
    small = ("--batch-size=4", "--sinkhorn-batch=8", "--pool-batches=6", f"--out-dir={tmp_path}")
    with pretended_card(TURING):
        assert main(["preflight", "--exp=2d", "--device=cuda", *small]) == 0
    assert " on the card" in capsys.readouterr().out


# --- how often the host waits ---


@pytest.fixture
def card():
    with pretended_card() as card:
        yield card


def test_a_round_of_omega_steps_is_waited_for_once(card):
    start = torch.tensor([0.0, 0.5, 0.9]).to(CARD)
    with card.counted(solvers, "integrate") as counts:
        x = solvers.integrate(
            lambda x, t: t.view(-1, 1).expand_as(x),
            torch.zeros(3, 2).to(CARD),
            start,
            SamplingConfig(omega=0.25),
        )
    assert x.device == CARD
    assert counts.waits == {"number": 1, "size": 4}


def test_weights_are_looked_through_in_one_wait(card):
    """Past mistake: The host waited for the card once for each tensor of a checkpoint and each
    mask of `omega`: 30 waits in place of 17 in a flow step.
    """
    state = {name: torch.ones(3).to(CARD) for name in "abcd"}
    before = card.waits.copy()
    assert is_finite({"model": state})
    assert card.waits - before == {"number": 1}


def test_waits_of_a_flow_step_do_not_grow_with_the_flows(card):
    """Loops branch on values, so the number of turns depends on the clouds; here all are equal."""
    solver, cloud = BatchedSolver(0.5), torch.randn(1, 16, 2).to(CARD)
    found = []
    for flows in (1, 8):
        with card.counted(method, "run_flow") as counts:
            x = cloud.expand(flows, -1, -1)
            method.run_flow(solver, x, 3 + x.square(), [0.5, 0.5])
        found.append(counts.waits)
    assert found[0] == found[1]
    assert sum(found[1].values()) <= 2 * 17


def test_updates_on_a_card_round_products_and_search_for_convolutions(card, tiny, tmp_path):
    task, seen = AnyTask(), []

    def note(answer, call):
        precision = torch.get_float32_matmul_precision()
        seen.append((precision, torch.backends.cudnn.benchmark))
        return answer

    task.model.to(CARD).fault = note
    config = replace(tiny, nsgf=replace(tiny.nsgf, iterations=2))
    target = find_target(config.data)
    session = Session(config, target, RunFolder(tmp_path), RunLog(tmp_path), CARD)
    fit("nsgf", task, session)
    assert {*seen} == {("high", True)}
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark) == (
        "highest",
        False,
    )


# --- faults that must be found ---


class AnyTask(Quadratic):
    """Drawn ahead for the card; what was drawn is not kept."""

    def batch(self, *drawn):
        return super().batch(drawn[0].clone())

    def batches(self):
        return load_batches(self, 4, CARD, World(), prefetch=True)

    def train(self):
        self.model.to(CARD)
        state = TrainState(self, OptimConfig(), TrainConfig(), CARD)
        with closing(self.batches()) as batches:
            for _ in range(3):
                state.update(next(batches)).read()


@pytest.mark.parametrize(
    ("owner", "name", "broken", "words"),
    [
        (Stream, "record_event", lambda _: None, "not waited for"),
        (Card, "record_stream", lambda *_: None, "given back without record_stream"),
        (Event, "synchronize", lambda _: None, "before it has arrived"),
    ],
)
def test_races_of_streams_are_found(owner, name, broken, words, monkeypatch):
    """A batch that is not waited for, or freed too early, and an outcome that is read too early."""
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(StreamRace, match=words), pretended_card():
        AnyTask().train()


def test_drawing_ends_before_its_images_are_given_back(card):
    """Past mistake: Images that were drawn ahead were freed while a stream still read them."""
    ahead = threading.Event()

    class Resident(AnyTask):
        images = torch.zeros(8).to(CARD)

        def draw(self, positions):
            drawn = self.images[positions.start : positions.stop] + 1
            if positions.start:
                ahead.set()
            return (drawn,)

    with closing(Resident().batches()) as batches:
        next(batches)
        assert ahead.wait(10)  # else the end may cancel it before it reads anything
    del Resident.images
    torch.ones(1, device=CARD)


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x: x + torch.ones(3),
        lambda x: x.numpy(),
        lambda x: torch.ones(4)[x.long()],
        lambda x: x.index_put((torch.arange(2),), torch.ones(2)),
        lambda x: torch.randn(3, device="cuda", generator=torch.Generator()),
    ],
)
def test_devices_that_mix_are_found(mixed):
    with pytest.raises(MixedDevices), pretended_card():
        mixed(torch.ones(3, device="cuda"))
