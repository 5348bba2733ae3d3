"""Open, sample, measure and export a trained run, as the commands do. Only :meth:`Run.evaluate`
prints lines.

N: number of samples; *shape: shape of one sample. An image has the shape (C, H, W) and values in
[-1, 1]. A point has the shape (D,).
"""

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from nsgf.api.samples import like_samples, to_starts
from nsgf.commands.evaluate import evaluate_run
from nsgf.commands.export import export_run
from nsgf.commands.report import report_run
from nsgf.commands.sample_files import check_fixed_steps, states_of
from nsgf.config.files import from_arguments
from nsgf.config.layers import Layer
from nsgf.config.schema import MOST_STEPS, Config, PhaseName
from nsgf.config.values import Place, expand_path, read_value, to_plain
from nsgf.data import Target
from nsgf.data.images import data_root, to_unit_range
from nsgf.experiment import Experiment
from nsgf.models import UserNetwork, make_network
from nsgf.plots.samples import draw_notebook_image, save_grid, to_pictures
from nsgf.run.folder import RunFolder
from nsgf.sampling.generate import generate, stream_batches
from nsgf.sampling.likelihood import ODE_STEPS, PROBES, LogProb, log_prob, summarise
from nsgf.sampling.sampler import FlowSampler, InferenceNetwork
from nsgf.settings.checks import check
from nsgf.settings.effects import refuse_training
from nsgf.settings.resolve import resolve
from nsgf.share import find_folder, open_run
from nsgf.sinkhorn.base import Array, positive_number, to_array
from nsgf.system.errors import UserError, one_line, wrong_setting
from nsgf.system.output import show
from nsgf.system.seeding import from_python, keep_random_numbers, make_generator
from nsgf.user_data.images import image_bytes
from nsgf.user_data.starts import labels_of

MOST_PROBES = 1000
"""Largest number of probes for a density."""
TIME_NAMES = ("t", "time", "times", "timestep", "timesteps")
"""Names of an argument for the time. If the first argument of a network has such a name, the
network takes the time before x."""


@dataclass(frozen=True)
class Run:
    """A trained run that is open for sampling."""

    path: Path
    """The run folder, or the folder that ``nsgf export`` wrote."""
    config: Config = field(repr=False)
    """All settings."""
    device: torch.device
    """Device of the networks."""
    progress: dict[str, str]
    """Number of updates of each phase: ``{"nsgf": "300 of 100000"}``."""
    sampler: FlowSampler = field(repr=False)
    """Call it with noise ``(B, *shape)``, and with labels (B,) if there are classes.
    It returns samples that are not clamped, the number of network calls, the entry times and, with
    ``keep_path=True``, the intermediate states."""
    networks: dict[PhaseName, InferenceNetwork] = field(repr=False)
    """The networks that sampling uses, by phase. They are in eval mode and have no gradients.
    Velocity networks take (x, t), or (x, t, labels) with classes; a time predictor takes (x). All
    inputs are tensors on ``device``; x and t are float32. With an affine start, first apply
    ``sampler.legs[0].network`` to the noise."""
    folder: RunFolder = field(repr=False)
    """The run's files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self._experiment.target.shape

    @property
    def _experiment(self) -> Experiment:
        return Experiment(self.config)

    @from_python(
        {
            "sampling.num_samples": "n",
            "sampling.label": "label",
            "sampling.batch_size": "batch_size",
        }
    )
    def sample(
        self,
        n: int,
        seed: int | None = None,
        *,
        label: str | int | None = None,
        nfe: int | None = None,
        batch_size: int | None = None,
        raw: bool = False,
    ) -> Tensor:
        """Draw samples as ``nsgf sample`` does. Each call draws new samples unless ``seed`` is
        given.

        Sample i depends only on the seed and on i. With ``sampling.solver: dopri5``, sample i also
        depends on the batch, because dopri5 chooses the steps for the whole batch.

        Args:
            n: number of samples.
            seed: seed of the noise; None: a random seed from torch's global generator.
            label: class of all samples, by name or number; None: ``sampling.label``. If this
                setting is null, the classes take turns.
            nfe: network calls for each sample, or slightly fewer; None: determined by the settings
                of sampling.
            batch_size: number of samples in a network call. The size affects only rounding, and the
                steps of dopri5. None: ``sampling.batch_size``.
            raw: whether images keep values outside of [-1, 1] instead of being clamped.

        Returns:
            ``(n, *shape)``, float32, on the CPU. Points of a user's file are float64, in the units
            of this file.

        Raises:
            UserError: an argument is out of range, or the card's memory is full.
        """
        changes = {
            "sampling.num_samples": n,
            "seed": int(torch.randint(2**63 - 1, ())) if seed is None else seed,
            "sampling.label": label,
            "sampling.batch_size": batch_size,
        }
        experiment = self._experiment.change(from_arguments(changes))
        check(experiment)
        if nfe is not None:
            method = experiment.trained_method(self.networks.__contains__)
            experiment = experiment.choose_calls(method, read_value("nfe", int, to_plain(nfe)))
        samples = generate(
            self.sampler.with_settings(experiment.config.sampling),
            experiment.source("sample"),
            experiment.config.sampling.num_samples,
            self.device,
            progress=False,
        )
        target = experiment.target
        return samples.x if raw and target.is_images else target.in_units(samples.x)

    @from_python({"start": "x", "sampling.label": "label", "sampling.batch_size": "batch_size"})
    def transport(
        self,
        x: Any,
        *,
        label: str | int | None = None,
        nfe: int | None = None,
        batch_size: int | None = None,
        trajectory: bool = False,
    ) -> Any:
        """Move samples of the source to the target, as ``nsgf sample --start`` does. Row i of the
        result is the place to which row i of ``x`` moves. The same samples always go to the same
        places.

        Args:
            x: a tensor, array or DataFrame (pandas, polars, pyarrow) of points (N, D) with the
                columns of the target and the units of its file; or images (N, C, H, W), uint8 or
                floats in [-1, 1]. If the source is a distribution: noise, (N, *shape).
            label: class of all samples, by name or number, for a run with classes.
            nfe: network calls for each sample, or slightly fewer; None: determined by the settings
                of sampling.
            batch_size: number of samples in a network call; None: ``sampling.batch_size``.
            trajectory: whether to return the start and the state after each of S steps.

        Returns:
            An object of the type of ``x``. Points have the units of the data. A DataFrame keeps its
            index and has float64 columns. Images are floats in [-1, 1], or uint8 if ``x`` is uint8.
            Floats of tensors and arrays keep their dtype. With ``trajectory``, the result has the
            shape (N, S + 1, *shape): a tensor if ``x`` is a tensor, otherwise an array. Floats of
            images are then not clamped.

        Raises:
            UserError: an argument is wrong or out of range, or the card's memory is full.
        """
        changes = {"sampling.label": label, "sampling.batch_size": batch_size}
        experiment = self._experiment.change(from_arguments(changes))
        check(experiment)
        if nfe is not None:
            method = experiment.trained_method(self.networks.__contains__)
            experiment = experiment.choose_calls(method, read_value("nfe", int, to_plain(nfe)))
        config = experiment.config
        target = experiment.target
        starts = to_starts(config.data, target, x)
        for note in starts.notes:
            show(note)
        sampler = self.sampler.with_settings(config.sampling)
        if trajectory:
            check_fixed_steps(sampler)
        batches = stream_batches(
            sampler,
            starts,
            starts.count,
            self.device,
            labels_of(starts, target, config.sampling.label),
            keep_path=trajectory,
            progress=False,
        )
        moved = torch.cat([states_of(target, batch) for batch in batches])
        return like_samples(moved, x, target.axes or ())

    @from_python({"sampling.batch_size": "batch_size"})
    def log_prob(
        self,
        x: Array,
        labels: str | int | Sequence[str | int] | Tensor | None = None,
        *,
        steps: int = ODE_STEPS,
        probes: int = PROBES,
        seed: int | None = None,
        batch_size: int | None = None,
    ) -> LogProb:
        """Return the natural logarithms of the density of samples, by the change of variables along
        the ODE of sampling. The page on measuring has the formula and its limits.

        Runs of nsgf, nsgf++h, affine, icfm, otcfm, otcfm+, sbcfm, 1rf and 2rf have a density. The
        settings of the sampler, such as its number of steps, have no effect, except
        ``sampling.guidance`` and ``sampling.tau``. The networks compute in float32.

        Args:
            x: samples, (N, *shape), in the units of `sample`: images are floats in [-1, 1],
                and the user's points have the units of their file.
            labels: classes of the samples, (N,), as integers or names; or one class for all
                samples; None: ``sampling.label``, or no classes.
            steps: number of Runge-Kutta steps along each ODE, with 4 network calls each. More steps
                make the error of the ODE smaller.
            probes: number of estimates of the divergence if a sample has more than 16 values.
                Otherwise the divergence is exact.
            seed: seed of the probes; None: a random seed from torch's global generator. The probes
                also depend on the batch size.
            batch_size: number of samples in a network call; None: ``sampling.batch_size``.

        Returns:
            ``value``, float64, (N,): natural logarithms of the density in the units of ``x``.
            ``error``, float64, (N,): standard error of each value, from the probes; 0 if the
            divergence is exact. ``gap``, float64, (N,): distance between each sample and the sample
            that `sample` draws in few steps from the same noise. It is a root mean square, in units
            of networks. If the gap is not small, samples of the run have another density.

        Raises:
            UserError: the method has no density; an argument is out of range; the networks need
                labels; the card's memory is full.
        """
        steps = positive_number("steps", steps, is_whole=True, most=MOST_STEPS)
        probes = positive_number("probes", probes, is_whole=True, most=MOST_PROBES)
        if probes < 2:
            raise wrong_setting("probes", probes, "must be >= 2, for the standard error")
        experiment = self._experiment.change(from_arguments({"sampling.batch_size": batch_size}))
        check(experiment)
        sampler = self._exact_sampler().with_settings(experiment.config.sampling)
        target = experiment.target
        points = sampler.read_samples(x)
        if target.is_images and not points.is_floating_point():
            raise UserError(f"x is {points.dtype}: must be floats in [-1, 1]")
        if labels is None and target.classes and experiment.config.sampling.label is None:
            raise UserError("labels: must be given, because the networks take classes")
        if isinstance(labels, str | int):
            labels = [labels] * len(points)
        values, gap = log_prob(
            sampler,
            experiment.source_law,
            target.from_units(points),
            sampler.read_labels(labels, len(points)),
            self.device,
            steps=steps,
            probes=probes,
            seed=int(torch.randint(2**63 - 1, ())) if seed is None else seed,
        )
        return summarise(values - target.log_volume, gap)

    def _exact_sampler(self) -> FlowSampler:
        """Return the sampler with networks in float32. 16-bit networks are read again."""
        if all(network.precision == "fp32" for network in self.networks.values()):
            return self.sampler
        experiment = self._experiment.change({"train.precision": "fp32"})
        method = experiment.trained_method(self.networks.__contains__)
        return experiment.load_sampler(self.folder, method)[0]

    def images(self, n: int, seed: int | None = None, **how: Any) -> list[Any]:
        """Draw images as ``sample`` does, and return a list of PIL images. Raise UserError for
        a run of points."""
        if len(self.shape) < 3:
            raise UserError("images: the run has points; use sample, or show")
        return [*to_pictures(self.sample(n, seed, **how))]

    def show(self, n: int | None = None, seed: int | None = None, **how: Any) -> Any:
        """Draw samples as ``sample`` does, and return a PIL image, which notebooks display. It is a
        grid of images, or a plot of the first two coordinates of points. By default, ``n`` is 64
        for images and 2,000 for points."""
        n = (64 if len(self.shape) == 3 else 2000) if n is None else n
        return draw_notebook_image(self.sample(n, seed, **how), self._experiment.target.axes)

    @from_python({})
    def to(self, device: str | torch.device) -> "Run":
        """Open the run again on another device, such as ``cuda:1``, with the same settings."""
        layer = from_arguments({"device": device and str(device)})
        experiment = self._experiment.change(layer)
        check(experiment)
        return _open(experiment, self.folder)

    @from_python({})
    def evaluate(self) -> dict[str, Any]:
        """Measure the run as ``nsgf evaluate`` does, and return the content of ``metrics.json``.
        Raise the errors of the command."""
        return evaluate_run(self._experiment, self.folder)[1]

    @from_python({"out": "file"})
    def report(self, file: Place) -> Path:
        """Write the page of ``nsgf report`` to a file, and return its path. Raise the errors of the
        command. Raise UserError if the file's name does not end in .html."""
        page, *_ = report_run(self._experiment, self._checkpoints("report"), out=file)
        return Path(page)

    @from_python({})
    def export(self, to: Place) -> Path:
        """Write the folder of ``nsgf export``, which must be new or empty, and return its path.
        Raise the errors of the command."""
        folder = expand_path("to", to)
        export_run(self._experiment, self._checkpoints("export"), folder)
        return folder

    @from_python({})
    def save_images(self, file: Place, samples: Tensor | ArrayLike) -> Path:
        """Write a grid of images into a PNG file, and return its path. Images are (N, C, H, W) or
        (N, H, W, C), floats in [-1, 1] or bytes, as for training. Raise UserError if the images
        have another form, or if the file does not end in .png."""
        png = expand_path("file", file)
        try:
            images = image_bytes(to_array(samples), least=1)
        except Exception as error:  # objects of a caller may raise any type
            raise UserError(f"samples: {one_line(error)}") from error
        if png.suffix.lower() != ".png" or not png.parent.is_dir():
            raise wrong_setting("file", file, "must end in .png, in a folder that exists")
        save_grid(to_unit_range(torch.from_numpy(images)), png)
        return png

    def _checkpoints(self, method: str) -> RunFolder:
        """Return the run's files. Raise UserError for an exported run."""
        if self.folder.results_name:
            raise UserError(f"{method}: {self.path} was exported; load its run folder instead")
        return self.folder


@from_python({"run": "path"})
def load(
    path: Place | Run,
    *,
    device: str | torch.device | None = None,
    network: UserNetwork | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Run:
    """Open a trained run for sampling. Nothing is written, and no code of the folder runs.

    Args:
        path: a run folder, a folder that ``nsgf export`` wrote, the name of a pretrained run
            (``mnist``), ``hf://OWNER/NAME[@REVISION]`` of the Hugging Face hub (extra ``hub``), or
            an open run, whose files are read again.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; None: the setting ``device``.
        network: your network, if the run was trained with one; its weights do not matter.
        overrides: settings by key, such as ``{"sampling.solver": "heun"}``.

    Raises:
        UserError: the run or the device does not exist; files are missing, damaged or of another
            run; a setting is wrong or does not fit the networks.
    """
    settings = from_arguments({"device": device and str(device)}, overrides)
    refuse_training(settings)
    path, network = folder_and_network(path, network)
    run = open_run(find_folder(path))
    run.network = network
    layer = {**settings, **class_name(network)}
    experiment = resolve("evaluate", layer, {}, run=run).experiment
    # an absolute path stays valid if the caller changes the working directory
    if "root" in experiment.target.uses:
        root = data_root(experiment.config.data).absolute()
        experiment = experiment.change({"data.root": str(root)})
    return _open(experiment, run)


def _open(experiment: Experiment, run: RunFolder) -> Run:
    """Load the networks of a run with these settings."""
    device = experiment.device
    method = experiment.trained_method(run.has_checkpoint)
    sampler, progress = experiment.load_sampler(run, method)
    if run.network is not None:
        check_network(run.network, experiment.target, device, trains=False)
    networks = {
        phase.name: leg.network
        for (_, phase), leg in zip(method.legs, sampler.legs, strict=True)
        if isinstance(leg.network, InferenceNetwork)
    }
    return Run(run.path, experiment.config, device, progress, sampler, networks, run)


def folder_and_network(
    run: Place | Run, network: UserNetwork | None
) -> tuple[Place, UserNetwork | None]:
    """Return the folder of a run, and the caller's network. For an open run, the default is the
    network with which the run was opened."""
    if not isinstance(run, Run):
        return run, network
    return run.path, run.folder.network if network is None else network


def class_name(network: UserNetwork | None) -> Layer:
    """Return the class name of a caller's network as a fact. Without a network, return no fact.
    Raise UserError unless ``network`` is a module, or a function that makes a module."""
    if network is None:
        return {}
    try:
        with keep_random_numbers():
            model = make_network(network)
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"a call of it returns {type(model).__name__}")
    except Exception as error:  # functions and classes of a caller may raise any type
        raise UserError(
            "network: must be a torch.nn.Module, or a function or class that makes one without "
            f"arguments: {one_line(error)}"
        ) from error
    return {"model.network": type(model).__name__}


def check_network(
    network: UserNetwork, target: Target, device: torch.device, *, trains: bool = True
) -> None:
    """Raise UserError unless a caller's network can be used. A call must return x's shape, and must
    change neither the inputs nor the state. The state must be finite. A second network with the
    same weights must return the same values. With ``trains``, the network must also have
    gradients."""
    classes = target.classes
    x = torch.randn(2, *target.shape, generator=make_generator(0), dtype=torch.float32)
    inputs = [x.to(device), torch.tensor([0.25, 0.5], dtype=torch.float32, device=device)]
    if classes:  # test one class, and the label `classes`, which means "no class" in training
        inputs.append(torch.tensor([0, classes], dtype=torch.int32, device=device))
    try:
        with keep_random_numbers([device] if device.type == "cuda" else []):
            model = make_network(network).to(device)
            if next(iter(inspect.signature(model.forward).parameters), "") in TIME_NAMES:
                raise ValueError(
                    "forward(t, x) must be forward(x, t); wrap it in a module whose "
                    "forward(self, x, t) returns self.network(t, x)"
                )
            state = copy.deepcopy(model.state_dict())
            _check_calls(model, inputs, trains)
            _check_state(model, state)
            _check_copy(model, make_network(network).to(device), state, inputs)
    except Exception as error:  # a network of a caller may raise any type
        shapes = ", ".join(f"{list(part.shape)} {part.dtype}" for part in inputs)
        raise UserError(f"network: fails with inputs {shapes}: {one_line(error)}") from error


def _check_calls(model: torch.nn.Module, inputs: list[Tensor], trains: bool) -> None:
    """Raise ValueError unless a network returns x's shape and does not change its inputs. With
    ``trains``, compute gradients too, which may raise any error."""
    for is_training in (True, False) if trains else (False,):
        copies = [part.clone() for part in inputs]
        with torch.set_grad_enabled(is_training):
            answer = model.train(is_training)(*copies)
        if answer.shape != inputs[0].shape:
            raise ValueError(f"returns {list(answer.shape)}, must return x's shape")
        if not all(map(torch.equal, copies, inputs)):
            raise ValueError("a call changes its inputs; it must leave them as they are")
        if is_training:
            weights = [part for part in model.parameters() if part.requires_grad]
            torch.autograd.grad(answer.float().sum(), weights, allow_unused=True)


def _check_state(model: torch.nn.Module, before: Mapping[str, Tensor]) -> None:
    """Raise ValueError if the state of a network is not finite, or if the calls changed the state.
    ``before``: the state before the calls. Checkpoints and exports hold this state."""
    for name, part in model.state_dict().items():
        if not part.isfinite().all():
            raise ValueError(f"{name} is not finite; register it with persistent=False")
        if name not in before or not part.equal(before[name]):
            raise ValueError(f"a call changes {name}; use no BatchNorm nor lazy parts")


def _check_copy(
    model: torch.nn.Module,
    again: torch.nn.Module,
    state: Mapping[str, Tensor],
    inputs: list[Tensor],
) -> None:
    """Raise ValueError unless the second network ``again``, with the weights of ``model``, returns
    the same values as ``model``. A later session makes such a second network."""
    # change the weights first: a last layer may begin with zeros, which would hide a difference
    moved = {name: part + part.is_floating_point() / 8 for name, part in state.items()}
    torch.clear_autocast_cache()  # the cache keeps 16-bit copies of the old weights
    again.eval()
    for network in (model, again):
        network.load_state_dict(moved)  # raises an error for expanded buffers
    if not torch.allclose(model(*inputs), again(*inputs), equal_nan=True):
        raise ValueError(
            "two of them differ with the same weights; keep random parts with "
            "register_buffer, and layers in nn.ModuleList"
        )
