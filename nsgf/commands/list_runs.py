"""``nsgf list``: the runs in a folder. Listing runs does not load torch."""

from pathlib import Path

from nsgf.comparison import COMPARISON_FILE, TABLE, read_rows
from nsgf.config.layers import build
from nsgf.report import curves, progress_of
from nsgf.run.folder import RunFolder, check_links
from nsgf.run.lock import is_locked
from nsgf.run.log import read_costs
from nsgf.system.errors import cause, wrong_setting
from nsgf.system.output import format_bytes, format_hours


def run_table(folder: Path) -> list[str]:
    """Return lines about runs and comparisons, newest first. Raise UserError if the folder has
    none."""
    files = [file for name in ("config.yaml", COMPARISON_FILE) for file in folder.glob(f"*/{name}")]
    runs = sorted((file.parent for file in files), key=lambda path: -path.stat().st_mtime)
    if not runs:
        raise wrong_setting("out_dir", folder, "holds no run; train one, or name another folder")
    head = ("run", "data", "method", "progress", "last loss", "time", "size")
    rows = [head, *map(_row, map(RunFolder, runs))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _row(run: RunFolder) -> tuple[str, ...]:
    """Return the cells of a run or a comparison, or the reason why it cannot be read."""
    path = run.path
    try:
        check_links(path)
        if (path / COMPARISON_FILE).exists():
            from nsgf.comparison.trials import Comparison  # loads torch

            comparison = Comparison.stored(path)
            trials = {
                (trial.target, trial.method, trial.seed) for trial in comparison.trials if trial.nfe
            }
            rows = read_rows(path / TABLE)
            done = {(row.target, row.method, row.seed) for row in rows} & trials
            targets = dict.fromkeys(trial.target for trial in comparison.trials)
            progress = f"comparison, {len(done)} of {len(trials)} trials"
            cells = (",".join(targets), ",".join(comparison.methods), progress, "", "")
        else:
            config = build(run.read_settings())
            logged = curves(run)
            losses = [loss for name in config.phases for _, loss, _ in logged.get(name, ())]
            seconds = sum(cost.seconds for cost in read_costs(path).values())
            is_begun = any(map(run.has_checkpoint, config.phases)) or is_locked(path)
            progress = (
                progress_of(run, config.phases, config.updates)
                if is_begun
                else "aborted: no checkpoint"
            )
            time = format_hours(seconds) if seconds else ""
            loss = f"{losses[-1]:.4g}" if losses else ""
            cells = (config.data.name, config.method, progress, loss, time)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return (path.name, *cells, format_bytes(size))
    except Exception as error:  # a damaged folder must not hide the remaining runs
        problem = f"cannot be read: {cause(error).removeprefix(f'{path}: ')}"
        return (path.name, "", "", problem, "", "", "")
