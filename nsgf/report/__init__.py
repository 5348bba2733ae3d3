"""HTML pages, and functions for pages and for ``nsgf list``. These functions need no torch."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from nsgf.config.schema import PhaseName
from nsgf.run.checkpoint import read_good_header
from nsgf.run.folder import RunFolder
from nsgf.system.errors import shorten_paths
from nsgf.system.files import read_lines

RECORD = {"phase": str, "step": int, "loss": float, "grad_norm": float}
"""Fields of a line of ``metrics.jsonl``."""


Curves = dict[str, list[tuple[int, float, float]]]
"""Step, loss and gradient norm of each line of ``metrics.jsonl``, by phase."""


def curves(run: RunFolder) -> Curves:
    """Return (step, loss, gradient norm) of each line of ``metrics.jsonl``, by phase, in the order
    of the phases."""
    lines = defaultdict(list)
    for phase, step, loss, norm in read_lines(run.path / "metrics.jsonl", **RECORD):
        lines[phase].append((step, loss, norm))
    return lines


def progress_of(run: RunFolder, phases: list[PhaseName], updates: list[int]) -> str:
    """Return a text such as ``nsgf 150/150, nsf 20/400``: finished and configured updates of each
    phase."""
    return ", ".join(
        f"{phase} {trained_updates(run, phase)}/{count}"
        for phase, count in zip(phases, updates, strict=True)
    )


def trained_updates(run: RunFolder, phase: PhaseName) -> int:
    """Return the number of updates in a phase's checkpoint; 0 without a checkpoint."""
    if not run.has_checkpoint(phase):
        return 0
    return read_good_header(run.checkpoint_file(phase))["step"]


def render(template: str, **values: Any) -> str:
    """Fill a template with these values, and return the text. ``template`` is the path in the
    package. Paths are shortened. In HTML, all values are escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = Path(__file__).parent
    engine = Environment(
        loader=FileSystemLoader([folder, folder.parent]),
        autoescape=".html" in template,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: shorten_paths(value) if type(value) is str else value,
    )
    return engine.get_template(template).render(**values)
