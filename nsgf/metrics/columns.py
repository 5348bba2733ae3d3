"""Measures of points that W2 cannot replace: a classifier, and single columns.

W2 of few rows depends mostly on chance, and it hardly changes if a few samples lie where no row is.
The measures of this file compare all samples with the rows, however few rows there are.

Shapes: N samples, M rows, D columns.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nsgf.data import Data
from nsgf.metrics.distances import column_distances
from nsgf.metrics.measures import COLUMNS, Pairs, compute, measures_in
from nsgf.run.progress import count_progress
from nsgf.system.files import Plain
from nsgf.system.seeding import make_generator

ROWS = 2048
"""Largest number of samples, and of real rows, that are compared."""
FEW_ROWS = 256
FLOORS = 3, 10
"""Number of floors, and for fewer than FEW_ROWS rows, where floors differ more and cost less."""
WORST = 3
"""Number of columns that are reported."""


class RealRows:
    """Real points in the units of the data, for measures and for their floors."""

    def __init__(self, data: Data, measured: Data, n: int) -> None:
        """``data``: the points that were trained on. ``measured``: the held-out ones, or the same.
        ``n``: number of samples."""
        self._data = data
        self._measured = measured
        if data.points is None:  # a distribution
            self.rows = data.reference("columns").sample(max(n, ROWS))
            count = n
        elif measured is data or measured.points is None:
            self.rows = data.points
            count = len(self.rows) // 2
        else:
            self.rows = torch.cat([data.points, measured.points])
            count = len(measured.points)
        self.count = min(count, ROWS)
        """Number of rows that samples are compared with."""
        self.low = self.rows.min(0).values
        self.high = self.rows.max(0).values

    def compared(self, draw: int) -> Tensor:
        """Return the rows to compare samples with.  (count, D)"""
        return self._measured.reference("columns", str(draw)).sample(self.count)

    def divided(self, draw: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return ``count`` rows of a random division of all rows, and at most ROWS of the rest."""
        if self._data.points is None:
            rows = self._data.reference("columns floor", str(draw)).sample(2 * self.count)
        else:
            generator = make_generator(seed, "columns floor", draw)
            rows = self.rows[torch.randperm(len(self.rows), generator=generator)]
        return rows[: self.count], rows[self.count :][:ROWS]

    def is_outside(self, samples: Tensor) -> Tensor:
        """Whether samples are outside of the range of all rows, by column.  bool (N, D)"""
        return (samples < self.low) | (samples > self.high)

    def is_alone_at_end(self) -> Tensor:
        """Whether each row is outside of the range of the other rows, by column.  bool (M, D)"""
        alone = torch.zeros_like(self.rows, dtype=torch.bool)
        for end in (self.low, self.high):
            is_end = self.rows == end
            alone |= is_end & (is_end.sum(0) == 1)
        return alone


def measure_columns(data: Data, measured: Data, samples: Sequence[Tensor], seed: int) -> Plain:
    """Return the AUC of a classifier, the largest KS distance of a column, the share of samples
    outside of the range of the rows, and the worst columns, by the keys of ``metrics.json``.

    Values are means over the draws of ``samples``, (N, D) each, in the units of the data. Floors
    compare ``count`` real rows with the rest, in random divisions of all rows. The floor of the
    share is that of rows outside of the range of the other rows.
    """
    real = RealRows(data, measured, len(samples[0]))
    measures = measures_in("classifier", "columns")
    # floors
    floors = []
    column_floors = []
    for draw in range(FLOORS[real.count < FEW_ROWS]):
        rows, rest = real.divided(draw, seed)
        floors.append(compute(measures, {"classifier": (rest, rows), "columns": (rest, rows)}))
        column_floors.append(column_distances(rest, rows))
    other_rows = len(rest)  # as many samples, so that KS distances can be compared with the floor
    alone = real.is_alone_at_end()
    # samples
    values = []
    columns = []
    outside = []
    for draw, x in enumerate(count_progress(samples, "classifier and columns", "repeat")):
        rows = real.compared(draw)
        few = x[:other_rows]
        pairs: Pairs = {"classifier": (x[:ROWS], rows), "columns": (few, rows)}
        outside.append(real.is_outside(x))
        is_outside = outside[-1].any(1).double().mean()
        values.append(compute(measures, pairs) | {"outside_range": float(is_outside)})
        columns.append(column_distances(few, rows))
    found: Plain = {}
    for key in values[0]:
        found |= mean_and_spread(key, [value[key] for value in values])
        if key in floors[0]:
            found |= mean_and_spread(f"{key}_floor", [floor[key] for floor in floors])
    found["outside_range_floor"] = float(alone.any(1).double().mean())
    found["classifier_samples"] = min(len(samples[0]), ROWS)
    found["classifier_rows"] = real.count
    # columns
    ks = np.mean(columns, axis=0)
    ks_floor = np.mean(column_floors, axis=0)
    share = torch.cat(outside).double().mean(0).numpy()
    share_floor = alone.double().mean(0).numpy()
    worst = np.argsort(-np.maximum(ks - ks_floor, share - share_floor), kind="stable")[:WORST]
    found[COLUMNS] = [
        {
            "column": data.axes[number] if data.axes else f"x{number + 1}",
            "ks": float(ks[number]),
            "ks_floor": float(ks_floor[number]),
            "outside": float(share[number]),
            "outside_floor": float(share_floor[number]),
            "min": float(real.low[number]),
            "max": float(real.high[number]),
        }
        for number in worst
    ]
    return found


def mean_and_spread(key: str, scores: Sequence[float]) -> Plain:
    """Return mean and standard deviation by key."""
    return {key: float(np.mean(scores)), f"{key}_std": float(np.std(scores))}
