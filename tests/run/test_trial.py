from dataclasses import replace

import pytest
import torch
from torch import nn

from nsgf.cli import main
from nsgf.phases import get_phases
from nsgf.phases.base import Phase
from nsgf.run.trial import try_networks
from nsgf.system.errors import UserError
from nsgf.training.state import TrainState
from tests.conftest import shipped

CPU = torch.device("cpu")


@pytest.fixture
def tried(monkeypatch):
    """Samples, precision and parts of every update that is tried."""
    seen, update = [], TrainState.update

    def spy(state, batch):
        seen.append((len(batch.target), state.forward.precision, state.accumulate))
        return update(state, batch)

    monkeypatch.setattr(TrainState, "update", spy)
    return seen


def test_each_network_is_tried_once_as_the_run_would_train_it(tiny, tried):
    tiny.train = replace(tiny.train, precision="bf16", accumulate=3, compile=True)
    phases = get_phases(tiny.phases)
    try_networks(tiny, phases, CPU)
    assert tried == [(2, "bf16", 2)] * 2  # phases 1 and 2 have the same one
    try_networks(tiny, phases[2:], CPU)
    assert len(tried) == 3
    try_networks(replace(tiny, smoke=True), phases, CPU)
    assert len(tried) == 3


@pytest.mark.parametrize("command", ["train", "preflight", "compare"])
def test_network_that_cannot_be_trained_is_one_line_before_any_work(
    command, tmp_path, monkeypatch, capsys
):
    """Forward passes are fine, as when memory is estimated."""

    class Stubborn(nn.Linear):
        def forward(self, x, t):
            y = super().forward(x)
            y.register_hook(lambda gradient: gradient.reshape(-1, 3))
            return y

    monkeypatch.setattr(Phase, "network", lambda self, *_: Stubborn(2, 2))
    small = ["--train-iters=2", "--pool-batches=1", "--sinkhorn-batch=8", "--compare.seeds=1"]
    where = ["--device", "cpu", "--out-dir", str(tmp_path)]
    code = main([command, "--exp", "2d", *small, *where])
    lines = [line for line in capsys.readouterr() if line][-1].splitlines()
    told = [line for line in lines if "its network cannot be trained" in line]
    assert code == (1 if command == "preflight" else 2)
    assert told
    assert "RuntimeError: " in told[0]
    assert "model.mlp.width = 256, model.mlp.depth = 3" in told[0]
    assert "Traceback" not in "\n".join(lines)
    assert list(tmp_path.iterdir()) == []


def test_trial_of_a_user_error_keeps_its_words(tiny, monkeypatch):
    def refuse(self, batch):
        raise UserError("full")

    monkeypatch.setattr(TrainState, "update", refuse)
    with pytest.raises(UserError, match=r"^full$"):
        try_networks(shipped("2d"), get_phases(["nsgf"]), CPU)


@pytest.mark.parametrize(
    "fault",
    [
        AttributeError("a mistake of ours"),
        RuntimeError("CUDA error: unspecified launch failure"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        getattr(torch, "AcceleratorError", torch.cuda.OutOfMemoryError)("the card is lost"),
    ],
)
def test_trial_lets_faults_of_cards_and_of_this_program_through(fault, monkeypatch):
    def fail(self, batch):
        raise fault

    monkeypatch.setattr(TrainState, "update", fail)
    with pytest.raises(type(fault)) as raised:
        try_networks(shipped("2d"), get_phases(["nsgf"]), CPU)
    assert raised.value is fault
