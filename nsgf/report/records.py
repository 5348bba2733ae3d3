"""What the files of run folders say: curves, costs, log, progress; the list of runs."""

from pathlib import Path

from nsgf.config.files import build
from nsgf.config.schema import Config, PhaseName
from nsgf.plots.figures import Curve
from nsgf.run.checkpoint import read_good_header
from nsgf.run.folder import RunFolder, check_links
from nsgf.run.log import read_costs
from nsgf.system.errors import UserError, cause
from nsgf.system.hardware import format_bytes, format_hours
from nsgf.system.json_reader import read_lines

LOG_LINES = 400
"""Number of lines at the end of the log that are shown."""


def curves(run: RunFolder) -> dict[str, Curve]:
    """Return the curves by phase, in the order in which the phases were trained."""
    found: dict[str, Curve] = {}
    kinds = {"phase": str, "step": int, "loss": float, "grad_norm": float}
    for phase, step, loss, norm in read_lines(run.path / "metrics.jsonl", **kinds):
        found.setdefault(phase, []).append((step, loss, norm))
    return found


def log_lines(run: RunFolder) -> list[str]:
    """Return the last lines of the log."""
    file = run.path / "log.txt"
    return file.read_text("utf-8", "replace").splitlines()[-LOG_LINES:] if file.exists() else []


def updates_done(run: RunFolder) -> str:
    """Return ``nsgf 150/150, nsf 20/400`` for the phases of a run, or why they cannot be read."""
    try:
        config = build(Config, run.read_settings())
        parts = [
            f"{phase} {trained_updates(run, phase)}/{getattr(config, phase).iterations}"
            for phase in config.phases
        ]
    except UserError as error:
        return f"cannot be read: {error}"
    return ", ".join(parts)


def trained_updates(run: RunFolder, phase: PhaseName) -> int:
    """Return the number of updates in a phase's checkpoint, 0 if there is none."""
    if not run.has_checkpoint(phase):
        return 0
    step: int = read_good_header(run.checkpoint_file(phase))["step"]
    return step


def run_table(folder: Path) -> list[str]:
    """Return lines about the runs in a folder, the newest first.

    Raises:
        UserError: there is none.
    """
    files = folder.glob("*/config.yaml")
    runs = sorted((file.parent for file in files), key=lambda path: -path.stat().st_mtime)
    if not runs:
        raise UserError(f"out_dir = {folder}: holds no run; train one, or say --out-dir DIR")
    rows = [("run", "updates", "last loss", "time", "size"), *map(_row, map(RunFolder, runs))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _row(run: RunFolder) -> tuple[str, ...]:
    """Return the cells of a run, or why it cannot be read."""
    try:
        check_links(run.path)
        loss = [f"{curve[-1][1]:.4g}" for curve in curves(run).values()][-1:]
        taken = sum(cost.seconds for cost in read_costs(run.path).values())
        size = sum(file.stat().st_size for file in run.path.rglob("*") if file.is_file())
        time = format_hours(taken) if taken else ""
        return (run.path.name, updates_done(run), "".join(loss), time, format_bytes(size))
    except (OSError, UserError) as error:
        why = cause(error) if isinstance(error, OSError) else str(error)
        return (run.path.name, f"cannot be read: {why.removeprefix(f'{run.path}: ')}", "", "", "")
