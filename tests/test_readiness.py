import pytest
import torch

from nsgf.readiness import PREFIX, checkpoint_kept, data_found, tried, updates_finite
from nsgf.run import checkpoint
from nsgf.system.errors import UserError
from nsgf.training.step_stats import StepStats
from tests.conftest import shipped

STATE = {"step": 3, "model": {"w": torch.ones(2)}, "ema": {"w": torch.ones(2)}}


def test_a_refusal_is_the_last_line():
    def lines():
        yield "ok so far"
        raise UserError("use --this")

    assert list(tried(lines)) == ["ok so far", "NO use --this"]


def test_full_memory_of_a_card_is_a_line_too():
    def lines():
        yield "ok so far"
        raise torch.cuda.OutOfMemoryError

    first, second = tried(lines)
    assert first == "ok so far"
    assert second.startswith("NO the card's memory is full; use a smaller --batch-size")


def test_data_are_found_or_named(tmp_path):
    assert data_found(shipped("digits")) == "ok data: 1797 images of digits"
    assert data_found(shipped("2d")).startswith("ok data: ")
    missing = shipped("mnist", f"--data-root={tmp_path}", "--data.download=false")
    with pytest.raises(UserError, match=r"--data\.download true"):
        data_found(missing)


def test_a_first_loss_scale_may_be_too_large(tiny):
    found = iter([StepStats(1.0, float("inf")), StepStats(1.0, 2.0)])
    assert updates_finite(tiny, "nsgf", lambda: next(found)) == "ok nsgf: an update is finite"
    with pytest.raises(UserError, match="--precision fp32"):
        updates_finite(tiny, "nsgf", lambda: StepStats(float("nan"), 1.0))


def test_checkpoint_is_written_read_and_removed(tmp_path):
    config = shipped("2d", f"--out-dir={tmp_path / 'not' / 'there'}")
    (tmp_path / f"{PREFIX}left by one that was killed").mkdir()
    assert checkpoint_kept(config, "nsgf", STATE).startswith("ok nsgf: checkpoint of ")
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_that_comes_back_changed_is_red(tmp_path, monkeypatch):
    real = checkpoint.load

    def load(file):
        payload = real(file)
        payload["ema"]["w"][1] = 7
        return payload

    monkeypatch.setattr(checkpoint, "load", load)
    with pytest.raises(UserError, match="came back changed; use --out-dir DIR"):
        checkpoint_kept(shipped("2d", f"--out-dir={tmp_path}"), "nsgf", STATE)


def test_place_that_takes_nothing_names_the_flag(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--out-dir DIR"):
        checkpoint_kept(shipped("2d", f"--out-dir={tmp_path / 'file' / 'runs'}"), "nsgf", STATE)
