"""Check a configuration: ranges from the schema, and rules between settings."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from nsgf.config.layers import SETTINGS, Layer
from nsgf.config.schema import OF_PHASES, SOURCE_FILE, Config
from nsgf.config.values import expand_path, format_value, is_path
from nsgf.experiment import Experiment
from nsgf.models import MOST_VALUES
from nsgf.phases import METHODS
from nsgf.phases.generator import nearest_multiple
from nsgf.sampling.likelihood import METHODS_WITH_DENSITY, has_density
from nsgf.system.errors import UserError, list_names, name_setting, suggest, wrong_setting

EXP = re.compile(r"[\w-]{1,100}")
DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,2})?")
LIMITED = (
    "root",
    "fake",
    "flip",
    "path",
    "size",
    "skip_broken",
    "header",
    "columns",
    "label",
    "held_out",
    "key",
)
"""Settings of ``data`` that must keep their default values if the data set does not use them."""
Rule = tuple[str, str]
"""Key of a wrong setting, and the part of the message after ``KEY = VALUE:``."""


def check(experiment: Experiment) -> None:
    """Raise UserError if any setting is wrong. The one-line message names each wrong setting."""
    check_values(experiment.config)
    rules = Rules(experiment)
    wrong = [*rules.of_method(), *rules.of_phases(), *rules.of_data(), *rules.of_classes()]
    wrong += rules.of_density()
    if experiment.target.is_images:
        wrong += rules.of_unet()
    if wrong:
        _refuse(experiment.config, wrong)


def check_training(experiment: Experiment) -> None:
    """Raise UserError if ``phases`` has a phase that the method does not train, or if the run
    folder would lie among the images. Call :func:`check` first."""
    config = experiment.config
    if unused := config.phases[len(experiment.method.trains) :]:
        raise wrong_setting(
            "phases",
            format_value(config.phases),
            "no sample uses "
            f"{list_names(unused)}; add phase predictor, or use {suggest('nsf.source', 'nsgf')} or "
            f"{suggest('sampling.tau', 'T')}",
        )
    data = config.data
    out = config.out_path.resolve()
    for key in ("path", "source_path"):
        folder = getattr(data, key) if data.name == "images" else None
        if folder and out.is_relative_to(expand_path(key, folder).resolve()):
            raise wrong_setting(
                "out_dir",
                out,
                f"must not be in data.{key}, among the images; use {suggest('out_dir', '../runs')}",
            )


def check_values(config: Config) -> None:
    """Raise UserError if a value is outside of the range of its setting. Relations between settings
    are not checked."""
    wrong = []
    for key, item in SETTINGS.items():
        value = item.get(config)
        for number in value if isinstance(value, list) else (value,):
            if item.range and isinstance(number, int | float) and number not in item.range:
                wrong.append((key, f"must be {item.range}"))
        if isinstance(value, str) and not value.isprintable():
            wrong.append((key, "must be printable characters"))
        if item.is_path and value is not None and not is_path(value):
            wrong.append((key, "must be a path (~NAME of an existing user)"))
    if not EXP.fullmatch(config.exp):
        wrong.append(("exp", "must be 1 to 100 letters, digits, '-' and '_'"))
    if wrong:
        _refuse(config, wrong)


def _refuse(config: Config, wrong: list[Rule]) -> NoReturn:
    trained = {key.partition(".")[2] for key, _ in wrong if key.startswith((*config.phases,))}
    lines = []
    for key, must in wrong:
        section, _, name = key.partition(".")
        # --lr sets the value of every phase, so do not repeat an error for phases that are not
        # trained
        if section not in OF_PHASES or section in config.phases or name not in trained:
            lines.append(f"{name_setting(key, format_value(SETTINGS[key].get(config)))}: {must}")
    raise UserError("; ".join(lines))


@dataclass(frozen=True)
class Rules:
    """The rules between settings. Each method yields the rules that an experiment breaks."""

    experiment: Experiment

    @property
    def config(self) -> Config:
        """The settings."""
        return self.experiment.config

    def of_method(self) -> Iterator[Rule]:
        """Yield broken rules for phases, and for settings that select a method."""
        config = self.config
        phases = config.phases
        methods = [method for method in METHODS if method.names == phases]
        if not methods:
            names = ", ".join(dict.fromkeys(format_value(method.names) for method in METHODS))
            yield "phases", f"must be one of {names}"
        misfits = [method.misfits(config) for method in methods if not self.experiment.methods]
        for key, allowed in min(misfits, key=len, default={}).items():
            yield key, f"must be {allowed} with phases {format_value(phases)}"
        if not DEVICE.fullmatch(config.device):
            yield "device", "must be auto, cpu, cuda or cuda:N"
        for key, item in SETTINGS.items():
            for condition in item.conditions if item.default is None else ():
                if item.get(config) is not None and not condition.holds(config):
                    yield key, f"must be null unless {condition}"
        for key in ("methods", "nfe", "targets"):
            values = getattr(config.compare, key)
            if len(set(values)) < len(values) or not (values or key == "targets"):
                yield f"compare.{key}", "must name none twice; methods and nfe need at least one"

    def of_phases(self) -> Iterator[Rule]:
        """Yield broken rules for the sections of the trained phases."""
        config = self.config
        phases = config.phases
        if config.nsf.source == "affine" and "nsf" in phases:
            if config.nsf.init != "random":
                yield "nsf.init", "must be random with nsf.source affine"
            if config.flow.schedule == "constant" and config.flow.eta > 1:
                yield "flow.eta", "must be <= 1 with nsf.source affine"
            size = math.prod(self.experiment.target.shape)
            if size > MOST_VALUES:
                yield (
                    "nsf.source",
                    f"must not be affine for samples of {size} values, more than {MOST_VALUES}",
                )
        sinkhorn = config.sinkhorn
        if sinkhorn.first_blur is not None and sinkhorn.first_blur < sinkhorn.blur:
            last_blur = name_setting("sinkhorn.blur", f"{sinkhorn.blur:g}")
            yield "sinkhorn.first_blur", f"must be >= {last_blur}"
        if config.peer.method == "sbcfm" and config.peer.sigma == 0:
            yield "peer.sigma", "must be > 0 for sbcfm"
        split = config.train.accumulate
        least = min((config.of_phase(phase).batch_size for phase in phases), default=split)
        if split > least:
            yield "train.accumulate", f"must be <= {least}, the smallest batch_size of a phase"
        if "generator" in phases:
            if split > 1:
                yield (
                    "train.accumulate",
                    "must be 1 with phase generator, whose transport problems need the whole batch",
                )
            if config.generator.batch_size < 4:
                yield "generator.batch_size", "must be >= 4, two halves"
            if not config.generator.blurs:
                yield "generator.blurs", "must have at least one"

    def of_data(self) -> Iterator[Rule]:
        """Yield broken rules for source and target."""
        data = self.config.data
        target = self.experiment.target
        if data.source not in target.sources:
            allowed = " or ".join(target.sources).replace(SOURCE_FILE, f"the path of {data.name}")
            given = f"not the path {data.source_path}" if data.source == SOURCE_FILE else ""
            must = ", ".join(filter(None, (f"must be {allowed} for {target.name}", given)))
            yield "data.source", must
        if data.source == data.name:
            yield "data.source", "must differ from data.name"
        for name in LIMITED:
            usual = SETTINGS[f"data.{name}"].default
            if name not in target.uses and getattr(data, name) != usual:
                must = f"must be {format_value(usual)} for {data.name}"
                if "path" in target.uses and data.path:
                    must += f" in {Path(data.path).name}"
                if name == "path":
                    must += f"; for your own data use {suggest('exp')} points or images"
                yield f"data.{name}", must
        if self.config.evaluation.features not in ("auto", "none") and not target.is_images:
            yield "evaluation.features", f"must be auto or none for {data.name}, which are points"

    def of_density(self) -> Iterator[Rule]:
        """Yield broken rules for bits per dimension."""
        if self.config.evaluation.bits_images is None:
            return
        if not self.experiment.target.is_images:
            yield (
                "evaluation.bits_images",
                f"must be null for {self.config.data.name}, which are points",
            )
        if self.config.data.source == SOURCE_FILE:
            yield "evaluation.bits_images", "must be null for a source file, which has no density"
        for method in self.experiment.methods[:1]:
            if not has_density([leg for leg, _ in method.legs]):
                yield (
                    "evaluation.bits_images",
                    f"must be null unless sampling is an ODE, as with {METHODS_WITH_DENSITY}",
                )

    def of_unet(self) -> Iterator[Rule]:
        """Yield broken rules for the UNet, and for the time predictor of images."""
        from nsgf.models.unet import GROUPS

        unet = self.config.model.unet
        height, width = self.experiment.target.shape[1:]
        parts = 2 ** max(0, len(unet.mult) - 1)
        if not unet.mult or height % parts or width % parts:
            yield (
                "model.unet.mult",
                f"must have 1 level or more that halve {height} x {width} pixels evenly",
            )
        if unet.channels % GROUPS:
            yield "model.unet.channels", f"must be a multiple of {GROUPS} (GroupNorm)"
        sides = {height >> level: unet.channels * mult for level, mult in enumerate(unet.mult)}
        if not set(unet.attention) <= set(sides):
            yield "model.unet.attention", f"must be out of {list(sides)} (pixels of height)"
        # the middle block, which has the smallest images, always has attention
        widths = {sides[side] for side in (*unet.attention, *list(sides)[-1:]) if side in sides}
        if any(width % unet.heads for width in widths):
            yield "model.unet.heads", f"must divide the attention widths {sorted(widths)}"

    def of_classes(self) -> Iterator[Rule]:
        """Yield broken rules about classes. Some rules apply only to runs without classes."""
        data = self.config.data
        target = self.experiment.target
        sampling = self.config.sampling
        if not data.conditional:
            if sampling.guidance != 1:
                yield "sampling.guidance", "must be 1 unless data.conditional is true"
            return
        classes = target.classes
        if not classes:
            need = (
                f"name their column with {suggest('data.label', 'COLUMN')}"
                if "label" in target.uses
                else "labels, or two or more folders of ten or more images, no other images, and "
                "no folders such as train and test"
            )
            yield (
                "data.conditional",
                f"must be false for {data.name}, which has no classes ({need})",
            )
        if data.fake:
            yield "data.conditional", "must be false with data.fake, whose images have no classes"
        if sampling.omega is not None:
            yield "sampling.omega", "must be null with data.conditional"
        label = sampling.label
        if classes and label is not None and target.class_number(label) is None:
            yield (
                "sampling.label",
                f"must be a class ({list_names(target.class_names)}) or, if no name is a number, "
                f"its number, 0 to {classes - 1}; null: all",
            )
        too_few = self.config.pool.num_batches < classes and not self.config.smoke
        if "nsgf" in self.config.phases and too_few:
            yield "pool.num_batches", f"must be >= {classes}, a flow for each class"
        for key, value in fit_to_classes(self.config, classes).items():
            must = f"must be {format_value(value)} for {classes} classes, which it must not mix"
            yield key, must


def fit_to_classes(config: Config, classes: int) -> Layer:
    """Find settings that would mix the ``classes`` classes, or would make some classes more
    frequent than others. Return the nearest allowed values of these settings."""
    phases = config.phases if classes else []
    nsf = config.nsf
    layer: Layer = {}
    if "nsf" in phases:
        layer["nsf.coupling"] = "independent"
        layer["nsf.starts"] = nsf.starts and nearest_multiple(nsf.starts, classes)
        if nsf.coupling != "independent":
            layer["nsf.coupling_batch"] = None
    if "peer" in phases:
        layer["peer.coupling_batch"] = None
    if "reflow" in phases:
        layer["reflow.pairs"] = nearest_multiple(config.reflow.pairs, classes)
    if "generator" in phases:
        for name in ("batch_size", "targets"):
            count = getattr(config.generator, name)
            layer[f"generator.{name}"] = count and nearest_multiple(count, 2 * (classes + 1))
    return {key: value for key, value in layer.items() if SETTINGS[key].get(config) != value}
