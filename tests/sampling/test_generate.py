import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_fidelity import registry

from nsgf.command_line import parse
from nsgf.config.schema import DataConfig, SamplingConfig
from nsgf.data import Data, build_source
from nsgf.data.images import to_bytes
from nsgf.experiment import train
from nsgf.metrics.evaluate import evaluate_run
from nsgf.metrics.inception import EXTRACTOR
from nsgf.models import build_network
from nsgf.preflight import format_hours, preflight
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.sampling.generate import (
    changed_settings,
    generate,
    load_sampler,
    results_folder,
    sample_run,
)
from nsgf.sampling.sampler import NSGFSampler, Samples
from nsgf.system.errors import UserError
from tests.conftest import shipped
from tests.metrics.test_inception_cache import Tiny

CPU = torch.device("cpu")


@pytest.fixture
def small(tiny):
    return replace(
        tiny,
        sampling=replace(tiny.sampling, num_samples=20, batch_size=8, straight_steps=4),
        evaluation=replace(tiny.evaluation, num_samples=24, repeats=2),
    )


@pytest.fixture
def tiny_run(small, tiny_run):
    """The finished run, with ``small`` as its own settings."""
    tiny_run.write_config(small)
    return tiny_run


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


def test_points_are_sampled_to_files(small, tiny_run):
    lines = sample_run(small, tiny_run)
    assert lines[0].startswith("20 samples, NFE 8, with nsgf (12 of 12 updates)")  # 3 + 1 + 4
    saved = np.load(tiny_run.samples / "samples.npz", allow_pickle=False)
    assert saved["x"].shape == (20, 2)
    assert saved["tau"].shape == (20,)
    assert saved["nfe"] == 8
    assert {path.name for path in tiny_run.samples.iterdir()} == {"samples.npz", "trajectory.png"}


def test_evaluation_of_points(small, tiny_run):
    file, found = evaluate_run(small, tiny_run)
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
    assert sample_run(alone, run)[0] == "20 samples, NFE 3, with nsgf (12 of 12 updates)"
    _, found = evaluate_run(alone, run)
    assert found["nfe"] == 3
    assert "tau_mean" not in found


def test_fixed_time_needs_no_predictor(small, tiny_run):
    """The same samples whether its checkpoint is there or not."""
    fixed = replace(small, sampling=replace(small.sampling, tau=0.25, solver="heun"))
    drawn = []
    for _ in range(2):
        (line, *_) = sample_run(fixed, tiny_run)
        assert line == (
            "20 samples, NFE 11, with nsgf (12 of 12 updates), nsf (12 of 12 updates)"  # 3 + 2 x 4
        )
        saved = np.load(tiny_run.samples / "samples-tau0.25-solver_heun.npz")
        assert (saved["tau"] == 0.25).all()
        drawn.append(saved["x"])
        tiny_run.checkpoint_file("predictor").unlink(missing_ok=True)
    assert np.array_equal(*drawn)
    _, found = evaluate_run(fixed, tiny_run)
    assert (found["nfe"], found["expected_nfe"], found["solver"]) == (11, 11, "heun")
    assert (found["tau_mean"], found["tau_std"]) == (0.25, 0)
    assert set(found["updates"]) == {"nsgf", "nsf"}
    assert load_sampler(small, tiny_run, CPU)[0].networks == ("nsgf",)


def test_fixed_time_without_a_straight_flow_is_refused(small, tiny_run):
    fixed = replace(small, sampling=replace(small.sampling, tau=0.25))
    tiny_run.checkpoint_file("nsf").unlink()
    with pytest.raises(UserError, match=r"sampling\.tau = 0\.25: needs phase nsf"):
        sample_run(fixed, tiny_run)


def test_missing_torchdiffeq_is_noticed_before_sampling(small, tiny_run, monkeypatch):
    for module in ("sampling.generate", "metrics.evaluate"):
        monkeypatch.setattr(f"nsgf.{module}.generate", lambda *_: pytest.fail("sampled first"))
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    config = replace(small, sampling=replace(small.sampling, solver="dopri5"))
    for command in (sample_run, evaluate_run):
        with pytest.raises(UserError, match="pip install torchdiffeq"):
            command(config, tiny_run)


def test_adaptive_steps_are_counted(small, tiny_run):
    config = replace(small, sampling=replace(small.sampling, solver="dopri5"))
    _, found = evaluate_run(config, tiny_run)
    assert found["expected_nfe"] == "adaptive"
    assert found["nfe"] > 3 + 1 + 2


def test_batches_do_not_change_the_samples(small, tiny_run):
    sampler, _ = load_sampler(small, tiny_run, CPU)
    whole, parts = (
        generate(sampler, build_source(small.data, 0, "x"), 20, size, CPU) for size in (20, 7)
    )
    torch.testing.assert_close(whole.x, parts.x)
    torch.testing.assert_close(whole.tau, parts.tau)
    assert whole.nfe == parts.nfe == 8


def test_weights_setting_chooses_average_or_last(small, tiny_run):
    x = build_source(small.data, 0, "x").sample(5)

    def drawn(weights):
        config = replace(small, sampling=replace(small.sampling, weights=weights))
        sampler, _ = load_sampler(config, tiny_run, CPU)
        return sampler.velocity(x, torch.zeros(5))

    payload = checkpoint.load(tiny_run.checkpoint_file("nsgf"))
    network = build_network("nsgf", small.model, (2,), 0)
    for weights, part in (("ema", "ema"), ("last", "model")):
        network.load_state_dict(payload[part])
        assert torch.equal(drawn(weights), network(x, torch.zeros(5)))


def test_unfinished_networks_are_named(small, tiny_run):
    longer = replace(small, nsf=replace(small.nsf, iterations=500))
    payload = checkpoint.load(tiny_run.checkpoint_file("nsf"))
    payload["config"]["nsf"]["iterations"] = 500
    checkpoint.save(tiny_run.checkpoint_file("nsf"), payload)
    assert "nsf (12 of 500 updates)" in sample_run(longer, tiny_run)[0]
    _, found = evaluate_run(longer, tiny_run)
    assert found["updates"] == {"nsgf": "12 of 12", "nsf": "12 of 500", "predictor": "12 of 12"}


def test_w2_compares_samples_with_the_target(small, tiny_run, monkeypatch):
    """Samples that are draws of the target score about the floor; draws of the source do not."""
    config = replace(small, evaluation=replace(small.evaluation, num_samples=400))
    data = Data(config.data, 99)
    scores = {}
    for name in ("target", "source"):
        cloud = getattr(data, name)("elsewhere").sample(400)
        monkeypatch.setattr(
            "nsgf.metrics.evaluate.generate", lambda *_, cloud=cloud: Samples(x=cloud, nfe=1.0)
        )
        scores[name] = evaluate_run(config, tiny_run)[1]
    assert scores["target"]["w2"] < 2 * scores["target"]["w2_floor"]
    assert scores["source"]["w2"] > 2.5


def test_diverged_networks_are_refused(small, tiny_run, monkeypatch):
    monkeypatch.setattr(
        NSGFSampler, "__call__", lambda _, x: Samples(x=torch.where(x > 1, torch.nan, x), nfe=1.0)
    )
    with pytest.raises(UserError, match="diverged"):
        evaluate_run(small, tiny_run)


def test_images_are_gathered_as_bytes_and_only_the_first_as_floats():
    """Batches of 8, 8 and 4; one value of the last sample is not finite the second time."""
    source = build_source(DataConfig(name="digits"), 0, "x")
    x = source.at(range(20))

    def gathered(change=0.0, keep=11):
        def sampler(part):
            part = part.clone()
            part[-1] += change
            return Samples(x=part, nfe=float(len(part)), tau=part[:, 0, 0, 0])

        return generate(sampler, build_source(DataConfig(name="digits"), 0, "x"), 20, 8, CPU, keep)

    found = gathered()
    assert torch.equal(found.x, x[:11])
    assert torch.equal(found.pixels, to_bytes(x))
    assert torch.equal(found.tau, x[:, 0, 0, 0])
    assert found.nfe == (64 + 64 + 16) / 20
    assert found.finite
    assert torch.equal(gathered(keep=50).x, x)
    assert gathered(keep=None).pixels is None
    assert torch.equal(gathered(keep=None).x, x)
    assert not gathered(change=torch.inf, keep=3).finite


def test_samples_follow_the_seed_of_the_command(small, tiny_run):

    def drawn(seed, name):
        sample_run(replace(small, seed=seed), tiny_run)
        return np.load(tiny_run.samples / name)["x"]

    first = drawn(0, "samples.npz")
    assert not np.array_equal(first, drawn(1, "samples-seed1.npz"))
    assert np.array_equal(first, drawn(0, "samples.npz"))


def test_samples_of_other_settings_get_names_of_their_own(small, tiny_run):
    """None overwrites those of the run's own settings; the size of a batch changes no sample."""
    own = small.sampling
    names = {
        changed_settings(replace(small, sampling=sampling), tiny_run)
        for sampling in (
            replace(own, batch_size=5),
            replace(own, nsgf_steps=10),
            replace(own, num_samples=3, weights="last"),
            replace(own, tau=0.5, omega=0.1, straight_steps=3),
        )
    }
    assert names == {
        "",
        "-nsgf_steps10",
        "-num_samples3-weights_last",
        "-tau0.5-straight_steps3-omega0.1",
    }
    tiny_run.write_config(replace(small, sampling=replace(own, tau=0.5)))
    assert changed_settings(small, tiny_run) == "-tau_null"


def test_names_are_known_where_an_old_run_has_fewer_settings(small, tiny_run):
    tiny_run.config_file.write_text("exp: 2d\nseed: 0\n")
    alone = replace(small, sampling=SamplingConfig(num_samples=3))
    assert changed_settings(alone, tiny_run) == "-num_samples3"


def blocked(folder):
    """A file stands where a folder is to be: as for a read-only folder, whoever runs the test."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("")


@pytest.mark.parametrize("command", [sample_run, evaluate_run])
def test_folders_that_cannot_be_written_are_known_before_sampling(
    command, small, tiny_run, monkeypatch, tmp_path
):
    monkeypatch.setattr("nsgf.sampling.generate.load_sampler", lambda *_: pytest.fail("loaded"))
    monkeypatch.setattr("nsgf.metrics.evaluate.load_sampler", lambda *_: pytest.fail("loaded"))

    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("nsgf.sampling.generate.TemporaryFile", refuse)
    with pytest.raises(UserError, match=r"cannot be written \(Permission denied\); .*--out-dir"):
        command(small, tiny_run)
    monkeypatch.undo()
    blocked(tmp_path / "out")
    with pytest.raises(UserError, match=r"out.*cannot be written .*copy the run folder"):
        command(replace(small, out_dir=str(tmp_path / "out")), tiny_run)


@pytest.mark.parametrize("name", [".classifiers", ".fidelity"])
def test_caches_that_cannot_be_written_are_known_before_sampling(
    name, digits_run, monkeypatch, tmp_path
):
    config, run = digits_run
    monkeypatch.setattr("nsgf.metrics.evaluate.load_sampler", lambda *_: pytest.fail("loaded"))
    evaluation = replace(config.evaluation, classifier=True, inception=True)
    blocked(tmp_path / name)
    with pytest.raises(UserError, match=f"{name} cannot be written"):
        evaluate_run(replace(config, evaluation=evaluation, out_dir=str(tmp_path)), run)


def test_results_of_a_read_only_run_go_to_another_folder(small, tiny_run, tmp_path):
    """Nothing is written in the run folder."""
    before = {path: path.stat().st_mtime_ns for path in sorted(tiny_run.path.rglob("*"))}
    other = replace(small, out_dir=str(tmp_path / "mine"))
    lines = sample_run(other, tiny_run)
    folder = tmp_path / "mine" / tiny_run.path.name
    assert [str(folder / "samples" / name) for name in ("samples.npz", "trajectory.png")] == lines[
        1:
    ]
    file, _ = evaluate_run(other, tiny_run)
    assert file == folder / "metrics.json"
    assert file.is_file()
    assert {path: path.stat().st_mtime_ns for path in sorted(tiny_run.path.rglob("*"))} == before


@pytest.mark.parametrize("command", ["sample", "evaluate", "train"])
def test_the_command_line_names_another_place_for_results_alone(command, tiny_run, tmp_path):
    """Training goes on where the run is."""
    words = [command, "--run", str(tiny_run.path), *["--resume"] * (command == "train")]
    out = parse([*words, "--out-dir", str(tmp_path / "mine")]).config.out_dir
    assert Path(out) == (tiny_run.path.parent if command == "train" else tmp_path / "mine")
    assert Path(parse(words).config.out_dir) == tiny_run.path.parent


def test_results_go_into_the_run_however_its_folder_is_named(small, tiny_run, monkeypatch):
    monkeypatch.chdir(tiny_run.path.parent)
    here = replace(small, out_dir=".")
    link = tiny_run.path.with_name("link")
    link.symlink_to(tiny_run.path)
    assert results_folder(here, RunFolder(link)) == link
    (tiny_run.path.parents[1] / "elsewhere").mkdir()
    link = link.replace(tiny_run.path.parents[1] / "elsewhere" / "link")
    linked = replace(small, out_dir=str(link.parent))
    assert results_folder(linked, RunFolder(link)) == link
    assert results_folder(here, RunFolder(Path(tiny_run.path.name))) == Path(tiny_run.path.name)
    assert results_folder(here, tiny_run) == tiny_run.path


def test_images_are_sampled_to_a_grid(digits_run):
    config, run = digits_run
    lines = sample_run(config, run)
    files = [run.samples / name for name in ("samples.npz", "grid.png", "trajectory.png")]
    assert lines[1:] == list(map(str, files))
    assert np.load(run.samples / "samples.npz")["x"].shape == (9, 1, 8, 8)
    names = {path.name for path in run.samples.iterdir()}
    pictures = {"phase1_nsgf.png", "phase2_nsf.png", "phase3_predictor.png"}
    assert names == {"samples.npz", "grid.png", "trajectory.png", *pictures}


def test_evaluation_of_images(digits_run):
    config, run = digits_run
    _, found = evaluate_run(config, run)
    assert found["w2"] > found["w2_floor"] > 0
    assert found["nearest_real"] > found["nearest_real_among_real"] > 1.5
    assert found["inception"] == "left out: evaluation.inception is false"


def test_mistyped_inception_weights_are_noticed_before_sampling(digits_run, monkeypatch):
    config, run = digits_run
    monkeypatch.setattr("nsgf.metrics.evaluate.generate", lambda *_: pytest.fail("sampled first"))
    evaluation = replace(config.evaluation, inception=True, inception_weights="nowhere.pth")
    with pytest.raises(UserError, match=r"nowhere\.pth: no such file"):
        evaluate_run(replace(config, evaluation=evaluation), run)


def test_inception_metrics_that_cannot_be_had_are_stated(digits_run, monkeypatch):
    config, run = digits_run

    def unreachable(*_):
        raise UserError("no route to host")

    monkeypatch.setattr("nsgf.metrics.evaluate.inception_metrics", unreachable)
    evaluation = replace(config.evaluation, inception=True)
    file, found = evaluate_run(replace(config, evaluation=evaluation), run)
    assert found["inception"] == "left out: no route to host"
    assert json.loads(file.read_text())["w2"] == found["w2"]
    assert "fid" not in found


def test_inception_metrics_are_told_with_what_they_depend_on(digits_run, monkeypatch):
    """A small network stands in for Inception's, which reads the real images once."""
    monkeypatch.setitem(registry.FEATURE_EXTRACTORS_REGISTRY, EXTRACTOR, Tiny)
    config, run = digits_run
    config = replace(config, evaluation=replace(config.evaluation, inception=True))
    said: list[str] = []
    file, found = evaluate_run(config, run, said.append)
    assert json.loads(file.read_text()) == found
    assert found["fid"] > 0
    assert found.keys() >= {"inception_score", "kid", "kid_std", "precision", "recall"}
    assert found["inception_samples"] == 16
    assert found["inception_reference"].startswith("digits train, 1797 images, 8x8 grey replicated")
    assert found["inception_weights"] == "downloaded"
    assert said[0].endswith("W2 of 4 at most, nearest real images, Inception features")
    assert len(said) == 2
    assert evaluate_run(config, run, said.append)[1] == found
    assert len(said) == 3


def test_classifier_metrics_are_beside_their_floor(digits_run, monkeypatch):
    config, run = digits_run
    config = replace(config, evaluation=replace(config.evaluation, classifier=True))
    said: list[str] = []
    file, found = evaluate_run(config, run, said.append)
    assert json.loads(file.read_text()) == found
    assert found["classifier_fid"] > found["classifier_fid_floor"] > 0  # 16 samples, large both
    assert found["classifier_precision"] < 0.5 < found["classifier_precision_floor"]
    assert found["classifier_samples"] == 16
    assert found["classifier_accuracy"] > 0.97
    assert "not Inception FID" in found["classifier_reference"]
    assert "898 images of digits" in found["classifier_reference"]
    assert len(said) == 2
    assert (run.path.parent / ".classifiers").is_dir()
    again = evaluate_run(config, run, said.append)[1]
    assert again == found
    assert len(said) == 3


def test_classifier_metrics_that_cannot_be_had_are_stated(digits_run, monkeypatch):
    config, run = digits_run
    evaluate = replace(config.evaluation, classifier=True)
    _, found = evaluate_run(config, run)
    assert found["classifier"] == "left out: evaluation.classifier is false"
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    _, found = evaluate_run(replace(config, evaluation=evaluate), run)
    assert found["classifier"].startswith("left out: evaluation.classifier = true: needs torch-fid")
    assert found["w2"] > 0
    assert "classifier_fid" not in found


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
