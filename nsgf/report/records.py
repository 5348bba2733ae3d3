"""Read curves, costs, log and progress from run folders; list runs."""

from pathlib import Path

from nsgf.comparison.results import read_rows
from nsgf.comparison.tables import SETTINGS, TABLE
from nsgf.comparison.trials import Comparison
from nsgf.config.files import method_layers, read_experiment, read_layer, read_plain
from nsgf.config.schema import OF_PHASES, Config, PhaseName
from nsgf.config.settings import build
from nsgf.plots.figures import Curve
from nsgf.run.checkpoint import read_good_header
from nsgf.run.folder import RunFolder
from nsgf.run.foreign import check_links
from nsgf.run.lock import is_locked
from nsgf.run.log import read_costs
from nsgf.system.errors import UserError, cause, one_line
from nsgf.system.json_reader import read_lines
from nsgf.system.units import format_bytes, format_hours

LOG_LINES = 400
"""Number of lines at the end of the log that are shown."""
LISTED: dict[str, tuple[str, ...]] = {
    **{"method": (), "phases": (), "data": ("name",)},
    **dict.fromkeys(OF_PHASES, ("iterations",)),
}
"""Settings that a list of runs shows: keys, and names within sections."""


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
        return _progress(run, _listed_settings(run))
    except UserError as error:
        return f"cannot be read: {error}"


def _listed_settings(run: RunFolder) -> Config:
    """Return the settings LISTED of a run, and defaults for the others, which takes a tenth of the
    time of all settings. Raise UserError if they cannot be read."""
    plain = read_plain(run.config_file)
    content = {key: plain[key] for key in LISTED if key in plain}
    for key, section in content.items():
        if LISTED[key] and isinstance(section, dict):
            content[key] = {name: section[name] for name in LISTED[key] if name in section}
    return build(read_layer(content))


def _progress(run: RunFolder, config: Config) -> str:
    return ", ".join(
        f"{phase} {trained_updates(run, phase)}/{getattr(config, phase).iterations}"
        for phase in config.phases
    )


def trained_updates(run: RunFolder, phase: PhaseName) -> int:
    """Return the number of updates in a phase's checkpoint; 0 without a checkpoint."""
    if not run.has_checkpoint(phase):
        return 0
    step: int = read_good_header(run.checkpoint_file(phase))["step"]
    return step


def run_table(folder: Path) -> list[str]:
    """Return lines about the runs and comparisons in a folder, the newest first. Raise UserError if
    there are none."""
    files = [file for name in ("config.yaml", SETTINGS) for file in folder.glob(f"*/{name}")]
    runs = sorted((file.parent for file in files), key=lambda path: -path.stat().st_mtime)
    if not runs:
        raise UserError(f"out_dir = {folder}: holds no run; train one, or name another folder")
    head = ("run", "data", "method", "progress", "last loss", "time", "size")
    rows = [head, *map(_row, map(RunFolder, runs))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _row(run: RunFolder) -> tuple[str, ...]:
    """Return the cells of a run or a comparison, or why it cannot be read."""
    try:
        check_links(run.path)
        about = _comparison_cells(run.path) if (run.path / SETTINGS).exists() else _run_cells(run)
        size = sum(file.stat().st_size for file in run.path.rglob("*") if file.is_file())
        return (run.path.name, *about, format_bytes(size))
    except Exception as error:  # a foreign folder must not hide the others
        why = cause(error) if isinstance(error, OSError) else one_line(error)
        problem = f"cannot be read: {why.removeprefix(f'{run.path}: ')}"
        return (run.path.name, "", "", problem, "", "", "")


def _run_cells(run: RunFolder) -> tuple[str, ...]:
    """Return data, method, progress, last loss and time of a run."""
    config = _listed_settings(run)
    loss = [f"{curve[-1][1]:.4g}" for curve in curves(run).values()][-1:]
    taken = sum(cost.seconds for cost in read_costs(run.path).values())
    is_begun = any(map(run.has_checkpoint, config.phases)) or is_locked(run.path)
    progress = _progress(run, config) if is_begun else "aborted: no checkpoint"
    time = format_hours(taken) if taken else ""
    return (config.data.name, config.method or "", progress, "".join(loss), time)


def _comparison_cells(folder: Path) -> tuple[str, ...]:
    """Return data, methods and progress of a comparison; the other cells are empty."""
    comparison = stored_comparison(folder)
    trials = {(trial.target, trial.method, trial.seed) for trial in comparison.trials if trial.nfe}
    done = {(row.target, row.method, row.seed) for row in read_rows(folder / TABLE)} & trials
    targets = dict.fromkeys(trial.target for trial in comparison.trials)
    progress = f"comparison, {len(done)} of {len(trials)} trials"
    return (",".join(targets), ",".join(comparison.methods), progress, "", "")


def stored_comparison(folder: Path) -> Comparison:
    """Return the comparison that wrote the table. Raise UserError if its settings
    cannot be read."""
    stored = read_experiment(folder / SETTINGS)
    names = stored.settings.get("compare.methods")
    if not names:
        raise UserError(f"compare = {folder}: its {SETTINGS} names no methods")
    layers = [method_layers(stored, name) for name in names]
    methods = [build({**below, **own, **stored.facts}) for below, own in layers]
    return Comparison(methods[0], {method.method: method for method in methods})
