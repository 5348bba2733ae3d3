import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from nsgf import checkpoint
from nsgf.checkpoint import RunFolder
from nsgf.config import OptimConfig
from nsgf.errors import UserError
from nsgf.tracking import Tracker
from nsgf.training.loop import Optimization, ema_decay, fit, lr_factor


class Quadratic:
    """Loss |w - 3|^2 with seeded noise: a minimum to find and a stream to continue."""

    def __init__(self, dropout: float = 0.0) -> None:
        self.model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self.dropout = nn.Dropout(dropout)
        self.generator = torch.Generator().manual_seed(0)
        self.batches: list[int] = []

    def loss(self, batch_size: int) -> torch.Tensor:
        self.batches.append(batch_size)
        noise = 0.1 * torch.randn(batch_size, 1, generator=self.generator)
        return (self.dropout(self.model(torch.ones(batch_size, 1))) - 3 + noise).square().mean()

    def random_state(self):
        return {"generator": self.generator.get_state()}

    def set_random_state(self, state):
        self.generator.set_state(state["generator"])


def weight(trainer: Quadratic) -> float:
    return trainer.model.weight.item()


def optim(**changes) -> OptimConfig:
    return replace(OptimConfig(iterations=40, batch_size=8, lr=0.1, ema_decay=0.9), **changes)


def run_fit(config, trainer, **changes):
    config = replace(config, nsgf=replace(config.nsgf, **changes))
    run = RunFolder.create(config)
    fit("nsgf", trainer, config, run, Tracker(run.path))
    return run


def records(run):
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def test_learning_rate_warms_up_then_stays():
    config = optim(warmup_steps=4)
    factors = [lr_factor(step, config) for step in range(6)]
    assert factors == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_learning_rate_follows_half_a_cosine():
    config = optim(iterations=100, schedule="cosine")
    factors = [lr_factor(step, config) for step in (0, 25, 50, 75, 100)]
    expected = [0.5 * (1 + math.cos(math.pi * share)) for share in (0, 0.25, 0.5, 0.75, 1)]
    assert factors == pytest.approx(expected, abs=1e-12)
    warm = optim(iterations=110, schedule="cosine", warmup_steps=10)
    assert lr_factor(4, warm) == 0.5
    assert lr_factor(60, warm) == pytest.approx(0.5)


def test_first_update_moves_by_the_learning_rate():
    """Adam's first step has length lr: the optimizer steps, once, downhill."""
    trainer = Quadratic()
    Optimization(trainer, optim(lr=0.01)).update()
    assert weight(trainer) == pytest.approx(0.01, rel=1e-3)


def test_warmup_reaches_the_optimizer():
    trainer = Quadratic()
    state = Optimization(trainer, optim(lr=0.01, warmup_steps=4))
    moved = []
    for _ in range(4):
        before = weight(trainer)
        state.update()
        moved.append(weight(trainer) - before)
    assert moved == pytest.approx([0.0025, 0.005, 0.0075, 0.01], rel=0.05)


def test_gradients_do_not_accumulate():
    trainer = Quadratic()
    state = Optimization(trainer, optim(clip_norm=None))
    for _ in range(3):
        _, norm = state.update()
    assert float(norm) < 7.0
    assert float(norm) == pytest.approx(abs(trainer.model.weight.grad.item()))


def test_gradient_is_clipped():
    trainer = Quadratic()
    _, norm = Optimization(trainer, optim(clip_norm=0.5)).update()
    assert float(norm) > 5
    assert abs(trainer.model.weight.grad.item()) == pytest.approx(0.5, rel=1e-3)


def test_average_follows_the_weights_with_its_decay():
    trainer = Quadratic()
    state = Optimization(trainer, optim(ema_decay=0.25))
    expected = None
    for step in range(6):
        state.update()
        now, decay = weight(trainer), min(0.25, (1 + step) / (10 + step))
        expected = now if expected is None else decay * expected + (1 - decay) * now
    assert state.ema.module.weight.item() == pytest.approx(expected, rel=1e-5)
    assert state.ema.module.weight.item() < weight(trainer)


def test_average_of_a_short_run_forgets_the_initial_weights():
    """With the plain decay 0.9999 the average of 300 updates would still be the start."""
    trainer = Quadratic()
    state = Optimization(trainer, optim(lr=0.05, ema_decay=0.9999))
    for _ in range(300):
        state.update()
    assert weight(trainer) == pytest.approx(3, abs=0.1)
    assert state.ema.module.weight.item() == pytest.approx(3, abs=0.3)
    assert ema_decay(10**6, state.config) == 0.9999


def test_toy_loss_falls(tiny):
    trainer = Quadratic()
    run = run_fit(tiny, trainer, iterations=200, lr=0.1)
    losses = [record["loss"] for record in records(run)]
    assert losses[-1] < 0.05 < 3 < losses[0]
    assert weight(trainer) == pytest.approx(3, abs=0.1)


def test_records_and_bar_count_updates(tiny):
    trainer = Quadratic()
    run = run_fit(tiny, trainer, iterations=10, batch_size=8, schedule="constant")
    assert [record["step"] for record in records(run)] == [4, 8, 10]
    assert trainer.batches == [8] * 10
    assert records(run)[0]["lr"] == pytest.approx(tiny.nsgf.lr)
    assert checkpoint.load(run.checkpoint_file("nsgf"))["step"] == 10


def test_logged_loss_is_the_mean_of_the_window(tiny):
    class Counting(Quadratic):
        def loss(self, batch_size):
            super().loss(batch_size)
            return self.model.weight.sum() * 0 + len(self.batches)

    run = run_fit(tiny, Counting(), iterations=8)
    assert [record["loss"] for record in records(run)] == [2.5, 6.5]


@pytest.mark.parametrize("stop", [1, 5, 10])
def test_interrupted_training_equals_uninterrupted(tiny, stop):
    """N steps equal N/2, resume, N/2, bit for bit: weights, average, Adam, schedule, dropout."""

    def fresh():
        return Optimization(Quadratic(dropout=0.5), optim(schedule="cosine", warmup_steps=3))

    torch.manual_seed(7)
    whole = fresh()
    saved = None
    for step in range(12):
        whole.update()
        if step + 1 == stop:
            file = RunFolder.create(tiny).checkpoint_file("nsgf")
            checkpoint.save(file, whole.state_dict())
            saved = checkpoint.load(file)
    torch.manual_seed(8)
    resumed = fresh()
    resumed.load_state_dict(saved)
    assert resumed.step == stop
    while resumed.step < 12:
        resumed.update()
    assert weight(whole.trainer) == weight(resumed.trainer)
    assert torch.equal(whole.ema.module.weight, resumed.ema.module.weight)
    assert whole.adam.state_dict()["state"][0]["exp_avg_sq"].equal(
        resumed.adam.state_dict()["state"][0]["exp_avg_sq"]
    )


def test_fit_goes_on_from_its_checkpoint(tiny):
    """A run stopped by an error between two checkpoints goes on from the last one."""

    class Dies(Quadratic):
        def loss(self, batch_size):
            if len(self.batches) == 8:
                raise KeyboardInterrupt
            return super().loss(batch_size)

    config = replace(tiny, nsgf=replace(tiny.nsgf, iterations=12))
    run = RunFolder.create(config)
    with pytest.raises(KeyboardInterrupt):
        fit("nsgf", Dies(), config, run, Tracker(run.path))
    assert checkpoint.load(run.checkpoint_file("nsgf"))["step"] == 5

    resumed = Quadratic()
    fit("nsgf", resumed, config, run, Tracker(run.path))
    assert len(resumed.batches) == 7
    whole = Quadratic()
    run_fit(tiny, whole, iterations=12)
    assert weight(resumed) == weight(whole)
    assert [record["step"] for record in records(run)] == [4, 8, 12]


def test_finished_phase_is_not_trained_again(tiny):
    trainer = Quadratic()
    run = run_fit(tiny, trainer, iterations=6)
    again = Quadratic()
    config = replace(tiny, nsgf=replace(tiny.nsgf, iterations=6))
    fit("nsgf", again, config, run, Tracker(run.path))
    assert again.batches == []


def test_non_finite_loss_stops_the_run_and_keeps_the_checkpoint(tiny):
    class Explodes(Quadratic):
        def loss(self, batch_size):
            return super().loss(batch_size) * (math.inf if len(self.batches) > 6 else 1)

    config = replace(tiny, nsgf=replace(tiny.nsgf, iterations=12))
    run = RunFolder.create(config)
    with pytest.raises(UserError, match=r"step 8.*nsgf\.lr"):
        fit("nsgf", Explodes(), config, run, Tracker(run.path))
    payload = checkpoint.load(run.checkpoint_file("nsgf"))
    assert payload["step"] == 5
    assert payload["model"]["weight"].isfinite().all()


@pytest.mark.parametrize("part", ["loss", "gradient"])
def test_nothing_that_is_not_finite_is_saved(tiny, part):
    """Not even when a checkpoint is due long before the next log line, right after the fault."""

    class Explodes(Quadratic):
        def loss(self, batch_size):
            loss = super().loss(batch_size)
            return loss * math.nan if part == "loss" and len(self.batches) == 7 else loss

    trainer = Explodes()
    if part == "gradient":  # the loss is still finite in this update, the weights after it are not
        trainer.model.weight.register_hook(
            lambda gradient: gradient * (math.inf if len(trainer.batches) == 10 else 1)
        )
    config = replace(
        tiny,
        nsgf=replace(tiny.nsgf, iterations=40),
        train=replace(tiny.train, log_every=40, checkpoint_every=5),
    )
    run = RunFolder.create(config)
    with pytest.raises(UserError, match="step 10"):
        fit("nsgf", trainer, config, run, Tracker(run.path))
    payload = checkpoint.load(run.checkpoint_file("nsgf"))
    assert payload["step"] == 5
    assert payload["model"]["weight"].isfinite().all()


def test_model_is_in_training_mode(tiny):
    trainer = Quadratic()
    trainer.model.eval()
    run_fit(tiny, trainer, iterations=1)
    assert trainer.model.training
