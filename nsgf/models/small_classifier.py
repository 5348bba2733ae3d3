"""Train and cache the small classifier. Measures compare samples in its features."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nsgf.data.images import ImageSet, to_unit_range
from nsgf.run.cache import fingerprint, load_or_compute
from nsgf.run.checkpoint import is_finite
from nsgf.run.lock import wait_for_lock
from nsgf.system.seeding import derive_seed, make_generator

SEED = 0
"""Seed of the classifier and of its reference samples, the same for all runs."""
ARCHITECTURE = 3
"""Version of the network and its training. Files with another version are not used."""
FEATURES = 64
"""Width of the last hidden layer."""
TRAINED_SHARE = 0.8
BATCH = 128
PEAK_RATE = 3e-3
INFERENCE_BATCH = 1000


class SmallCNN(nn.Module):
    """Convolutions (two for grey images, four for colour), a feature layer, a linear layer."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, size, _ = shape  # square
        layers, inputs = _colour_layers(size) if channels == 3 else _grey_layers(channels, size)
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, FEATURES), nn.ReLU())
        self.head = nn.Linear(FEATURES, classes)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) in [-1, 1] -> logits (B, classes)."""
        return self.head(self.body(x))


@dataclass(frozen=True)
class TrainedClassifier:
    """A trained classifier in eval mode, without gradients, and its accuracy."""

    network: SmallCNN
    accuracy: float
    """Share of held-out images whose label it gives, in [0, 1]: the mean over classes, so that a
    large class does not decide it. A class without held-out images counts as 0."""

    def features(self, pixels: Tensor, device: torch.device) -> Tensor:
        """Return features (N, F), float32 on the CPU, of images, uint8 (N, C, H, W)."""
        with torch.no_grad():
            parts = [
                self.network.body(to_unit_range(part.to(device))).cpu()
                for part in pixels.split(INFERENCE_BATCH)
            ]
        return torch.cat(parts)


def _grey_layers(channels: int, size: int) -> tuple[list[nn.Module], int]:
    """Return the convolutions and the number of values that leave them."""
    stride = 1 if size < 16 else 2  # 8 pixels are too few to halve twice
    side = (size - 1) // stride // 2 + 1
    first, second = nn.Conv2d(channels, 32, 3, stride, 1), nn.Conv2d(32, 64, 3, 2, 1)
    return [first, nn.ReLU(), second, nn.ReLU()], 64 * side * side


def _colour_layers(size: int) -> tuple[list[nn.Module], int]:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((3, 32, 64, 128, 256)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        if size > 3:  # batch normalisation of one image needs more than one pixel
            layers.append(nn.MaxPool2d(2))
            size //= 2
    return [*layers, nn.AdaptiveAvgPool2d(2)], 256 * 2 * 2


def split(count: int) -> tuple[Tensor, Tensor]:
    """Return the indices of the training images and of the held-out images."""
    order = torch.randperm(count, generator=make_generator(SEED, "classifier", "split"))
    trained = int(count * TRAINED_SHARE)
    return order[:trained], order[trained:]


def load_or_train(
    kind: ImageSet,
    images: Tensor,
    labels: Tensor,
    folder: Path,
    device: torch.device,
    log: Callable[[str], None],
) -> TrainedClassifier:
    """Load the classifier of a data set from its file, or train it and save the file.

    The file is used on all devices, so that their distances are comparable.

    Images are uint8, (N, C, H, W), labels int64, (N,); ``log`` gets a line after training.
    """
    key = (
        f"{kind.name}-{len(images)}-{fingerprint(images)}-{fingerprint(labels)}-v{ARCHITECTURE}-"
        f"{kind.classifier_epochs}x{BATCH}-seed{SEED}"
    )
    file = folder / f"{key}.pt"

    def compute() -> dict[str, Any]:
        trained = train(kind, images, labels, device)
        fitted, held_out = map(len, split(len(images)))
        log(
            f"classifier of {kind.name}: trained on {fitted} images, right on "
            f"{trained.accuracy:.2%} of {held_out} others; kept in {folder}"
        )
        state = {name: value.cpu() for name, value in trained.network.state_dict().items()}
        return {"model": state, "accuracy": trained.accuracy}

    with wait_for_lock(folder):
        return load_or_compute(file, partial(_from_file, kind, device), compute, log)


def train(
    kind: ImageSet, images: Tensor, labels: Tensor, device: torch.device
) -> TrainedClassifier:
    """Train a classifier on four fifths of the images and test it on the others. Deterministic;
    torch's global generator does not change."""
    fitted, held_out = split(len(images))
    network = _new_network(kind).to(device)
    updates = kind.classifier_epochs * -(-len(fitted) // BATCH)
    optimizer = torch.optim.Adam(network.parameters(), lr=PEAK_RATE)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=updates)
    for epoch in range(kind.classifier_epochs):
        generator = make_generator(SEED, "classifier", "epoch", epoch)
        order = fitted[torch.randperm(len(fitted), generator=generator)]
        for rows in order.split(BATCH):
            batch = to_unit_range(images[rows].to(device))
            if kind.shape[0] == 3:  # colour photographs may be mirrored, digits may not
                batch[1::2] = batch[1::2].flip(-1)
            loss = functional.cross_entropy(network(batch), labels[rows].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()
    network.eval().requires_grad_(False)
    right = torch.cat(
        [
            network(to_unit_range(images[rows].to(device))).argmax(1).cpu() == labels[rows]
            for rows in held_out.split(INFERENCE_BATCH)
        ]
    )
    wanted = functional.one_hot(labels[held_out], kind.classes).float()
    accuracy = (right.float() @ wanted / wanted.sum(0).clamp(min=1)).mean()
    return TrainedClassifier(network, float(accuracy))


def _new_network(kind: ImageSet) -> SmallCNN:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(SEED, "classifier", "weights"))
        return SmallCNN(kind.shape, kind.classes)


def _from_file(kind: ImageSet, device: torch.device, payload: Any) -> TrainedClassifier:
    """Return the classifier from the content of its file; raise any exception if that is wrong."""
    network = _new_network(kind)
    network.load_state_dict(payload["model"])
    if not is_finite(network.state_dict()):
        raise ValueError("weights that are not finite")
    network.to(device).eval().requires_grad_(False)
    return TrainedClassifier(network, float(payload["accuracy"]))
