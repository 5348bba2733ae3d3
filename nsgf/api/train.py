"""Train as ``nsgf train`` does."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import ArrayLike

from nsgf.api.run import Run, check_network, class_name, folder_and_network, load
from nsgf.api.samples import UserSamples, columns_text, request_with_data, split_data
from nsgf.commands.estimate import fit_minutes
from nsgf.commands.train import train as train_phases
from nsgf.config.files import from_arguments
from nsgf.config.values import Place, expand_path, read_value, to_plain
from nsgf.models import UserNetwork
from nsgf.run.log import RunLog
from nsgf.run.stop import CALLBACK, Stopped, stop_of_caller
from nsgf.settings.resolve import Request
from nsgf.system.output import show, silence
from nsgf.system.seeding import from_python

_TRAIN_ARGUMENTS = {
    "data.name": "dataset",
    "data.path": "data",
    "data.source": "source",
    "run": "resume",
    "optim.iterations": "iterations",
    "optim.batch_size": "batch_size",
    "optim.lr": "lr",
    "sinkhorn.blur": "blur",
    "data.columns": "columns",
    "data.held_out": "held_out",
}


class Update(NamedTuple):
    """State of training, for a callback."""

    phase: str
    step: int
    """Number of updates of the phase."""
    loss: float | None
    """Mean loss of the updates since the last call of the callback. Updates that are not finite do
    not count. If no update counts, this is the loss of the last call, or None at the first call."""
    run: Callable[[], Run]
    """Function that saves a checkpoint and opens the run like ``nsgf.load``. The opened run samples
    with the current weights."""


@from_python(_TRAIN_ARGUMENTS)
def train(
    exp: str | UserSamples | None = None,
    *,
    data: UserSamples | None = None,
    source: UserSamples | None = None,
    labels: ArrayLike | None = None,
    columns: Sequence[str | int] | str | None = None,
    held_out: float | None = None,
    network: UserNetwork | None = None,
    method: Place | None = None,
    iterations: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    blur: float | None = None,
    minutes: float | None = None,
    dataset: str | None = None,
    config: Place | None = None,
    resume: Place | Run | None = None,
    out_dir: Place | None = None,
    device: str | torch.device | None = None,
    seed: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    callback: Callable[[Update], object] | None = None,
    quiet: bool = False,
) -> Run:
    """Train on an experiment or on your data as ``nsgf train`` does, and return the run, ready for
    sampling. The function itself does not change the caller's random generators.

    Args:
        exp: name of an experiment, such as ``2d``; or your samples, in the form of ``data``.
        data: points (N, D) in any units, as a tensor, array or DataFrame (pandas, polars, pyarrow).
            Or images (N, C, H, W), as uint8 or as floats in [-1, 1], which become bytes. Or a torch
            data set with a length, whose items are such samples or pairs (sample, label). Or the
            path of a file or of a folder of images, as for ``data.path``. Data in memory are
            written into ``OUT_DIR/.data``.
        source: samples to start from instead of Gaussian noise, in the form of ``data``. Points
            have the columns and units of ``data``. None: ``data.source``.
        labels: the class of each image or point, (N,). Classes are names or numbers: numbers from 0
            for images, any whole numbers for points. With labels, the run has classes. For a table
            with a column of classes, use ``overrides={"data.label": NAME}`` instead.
        columns: columns of points to use, such as ``["height", "weight"]`` or ``[1, 3]``: only
            names, or only numbers from 1; None: all.
        held_out: fraction of the samples that is not trained on, for measures (``data.held_out``).
        network: a module whose ``forward(x, t)``, or with classes ``forward(x, t, labels)``,
            returns a tensor of x's shape; or a function or class that makes such a module. t (B,)
            is in [0, 1]; labels (B,) are integers from 0 to K, where K means no class. Velocity
            networks start as copies of this module. Only weights are saved, so pass the network
            again to resume and to load.
        method: a name such as ``nsgf++h``, or a YAML file; None: the experiment's method.
        iterations: number of updates of every phase.
        batch_size: number of samples in an update of every phase.
        lr: learning rate of every phase.
        blur: square root of the regularization eps of the Sinkhorn flow, in units of the networks'
            data (``sinkhorn.blur``).
        minutes: time for the whole training of a new run. The number of updates is chosen after a
            few measured updates. Phases keep their shares of the updates.
        dataset: name of the data set (``data.name``), such as ``moons``.
        config: a YAML file to use instead of ``exp``. With ``resume``, the file has the settings to
            change.
        resume: a run folder, or an open run, to continue. Pass ``data`` (and ``labels``) again only
            if the file of the data no longer exists.
        out_dir: folder for the run folders; None: ``runs``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; None: as in the experiment.
        seed: seed of all random numbers of the run; None: as in the experiment.
        overrides: settings by key, such as ``{"nsgf.iterations": 2000}``. ``optim.*`` sets
            every phase.
        callback: function that gets an ``Update`` for each line of ``metrics.jsonl``. There is a
            line every ``train.log_every`` updates, and more often in a short phase. The callback
            does not change results. If the callback returns False, training saves a checkpoint and
            ends, and this function returns the run. The run samples with the networks that are
            trained so far. Use ``resume`` to continue the training. If the callback raises an
            exception, a checkpoint is saved first.
        quiet: whether to print nothing.

    Raises:
        UserError: an argument or a setting is wrong, or ``train.max_hours`` is over.
        KeyboardInterrupt: you pressed Ctrl-C. A checkpoint is saved, and the message says how to
            resume.
    """
    exp, data = split_data(exp, data)
    named = {
        "exp": exp,
        "data.name": dataset,
        "method": method,
        "optim.iterations": iterations,
        "optim.batch_size": batch_size,
        "optim.lr": lr,
        "sinkhorn.blur": blur,
        "data.columns": columns_text(columns),
        "data.held_out": held_out,
        "out_dir": out_dir,
        "device": device and str(device),
        "seed": seed,
    }
    if minutes is not None:
        minutes = read_value("minutes", float, to_plain(minutes))
    if resume is not None:
        resume, network = folder_and_network(resume, network)
    settings = from_arguments(named, overrides) | class_name(network)
    paths = {"run": resume, "config": config}
    files = {key: expand_path(key, path) for key, path in paths.items() if path is not None}
    request = request_with_data("train", data, labels, files, settings, source)
    with silence(quiet):
        folder = _run_phases(request, network, minutes, callback)
    return load(folder, device=request.experiment.device, network=network)


def _run_phases(
    request: Request,
    network: UserNetwork | None,
    minutes: float | None,
    callback: Callable[[Update], object] | None,
) -> Path:
    """Train as :func:`train` does, and return the run folder."""
    experiment = request.experiment
    opened_on = experiment.device

    def call_back(phase: str, step: int, loss: float | None, save: Callable[[], Path]) -> object:
        assert callback is not None
        with silence(False):
            return callback(
                Update(phase, step, loss, lambda: load(save(), device=opened_on, network=network))
            )

    on_log = None if callback is None else call_back

    def continue_with(folder: Path | None) -> str:
        more = "" if network is None else ", network=..."
        return f"continue with nsgf.train(resume={str(folder)!r}{more})"

    if network is not None:
        check_network(network, experiment.target, opened_on)
    for note in request.notes:
        show(note)
    with stop_of_caller(experiment.config.train.max_hours, continue_with) as stop:
        notes = []
        if minutes is not None:
            is_new = request.run is None
            experiment, note = fit_minutes(experiment, minutes, stop, network, is_new=is_new)
            notes.append(note)
        try:
            run = train_phases(
                experiment,
                request.run,
                stop=stop,
                network=network,
                on_log=on_log,
                notes=notes,
            )
        except Stopped as stopped:
            if stop.reason != CALLBACK or stopped.folder is None:
                raise
            RunLog(stopped.folder).write(
                f"stopped ({CALLBACK}), all is saved ({stopped}); {continue_with(stopped.folder)}"
            )
            return stopped.folder
    return run.path
