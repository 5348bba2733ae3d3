"""A resolved experiment: a configuration, and the objects that follow from the configuration.

The commands read an :class:`Experiment`. Phases, pool, sampling and metrics take the sections and
values that they use.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from nsgf.config.layers import Layer, change
from nsgf.config.schema import Config, PhaseName, SamplingConfig
from nsgf.data import Data, PointSet, Sampler, Target, build_source, source_law
from nsgf.phases import PHASES, Method, find_methods, preview_method
from nsgf.phases.base import Phase, load_network
from nsgf.run.folder import RunFolder
from nsgf.sampling.sampler import FlowSampler, InferenceNetwork, Network
from nsgf.system.hardware import pick_device
from nsgf.training.precision import Precision, pick_precision, sampling_precision
from nsgf.user_data import find_target, load_source


@dataclass(frozen=True)
class Experiment:
    """A valid configuration with its data set, method, device and precision.

    Each property is computed on first use, and then stored.
    """

    config: Config

    @cached_property
    def target(self) -> Target:
        """The record of the data set: shape, names of classes, units. Raise UserError if a user's
        data were not inspected."""
        return find_target(self.config.data)

    @cached_property
    def methods(self) -> list[Method]:
        """The methods that this configuration allows: first the method that trains all phases, then
        methods that train fewer phases."""
        return find_methods(self.config)

    @property
    def method(self) -> Method:
        """The method that trains all phases."""
        return self.methods[0]

    @cached_property
    def device(self) -> torch.device:
        """The device that the setting selects. Raise UserError if there is no such device."""
        return pick_device(self.config.device)

    @cached_property
    def precision(self) -> Precision:
        """Precision of training. Raise UserError if the card does not support it."""
        return pick_precision(self.config.train.precision, self.device, self.target.is_images)

    def change(self, layer: Layer) -> "Experiment":
        """Return the experiment with these values of some settings."""
        return Experiment(change(self.config, layer))

    def with_sampling(self, sampling: SamplingConfig) -> "Experiment":
        """Return the experiment with these settings of sampling."""
        return Experiment(replace(self.config, sampling=sampling))

    def phases(self, names: Sequence[PhaseName] | None = None) -> list[Phase]:
        """Return the phases with these names; None: all trained phases, in order."""
        names = self.config.phases if names is None else names
        return [PHASES[name](self.config, self.target) for name in names]

    def trained_method(self, is_trained: Callable[[PhaseName], bool]) -> Method:
        """Return the first of :attr:`methods` whose networks are all trained. With this method, an
        unfinished run can be sampled. If there is no such method, return the method of the
        experiment. Loading its networks then raises an error that names the missing checkpoint."""
        for method in self.methods:
            if all(is_trained(phase.name) for phase in method.networks):
                return method
        return self.method

    def unused_networks(self, method: Method) -> dict[str, str]:
        """Return ``not used`` for each phase whose network the experiment's method uses but
        ``method`` does not. There are such phases if a run is not fully trained."""
        phases = [phase for phase in self.method.networks if phase not in method.networks]
        return {phase.name: "not used" for phase in phases}

    def preview_method(self, phase: PhaseName) -> Method:
        """Return the method for a phase's preview."""
        return preview_method(self.config, phase)

    def choose_calls(self, method: Method, nfe: int) -> "Experiment":
        """Return the experiment with settings for ``nfe`` network calls for each sample, or
        slightly fewer. Raise UserError if this number of calls is not possible."""
        config = self.config
        classes = self.target.classes
        return self.with_sampling(method.choose_calls(config.sampling, config.flow, classes, nfe))

    def limit_calls(self, nfe: int) -> "Experiment":
        """Return the experiment with settings for ``nfe`` network calls, or fewer. ``nfe`` must be
        a possible number of calls."""
        config = self.config
        return self.with_sampling(self.method.limit_calls(config.sampling, config.flow, nfe))

    def load_data(self) -> Data:
        """Load source and target. Raise UserError if files are missing or damaged."""
        return Data(self.target, self.config.data, self.config.seed, self.source_data)

    @cached_property
    def source_data(self) -> Data | None:
        """The data of the source file; None: the source is a distribution. Raise UserError if files
        are missing, damaged or changed."""
        return load_source(self.config.data, self.config.seed)

    @cached_property
    def measured_source(self) -> Data | None:
        """The held-out part of :attr:`source_data`, or all of it if nothing is held out."""
        return self.source_data and self.source_data.measured()

    def limit_starts(self, count: int) -> int:
        """Return the number of samples to measure. It is ``count``, or the number of samples in the
        source file if that is smaller. A repeated start would end at the same place."""
        if self.measured_source is None:
            return count
        label = self.target.class_number(self.config.sampling.label)
        return min(count, self.measured_source.count_different(label) or count)

    def source(self, *stream: str, is_measured: bool = False) -> Sampler:
        """Return a sampler of mu0 with a separate random stream. Its samples have the classes that
        the settings of sampling select. No file of the target is read. ``is_measured``: whether to
        draw from the held-out part of a source file, if the file has one."""
        config = self.config
        data = self.measured_source if is_measured else self.source_data
        if data is None:
            return build_source(config.data.source, self.target.shape, config.seed, *stream)
        label = self.target.class_number(config.sampling.label)
        return data.target_by_class(*stream) if label is None else data.of_class(label, *stream)

    @property
    def source_law(self) -> PointSet:
        """The distribution mu0."""
        return source_law(self.config.data.source, self.target.shape)

    def load_sampler(
        self, run: RunFolder, method: Method | None = None
    ) -> tuple[FlowSampler, dict[str, str]]:
        """Return a sampler with the averaged weights of a run, and the training progress by phase.
        The progress includes :meth:`unused_networks`. ``method``: the method to sample with;
        None: :meth:`trained_method`.

        Raises:
            UserError: a checkpoint is missing or does not fit.
        """
        config = self.config
        method = method or self.trained_method(run.has_checkpoint)
        networks = dict[str, Network]()
        progress = dict[str, str]()
        for phase in self.phases([phase.name for phase in method.networks]):
            trained = load_network(phase, run, self.device)
            precision = sampling_precision(
                config.train.precision,
                config.sampling.solver,
                self.device,
                self.target.is_images,
                trained.precision,
            )
            networks[phase.name] = InferenceNetwork(trained.network, precision)
            progress[phase.name] = trained.progress
        progress |= self.unused_networks(method)
        legs = [
            leg(networks[phase.name], config.sampling, config.flow, self.target.classes)
            for leg, phase in method.legs
        ]
        return FlowSampler(legs, self.target), progress
