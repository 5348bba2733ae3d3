"""The comparison itself: train what is not trained, measure what is not measured, report."""

import time
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from nsgf.checkpoint import RunFolder
from nsgf.compare.cells import METHODS, Cell, cell_config, cell_folder, cells, updates
from nsgf.compare.measure import ImageYardstick, Measured, PointYardstick, Yardstick, measure
from nsgf.compare.pictures import save_pictures
from nsgf.compare.record import Record
from nsgf.compare.report import Row, write_report
from nsgf.config import Config
from nsgf.data import data_shape
from nsgf.errors import UserError
from nsgf.experiment import train
from nsgf.handover import pending_phases
from nsgf.hardware import pick_device
from nsgf.lock import Busy, only_process
from nsgf.stopping import Stopped, StopRequest
from nsgf.training.peers import check_installed

Say = Callable[[str], None]
WAIT_SECONDS = 5.0


def compare(config: Config, stop: StopRequest | None = None, say: Say = print) -> list[Path]:
    """Train and measure all cells, and write table and pictures.

    What another process works on is left to it, so the same command may run several times at
    once; each ends when all is done. What is finished is not done again.

    Args:
        config: the experiment and its ``compare`` section.
        stop: ends training early, after a checkpoint.
        say: takes the lines about progress.

    A comparison that is stopped leaves the table of what it has.

    Returns:
        The files of the report.

    Raises:
        Stopped: asked to.
        UserError: a cell's configuration is wrong, or something that it needs is missing.
    """
    for line in comparison_plan(config):
        say(line)
    stop = stop or StopRequest(config.train.max_hours)
    work = Work(config, stop, say)
    pending = list(cells(config))
    try:
        while pending:
            left = [cell for cell in pending if not work.finish(cell)]
            if len(left) == len(pending):
                time.sleep(WAIT_SECONDS)
            pending = left
    except Stopped:
        if rows := work.rows():
            write_report(config, [*rows, *work.floors()])
        raise
    rows = [*work.rows(), *work.floors()]
    return [*write_report(config, rows), *save_pictures(config, work.device)]


def comparison_plan(config: Config) -> list[str]:
    """What a comparison is going to do.

    Raises:
        UserError: a cell's configuration is wrong, or torchcfm is needed and missing.
    """
    todo = list(cells(config))
    done = sum(_is_measured(config, cell) for cell in todo)
    for cell in todo:
        _check_earlier(config, cell)
    if any(METHODS[method].peer for method in config.compare.methods):
        check_installed()
    names = ", ".join(METHODS[method].title for method in config.compare.methods)
    targets = sorted({cell.target for cell in todo})
    total = sum(updates(cell_config(config, cell)) for cell in todo)
    return [
        f"compare: {names} on {', '.join(targets)}, {config.compare.seeds} seeds, "
        f"NFE {', '.join(map(str, config.compare.nfe))}",
        f"compare: {len(todo)} cells, {done} of them measured, {total} updates in all",
    ]


def _is_measured(config: Config, cell: Cell) -> bool:
    record, own = Record(cell_folder(config, cell)), cell_config(config, cell)
    return all(record.find(cell.method, own, nfe) for nfe in config.compare.nfe)


def _check_earlier(config: Config, cell: Cell) -> None:
    """
    Raises:
        UserError: the cell was trained with other settings.
    """
    folder = cell_folder(config, cell)
    try:
        pending_phases(cell_config(config, cell), RunFolder(folder))
    except UserError as error:
        raise UserError(f"{error}; remove {folder}, or name another --out-dir") from error


class Work:
    """The cells of one comparison."""

    def __init__(self, config: Config, stop: StopRequest, say: Say) -> None:
        self._config, self._stop, self._say = config, stop, say
        self.device = pick_device(config.device)
        self._yardsticks: dict[str, Yardstick] = {}

    def finish(self, cell: Cell) -> bool:
        """Train and measure a cell; False: another process works on it."""
        config, folder = cell_config(self._config, cell), cell_folder(self._config, cell)
        missing = [nfe for nfe in self._config.compare.nfe if not self.found(cell, nfe)]
        if not missing:
            return True
        self._say(f"compare: {METHODS[cell.method].title}, {cell.target}, seed {cell.seed}")
        run = RunFolder.prepare(folder)
        try:
            self._train(config, run, cell)
            with only_process(folder):
                for nfe in missing:
                    found = measure(config, run, nfe, self._yardstick(cell), self.device)
                    Record(folder).add(cell.method, config, nfe, found)
                    self._say(f"compare: NFE {found.nfe:g}: {_in_words(found.values)}")
        except Busy:
            return False
        return True

    def _train(self, config: Config, run: RunFolder, cell: Cell) -> None:
        started = time.perf_counter()
        try:
            train(config, run, stop=self._stop)
        except Busy:
            raise
        except BaseException:
            Record(run.path).add_train_seconds(cell.method, time.perf_counter() - started)
            raise
        Record(run.path).add_train_seconds(cell.method, time.perf_counter() - started)

    def rows(self) -> list[Row]:
        """All measures so far, a row for each cell and NFE."""
        found = []
        for cell in cells(self._config):
            for nfe in self._config.compare.nfe:
                measured = self.found(cell, nfe)
                if measured is not None:
                    own = cell_config(self._config, cell)
                    seconds = Record(cell_folder(self._config, cell)).train_seconds
                    found.append(Row(cell, nfe, updates(own), seconds, measured))
        return found

    def floors(self) -> list[Row]:
        """What samples of the targets themselves would score, where something is measured."""
        measured = {(row.cell.target, row.cell.seed): row.cell for row in self.rows()}
        todo = measured.values()
        found = []
        for cell in tqdm(todo, desc="floor", leave=False):
            values = self._yardstick(cell).floor(cell.seed)
            found.append(Row(cell, None, 0, 0.0, Measured(0, 0, values)))
        return found

    def found(self, cell: Cell, nfe: int) -> Measured | None:
        """The measure of a cell; None: there is none yet."""
        record = Record(cell_folder(self._config, cell))
        return record.find(cell.method, cell_config(self._config, cell), nfe)

    def _yardstick(self, cell: Cell) -> Yardstick:
        if cell.target not in self._yardsticks:
            config = cell_config(self._config, cell)
            config.seed = self._config.seed
            is_points = len(data_shape(config.data.name)) == 1
            self._yardsticks[cell.target] = (
                PointYardstick(config)
                if is_points
                else ImageYardstick(config, self.device, self._say)
            )
        return self._yardsticks[cell.target]


def _in_words(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
