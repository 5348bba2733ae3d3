"""``nsgf list``: a table of the runs and comparisons in a folder."""

from pathlib import Path

from nsgf.comparison import SETTINGS, TABLE, read_rows
from nsgf.config.settings import build
from nsgf.report import curves, progress_of
from nsgf.run.folder import RunFolder, check_links
from nsgf.run.lock import is_locked
from nsgf.run.log import read_costs
from nsgf.system.errors import UserError, cause, one_line
from nsgf.system.output import format_bytes, format_hours


def run_table(folder: Path) -> list[str]:
    """Return lines about runs and comparisons, newest first. Raise UserError if there are none."""
    files = [file for name in ("config.yaml", SETTINGS) for file in folder.glob(f"*/{name}")]
    runs = sorted((file.parent for file in files), key=lambda path: -path.stat().st_mtime)
    if not runs:
        raise UserError(f"out_dir = {folder}: holds no run; train one, or name another folder")
    head = ("run", "data", "method", "progress", "last loss", "time", "size")
    rows = [head, *map(_row, map(RunFolder, runs))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _row(run: RunFolder) -> tuple[str, ...]:
    """Return the cells of a run or a comparison, or the reason why it cannot be read."""
    try:
        check_links(run.path)
        if (run.path / SETTINGS).exists():
            from nsgf.comparison.trials import Comparison  # loads torch

            comparison = Comparison.stored(run.path)
            trials = {
                (trial.target, trial.method, trial.seed) for trial in comparison.trials if trial.nfe
            }
            rows = read_rows(run.path / TABLE)
            done = {(row.target, row.method, row.seed) for row in rows} & trials
            targets = dict.fromkeys(trial.target for trial in comparison.trials)
            progress = f"comparison, {len(done)} of {len(trials)} trials"
            about = (",".join(targets), ",".join(comparison.methods), progress, "", "")
        else:
            config = build(run.read_settings())
            losses = [loss for curve in curves(run).values() for _, loss, _ in curve]
            taken = sum(cost.seconds for cost in read_costs(run.path).values())
            is_begun = any(map(run.has_checkpoint, config.phases)) or is_locked(run.path)
            progress = progress_of(run, config) if is_begun else "aborted: no checkpoint"
            time = format_hours(taken) if taken else ""
            shown = f"{losses[-1]:.4g}" if losses else ""
            about = (config.data.name, config.method or "", progress, shown, time)
        size = sum(file.stat().st_size for file in run.path.rglob("*") if file.is_file())
        return (run.path.name, *about, format_bytes(size))
    except Exception as error:  # a foreign folder must not hide the others
        why = cause(error) if isinstance(error, OSError) else one_line(error)
        problem = f"cannot be read: {why.removeprefix(f'{run.path}: ')}"
        return (run.path.name, "", "", problem, "", "", "")
