"""The mirror of a run at trackio: a database of the user's own, or the Space or server that
``TRACKIO_SPACE_ID`` or ``TRACKIO_SERVER_URL`` name.

trackio is imported only here, and only by a run that asks for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

from nsgf.config.schema import Config
from nsgf.run.folder import RunFolder, name_within


class TrackioMirror:
    """A trackio run, which a run folder of the same name goes on with. Steps are those of a
    phase, whose name begins its metrics' names."""

    def __init__(self, config: Config, run: RunFolder) -> None:
        """
        Raises:
            Exception: trackio is missing or damaged, or takes no such project.
        """
        with _silence():
            import trackio

            self._trackio, self._step = trackio, 0
            trackio.init(
                project=config.tracking.project,
                name=name_within(config, run).replace("/", "-"),  # which names folders too
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


@contextmanager
def _silence() -> Iterator[None]:
    """trackio prints advice, of which one line is enough."""
    with redirect_stdout(StringIO()):
        yield
