import copy
import math
from dataclasses import replace

import pytest
import torch

from nsgf.config.schema import OptimConfig, TrainConfig
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.system.errors import UserError
from nsgf.training.state import TrainState, lr_factor
from nsgf.training.task import Batch
from tests.conftest import new_network, shipped
from tests.run.test_checkpoint import START
from tests.training.toys import OutOfMemory, Quadratic, Updates, fails_at, weight


def optim(**changes):
    return replace(OptimConfig(iterations=40, batch_size=8, lr=0.1, ema_decay=0.9), **changes)


def test_learning_rate_warms_up_and_follows_half_a_cosine():
    factors = [lr_factor(step, optim(warmup_steps=4)) for step in range(6)]
    assert factors == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    config = optim(iterations=110, schedule="cosine", warmup_steps=10)
    factors = [lr_factor(step, config) for step in (4, 10, 35, 60, 110)]
    assert factors == pytest.approx([0.5, 1, 0.5 + 0.125**0.5, 0.5, 0])


def test_first_updates_move_by_the_warmed_up_learning_rate():
    """The first steps of Adam have length lr, downhill."""
    trainer = Quadratic()
    updates = Updates(trainer, optim(lr=0.01, warmup_steps=4))
    moved = []
    for _ in range(4):
        before = weight(trainer)
        updates.update()
        moved.append(weight(trainer) - before)
    assert moved == pytest.approx([0.0025, 0.005, 0.0075, 0.01], rel=0.05)


def test_averaged_weights_use_the_configured_decay():
    """Past mistake: EMA with decay 0.9999 had no warm-up. The decay is meant for 400,000 updates,
    so short runs sampled their initial weights.

    Past mistake: torch's `AveragedModel` copies a counter to the card in each update, for which
    the card waits. Training uses torch's averaging function without the class.
    """
    trainer = Quadratic()
    updates = Updates(trainer, optim(ema_decay=0.25))
    expected = 0.0
    for step in range(6):
        updates.update()
        decay = min(0.25, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight(trainer)
    assert updates.state.ema.weight.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("stop", [1, 5])
def test_interrupted_training_equals_uninterrupted(tiny, stop):
    """N steps equal N/2, resume, N/2, bit for bit: weights, average, Adam, schedule, dropout."""

    def fresh():
        return Updates(Quadratic(dropout=0.5), optim(schedule="cosine", warmup_steps=3))

    whole, file = fresh(), RunFolder.create(tiny).checkpoint_file("nsgf")
    while whole.state.step < 12:
        whole.update()
        if whole.state.step == stop:
            checkpoint.save(file, {**START, **whole.state.state_dict()})
    torch.manual_seed(8)  # whatever else drew random numbers in between
    resumed = fresh()
    resumed.state.load_state_dict(checkpoint.load(file))
    assert resumed.state.step == stop
    while resumed.state.step < 12:
        resumed.update()
    assert weight(whole.trainer) == weight(resumed.trainer)
    assert torch.equal(whole.state.ema.weight, resumed.state.ema.weight)
    moments = [one.state.adam.state_dict()["state"][0]["exp_avg_sq"] for one in (whole, resumed)]
    assert torch.equal(*moments)


def updated(accumulate, precision="fp32", updates=2):
    """How far weights and average of a UNet moved on one batch of 13, readings, and the state."""
    flags = ("--model.unet.mult=[1]", "--model.unet.dropout=0")
    model = new_network("nsgf", shipped("digits", *flags))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # weights that matter everywhere
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    x, v = (torch.randn(13, 1, 8, 8, generator=generator) for _ in range(2))
    batch = Batch((x, torch.rand(13, generator=generator)), v)
    vector = torch.nn.utils.parameters_to_vector
    before = vector(model.parameters()).detach()
    task, how = Quadratic(), {"precision": precision, "accumulate": accumulate}
    task.model = model
    state = Updates(task, optim(lr=1e-3, clip_norm=0.5), **how).state
    readings = [state.update(batch).read() for _ in range(updates)]
    moved = [vector(net.parameters()).detach() - before for net in (model, state.ema)]
    return moved, readings, state


@pytest.mark.parametrize("accumulate", [3, 12])
def test_accumulated_parts_give_the_update_of_the_whole_batch(accumulate):
    """13 samples never make equally large parts; clipping sees the whole gradient."""
    whole, expected, _ = updated(1)
    parts, readings, state = updated(accumulate)
    for one, other in zip(whole, parts, strict=True):
        assert float((one - other).norm() / one.norm()) < 2e-3  # Adam magnifies the smallest
    for one, other in zip(expected, readings, strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    assert readings[0].norm > 0.5  # it is clipped
    assert state.step == 2
    assert float(state.adam.state_dict()["state"][0]["step"]) == 2


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_sixteen_bit_updates_are_close_and_weights_stay_float32(precision):
    _, [full], _ = updated(1, updates=1)
    _, [half], state = updated(1, precision, updates=1)
    assert {weight.dtype for weight in state.model.parameters()} == {torch.float32}
    assert half.loss == pytest.approx(full.loss, rel=0.02)
    assert half.norm == pytest.approx(full.norm, rel=0.05)
    assert half != full  # the layers did run in 16 bit


def test_float16_gradients_are_scaled_and_the_scale_is_saved(tiny):
    """Gradients overflow until the scale suits them, and once more at a fault."""
    trainer = Quadratic()
    updates = Updates(trainer, optim(), precision="fp16")
    first = next(step for step in range(1, 20) if updates.update().is_finite)
    assert 1 < first < 8
    settled = updates.state.scaler.get_scale()
    assert 1024 < settled < 65536
    trainer.model.fault = fails_at(updates.state.step + 1, value=math.inf)
    assert [updates.update().is_finite for _ in range(3)] == [False, True, True]
    assert updates.state.scaler.get_scale() == settled / 2
    file = RunFolder.create(tiny).checkpoint_file("nsgf")
    checkpoint.save(file, {**START, **updates.state.state_dict()})
    resumed = Updates(Quadratic(), optim(), precision="fp16").state
    resumed.load_state_dict(checkpoint.load(file))
    assert resumed.scaler.state_dict() == updates.state.scaler.state_dict()
    other = Updates(Quadratic(), optim()).state  # a run that goes on in float32
    other.load_state_dict(checkpoint.load(file))
    assert not other.scaler.is_enabled()


@pytest.mark.parametrize(("value", "precision"), [(math.nan, "fp32"), (math.inf, "fp16")])
def test_update_that_is_not_finite_changes_nothing(value, precision):
    trainer = Quadratic()
    updates = Updates(trainer, optim(clip_norm=0.5), precision=precision)
    for _ in range(3):
        updates.update()
    adam = updates.state.adam
    before, weights = copy.deepcopy(adam.state_dict()["state"][0]), weight(trainer)
    trainer.model.fault = fails_at(4, value=value)
    assert not updates.update().is_finite
    assert weight(trainer) == weights
    after = adam.state_dict()["state"][0]
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert updates.state.step == 4
    assert updates.update().is_finite
    assert weight(trainer) != weights
    assert updates.state.ema.weight.isfinite().all()


def test_training_may_resume_on_a_device_with_another_adam():
    """A checkpoint has the settings of the Adam that wrote it, and torch takes them over.

    Past mistake: Code asked for "CUDA or CPU" where more kinds of devices exist. Losses were read
    too early.
    """
    trainer = Quadratic()
    updates = Updates(trainer, optim())
    updates.update()
    content = copy.deepcopy(updates.state.state_dict())
    content["optimizer"]["param_groups"][0]["fused"] = False
    updates.state.load_state_dict(content)
    before = weight(trainer)
    trainer.model.fault = lambda answer, call: answer * math.nan
    assert not updates.update().is_finite
    assert weight(trainer) == before


def test_infinite_loss_with_a_finite_gradient_is_skipped_too():
    """Differences of 1e20 have a square beyond float32, their gradient is not."""
    trainer = Quadratic()
    trainer.model.fault = lambda answer, call: answer + 1e20
    reading = Updates(trainer, optim(clip_norm=None)).update()
    assert reading.loss == math.inf
    assert math.isfinite(reading.norm)
    assert weight(trainer) == 0.0


def test_resumed_training_uses_a_changed_schedule_at_once():
    """Past mistake: After a resume with another schedule length Adam kept the saved rate for one
    update.
    """
    updates = Updates(Quadratic(), optim(schedule="cosine", iterations=10))
    for _ in range(5):
        updates.update()
    config = optim(schedule="cosine", iterations=20)
    resumed = Updates(Quadratic(), config)
    resumed.state.load_state_dict(updates.state.state_dict())
    resumed.update()
    assert resumed.state.adam.param_groups[0]["lr"] == pytest.approx(
        config.lr * lr_factor(5, config)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_card_applies_finite_updates_and_skips_others(precision):
    if precision == "bf16" and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this card has no bf16")
    card, trainer = torch.device("cuda", 0), Quadratic()
    trainer.model.to(card)
    state = TrainState(trainer, optim(), TrainConfig(), card, precision=precision)
    batch = Batch((torch.ones(8, 1, device=card),), torch.full((8, 1), 3.0, device=card))
    while not state.update(batch).read().is_finite:
        assert precision == "fp16"
    before = weight(trainer)
    trainer.model.fault = lambda answer, call: answer * math.inf
    assert not state.update(batch).read().is_finite
    assert weight(trainer) == before != 0
    trainer.model.fault = lambda answer, call: answer
    assert state.update(batch).read().is_finite
    assert weight(trainer) > before


def test_out_of_memory_halves_the_parts_and_keeps_the_update(monkeypatch):
    emptied = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    plenty, scarce = Quadratic(), OutOfMemory()
    for trainer in (plenty, scarce):
        updates = Updates(trainer, optim(batch_size=10))
        readings = [updates.update() for _ in range(2)]
    assert updates.state.accumulate == 4  # 10, 5, then 3 at a time
    assert len(emptied) == 2  # what the larger parts held is given back each time
    assert scarce.model.calls == [10, 5, 3, 3, 3, 1, 3, 3, 3, 1]
    assert weight(scarce) == pytest.approx(weight(plenty), rel=1e-6)
    assert readings[0].is_finite
    resumed = Updates(Quadratic(), optim(batch_size=10)).state
    resumed.load_state_dict(updates.state.state_dict())
    assert resumed.accumulate == 4  # not found out again
    resumed.accumulate = 5  # of a resume with --accumulate 5
    resumed.load_state_dict(updates.state.state_dict())
    assert resumed.accumulate == 5


def test_out_of_memory_with_one_sample_is_an_error():
    with pytest.raises(UserError, match=r"1 samples at a time.*checkpoint_activations"):
        Updates(OutOfMemory(room=0), optim()).update()


def test_dropout_differs_between_updates_and_repeats_with_the_step():
    """Past mistake: `torch.manual_seed` in each update took longer than Adam (0.13 ms), because
    it seeds every backend. Updates seed the generator itself.
    """
    masks = []
    for _ in range(2):
        trainer = Quadratic(dropout=0.5)
        trainer.model.fault = lambda answer, call: masks.append(answer.detach() == 0) or answer
        updates = Updates(trainer, optim(batch_size=64))
        trainer.model.weight.data.fill_(1.0)
        updates.update()
        updates.update()
    assert torch.equal(torch.stack(masks[:2]), torch.stack(masks[2:]))
    assert not torch.equal(masks[0], masks[1])


def test_gradient_is_clipped_before_the_step():
    """Adam's first moment is a tenth of the gradient that the step has seen."""
    trainer = Quadratic()
    updates = Updates(trainer, optim(clip_norm=0.5))
    assert updates.update().norm > 5
    assert abs(trainer.model.weight.grad.item()) == pytest.approx(0.5, rel=1e-3)
    moment = updates.state.adam.state[trainer.model.weight]["exp_avg"]
    assert abs(moment.item()) == pytest.approx(0.05, rel=1e-3)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_state_uses_the_loss_of_the_task(accumulate):
    """The slope of the absolute error is 1 wherever the weight is below its goal."""
    trainer = Quadratic()
    trainer.loss = lambda forward, batch: (forward(*batch.inputs) - batch.target).abs().mean()
    state = Updates(trainer, optim(clip_norm=None), accumulate=accumulate).state
    assert state.update(trainer.batch(*trainer.draw(range(8)))).read().norm == pytest.approx(1)
