"""The small classifier whose features samples are compared in: network, training, its file."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from nsgf.data.images import ImageSet, to_unit_range
from nsgf.metrics.shared import damage, fingerprint
from nsgf.run.folder import replacing
from nsgf.run.lock import in_turn
from nsgf.system.errors import UserError, one_line
from nsgf.system.seeding import derive_seed, make_generator

FORMAT = 1
"""Of a classifier's file; those of another format are not used."""
ARCHITECTURE = 1
"""To be raised with any change of the network or of its training: files of others are not used."""
FEATURES = 64
TRAINED_SHARE = 0.8
BATCH = 128
PEAK_RATE = 3e-3
INFERENCE_BATCH = 1000


class SmallCNN(nn.Module):
    """Two convolutions, a layer of FEATURES, and a linear one for the classes."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        """
        Args:
            shape: of an image, (C, H, W), square.
            classes: kinds of images.
        """
        super().__init__()
        channels, size, _ = shape
        stride = 1 if size < 16 else 2  # 8 pixels would be too few to halve twice
        side = (size - 1) // stride // 2 + 1
        self.body = nn.Sequential(
            nn.Conv2d(channels, 32, 3, stride, 1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * side * side, FEATURES),
            nn.ReLU(),
        )
        self.head = nn.Linear(FEATURES, classes)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) in [-1, 1] -> logits (B, classes)."""
        return self.head(self.body(x))


@dataclass(frozen=True)
class Trained:
    """A classifier in eval mode, without gradients."""

    network: SmallCNN
    accuracy: float
    """Share of the held-out images whose label it gives, in [0, 1]."""
    held_out: int
    """Images that it was not trained on."""
    seconds: float
    """That its training took, when it was trained."""

    def features(self, pixels: Tensor, device: torch.device) -> Tensor:
        """uint8 (N, C, H, W) -> float32 (N, FEATURES) on the CPU."""
        with torch.no_grad():
            parts = [
                self.network.body(to_unit_range(part.to(device))).cpu()
                for part in pixels.split(INFERENCE_BATCH)
            ]
        return torch.cat(parts)


def split(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of the images to train on and of those held out: disjoint, together all."""
    order = torch.randperm(count, generator=make_generator(seed, "classifier", "split"))
    trained = int(count * TRAINED_SHARE)
    return order[:trained], order[trained:]


def obtain(
    kind: ImageSet,
    images: Tensor,
    labels: Tensor,
    folder: Path,
    seed: int,
    device: torch.device,
    log: Callable[[str], None],
) -> Trained:
    """The classifier of a data set: from its file, or trained now and kept there.

    The file serves all devices: distances that were taken on two of them are of one instrument.

    Args:
        kind: the data set's record.
        images: uint8, (N, C, H, W).
        labels: int64, (N,).
        folder: where classifiers are kept.
        seed: of the split, the initial weights and the order of the images.
        device: where it is trained and used.
        log: takes a line about what was done.
    """
    key = (
        f"{kind.name}-{len(images)}-{fingerprint(images)}-{fingerprint(labels)}-v{ARCHITECTURE}-"
        f"{kind.classifier_epochs}x{BATCH}-seed{seed}"
    )
    file = folder / f"{key}.pt"
    with in_turn(folder):
        return _obtain(file, kind, images, labels, seed, device, log)


def _obtain(
    file: Path,
    kind: ImageSet,
    images: Tensor,
    labels: Tensor,
    seed: int,
    device: torch.device,
    log: Callable[[str], None],
) -> Trained:
    if file.is_symlink() or file.exists():
        try:
            return _read(file, kind, len(images), seed, device)
        except UserError as error:
            log(f"{error}; the classifier is trained again")
    trained = train(kind, images, labels, seed, device)
    _write(file, trained)
    log(
        f"classifier of {kind.name}: trained on {len(images) - trained.held_out} images in "
        f"{trained.seconds:.1f} s, right on {trained.accuracy:.2%} of {trained.held_out} others; "
        f"kept in {file.parent}"
    )
    return trained


def train(
    kind: ImageSet, images: Tensor, labels: Tensor, seed: int, device: torch.device
) -> Trained:
    """A classifier trained on four fifths of the images and tried on the others.

    The same numbers follow from the same arguments; torch's global generator is left as it was.
    """
    start = time.perf_counter()
    fitted, held_out = split(len(images), seed)
    network = _initial(kind, seed).to(device)
    updates = kind.classifier_epochs * -(-len(fitted) // BATCH)
    optimizer = torch.optim.Adam(network.parameters(), lr=PEAK_RATE)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=updates)
    for epoch in range(kind.classifier_epochs):
        generator = make_generator(seed, "classifier", "epoch", epoch)
        order = fitted[torch.randperm(len(fitted), generator=generator)]
        for rows in order.split(BATCH):
            logits = network(to_unit_range(images[rows].to(device)))
            loss = functional.cross_entropy(logits, labels[rows].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()
    network.eval().requires_grad_(False)
    right = [
        network(to_unit_range(images[rows].to(device))).argmax(1).cpu() == labels[rows]
        for rows in held_out.split(INFERENCE_BATCH)
    ]
    accuracy = float(torch.cat(right).float().mean())
    return Trained(network, accuracy, len(held_out), time.perf_counter() - start)


def _initial(kind: ImageSet, seed: int) -> SmallCNN:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "classifier", "weights"))
        return SmallCNN(kind.shape, kind.classes)


def _write(file: Path, trained: Trained) -> None:
    """Keep a classifier in its file."""
    state = {name: value.cpu() for name, value in trained.network.state_dict().items()}
    payload = {"model": state, "accuracy": trained.accuracy, "seconds": trained.seconds}
    with replacing(file) as stream:
        torch.save({"format": FORMAT, **payload}, stream)


def _read(file: Path, kind: ImageSet, images: int, seed: int, device: torch.device) -> Trained:
    """A classifier from its file.

    Raises:
        UserError: it is damaged, of another format, or none.
    """
    network = _initial(kind, seed)
    try:
        if problem := damage(file):
            raise ValueError(problem)
        payload = torch.load(file, map_location="cpu", weights_only=True)
        if payload["format"] != FORMAT:
            raise ValueError(f"format {payload['format']}, not {FORMAT}")
        network.load_state_dict(payload["model"])
        accuracy, seconds = float(payload["accuracy"]), float(payload["seconds"])
        if not all(value.isfinite().all() for value in network.state_dict().values()):
            raise ValueError("weights that are not finite")
    except Exception as error:  # a foreign file may hold anything under these names
        cause = one_line(error)[:100]
        raise UserError(f"{file} is no classifier of this program ({cause})") from error
    network.to(device).eval().requires_grad_(False)
    return Trained(network, accuracy, len(split(images, seed)[1]), seconds)
