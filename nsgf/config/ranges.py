"""Notes in the annotations of the schema: ``iterations: Annotated[int, Range(0)] = 20_000``."""

import math
from dataclasses import dataclass
from typing import Final

MANY = 10**9
"""Largest value of a number for which the schema sets no maximum."""
FREE_ON_RESUME: Final = "free on resume"
"""Marks a setting that does not change results, only files, memory or time."""
MACHINE_PATH: Final = "machine path"
"""Marks a setting that names a file or a folder of this machine."""


@dataclass(frozen=True)
class Range:
    """Allowed values of a number, or of each number in a list."""

    minimum: float = -math.inf
    """Smallest allowed value."""
    maximum: float = MANY
    """Largest allowed value."""
    above: float = -math.inf
    """Values are larger than this."""
    below: float = math.inf
    """Values are smaller than this."""

    def __contains__(self, number: float | None) -> bool:
        if number is None:
            return False
        return self.minimum <= number <= self.maximum and self.above < number < self.below

    def __str__(self) -> str:
        maximum = self.maximum if self.below == math.inf else math.inf
        bounds = [(">=", self.minimum), (">", self.above), ("<", self.below), ("<=", maximum)]
        return " and ".join(f"{sign} {bound}" for sign, bound in bounds if math.isfinite(bound))
