"""Measures for points besides W2: the AUC of a classifier, and measures of single columns.

W2 to a few rows depends mostly on chance. W2 hardly changes if a few samples lie where no row is.
The measures of this file can compare many samples with only a few rows.

N: number of samples; M: number of rows; D: number of columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import Names
from nsgf.data import Data
from nsgf.metrics.distances import column_distances
from nsgf.metrics.measures import WORST_COLUMNS, Pairs, Values, compute, measures_in
from nsgf.run.progress import count_progress
from nsgf.system.files import Plain
from nsgf.system.seeding import make_generator

MOST_ROWS = 2048
"""Largest number of samples and of real rows in a comparison."""
FEW_ROWS = 256
FLOOR_DRAWS = 3, 10
"""Number of floors, which are measures of real rows in place of samples: the usual number, and the
number for fewer than FEW_ROWS rows. With few rows, floors vary more and cost less."""
STEP_ROWS = 4096
"""Largest number of rows from which the step of a column is computed (:func:`typical_step`). These
rows are spread over all rows."""
WORST = 3
"""Number of reported columns."""


class RealRows:
    """Real points in the units of the data, for measures and for the floors of measures."""

    def __init__(self, data: Data, measured: Data, n: int, seed: int) -> None:
        """``data``: the points that were trained on. ``measured``: the held-out points, or ``data``
        if nothing is held out. ``n``: number of samples."""
        self._seed = seed
        self._data = data
        self._measured = measured
        if data.user_points is None:  # a distribution
            self.rows = data.reference("columns").sample(max(n, MOST_ROWS))
            count = n
        elif measured is data or measured.user_points is None:
            self.rows = data.user_points
            count = len(self.rows) // 2
        else:
            self.rows = torch.cat([data.user_points, measured.user_points])
            count = len(measured.user_points)
        self.count = min(count, MOST_ROWS)
        """Number of rows that samples are compared with."""
        self.low, second_low = self.rows.topk(2, 0, largest=False).values
        self.high, second_high = self.rows.topk(2, 0).values
        self.step = typical_step(self.rows[:: -(-len(self.rows) // STEP_ROWS)])
        """Step of each column. It is needed because samples are not rounded like the rows."""
        reach = self.step / 2
        self.is_alone = (self.rows < second_low - reach) | (self.rows > second_high + reach)
        """Whether each row is outside of the range of the remaining rows, for each column. bool (M,
        D)"""

    def compared(self, draw: int) -> Tensor:
        """Return the rows that samples are compared with.  (count, D)"""
        return self._measured.reference("columns", str(draw)).sample(self.count)

    def divided(self, draw: int) -> tuple[Tensor, Tensor]:
        """Divide all rows at random. Return ``count`` rows, and at most MOST_ROWS of the remaining
        rows."""
        if self._data.user_points is None:
            rows = self._data.reference("columns floor", str(draw)).sample(2 * self.count)
        else:
            generator = make_generator(self._seed, "columns floor", draw)
            order = torch.randperm(len(self.rows), generator=generator)
            rows = self.rows[order[: self.count + MOST_ROWS]]
        return rows[: self.count], rows[self.count :]

    def is_outside(self, samples: Tensor) -> Tensor:
        """Whether each sample is more than half of a step outside of the range of all rows, for
        each column. bool (N, D)"""
        reach = self.step / 2
        return (samples < self.low - reach) | (samples > self.high + reach)

    def blurred(self, points: Tensor, *stream: str | int) -> Tensor:
        """Return samples or rows plus uniform noise, whose width is the step of the column. The
        noise hides that the rows are rounded. Without it, a classifier could recognize samples by
        their larger number of decimals. float64"""
        noise = torch.rand(
            points.shape, dtype=torch.float64, generator=make_generator(self._seed, *stream)
        )
        return points.double() + (noise - 0.5) * self.step


def typical_step(points: Tensor) -> Tensor:
    """Return the median difference between successive different values of each column. It is 1 for
    whole numbers, almost 0 for many values that are not rounded, and 0 if all values are equal. (M,
    D) -> (D,)"""
    gaps = points.double().sort(0).values.diff(dim=0)
    return gaps.where(gaps > 0, torch.nan).nanmedian(0).values.nan_to_num(0.0)


@dataclass
class _Draws:
    """Measures of several draws of samples, or of real rows for floors."""

    values: list[Values] = field(default_factory=list)
    """Measures of each draw by key."""
    distances: list[np.ndarray] = field(default_factory=list)
    """KS distance of each column, by draw, each (D,)."""
    outside: list[Tensor] = field(default_factory=list)
    """Whether samples are outside of the range of the rows, for each draw and column. bool (N, D)
    each"""
    compared: int = 0
    """Number of samples for each KS distance."""


def measure_columns(data: Data, measured: Data, samples: Sequence[Tensor], seed: int) -> Plain:
    """Return the measures of points by the keys of ``metrics.json``. They are the AUC of a
    classifier, the largest KS distance of a column, the share of samples outside of the range of
    the rows, and the worst columns.

    Values are means over the draws of ``samples``, (N, D) each, in the units of the data. Floors
    compare ``count`` real rows with the remaining rows, in random divisions of all rows. The floor
    of the share counts each row that is outside of the range of the remaining rows.
    """
    real = RealRows(data, measured, len(samples[0]), seed)
    floors = _measure_floors(real)
    draws = _measure_samples(real, samples, floors.compared)
    measured_values: Plain = {}
    for key in draws.values[0]:
        measured_values |= mean_and_spread(key, [value[key] for value in draws.values])
        if key in floors.values[0]:
            floor_values = [value[key] for value in floors.values]
            measured_values |= mean_and_spread(f"{key}_floor", floor_values)
    measured_values["outside_range_floor"] = float(real.is_alone.any(1).double().mean())
    measured_values["classifier_samples"] = min(len(samples[0]), MOST_ROWS)
    measured_values["classifier_rows"] = real.count
    measured_values[WORST_COLUMNS] = _describe_worst(real, draws, floors, data.axes)
    return measured_values


def _measure_floors(real: RealRows) -> _Draws:
    """Return the measures of real rows in place of samples, in random divisions of all rows."""
    floors = _Draws(outside=[real.is_alone])
    for draw in range(FLOOR_DRAWS[real.count < FEW_ROWS]):
        rows, other_rows = (
            real.blurred(part, "floor", draw, number)
            for number, part in enumerate(real.divided(draw))
        )
        distances = column_distances(other_rows, rows)
        floors.values.append(_compare(other_rows, rows, distances))
        floors.distances.append(distances)
        floors.compared = len(other_rows)
    return floors


def _measure_samples(real: RealRows, samples: Sequence[Tensor], compared: int) -> _Draws:
    """Return the measures of the draws of ``samples``. ``compared``: number of samples for KS
    distances. It is the same as in the floors, because the distances depend on this number."""
    draws = _Draws(compared=compared)
    for draw, x in enumerate(count_progress(samples, "classifier and columns", "repeat")):
        rows = real.blurred(real.compared(draw), "rows", draw)
        blurred = real.blurred(x[:MOST_ROWS], "samples", draw)
        distances = column_distances(blurred[:compared], rows)
        outside = real.is_outside(x)
        share = float(outside.any(1).double().mean())
        draws.values.append(_compare(blurred, rows, distances) | {"outside_range": share})
        draws.distances.append(distances)
        draws.outside.append(outside)
    return draws


def _compare(x: Tensor, rows: Tensor, distances: np.ndarray) -> Values:
    """Return the measures of samples x (N, D) against rows (M, D). ``distances``: KS distance of
    each column, (D,)."""
    pairs: Pairs = {"classifier": (x, rows), "columns": (distances, None)}
    return compute(measures_in("classifier", "columns"), pairs)


def _describe_worst(
    real: RealRows, draws: _Draws, floors: _Draws, axes: Names | None
) -> list[Plain]:
    """Describe the WORST columns, whose measures are farthest above the floors. ``axes``: names of
    the columns."""
    ks = np.mean(draws.distances, axis=0)
    ks_floor = np.mean(floors.distances, axis=0)
    share = torch.cat(draws.outside).double().mean(0).numpy()
    share_floor = torch.cat(floors.outside).double().mean(0).numpy()
    worst = np.argsort(-np.maximum(ks - ks_floor, share - share_floor), kind="stable")[:WORST]
    return [
        {
            "column": axes[number] if axes else f"x{number + 1}",
            "ks": float(ks[number]),
            "ks_floor": float(ks_floor[number]),
            "outside": float(share[number]),
            "outside_floor": float(share_floor[number]),
            "min": float(real.low[number]),
            "max": float(real.high[number]),
        }
        for number in worst
    ]


def mean_and_spread(key: str, scores: Sequence[float]) -> Plain:
    """Return mean and standard deviation by key."""
    is_constant = min(scores) == max(scores)  # then rounding of the mean would give a deviation
    return {
        key: float(np.mean(scores)),
        f"{key}_std": 0.0 if is_constant else float(np.std(scores)),
    }
