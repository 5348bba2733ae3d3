"""One picture for each target: paths and samples of all methods, from the same noise."""

from pathlib import Path

import torch

from nsgf.compare.trials import (
    Comparison,
    Trial,
    asked_nfe,
    at_nfe,
    method_title,
)
from nsgf.data import Data, build_source
from nsgf.phases import load_sampler
from nsgf.plots.samples import save_image_table, save_point_table
from nsgf.run.folder import RunFolder
from nsgf.sampling.sampler import Samples

POINTS = 2048
IMAGES = 36


def save_pictures(comparison: Comparison, device: torch.device) -> list[Path]:
    """Write ``TARGET.png`` for each target, of the first seed, into the comparison's folder."""
    seed = comparison.config.seed
    first = [trial for trial in comparison.trials() if trial.seed == seed]
    files = []
    for label in dict.fromkeys(trial.target.label for trial in first):
        own = [trial for trial in first if trial.target.label == label]
        file = comparison.folder / f"{label}.png"
        data = Data(comparison.trial_config(own[0]).data, seed)
        drawn = {
            method_title(trial.method): samples
            for trial in own
            if (samples := _samples(comparison, trial, data, device))
        }
        target = data.reference("picture")
        if data.images is None:
            title = f"{label}, seed {seed}: {POINTS} samples of each, from the same source"
            save_point_table(drawn, target.sample(POINTS), file, data.axes, title)
        else:
            title = f"{label}, seed {seed}: {IMAGES} samples of each, from the same noise"
            columns = {nfe for found in drawn.values() for nfe in found}
            real = target.sample(IMAGES * len(columns))
            save_image_table(drawn, real, file, title)
        files.append(file)
    return files


def _samples(
    comparison: Comparison, trial: Trial, data: Data, device: torch.device
) -> dict[int, Samples]:
    """Return the samples of a trial by number of network calls."""
    own, drawn = comparison.trial_config(trial), dict[int, Samples]()
    for nfe in asked_nfe(own):
        run = RunFolder(comparison.trial_folder(trial))
        sampler, _ = load_sampler(at_nfe(own, nfe), run, device)
        source = build_source(own.data, trial.seed, "picture")
        count = POINTS if len(source.shape) == 1 else IMAGES
        samples = sampler(source.sample(count).to(device), keep_path=True)
        drawn[nfe] = samples.in_units(data)
    return drawn
