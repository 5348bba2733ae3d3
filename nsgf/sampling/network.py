"""Wrapper of a trained network for sampling.

Shapes: B batch.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nsgf.system.errors import UserError, suggest
from nsgf.system.output import show
from nsgf.training.precision import DTYPES, Precision, precision_context


class InferenceNetwork(nn.Module):
    """A network in eval mode that computes in a given precision, with float32 inputs and outputs.

    A batch that does not fit into the card's memory is split here, and not by the caller, so that
    dopri5, which chooses steps for the whole batch, takes the same steps on any card.
    """

    def __init__(
        self,
        model: nn.Module,
        precision: Precision,
        device: torch.device,
        log: Callable[[str], None] = show,
    ) -> None:
        """Wrap ``model`` and cast the weights of its layers in place, since autocast would cast
        them again at each call. ``log`` gets a line when a batch is split."""
        super().__init__()
        self.model, self._device, self._log = model, device, log
        self.precision = precision
        self._most: int | None = None
        """Largest number of samples that fit into memory together; None: no limit known."""
        for layer in model.modules() if precision != "fp32" else ():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.to(DTYPES[precision])
        self.eval()

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the network's output (B, ...) for inputs (B, ...). Raise UserError if the card's
        memory is too small for a single sample."""
        most = together = min(len(inputs[0]), self._most or len(inputs[0]))
        while True:
            parts = zip(*(part.split(max(1, together)) for part in inputs), strict=True)
            try:
                with precision_context(self.precision, self._device):
                    answers = [self.model(*part).float() for part in parts]
                break
            except torch.cuda.OutOfMemoryError as error:
                if together <= 1:
                    raise UserError(
                        "the card's memory is full, even with one sample at a time; stop other "
                        f"programs on it, or use {suggest('device', 'cpu')}"
                    ) from error
            together = -(-together // 2)  # the end of the handler has freed its tensors
            torch.cuda.empty_cache()
        if together < most:
            self._most = together
            self._log(
                f"the card's memory is full with {len(inputs[0])} samples at a time; continuing "
                f"with {together} at a time"
            )
        return answers[0] if len(answers) == 1 else torch.cat(answers)
