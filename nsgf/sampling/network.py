"""A trained network for sampling.

Shapes: B batch.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nsgf.system.errors import UserError
from nsgf.system.output import show
from nsgf.training.precision import DTYPES, Precision, precision_context


class InferenceNetwork(nn.Module):
    """A network in eval mode whose layers compute in a given precision, with float32 inputs and
    outputs. A batch that does not fit the card is split.

    Batches are split here, and not by callers, so that a solver that chooses its steps for a whole
    batch (dopri5) takes the same steps on a full card.
    """

    def __init__(
        self,
        model: nn.Module,
        precision: Precision,
        device: torch.device,
        log: Callable[[str], None] = show,
    ) -> None:
        """Take over ``model`` and cast the weights of its layers once, since autocast caches casts
        of trained weights only. ``log`` takes a line when a batch has to be split."""
        super().__init__()
        self.model, self._device, self._log = model, device, log
        self.precision = precision
        self._most: int | None = None
        """Samples that fit at once; None: as many as were given so far."""
        for layer in model.modules() if precision != "fp32" else ():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.to(DTYPES[precision])
        self.eval()

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the network's answer (B, ...) to inputs (B, ...).

        Raises:
            UserError: not even single samples fit into the card's memory.
        """
        size = together = min(len(inputs[0]), self._most or len(inputs[0]))
        while (answer := self._answer(inputs, together)) is None:
            if together <= 1:
                raise UserError(
                    "the card's memory is full, even with one sample at a time; free it of other "
                    "programs, or use --device cpu"
                )
            together = -(-together // 2)
            torch.cuda.empty_cache()
        if together < size:
            self._most = together
            self._log(
                f"the card's memory is full with {len(inputs[0])} samples at a time; continues "
                f"with {together} at a time through the network"
            )
        return answer

    def _answer(self, inputs: tuple[Tensor, ...], size: int) -> Tensor | None:
        """Return the answer, computed for ``size`` samples at a time; None if memory is full."""
        parts = zip(*(part.split(max(1, size)) for part in inputs), strict=True)
        try:
            with precision_context(self.precision, self._device):
                answers = [self.model(*part).float() for part in parts]
            return answers[0] if len(answers) == 1 else torch.cat(answers)
        except torch.cuda.OutOfMemoryError:
            return None  # the exception and what it holds are gone before the next try
