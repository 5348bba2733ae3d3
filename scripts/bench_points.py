"""Sets of points with known parts: make them, and measure the runs of a comparison.

    python scripts/bench_points.py make DIR                  # DIR/SET.npy: points to train on
    python -m nsgf compare --exp points --data.path DIR/SET.npy --out-dir DIR/SET ...
    python scripts/bench_points.py measure DIR FILE.csv      # adds the runs below DIR that ended
    python scripts/bench_points.py draw FILE.csv FILE.png

Samples are compared with held-out points, in standardised columns. All sets have known parts.
W2 and copies are measured at ten calls.
"""

import csv
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import make_swiss_roll
from sklearn.decomposition import PCA
from torch import Tensor
from torchvision.datasets import MNIST

import nsgf
from nsgf.metrics.distances import energy_distance
from nsgf.sinkhorn.exact import w2

POINTS, HELD_OUT, DRAWS = 10_000, 4096, 4
CALLS = (2, 3, 5, 10, 20, 100)
Labelled = tuple[np.ndarray, np.ndarray]
"""Points (N, D) and the number of the part that each belongs to (N,)."""
METHODS = {"nsgf++h": "NSGF++h", "nsgf": "NSGF", "affine": "Affine", "otcfm+": "OT-CFM+"}
METHODS |= {"otcfm": "OT-CFM", "icfm": "I-CFM", "nsgf++": "NSGF++", "floor": "other points"}


def mixture(n: int, rng: np.random.Generator, dim: int) -> Labelled:
    """12 Gaussians of deviation 0.5 whose centres have deviation 4."""
    centres = 4 * np.random.default_rng(dim).normal(size=(12, dim))
    part = rng.integers(12, size=n)
    return centres[part] + 0.5 * rng.normal(size=(n, dim)), part


def pinwheel(n: int, rng: np.random.Generator) -> Labelled:
    """Five arms that turn with the distance from the centre."""
    part = rng.integers(5, size=n)
    along, across = 1 + 0.3 * rng.normal(size=n), 0.1 * rng.normal(size=n)
    angle = 2 * np.pi * part / 5 + 0.25 * np.exp(along)
    turn = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], 1)
    return 2 * np.einsum("ni,nij->nj", np.stack([along, across], 1), turn.reshape(-1, 2, 2)), part


def tree(n: int, rng: np.random.Generator) -> Labelled:
    """A stem in 10 dimensions that splits three times in two; its parts are the 15 branches."""
    steps = 2 * np.random.default_rng(10).normal(size=(16, 10)) / 10**0.5
    starts = np.zeros((16, 10))
    for branch in range(2, 16):
        starts[branch] = starts[branch // 2] + steps[branch // 2]
    part, way = rng.integers(1, 16, size=n), rng.uniform(size=(n, 1))
    return starts[part] + way * steps[part] + 0.05 * rng.normal(size=(n, 10)), part - 1


def spirals(n: int, rng: np.random.Generator) -> Labelled:
    """Two arms that wind round each other one and a half times."""
    part = rng.integers(2, size=n)
    radius = 0.5 + 3 * rng.uniform(size=n) ** 0.5
    angle = np.pi * (radius + part)
    x = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    return x + 0.05 * rng.normal(size=(n, 2)), part


def roll(n: int, rng: np.random.Generator) -> Labelled:
    """The swiss roll in space, its length last; its parts are eight equal stretches along it."""
    x, along = make_swiss_roll(n, noise=0.3, random_state=int(rng.integers(2**31)))
    return x[:, [0, 2, 1]], np.digitize(along, np.linspace(1.5, 4.5, 9)[1:-1] * np.pi)


def mnist(n: int, rng: np.random.Generator) -> Labelled:
    """MNIST's images as a table of their 16 principal components; its parts are the digits."""
    sets = [MNIST("data", train=is_train, download=True) for is_train in (True, False)]
    images = np.concatenate([images.data.flatten(1).numpy() / 255 for images in sets])
    kept = rng.permutation(len(images))[:n]
    x = PCA(16, random_state=0).fit_transform(images)
    return x[kept], np.concatenate([images.targets.numpy() for images in sets])[kept]


SETS: dict[str, Callable[[int, np.random.Generator], Labelled]] = {
    f"mixture-{dim}": partial(mixture, dim=dim) for dim in (2, 8, 32)
}
SETS |= {"pinwheel": pinwheel, "spirals": spirals, "roll": roll, "tree": tree, "mnist-16": mnist}


class Judge:
    """The points of a set, and measures against its held-out draws."""

    def __init__(self, name: str) -> None:
        x, part = SETS[name](POINTS + 2 * DRAWS * HELD_OUT, np.random.default_rng(0))
        self.points, self.scale = x[:POINTS], torch.as_tensor(x[:POINTS].std(0))
        self.draws = torch.as_tensor(x[POINTS:]).split(HELD_OUT)
        self.known, self.fresh = (torch.as_tensor(x) / self.scale)[: 2 * POINTS].split(POINTS)
        self.parts = torch.as_tensor(part[:5000])

    def measure(self, x: Tensor, draw: int, *, has_w2: bool = True) -> dict[str, float | str]:
        """Return the measures of samples (N, D): W2, 1000 times the energy distance, the share of
        samples in another part than they should be, the number of parts with less than a quarter
        of their share, the median distance to the nearest training point, divided by that of
        held-out points, and the share of samples nearer to a training point than to as many
        held-out points, which is more than 0.5 if samples repeat training points."""
        x, real = x / self.scale, self.draws[draw] / self.scale
        own, right = self._shares(x), self._shares(real)
        off, lost = float((own - right).abs().sum() / 2), int((own < right / 4).sum())
        energy = 1000 * energy_distance(x, real)
        near, usual = (nearest(each, self.known)[0] for each in (x, real))
        values = {"w2": w2(x, real) if has_w2 else "", "energy": energy, "parts_off": off}
        values |= {"parts_lost": lost, "nearness": float(near.median() / usual.median())}
        copied = near < nearest(x, self.fresh)[0] if has_w2 else None
        return values | {"copies": "" if copied is None else float(copied.double().mean())}

    def _shares(self, x: Tensor) -> Tensor:
        own = self.parts[nearest(x, self.known[: len(self.parts)])[1]]
        return torch.bincount(own, minlength=int(self.parts.max()) + 1) / len(x)


def nearest(x: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distance to the nearest of the points, and its number, (N,) each."""
    found = [torch.cdist(rows, points).min(1) for rows in x.split(1024)]
    return torch.cat([each.values for each in found]), torch.cat([each.indices for each in found])


def measure(folder: Path, file: Path) -> None:
    """Append the measures of the floors and of all compared runs that the file does not have."""
    rows = [*csv.DictReader(file.open())] if file.exists() else []
    known = {(row["set"], row["method"], row["seed"]) for row in rows}
    for name in (name for name in SETS if (folder / name).exists()):
        judge, tables = Judge(name), sorted((folder / name).glob("compare-*/table.csv"))
        for draw in range(DRAWS) if tables and (name, "floor", "0") not in known else ():
            values = judge.measure(judge.draws[DRAWS + draw], draw)
            head = {"set": name, "method": "floor", "seed": draw, "nfe": 0, "train_seconds": 0}
            rows.append(head | values)
        lines = [(table.parent, row) for table in tables for row in csv.DictReader(table.open())]
        for place, row in lines:
            method, seed, cost = row["method"], row["seed"], row["train_seconds"]
            if (name, method, seed) in known or method == "floor":
                continue
            known.add((name, method, seed))
            run = nsgf.load(next(place.glob(f"*/{method}-seed{seed}")), device="cpu")
            for nfe in CALLS:
                if method != "nsgf++" or nfe > 2:  # which has three networks to call
                    x = run.sample(HELD_OUT, seed=10_000 + int(seed), nfe=nfe)
                    values = judge.measure(x, int(seed) % DRAWS, has_w2=nfe == 10)
                    head = {"set": name, "method": method, "seed": seed, "nfe": nfe}
                    rows.append(head | {"train_seconds": cost} | values)
            with file.open("w", newline="") as stream:
                writer = csv.DictWriter(stream, [*rows[0]], lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)


def draw(file: Path, picture: Path) -> None:
    """Draw the mean energy distance against calls, a panel for each set, over the floors."""
    rows = [*csv.DictReader(file.open())]
    figure, axes = plt.subplots(2, 4, figsize=(14, 6), layout="constrained")
    for axis, name in zip(axes.flat, SETS, strict=True):
        for method, label in METHODS.items():
            values: dict[int, list[float]] = {}
            for row in rows:
                if (row["set"], row["method"]) == (name, method):
                    values.setdefault(int(row["nfe"]), []).append(float(row["energy"]))
            if method == "floor" and values:
                axis.axhspan(0.01, max(values[0]), color="0.9", label=label)
            elif values:
                means = [max(np.mean(values[nfe]), 0.1) for nfe in values]
                axis.loglog([*values], means, "o-", ms=3, label=label)
        axis.set(title=name, xlabel="network calls", ylim=(0.1, 300))
    axes[0, 0].set_ylabel("1000 x energy distance")
    figure.legend(*axes[0, 1].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(picture, dpi=110)


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        np.save(folder / f"{name}.npy", Judge(name).points)


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"make": make, "measure": measure, "draw": draw}
    command = commands.get("".join(sys.argv[1:2]))
    if command is None or len(sys.argv) != (3 if command is make else 4):
        sys.exit(__doc__)
    command(*map(Path, sys.argv[2:]))
