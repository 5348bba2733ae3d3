import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from nsgf.checkpoint import RunFolder
from nsgf.errors import UserError
from nsgf.experiment import train
from nsgf.inference import evaluate_run, generate, load_sampler, sample_run
from nsgf.preflight import format_hours, preflight
from tests.conftest import shipped

CPU = torch.device("cpu")


@pytest.fixture
def small(tiny):
    return replace(
        tiny,
        sampling=replace(tiny.sampling, num_samples=20, batch_size=8, straight_steps=4),
        evaluation=replace(tiny.evaluation, num_samples=24, repeats=2),
    )


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory):
    config = shipped(
        "digits",
        "--smoke",
        "--device=cpu",
        "--sampling.num_samples=9",
        "--evaluation.num_samples=16",
        f"--out-dir={tmp_path_factory.mktemp('runs')}",
    )
    return config, train(config)


def test_points_are_sampled_to_files(small):
    run = train(small)
    lines = sample_run(small, run)
    assert lines[0] == "20 samples, NFE 8"  # 3 + 1 + 4
    saved = np.load(run.samples / "samples.npz", allow_pickle=False)
    assert saved["x"].shape == (20, 2)
    assert saved["tau"].shape == (20,)
    assert saved["nfe"] == 8
    assert {path.name for path in run.samples.iterdir()} == {"samples.npz", "trajectory.png"}


def test_evaluation_of_points(small):
    run = train(small)
    file, found = evaluate_run(small, run)
    assert json.loads(file.read_text()) == found
    assert found["nfe"] == 8
    assert found["repeats"] == 2
    assert found["w2_samples"] == 24
    assert found["w2"] > found["w2_floor"] > 0
    assert found["w2_std"] > 0
    assert "nearest_real" not in found


def test_velocity_network_alone_is_algorithm_2(small):
    alone = replace(small, phases=["nsgf"])
    run = train(alone)
    assert sample_run(alone, run)[0] == "20 samples, NFE 3"
    _, found = evaluate_run(alone, run)
    assert found["nfe"] == 3
    assert "tau_mean" not in found


def test_batches_do_not_change_the_samples(small):
    from nsgf.data import build_source

    run = train(small)
    sampler = load_sampler(small, run, CPU)

    class Fixed:
        """A source that deals out one fixed cloud."""

        def __init__(self):
            self.cloud = build_source(small.data, 0, "x").sample(20)

        def sample(self, n):
            head, self.cloud = self.cloud[:n], self.cloud[n:]
            return head

    whole, parts = (generate(sampler, Fixed(), 20, size, CPU) for size in (20, 7))
    torch.testing.assert_close(whole.x, parts.x)
    torch.testing.assert_close(whole.tau, parts.tau)
    assert whole.nfe == parts.nfe == 8


def test_samples_follow_the_seed_of_the_command(small):
    run = train(small)

    def drawn(seed):
        sample_run(replace(small, seed=seed), run)
        return np.load(run.samples / "samples.npz")["x"]

    assert np.array_equal(drawn(0), drawn(0))
    assert not np.array_equal(drawn(0), drawn(1))


def test_images_are_sampled_to_a_grid(digits_run):
    config, run = digits_run
    sample_run(config, run)
    assert np.load(run.samples / "samples.npz")["x"].shape == (9, 1, 8, 8)
    names = {path.name for path in run.samples.iterdir()}
    assert names == {"samples.npz", "grid.png", "trajectory.png"}


def test_evaluation_of_images(digits_run):
    config, run = digits_run
    _, found = evaluate_run(config, run)
    assert found["w2"] > found["w2_floor"] > 0
    assert found["nearest_real"] > found["nearest_real_among_real"] > 1.5
    assert found["inception"] == "left out: evaluation.inception is false"


def test_missing_inception_weights_are_stated_not_fatal(digits_run):
    config, run = digits_run
    evaluation = replace(config.evaluation, inception=True, inception_weights="nowhere.pth")
    _, found = evaluate_run(replace(config, evaluation=evaluation), run)
    assert found["inception"].startswith("left out: evaluation.inception_weights = nowhere.pth")
    assert "fid" not in found


def test_untrained_run_is_one_line(tiny):
    with pytest.raises(UserError, match="train that phase first"):
        sample_run(tiny, RunFolder.create(tiny))


def test_preflight_says_memory_and_time_of_every_phase(tiny):
    lines = preflight(tiny)
    text = "\n".join(lines)
    for part in ("machine: CPU", "pool: 4 x 16 flows", "nsgf: 12 updates", "all phases: about"):
        assert part in text
    for phase in tiny.phases:
        assert any(line.startswith(f"{phase}: ") and " s an update" in line for line in lines)


@pytest.mark.parametrize(("seconds", "text"), [(5, "5.0 s"), (90, "1.5 min"), (7200, "2.0 h")])
def test_times_for_people(seconds, text):
    assert format_hours(seconds) == text
