"""The mirror of a run at trackio: a database of the user's own, or the Space or server that
``TRACKIO_SPACE_ID`` or ``TRACKIO_SERVER_URL`` name.

trackio is imported only here, and only by a run that asks for it.
"""

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

from nsgf.config.schema import Config
from nsgf.run.folder import RunFolder, name_within, write_text
from nsgf.system.errors import UserError


class TrackioMirror:
    """A trackio run, which its run folder goes on with. Steps are those of a phase, whose name
    begins its metrics' names."""

    def __init__(self, config: Config, run: RunFolder) -> None:
        """
        Raises:
            Exception: trackio is missing or damaged, or takes no such project; or
                ``trackio_name.txt`` holds no name.
        """
        with _silence():
            import trackio

            self._trackio, self._step = trackio, 0
            trackio.init(
                project=config.tracking.project,
                name=run_name(config, run),
                group=config.exp,
                config=asdict(config),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def record(self, values: dict[str, Any]) -> None:
        """Log a record of metrics.jsonl or costs.jsonl under its phase: ``nsgf/loss``, ..."""
        phase, self._step = values["phase"], values["step"]
        named = {f"{phase}/{k}": v for k, v in values.items() if k not in ("phase", "step")}
        self._trackio.log(named, step=self._step)

    def picture(self, name: str, file: Path) -> None:
        """Log an image file."""
        self._trackio.log({name: self._trackio.Image(str(file))}, step=self._step)

    def close(self, failed: bool) -> None:
        """Send what is left. trackio does not keep how a run ended."""
        with _silence():
            self._trackio.finish()


def run_name(config: Config, run: RunFolder) -> str:
    """The trackio run's name, made once and kept in ``trackio_name.txt``.

    trackio knows a run by its name alone, and trials of two comparisons have the same way from
    their ``out_dir``: a suffix tells them apart.

    Raises:
        UserError: the file holds something else.
    """
    file = run.path / "trackio_name.txt"
    if not file.exists():
        stem = re.sub(r"[^\w.-]", "-", name_within(config, run))[-100:]  # trackio names folders too
        write_text(file, f"{stem}-{uuid.uuid4().hex[:8]}\n")
    found = file.read_text().strip()
    if not re.fullmatch(r"[\w.-]{1,120}", found) or not found.strip("."):
        raise UserError(f"{file} holds no name of a trackio run; remove it for a new one")
    return found


@contextmanager
def _silence() -> Iterator[None]:
    """trackio prints advice, of which one line is enough."""
    with redirect_stdout(StringIO()):
        yield
