"""One picture for each target: every method's way and samples, from the same noise."""

from pathlib import Path

import torch

from nsgf.compare.trials import (
    METHODS,
    Cell,
    at_nfe,
    cell_config,
    cell_folder,
    cells,
    comparison_folder,
)
from nsgf.config.schema import Config
from nsgf.data import Data, build_source
from nsgf.run.checkpoint import RunFolder
from nsgf.sampling.generate import load_sampler
from nsgf.sampling.plots import save_image_table, save_point_table
from nsgf.sampling.sampler import Samples

POINTS = 2048
IMAGES = 36


def save_pictures(config: Config, device: torch.device) -> list[Path]:
    """``TARGET.png`` for each target, of the first seed, in the comparison's folder."""
    first = [cell for cell in cells(config) if cell.seed == config.seed]
    files = []
    for target in dict.fromkeys(cell.target for cell in first):
        file = comparison_folder(config) / f"{target}.png"
        _save_target(config, [cell for cell in first if cell.target == target], file, device)
        files.append(file)
    return files


def _save_target(config: Config, own: list[Cell], file: Path, device: torch.device) -> None:
    """Every method at every NFE."""
    drawn = {
        METHODS[cell.method].title: {
            f"NFE {nfe}": _sample(config, cell, nfe, device) for nfe in config.compare.nfe
        }
        for cell in own
    }
    data = Data(cell_config(config, own[0]).data, config.seed)
    target = data.target("picture")
    if data.images is None:
        save_point_table(drawn, target.sample(POINTS), file)
    else:
        save_image_table(drawn, target.sample(IMAGES), file)


def _sample(config: Config, cell: Cell, nfe: int, device: torch.device) -> Samples:
    own = at_nfe(cell_config(config, cell), nfe)
    sampler, _ = load_sampler(own, RunFolder(cell_folder(config, cell)), device)
    source = build_source(own.data, config.seed, "picture")
    count = POINTS if len(source.shape) == 1 else IMAGES
    return sampler(source.sample(count).to(device), keep_path=True)
