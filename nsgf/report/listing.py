"""The table of ``nsgf list``."""

from pathlib import Path

from nsgf.config.files import read_settings
from nsgf.config.schema import Config
from nsgf.report.records import costs, curves
from nsgf.run.checkpoint import good_header
from nsgf.run.folder import RunFolder, check_links
from nsgf.system.errors import UserError, cause
from nsgf.system.hardware import format_bytes, format_hours

HEAD = ("run", "updates", "last loss", "time", "size")


def run_table(folder: Path) -> list[str]:
    """Return lines about the runs in a folder, the newest first.

    Raises:
        UserError: there is none.
    """
    files = folder.glob("*/config.yaml")
    runs = sorted((file.parent for file in files), key=lambda path: -path.stat().st_mtime)
    if not runs:
        raise UserError(f"out_dir = {folder}: holds no run; train one, or say --out-dir DIR")
    rows = [HEAD, *(_row_or_why(RunFolder(path)) for path in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _row_or_why(run: RunFolder) -> tuple[str, ...]:
    """Return the row of a run, or why it cannot be read."""
    try:
        check_links(run.path)
        return _row(run)
    except (OSError, UserError) as error:
        why = cause(error) if isinstance(error, OSError) else str(error)
        return (run.path.name, f"cannot be read: {why.removeprefix(f'{run.path}: ')}", "", "", "")


def _row(run: RunFolder) -> tuple[str, ...]:
    last = [curve.loss[-1] for curve in curves(run)][-1:]
    taken = sum(cost.seconds for cost in costs(run).values())
    size = sum(file.stat().st_size for file in run.path.rglob("*") if file.is_file())
    return (
        run.path.name,
        updates_done(run),
        "".join(f"{loss:.4g}" for loss in last),
        format_hours(taken) if taken else "",
        format_bytes(size),
    )


def updates_done(run: RunFolder) -> str:
    """Return ``nsgf 150/150, nsf 20/400`` for the phases of a run, or what is wrong with it."""
    usual = Config()
    try:
        saved = read_settings(run.config_file)
        parts = []
        for phase in saved.get("phases", usual.phases):
            planned = saved.get(phase, {}).get("iterations", getattr(usual, phase).iterations)
            done = 0
            if run.has_checkpoint(phase):
                done = good_header(run.checkpoint_file(phase))["step"]
            parts.append(f"{phase} {done}/{planned}")
    except (UserError, AttributeError, TypeError) as error:
        return f"cannot be read: {error}"[:60]
    return ", ".join(parts)
