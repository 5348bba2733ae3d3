"""One picture for each target: every method's way and samples, from the same noise."""

from pathlib import Path

import torch

from nsgf.compare.trials import (
    METHODS,
    Trial,
    at_nfe,
    comparison_folder,
    trial_config,
    trial_folder,
    trials,
)
from nsgf.config.schema import Config
from nsgf.data import Data, build_source
from nsgf.run.folder import RunFolder
from nsgf.sampling.generate import load_sampler
from nsgf.sampling.plots import save_image_table, save_point_table
from nsgf.sampling.sampler import Samples

POINTS = 2048
IMAGES = 36


def save_pictures(config: Config, device: torch.device) -> list[Path]:
    """``TARGET.png`` for each target, of the first seed, in the comparison's folder."""
    first = [trial for trial in trials(config) if trial.seed == config.seed]
    files = []
    for label in dict.fromkeys(trial.target.label for trial in first):
        own = [trial for trial in first if trial.target.label == label]
        drawn = {
            METHODS[trial.method].title: {
                f"NFE {nfe}": _sample(config, trial, nfe, device) for nfe in config.compare.nfe
            }
            for trial in own
        }
        file = comparison_folder(config) / f"{label}.png"
        data = Data(trial_config(config, own[0]).data, config.seed)
        target = data.target("picture")
        if data.images is None:
            save_point_table(drawn, target.sample(POINTS), file)
        else:
            save_image_table(drawn, target.sample(IMAGES), file)
        files.append(file)
    return files


def _sample(config: Config, trial: Trial, nfe: int, device: torch.device) -> Samples:
    own = at_nfe(trial_config(config, trial), nfe)
    sampler, _ = load_sampler(own, RunFolder(trial_folder(config, trial)), device)
    source = build_source(own.data, config.seed, "picture")
    count = POINTS if len(source.shape) == 1 else IMAGES
    return sampler(source.sample(count).to(device), keep_path=True)
