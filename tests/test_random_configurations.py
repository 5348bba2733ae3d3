"""Configurations drawn at random: what the command line takes is trained, sampled and measured."""

import random
from contextlib import suppress

import pytest

import nsgf
from nsgf.cli import main
from nsgf.cli.arguments import parse
from nsgf.run.folder import newest_run
from nsgf.system.errors import UserError
from nsgf.system.files import parse_object

SLOW = pytest.mark.slow
PHASES = ["nsf", "nsgf", "nsgf,nsf", "nsgf,nsf,predictor", "peer", "peer,reflow"]
SETS = {
    "2d": ["8gaussians", "moons", "scurve", "checkerboard"],
    "digits": ["digits"],
    "mnist": ["mnist"],
    "cifar10": ["cifar10"],
}
SMALL = {
    **{"device": "cpu", "train-iters": 2, "batch-size": 3, "pool-batches": 2, "reflow.pairs": 6},
    **{"sinkhorn-batch": 4, "model.mlp.width": 8},
    **{"num-samples": 6, "evaluation.w2_samples": 6, "train.log_every": 1},
    "evaluation.features": "none",
    **{"train.preview": "false", "sampling.straight_steps": 2},
    "sampling.tolerance": 0.1,
}
EVERYWHERE = {
    "seed": [0, 5],
    "batch-size": [1, 2, 5],
    "lr": [1e-4, 1e-2],
    "optim.schedule": ["constant", "cosine"],
    "optim.clip_norm": ["null", 0.1, 1],
    "optim.warmup_steps": [0, 1, 10],
    "optim.ema_decay": [0, 0.5, 0.9999],
    "accumulate": [1, 2, 3],
    "precision": ["auto", "fp32", "bf16"],
    "sinkhorn-batch": [1, 3, 8],
    "sinkhorn.target_batch": ["null", 1, 12],
    "flow.kind": ["sinkhorn", "energy", "geomloss"],
    "sinkhorn.blur": [0.3, 2],
    "steps": [1, 2, 5],
    "flow.schedule": ["constant", "harmonic"],
    "flow.eta": [0.1, 0.5],
    "pool.dtype": ["auto", "float32", "float16"],
    "pool.storage": ["memory", "disk"],
    "pool.build_batch": ["auto", 1],
    "nsf.source": ["prior", "nsgf", "affine"],
    "nsf.coupling": ["independent", "ot"],
    "peer.method": ["icfm", "otcfm", "sbcfm", "rf"],
    "peer.sigma": [0, 0.5],
    "sampling.batch_size": [4, 64],
    "sampling.solver": ["euler", "heun", "dopri5"],
    "sampling.straight_steps": [1, 3],
    "sampling.omega": ["null", 0.4, 1],
    "sampling.tau": ["null", 0, 0.5],
    "sampling.nsgf_steps": ["null", 2],
}
POINTS = {"data.source": ["gaussian", "8gaussians"], "model.mlp.width": [1, 8]}
IMAGES = {
    "model.unet.mult": ["[1]", "[2]", "[1,1]", "[2,1]", "[1,1,2]", "[1,1,1,1]"],
    "model.unet.channels": [32, 32, 64],
    "model.unet.res_blocks": [1, 2],
    "model.unet.attention": ["[]", "[8]", "[7]", "[4]", "[8,4]"],
    "model.unet.heads": [1, 2, 4],
    "model.unet.dropout": [0, 0.5],
    "model.checkpoint_activations": ["true", "false"],
    "data.flip": ["true", "false"],
}
CHEAP = {"model.unet.mult": "[1,1]", "model.unet.channels": 32, "model.unet.res_blocks": 1}
"""Architectures keep to these where nothing else is drawn, and no attention of many pixels."""


def drawn(source):
    """Command lines without a command, each with about half of the settings."""
    while True:
        exp = source.choice(["2d", "2d", "digits", "digits", "mnist", "cifar10"])
        own = POINTS if exp == "2d" else IMAGES
        values = {**SMALL, "phases": f"[{source.choice(PHASES)}]"}
        values["data.name"] = source.choice(SETS[exp])
        if exp != "2d":
            values |= {**CHEAP, "model.unet.attention": "[]"}
            values["data.fake"] = "true" if exp != "digits" else "false"
        for key, choices in {**EVERYWHERE, **own}.items():
            if source.random() < 0.5:
                values[key] = source.choice(choices)
        yield ["--exp", exp, *(f"--{key}={value}" for key, value in values.items())]


@pytest.mark.e2e
@pytest.mark.parametrize(
    "seed", [*range(15), *(pytest.param(n, marks=SLOW) for n in range(15, 60))]
)
def test_accepted_configuration_trains_and_is_measured(seed, tmp_path, capsys):
    for words in drawn(random.Random(seed)):
        words = [*words, f"--out-dir={tmp_path}"]
        with suppress(UserError):
            config = parse(["train", *words]).config
            break
    case = "python -m nsgf train " + " ".join(words)
    assert main(["train", *words]) == 0, case + capsys.readouterr().err
    run, _ = newest_run(tmp_path, config.exp)
    for command in ("sample", "evaluate"):
        assert main([command, "--run", str(run.path)]) == 0, case + capsys.readouterr().err
    assert len(nsgf.load(run.path).sample(5)) == 5, case
    for file in run.path.glob("*.json*"):
        for line in [file.read_text()] if file.suffix == ".json" else file.open():
            parse_object(line)
    assert (run.path / "metrics.json").exists()
