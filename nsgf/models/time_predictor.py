"""Time predictor t_phi for images (appendix of the paper)."""

from torch import Tensor, nn


class TimePredictorCNN(nn.Module):
    """Layers of 3x3 convolution, ReLU and 2x2 average pool, then a linear map and a sigmoid."""

    def __init__(self, image_shape: tuple[int, ...], channels: list[int]) -> None:
        """``image_shape``: (C, H, W); ``channels``: of each convolution's output.

        Raises:
            ValueError: the image is too small for that many halvings.
        """
        super().__init__()
        inputs, height, width = image_shape
        layers: list[nn.Module] = []
        for outputs in channels:
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
            inputs, height, width = outputs, height // 2, width // 2
        if not channels or height < 1 or width < 1:
            raise ValueError(f"{len(channels)} pooling layers do not fit {image_shape}")
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(inputs * height * width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) -> time in (0, 1), (B,)."""
        return self.head(self.features(x).flatten(1)).squeeze(1).sigmoid()
