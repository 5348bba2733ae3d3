"""Readable names of measures, the same in terminals, pages, tables and model cards.

The files ``metrics.json`` and ``table.csv`` keep the short keys.
"""

from typing import Any

NAMES = {
    "w2": "W2 ↓",
    "w2_standardised": "W2 of standardised columns ↓",
    "1000 energy": "1000 x energy distance ↓",
    "nearest_real": "distance to nearest real image",
    "imagenet_frechet": "Fréchet distance, ImageNet features ↓",
    "1000 imagenet_kid": "1000 x KID, ImageNet features ↓",
    "imagenet_precision": "precision, ImageNet features ↑",
    "imagenet_recall": "recall, ImageNet features ↑",
    "fid": "FID ↓",
    "inception_score": "Inception score ↑",
    "kid": "KID ↓",
    "precision": "precision, Inception features ↑",
    "recall": "recall, Inception features ↑",
    "w2_samples": "samples for W2",
    "nfe": "NFE",
    "expected_nfe": "NFE expected",
}
"""Names of measures, with an arrow that shows whether higher or lower is better, and of other
entries."""
FLOORS = {"nearest_real": "nearest_real_among_real"}
"""Keys of floors, for measures whose floor is not MEASURE_floor."""


def name_of(key: str) -> str:
    """Return the name of a measure or description."""
    return NAMES.get(key, key.replace("_", " "))


def is_better_higher(key: str) -> bool:
    """Whether larger values of a measure are better."""
    return name_of(key).endswith("↑")


def is_measure(key: str) -> bool:
    """Whether the key names a measure of quality, which may have a floor and a spread."""
    return name_of(key).endswith(("↓", "↑")) or key in FLOORS


def describe(metrics: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return key, value and floor of each line of ``metrics.json`` as text, with the spread over
    draws; the floor is empty for lines without one."""
    # in files of earlier versions "precision" may be the precision of sampling
    metrics = {k: v for k, v in metrics.items() if not (is_measure(k) and isinstance(v, str))}
    floors = {key: FLOORS.get(key, f"{key}_floor") for key in metrics if is_measure(key)}
    beside = {f"{key}{end}" for key in (*floors, *floors.values()) for end in ("_std", "_noise")}
    lines = []
    for key in (key for key in metrics if key not in beside | set(floors.values())):
        floor, noise = (_in_words(metrics, name) for name in (floors.get(key, ""), f"{key}_noise"))
        lines.append(
            (key, _in_words(metrics, key), f"{floor}; pure noise: {noise}" if noise else floor)
        )
    return lines


def _in_words(metrics: dict[str, Any], key: str) -> str:
    """Return a value, with its spread if it has one; empty if there is no such key."""
    value, spread = metrics.get(key), metrics.get(f"{key}_std")
    if key not in metrics:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" + (f" ± {spread:.2g}" if isinstance(spread, float) and spread else "")
    if isinstance(value, dict):
        return ", ".join(f"{name} {_in_words(value, name)}" for name in value)
    return "not known" if value is None else str(value)
