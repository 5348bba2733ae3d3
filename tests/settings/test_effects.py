"""A setting has an effect, or a line refuses it."""

import hashlib
import json
from types import UnionType
from typing import Literal, Union, get_args, get_origin

import numpy as np
import pandas as pd
import pytest
import torch

import nsgf
from nsgf.cli.arguments import parse
from nsgf.config.layers import SETTINGS, change, spread_optim
from nsgf.config.values import format_value
from nsgf.experiment import Experiment
from nsgf.run import checkpoint
from nsgf.settings.effects import check_effects
from nsgf.system.errors import UserError
from tests.conftest import shipped

CONTRADICTORY = [  # experiment/method, key, value
    ("2d", "flow.eta", 0.3),  # harmonic steps
    ("2d", "data.download", False),
    ("2d", "sinkhorn.scaling", 0.3),
    ("2d/nsgf++", "sampling.tolerance", 0.1),
    ("2d/otcfm", "sampling.label", 1),
    ("2d/1rf", "peer.sigma", 0.3),
    ("digits/nsgf++h", "evaluation.inception_weights", "x"),
]
WITHOUT_PART = [
    ("2d", "sampling.omega", 0.3),
    ("2d", "sampling.solver", "heun"),
    ("2d", "sampling.straight_steps", 3),
    ("2d", "sampling.spacing", 2.0),
    ("2d", "sampling.tolerance", 0.1),
    ("2d", "nsf.lr", 2e-3),
    ("2d", "model.unet.dropout", 0.5),
    ("2d", "model.checkpoint_activations", True),
    ("2d/otcfm", "flow.steps", 3),
    ("2d/otcfm", "flow.kind", "energy"),
    ("2d/otcfm", "sinkhorn.blur", 0.7),
    ("2d/otcfm", "pool.num_batches", 6),
    ("2d/otcfm", "sampling.nsgf_steps", 3),
    ("2d/affine", "flow.steps", 3),  # harmonic steps
    ("2d/affine", "sinkhorn.blur", 0.7),
    ("2d/onecall+", "sampling.straight_steps", 3),
    ("2d/onecall", "sinkhorn.batch_size", 16),
    ("digits/nsgf++h", "model.mlp.width", 64),
    ("digits/nsgf++h", "predictor.lr", 1e-3),
]


@pytest.mark.parametrize(("name", "key", "value"), CONTRADICTORY)
def test_a_setting_that_another_one_makes_useless_is_refused(name, key, value, tmp_path):
    exp, _, method = name.partition("/")
    with pytest.raises(UserError, match=key):
        shipped(name, f"--{key}={format_value(value)}")
    with pytest.raises(UserError, match=key):
        nsgf.train(exp, method=method or None, out_dir=tmp_path, overrides={key: value})
    with pytest.raises(UserError, match=key):
        parse(["compare", "--exp", exp, f"--methods={method or 'nsgf'}", f"--{key}={value}"])
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("name", "key", "value"), WITHOUT_PART)
def test_a_setting_of_a_part_that_a_method_lacks_is_named(name, key, value):
    exp, _, method = name.partition("/")
    flags = ["--exp", exp, f"--{key}={format_value(value)}"]
    for command in (
        ["train", *flags, *(["--method", method] if method else [])],
        ["compare", *flags, f"--methods={method or 'nsgf'}"],
    ):
        (line,) = [note for note in parse(command).notes if "no effect" in note]
        assert key in line


@pytest.mark.parametrize(
    ("exp", "file", "flag"),
    [
        ("points", "points.npy", "data.header=true"),
        ("points", "points.parquet", "data.header=true"),
        ("points", "points.csv", "data.skip_broken=true"),
        ("points", "points.npz", "data.header=true"),
        ("images", "images.npz", "data.skip_broken=true"),
    ],
)
def test_settings_of_a_kind_of_file_are_refused_for_another(exp, file, flag, tmp_path):
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 2)), columns=["a", "b"])
    np.save(tmp_path / "points.npy", rows)
    np.savez(tmp_path / "points.npz", rows)
    rows.to_parquet(tmp_path / "points.parquet")
    rows.to_csv(tmp_path / "points.csv", index=False)
    np.savez(tmp_path / "images.npz", np.arange(40 * 64, dtype=np.uint8).reshape(40, 8, 8))
    flags = ["train", "--exp", exp, "--data.path", str(tmp_path / file)]
    assert parse(flags)
    with pytest.raises(UserError, match=flag.partition("=")[0]):
        parse([*flags, f"--{flag}"])


@pytest.mark.parametrize(
    "flags", ["--lr=1e-3 --train-iters=9 --batch-size=8", "--optim.clip_norm=2 --num-samples=9"]
)
@pytest.mark.parametrize("name", ["2d", "2d/otcfm", "2d/affine", "digits/onecall"])
def test_settings_of_all_phases_suit_every_method(name, flags):
    assert shipped(name, *flags.split())


def test_settings_of_a_comparison_are_named_in_training():
    notes = parse(["train", "--exp=2d", "--compare.seeds=2"]).notes
    assert "compare.seeds" in "".join(notes)


def test_a_comparison_uses_settings_that_one_of_its_methods_has():
    request = parse(["compare", "--exp=2d", "--methods=nsgf,otcfm", "--sinkhorn.blur=0.7"])
    assert request.methods[0].sinkhorn.blur == 0.7
    assert not [note for note in request.notes if "no effect" in note]


def test_a_first_blur_needs_two_steps():
    words = ["train", "--exp=2d", "--sinkhorn.first_blur=2"]
    assert parse(words).config.sinkhorn.first_blur == 2
    with pytest.raises(UserError, match=r"has no effect with flow\.steps 1"):
        parse([*words, "--flow.steps=1"])


def test_a_comparison_gives_a_setting_to_the_methods_that_can_have_it():
    """Past mistake: `--peer.coupling_batch` was refused, because NSGF must not have it."""
    words = ["compare", "--exp=2d", "--methods=nsgf,icfm,otcfm", "--peer.coupling_batch=512"]
    request = parse(words)
    assert [config.peer.coupling_batch for config in request.methods] == [None, None, 512]
    assert not [note for note in request.notes if "no effect" in note]
    request = parse([*words[:2], "--methods=nsgf", words[3]])
    assert [note for note in request.notes if "no effect with method nsgf" in note]


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("sample", "--sinkhorn.blur=0.9"),
        ("sample", "--nsgf.lr=0.5"),
        ("sample", "--lr=0.5"),
        ("sample", "--evaluation.num_samples=9"),
        ("evaluate", "--pool.num_batches=9"),
        ("evaluate", "--sampling.num_samples=9"),
        ("evaluate", "--compare.seeds=2"),
        ("report", "--train.log_every=9"),
        ("report", "--evaluation.num_samples=9"),
    ],
)
def test_commands_on_a_run_name_settings_of_training(command, flag, tiny_run):
    """Scripts may give the same flags to all commands."""
    (line,) = [
        note
        for note in parse([command, "--run", str(tiny_run.path), flag]).notes
        if "no effect" in note
    ]
    assert flag[2:].partition("=")[0] in line


@pytest.mark.parametrize("key", ["data.root", "data.download", "data.path"])
def test_sampling_of_images_reads_none(key):
    experiments = [Experiment(shipped("mnist"))]
    assert key in "".join(check_effects("sample", {key: "x"}, experiments))
    assert check_effects("evaluate", {key: "x"}, experiments) == []


def test_a_file_of_samples_needs_no_points():
    experiments = [Experiment(shipped("2d"))]
    (line,) = check_effects("sample", {"data.path": "x"}, experiments, only_file=True)
    assert "data.path" in line
    assert check_effects("sample", {"data.path": "x"}, experiments) == []


def test_python_refuses_settings_of_training_for_a_trained_run(tiny_run):
    with pytest.raises(UserError, match=r"sinkhorn\.blur"):
        nsgf.load(tiny_run.path, overrides={"sinkhorn.blur": 0.9})
    assert nsgf.load(tiny_run.path, overrides={"evaluation.num_samples": 9})


def test_a_file_of_settings_is_used_with_a_line_about_those_without_effect(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("exp: 2d\nmethod: otcfm\nsinkhorn: {blur: 0.7}\npeer: {sigma: 0.2}\n")
    request = parse(["train", "--config", str(file)])
    (line,) = [note for note in request.notes if "effect" in note]
    assert "sinkhorn.blur" in line
    assert "peer.sigma" not in line


WARMUPS = [  # flags, warm-up of nsgf and predictor on CIFAR-10 (recipe: 5,000 of 20,000; none)
    ("", 5000, 0),
    ("--train-iters=8000", 2000, 0),
    ("--train-iters=40000", 5000, 0),
    ("--nsgf.iterations=3", 0, 0),
    ("--smoke", 1, 0),
    ("--train-iters=8000 --optim.warmup_steps=7000", 7000, 7000),
    ("--config=FILE", 50, 50),  # the file's own recipe
    ("--config=FILE --train-iters=100", 10, 10),
    ("--config=SHORT", 250, 0),
]


@pytest.mark.parametrize(("flags", "nsgf_steps", "predictor_steps"), WARMUPS)
def test_warm_up_shrinks_with_the_updates(flags, nsgf_steps, predictor_steps, tmp_path):
    files = {
        "FILE": "optim: {iterations: 500, warmup_steps: 50}",
        "SHORT": "optim: {iterations: 1000}",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(f"exp: cifar10\n{text}\n")
        flags = flags.replace(name, str(tmp_path / name))
    config = shipped("cifar10", *flags.split())
    assert config.nsgf.warmup_steps == nsgf_steps
    assert config.predictor.warmup_steps == predictor_steps


def test_own_images_reach_their_rate_in_a_short_training(tmp_path):
    images = torch.randint(0, 256, (64, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    run = nsgf.train(
        images.byte(),
        method="icfm",
        iterations=40,
        batch_size=4,
        out_dir=tmp_path,
        quiet=True,
        overrides={"train.preview": False, "train.log_every": 1},
    )
    rates = [json.loads(line)["lr"] for line in (run.path / "metrics.jsonl").open()]
    assert max(rates) == pytest.approx(run.config.peer.lr, rel=0.01)


LATER = ("evaluation.", "sampling.num_samples")
"""Settings that only later commands use."""
SAME_RESULTS = [
    "device",
    "out_dir",
    "data.root",
    "model.checkpoint_activations",
    "pool.storage",
    "pool.build_batch",
    "train.log_every",
    "train.checkpoint_every",
    "train.accumulate",
    "train.compile",
    "train.max_hours",
    "train.preview",
    "tracking.tracker",
    "sampling.batch_size",
]
"""Settings that change only files, memory or time."""
ARGUMENTS = ["exp", "method", "smoke"]
VALUES = {bool: (True, False), int: (3, 7), float: (0.03, 0.7, 1.7), str: ("x",)}
SMALL = {
    "optim.iterations": 3,
    "optim.batch_size": 8,
    "model.mlp.width": 8,
    "train.preview": False,
}


def other_values(key, config):
    """Yield values of a setting that differ from the one in use."""
    setting = SETTINGS[key]
    usual = setting.get(config)
    if isinstance(usual, list):
        yield [*usual, *usual] or [1]
        return
    if isinstance(usual, dict):
        yield {"lr": [1e-3, 2e-3]}
        return
    is_union = get_origin(setting.kind) in (Union, UnionType)
    for kind in get_args(setting.kind) if is_union else (setting.kind,):
        values = get_args(kind) if get_origin(kind) is Literal else VALUES.get(kind, ())
        for value in values:
            is_number = isinstance(value, int | float)
            if value != usual and not (is_number and setting.range and value not in setting.range):
                yield value


def outcome(method, settings, folder):
    """Return a checksum of the records, weights and samples of a small training."""
    run = nsgf.train("2d", method=method, quiet=True, out_dir=folder, overrides=settings)
    digest = hashlib.sha256((run.path / "metrics.jsonl").read_bytes())
    for file in sorted(run.path.glob("checkpoints/phase?_*.pt")):
        for tensor in checkpoint.load(file)["ema"].values():
            digest.update(tensor.numpy().tobytes())
    noise = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    samples = run.sampler(noise)
    digest.update(samples.x.numpy().tobytes())
    return digest.hexdigest(), samples.nfe


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("method", "pool"),
    [
        ("nsgf", {"pool.num_batches": 2, "sinkhorn.batch_size": 8}),
        ("nsgf++", {"pool.num_batches": 2, "sinkhorn.batch_size": 8}),
        ("otcfm", {}),
    ],
)
def test_every_setting_changes_something_or_is_refused(method, pool, tmp_path):
    small = SMALL | pool
    config = change(shipped(f"2d/{method}"), spread_optim(small))
    usual = outcome(method, small, tmp_path)

    def is_silent(key):
        for value in other_values(key, config):
            try:
                flags = ["train", "--exp=2d", f"--method={method}"]
                if any(key in note for note in parse([*flags, f"--{key}={value}"]).notes):
                    return False
                if outcome(method, {**small, key: value}, tmp_path) != usual:
                    return False
            except UserError as error:
                return not (key in str(error) or key.startswith("data."))
        return True

    skipped = (*ARGUMENTS, *SAME_RESULTS)
    keys = [key for key in SETTINGS if key not in skipped and not key.startswith(LATER)]
    assert [key for key in keys if is_silent(key)] == []
