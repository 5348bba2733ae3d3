"""The velocity by flash-sinkhorn (Triton, CUDA): geomloss's iteration without any n x n matrix."""

import torch
from torch import Tensor

from nsgf.config.schema import SinkhornConfig
from nsgf.sinkhorn.base import OneByOneSolver
from nsgf.system.errors import UserError


class FlashSolver(OneByOneSolver):
    """v = -n grad S_eps, for clouds of which a matrix of costs would not fit on the card."""

    def __init__(self, config: SinkhornConfig) -> None:
        """
        Raises:
            UserError: flash-sinkhorn is not installed.
        """
        super().__init__(config)
        try:
            from flash_sinkhorn import SamplesLoss
        except ImportError as error:
            raise UserError(
                "sinkhorn.solver = flash: needs flash-sinkhorn; pip install -e .[flash], or use "
                "--sinkhorn.solver batched"
            ) from error
        self._divergence = SamplesLoss(
            "sinkhorn",
            p=2,
            blur=self._blur,
            scaling=self._scaling,
            debias=True,
            half_cost=True,
            allow_tf32=False,
            autotune=False,  # kernels chosen by their times would round differently in each run
        )

    def _solve(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            (gradient,) = torch.autograd.grad(self._divergence(x, y.detach()), x)
        return -len(x) * gradient
