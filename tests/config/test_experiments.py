"""The values of the paper and of the code attributed to its authors, in the shipped experiments."""

import pytest

from nsgf.config.layers import values
from tests.conftest import shipped

# docs/paper.md has the source of each value
PAPER = {
    "mnist": {
        "sinkhorn.batch_size": 256,
        "pool.num_batches": 1500,
        "flow.steps": 5,
        "model.unet.channels": 32,
        "model.unet.res_blocks": 1,
        "model.unet.mult": [1, 2, 2],
        "model.unet.heads": 1,
        "nsgf.iterations": 100_000,
        "nsf.iterations": 100_000,
        "predictor.iterations": 40_000,
        "nsgf.lr": 1e-4,
        "nsf.lr": 1e-4,
    },
    "cifar10": {
        "sinkhorn.batch_size": 128,
        "sinkhorn.blur": 1.0,
        "sinkhorn.scaling": 0.85,
        "pool.num_batches": 2500,
        "flow.steps": 5,
        "flow.eta": 0.2,
        "model.unet.channels": 128,
        "model.unet.res_blocks": 2,
        "model.unet.mult": [1, 2, 2, 2],
        "model.unet.attention": [16],
        "model.unet.heads": 4,
        "nsgf.iterations": 20_000,
        "nsf.iterations": 20_000,
        "predictor.iterations": 40_000,
    },
    "2d": {
        "sinkhorn.scaling": 0.8,
        "model.mlp.width": 256,
        "nsgf.iterations": 20_000,
        "nsgf.lr": 1e-3,
    },
}
AUTHORS = {
    "mnist": {"nsgf.ema_decay": 0.9999, "nsf.ema_decay": 0.9999},
    "cifar10": {
        "data.flip": True,
        "model.unet.dropout": 0.1,
        "nsgf.lr": 2e-4,
        "nsf.lr": 2e-4,
        "nsgf.warmup_steps": 5000,
        "nsf.warmup_steps": 5000,
        "nsgf.clip_norm": 1.0,
        "nsf.clip_norm": 1.0,
        "nsgf.ema_decay": 0.9999,
        "nsf.ema_decay": 0.9999,
    },
    "2d": {},
}
REPORTED_CALLS = {"mnist": 60, "cifar10": 59}


@pytest.mark.parametrize("name", PAPER)
def test_experiment_has_the_values_of_the_paper_and_of_the_authors(name):
    settings = values(shipped(f"{name}/nsgf++"))
    expected = PAPER[name] | AUTHORS[name]
    assert {key: settings[key] for key in expected} == expected


@pytest.mark.parametrize("name", REPORTED_CALLS)
def test_samples_take_the_reported_number_of_network_calls(name):
    """NSGF steps, a call of the time predictor, and the straight flow."""
    config = shipped(f"{name}/nsgf++")
    calls = config.flow.steps + 1 + config.sampling.straight_steps
    assert calls == REPORTED_CALLS[name]
