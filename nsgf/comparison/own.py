"""A caller's own method in a comparison: a function of noise and a number of network calls."""

import torch

from nsgf.comparison.trials import Comparison, Draw, Trial, at_nfe
from nsgf.config.schema import Config
from nsgf.phases import load_sampler
from nsgf.run.folder import RunFolder
from nsgf.sampling.sampler import FlowSampler, Leg, Samples
from nsgf.sampling.solvers import Observer
from nsgf.sinkhorn.base import to_tensor
from nsgf.system.errors import UserError


class FunctionLeg(Leg):
    """The whole way of a sample by a caller's function, which is believed to make ``nfe`` calls."""

    def __init__(self, config: Config, name: str, draw: Draw, nfe: int) -> None:
        super().__init__(config, torch.nn.Identity())
        self._name, self._draw, self._nfe = name, draw, nfe

    def carry(self, samples: Samples, observe: Observer | None) -> None:
        noise, name = samples.x, f'methods["{self._name}"]'
        x = to_tensor(name, self._draw(noise.clone(), self._nfe))
        if x.shape != noise.shape or not x.isfinite().all():
            raise UserError(
                f"{name}: returned {tuple(x.shape)} at nfe = {self._nfe}: must be finite numbers, "
                f"{tuple(noise.shape)} as the noise"
            )
        samples.x = x.to(noise)
        self.evaluations += self._nfe * len(x)
        if observe:
            observe(samples.x)


def trial_sampler(
    comparison: Comparison, trial: Trial, nfe: int, device: torch.device
) -> FlowSampler:
    """Return the sampler of a trained trial, or of a function, with ``nfe`` network calls."""
    config = comparison.trial_config(trial)
    if draw := comparison.functions.get(trial.method):
        return FlowSampler([FunctionLeg(config, trial.method, draw, nfe)])
    run = RunFolder(comparison.trial_folder(trial))
    return load_sampler(at_nfe(config, nfe), run, device)[0]
