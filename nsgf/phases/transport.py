"""The NSGF steps as a function of their start, and the starts of lines that they make.

Shapes: n samples, *shape one sample.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from nsgf.config.schema import FlowConfig
from nsgf.data import Sampler, class_labels
from nsgf.data.samplers import BLOCK, pages
from nsgf.phases.nsgf import NSGF
from nsgf.run.session import Session
from nsgf.sampling.network import InferenceNetwork
from nsgf.sampling.sampler import Network, nsgf_steps
from nsgf.sinkhorn.schedule import flow_time

Transport = Callable[..., Tensor]
"""Starts (n, *shape), with classes and labels (n,), -> (n, *shape), without gradients."""


def trained_steps(session: Session) -> Transport:
    """The trained NSGF steps (Algorithm 2), from the checkpoint of phase 1.

    Raises:
        UserError: NSGF is not trained.
    """
    config, device, log = session.config, session.device, session.tracker.log
    trained = NSGF().load(config, session.run, device)
    velocity = InferenceNetwork(trained.network, trained.precision, device, log)
    return steps_of(velocity, config.flow)


def steps_of(network: Network, flow: FlowConfig) -> Transport:
    """The steps with the velocities of any network, of x, t and with classes labels."""

    @torch.no_grad()
    def transport(x: Tensor, *labels: Tensor) -> Tensor:
        def velocity(x: Tensor, t: Tensor) -> Tensor:
            return network(x, t, *labels)

        return nsgf_steps(velocity, x, steps=flow.steps, flow_time=flow_time(flow))

    return transport


class WalkedStarts(Sampler):
    """What the NSGF steps make of a stream of noise, on their device.

    Of ``kept`` samples the first are walked, once, and come again in the same order. They wait in
    main memory. With K classes the steps of sample i are told class i mod K, of which ``kept`` is
    then a multiple.
    """

    def __init__(
        self,
        source: Sampler,
        transport: Transport,
        device: torch.device,
        kept: int | None,
        classes: int = 0,
    ) -> None:
        self.shape = source.shape
        self._source, self._transport = source, transport
        self._device, self._kept, self._classes = device, kept, classes
        self._pages: dict[int, Tensor] = {}

    def at(self, positions: range) -> Tensor:
        if self._kept is None:
            return self._walked(positions)
        parts = []
        for _, epoch in pages(positions, self._kept):
            for number, cut in pages(range(epoch.start, epoch.stop), BLOCK):
                parts.append(self._page(number)[cut].to(self._device))
        return torch.cat(parts)

    def _page(self, number: int) -> Tensor:
        """Always walked as a whole: what is computed together is rounded together."""
        if number not in self._pages:
            whole = range(number * BLOCK, (number + 1) * BLOCK)
            self._pages[number] = self._walked(whole).cpu()
        return self._pages[number]

    def _walked(self, positions: range) -> Tensor:
        x = self._source.at(positions).to(self._device)
        if not self._classes:
            return self._transport(x)
        return self._transport(x, class_labels(positions, self._classes).to(self._device))
