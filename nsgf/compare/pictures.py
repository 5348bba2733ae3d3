"""One picture for each target: every method's way and samples, from the same noise."""

from pathlib import Path

import torch

from nsgf.compare.trials import (
    METHODS,
    Trial,
    asked_nfe,
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
            METHODS[trial.method].title: samples
            for trial in own
            if (samples := _samples(config, trial, device))
        }
        file = comparison_folder(config) / f"{label}.png"
        data = Data(trial_config(config, own[0]).data, config.seed)
        target = data.reference("picture")
        if data.images is None:
            for found in drawn.values():
                found |= {title: samples.in_units(data) for title, samples in found.items()}
            title = f"{label}, seed {config.seed}: {POINTS} samples of each, from the same source"
            save_point_table(drawn, target.sample(POINTS), file, data.axes, title)
        else:
            title = f"{label}, seed {config.seed}: {IMAGES} samples of each, from the same noise"
            real = target.sample(IMAGES * max(map(len, drawn.values())))
            save_image_table(drawn, real, file, title)
        files.append(file)
    return files


def _samples(config: Config, trial: Trial, device: torch.device) -> dict[str, Samples]:
    """With each number of calls that the trial can do with, by its title."""
    own, drawn = trial_config(config, trial), dict[str, Samples]()
    for nfe in asked_nfe(own):
        run = RunFolder(trial_folder(config, trial))
        sampler, _ = load_sampler(at_nfe(own, nfe), run, device)
        source = build_source(own.data, config.seed, "picture")
        count = POINTS if len(source.shape) == 1 else IMAGES
        drawn[f"NFE {nfe}"] = sampler(source.sample(count).to(device), keep_path=True)
    return drawn
