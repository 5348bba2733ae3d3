"""Shared by all tests: a tiny experiment, and a training run of it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nsgf.arguments import config_folder, parse
from nsgf.config import Config


def shipped(name: str, *flags: str) -> Config:
    """The configuration of ``--exp NAME`` with flags."""
    return parse(["train", "--exp", name, *flags]).config


@pytest.fixture(scope="session")
def config_names() -> list[str]:
    return sorted(file.stem for file in config_folder().glob("*.yaml"))


@pytest.fixture
def tiny(tmp_path: Path) -> Config:
    """NSGF++ on points with small networks: all three phases in a second."""
    base = shipped(
        "2d",
        "--phases=[nsgf,nsf,predictor]",
        "--steps=3",
        "--train-iters=12",
        "--batch-size=16",
        "--pool-batches=4",
        "--sinkhorn-batch=16",
        "--model.mlp.width=16",
        "--train.checkpoint_every=5",
        "--train.log_every=4",
        "--device=cpu",
    )
    return replace(base, out_dir=str(tmp_path / "runs"))


@pytest.fixture(autouse=True)
def _same_numbers_everywhere() -> None:
    """One thread, so that a busy machine stays fast, and a known state of torch's generator."""
    torch.set_num_threads(1)
    torch.manual_seed(123456)
