"""The files of a comparison: tables, settings and pictures."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from nsgf.compare.results import Row, table_csv
from nsgf.compare.tables import latex, markdown
from nsgf.compare.trials import Comparison, Trial, at_nfe, method_title, possible_nfe
from nsgf.config.yaml_loader import dump_yaml
from nsgf.data import Data
from nsgf.phases import load_sampler
from nsgf.plots.samples import draw_image_table, draw_point_table, save_figure
from nsgf.run.folder import RunFolder, write_text
from nsgf.sampling.sampler import Samples

TABLE, SETTINGS = "table.csv", "comparison.yaml"
"""Files of a comparison's folder: its measures, and the settings of its command."""
POINTS, IMAGES = 2048, 36
"""Samples of a method in a picture."""


def write_report(comparison: Comparison, rows: Sequence[Row]) -> list[Path]:
    """Write ``table.md``, ``table.csv``, ``table.tex`` and the settings into the comparison's
    folder, and return the files of tables."""
    folder = comparison.folder
    write_text(folder / SETTINGS, settings_text(comparison))
    texts = {"table.md": markdown(rows), TABLE: table_csv(rows), "table.tex": latex(rows)}
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def settings_text(comparison: Comparison) -> str:
    """Return the comparison as an experiment's file, with a section of all settings per method."""
    settings, own = asdict(comparison.config), comparison.config.compare
    del settings["phases"]  # those of the methods hold
    settings["compare"] = asdict(replace(own, methods=list(comparison.methods)))
    settings["methods"] = {name: asdict(own) for name, own in comparison.methods.items()}
    return dump_yaml(settings)


def save_pictures(comparison: Comparison, device: torch.device) -> list[Path]:
    """Draw ``TARGET.png`` for each target: every method's path and samples from the same noise, of
    the first seed."""
    targets = dict.fromkeys(trial.target for trial in comparison.trials())
    return [_save_picture(comparison, target, device) for target in targets]


def _save_picture(comparison: Comparison, target: str, device: torch.device) -> Path:
    seed, file = comparison.config.seed, comparison.folder / f"{target}.png"
    trials = [Trial(target, method, seed) for method in comparison.methods]
    data = Data(comparison.trial_config(trials[0]).data, seed)
    count, what = (POINTS, "source") if data.images is None else (IMAGES, "noise")
    noise = data.source("picture").sample(count).to(device)
    drawn: dict[str, dict[int, Samples]] = {}
    for trial in trials:
        config, run = comparison.trial_config(trial), RunFolder(comparison.trial_folder(trial))
        for nfe in possible_nfe(config):
            sampler, _ = load_sampler(at_nfe(config, nfe), run, device)
            own = drawn.setdefault(method_title(trial.method), {})
            samples = sampler(noise, keep_path=True)
            path = [data.in_units(state) for state in samples.path]
            own[nfe] = replace(samples, x=path[-1], path=path)
    title = f"{target}, seed {seed}: {count} samples of each, from the same {what}"
    real = data.reference("picture")
    if data.images is None:
        figure = draw_point_table(drawn, real.sample(count), title, data.axes)
    else:
        columns = {nfe for own in drawn.values() for nfe in own}
        figure = draw_image_table(drawn, real.sample(count * len(columns)), title)
    save_figure(figure, file, dpi=90)
    return file
