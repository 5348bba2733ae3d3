"""The measures of samples. Each measure has a record, which ``evaluate``, ``compare``, tables,
pages and model cards use.

The files ``metrics.json`` and ``table.csv`` have short keys; all further output has titles.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Literal

from nsgf.metrics.distances import (
    LEAST_ROWS,
    classifier_auc,
    frechet_distance,
    inception_score,
    kernel_distance,
    precision_and_recall,
    subset_kernel_distance,
)
from nsgf.sinkhorn.energy import energy_distance
from nsgf.sinkhorn.exact import w2
from nsgf.system.files import Plain, fields

Space = Literal[
    "units",
    "standardised",
    "classifier",
    "columns",
    "imagenet",
    "classes",
    "inception",
    "logits",
]
"""What a measure compares. units: samples in the units of the data. standardised: a user's points
with standardised columns. classifier: points; the numbers of samples and of real points may differ.
columns: points; the number of samples is the same as in the floor. imagenet, inception: features of
the network with this name. classes: features, classes and the largest number of samples per class.
logits: logits of the Inception network."""
Pairs = Mapping[Space, tuple[Any, Any]]
"""Samples (N, ...) and real data (M, ...) by space."""

Values = dict[str, float]
"""Values of measures by key."""


@dataclass(frozen=True)
class Measure:
    """One function of samples and real data, which may return several values."""

    titles: dict[str, str]
    """Title of each value by key. A key without a title describes the values of the keys before
    it."""
    space: Space
    compute: Callable[[Any, Any], float | Sequence[float]]
    """Function of samples and real data that returns a value for each key."""
    is_slow: bool = False
    """Whether only the first ``evaluation.w2_samples`` samples are compared."""
    is_evaluated: bool = True
    """Whether ``evaluate`` also computes the measure."""
    is_higher_better: bool = False
    """Whether larger values are better."""


MEASURES = [
    Measure({"w2": "W2"}, "units", w2, is_slow=True),
    Measure(
        {"1000 energy": "1000 x energy distance"},
        "units",
        lambda x, y: 1000 * energy_distance(x, y),
        is_evaluated=False,
    ),
    Measure({"w2_standardised": "W2 of standardised columns"}, "standardised", w2, is_slow=True),
    Measure(
        {"1000 energy_standardised": "1000 x energy distance of standardised columns"},
        "standardised",
        lambda x, y: 1000 * energy_distance(x, y),
        is_evaluated=False,
    ),
    Measure({"auc": "AUC of a classifier, 0.5 is best"}, "classifier", classifier_auc),
    Measure(
        {"ks_worst": "largest KS distance of a column"},
        "columns",
        lambda distances, _: float(distances.max()),
    ),
    Measure(
        {"imagenet_frechet": "Fréchet distance, ImageNet features"}, "imagenet", frechet_distance
    ),
    Measure(
        {"1000 imagenet_kid": "1000 x KID, ImageNet features"},
        "imagenet",
        lambda x, y: 1000 * kernel_distance(x, y),
    ),
    Measure(
        {
            "imagenet_precision": "precision, ImageNet features",
            "imagenet_recall": "recall, ImageNet features",
        },
        "imagenet",
        precision_and_recall,
        is_higher_better=True,
    ),
    Measure({"fid": "FID"}, "inception", frechet_distance),
    Measure(
        {"precision": "precision, Inception features", "recall": "recall, Inception features"},
        "inception",
        precision_and_recall,
        is_higher_better=True,
    ),
    Measure(
        {"inception_score": "Inception score", "inception_score_std": ""},
        "logits",
        inception_score,
        is_higher_better=True,
    ),
    Measure(
        {"kid": "KID", "kid_std": "", "kid_subset_size": ""}, "inception", subset_kernel_distance
    ),
]
"""All measures. ``compare`` uses measures of ImageNet features if possible, otherwise measures of
the data."""
FLOORS = {
    "nearest_real": "nearest_real_among_real",
    "outside_range": "outside_range_floor",
}
"""Keys of floors whose name is not ``MEASURE_floor``, by the keys of the measures."""
CLASS_KID = "1000 class_kid"
CLASS_TITLE = "1000 x KID within classes, mean"
"""Key and title of :func:`measure_of_classes`."""
BITS = "bits_per_dim"
"""Key of the bits per dimension, whose ``_std`` is the standard error of the mean."""
FURTHER_TITLES = {
    "nearest_real": "distance to nearest real image",
    "outside_range": "share outside of the range of real points",
    "classifier_samples": "samples for the classifier",
    "classifier_rows": "real points for the classifier",
    "way": "mean squared way, in units of W2² of source and target",
    "straightness": "straightness of the way",
    "w2_samples": "samples for W2",
    BITS: "bits per dimension of real images ↓",
    f"{BITS}_images": "images for bits per dimension",
    f"{BITS}_reference": "origin of these images",
    f"{BITS}_gap": "distance of few-step samples from the ODE",
    "nfe": "NFE",
    "expected_nfe": "NFE expected",
}


def measures_in(*spaces: Space) -> list[Measure]:
    """Return the measures in these spaces."""
    return [measure for measure in MEASURES if measure.space in spaces]


def measure_of_classes(names: Sequence[str]) -> Measure:
    """Return the measure of ``compare`` for classes with these names: KID within each class. It
    returns the mean over the classes, then a value for each class. The values of classes have no
    title."""

    def compute(samples: tuple[Any, Any, int], real: tuple[Any, Any, int]) -> list[float]:
        values = []
        for label in range(len(names)):
            x, y = (part[labels == label][:n] for part, labels, n in (samples, real))
            values.append(1000 * kernel_distance(x, y) if min(len(x), len(y)) > 1 else math.nan)
        finite = [value for value in values if not math.isnan(value)]
        return [mean(finite or [math.nan]), *values]

    titles = {CLASS_KID: CLASS_TITLE, **{f"{CLASS_KID} {name}": "" for name in names}}
    return Measure(titles, "classes", compute)


def without_classes(keys: Iterable[str]) -> list[str]:
    """Return the keys of measures that are not measures of a single class."""
    return [key for key in keys if not key.startswith(f"{CLASS_KID} ")]


def keys_of(measures: Sequence[Measure]) -> list[str]:
    """Return the keys of all values."""
    return [key for measure in measures for key in measure.titles]


def compute(measures: Sequence[Measure], pairs: Pairs) -> Values:
    """Return the values of measures by key."""
    values: Values = {}
    for measure in measures:
        result = measure.compute(*pairs[measure.space])
        numbers = result if isinstance(result, Sequence) else [result]
        values |= dict(zip(measure.titles, numbers, strict=True))
    return values


def find_measure(key: str) -> Measure | None:
    """Return the measure that has a title for this key; None if no measure has one."""
    measures = (*MEASURES, measure_of_classes(()))
    return next((measure for measure in measures if measure.titles.get(key)), None)


def name_of(key: str) -> str:
    """Return the title for a key of ``metrics.json``. If the key is a measure, an arrow in the
    title shows whether higher or lower is better."""
    if measure := find_measure(key):
        return f"{measure.titles[key]} {'↑' if measure.is_higher_better else '↓'}"
    return FURTHER_TITLES.get(key) or key.replace("_", " ")


def is_better_higher(key: str) -> bool:
    """Whether larger values of a measure are better."""
    measure = find_measure(key)
    return measure is not None and measure.is_higher_better


def is_measure(key: str) -> bool:
    """Whether the key names a measure of quality, which may have a floor and a spread."""
    return find_measure(key) is not None or key in FLOORS or key == BITS


WORST_COLUMNS = "worst_columns"
"""Key of the list of columns that differ most from the real rows."""
COLUMN = {"column": str} | dict.fromkeys(
    ("ks", "ks_floor", "outside", "outside_floor", "min", "max"), float
)
"""Fields of the record of a column."""
WIDE_SHARE = 0.1
"""If the spread of W2's floor is at least this share of the floor, a line warns about it."""
WIDE_AUC = 0.03
"""If the spread of the AUC's floor is at least this large, a line warns about it."""


def describe(metrics: Plain) -> list[tuple[str, str, str]]:
    """Return ``metrics.json`` as rows of text. A row has a key, its value and its floor. A missing
    floor is empty text. Values and floors include the spread over draws."""
    floors = {key: FLOORS.get(key, f"{key}_floor") for key in metrics if is_measure(key)}
    beside = {WORST_COLUMNS, *floors.values(), *(f"{key}_noise" for key in floors)}
    beside |= {f"{key}_std" for key in [*floors, *floors.values()]}
    lines = []
    for key in metrics:
        if key not in beside and metrics[key] != {}:
            floor = _in_words(metrics, floors.get(key, ""))
            if noise := _in_words(metrics, f"{key}_noise"):
                floor += f"; pure noise: {noise}"
            lines.append((key, _in_words(metrics, key), floor))
    return lines


def describe_columns(metrics: Plain) -> list[tuple[str, str, str]]:
    """Return the worst columns as rows of text. A row has the name of a column, its values and its
    floors. Skip damaged records."""
    records = metrics.get(WORST_COLUMNS)
    lines = []
    for record in records if isinstance(records, list) else ():
        try:
            name, ks, ks_floor, outside, outside_floor, low, high = fields(record, **COLUMN)
        except ValueError:
            continue
        values = f"KS {ks:.2g}, {outside:.1%} outside of {low:g} to {high:g}"
        lines.append((f"column {name:.60}", values, f"KS {ks_floor:.2g}, {outside_floor:.1%}"))
    return lines


def describe_limits(metrics: Plain) -> list[str]:
    """Return lines about differences that the measures cannot show with so few real samples."""
    lines = []
    shares = [
        _number(metrics, f"{key}_floor_std") / _number(metrics, f"{key}_floor")
        for key in ("w2", "w2_standardised")
        if _number(metrics, f"{key}_floor") > 0
    ]
    share = max(shares, default=0)
    if share >= WIDE_SHARE:
        count = _in_words(metrics, "w2_samples")
        lines.append(
            f"with only {count} real samples, W2 cannot tell a difference below {share:.0%}"
        )
    count = _in_words(metrics, "classifier_rows")
    spread = _number(metrics, "auc_floor_std")
    if spread >= WIDE_AUC:
        lines.append(f"with only {count} real points, the AUC is known to about ± {spread:.2g}")
    if "auc" in metrics and metrics["auc"] is None:
        lines.append(
            f"with {count} real points and {_in_words(metrics, 'classifier_samples')} samples, "
            f"there is no classifier: it needs {LEAST_ROWS} of each"
        )
    return lines


def _number(metrics: Plain, key: str) -> float:
    """Return a value as a number; 0 if the value is missing or no number."""
    value = metrics.get(key)
    return value if isinstance(value, float) else 0.0


def _in_words(metrics: Plain, key: str) -> str:
    """Return a value as text, with its spread if there is one. The text is empty if the key is
    missing."""
    if key not in metrics:
        return ""
    value = metrics[key]
    if isinstance(value, float):
        spread = metrics.get(f"{key}_std")
        return f"{value:.4g}" + (f" ± {spread:.2g}" if isinstance(spread, float) and spread else "")
    if isinstance(value, dict):
        return ", ".join(f"{name} {_in_words(value, name)}" for name in value)
    return "not known" if value is None else str(value)


def report(metrics: Plain) -> list[str]:
    """Return the measures as aligned lines, with floors and without the versions. The last lines
    say what the measures cannot show."""
    lines = [(name_of(key), *texts) for key, *texts in describe(metrics) if key != "versions"]
    lines += describe_columns(metrics)
    width = max((len(name) for name, *_ in lines), default=0)
    aligned = [
        f"{name:{width}}  {value}" + (f"  (real: {floor})" if floor else "")
        for name, value, floor in lines
    ]
    return aligned + describe_limits(metrics)
