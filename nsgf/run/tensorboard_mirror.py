"""The mirror of a run as TensorBoard's files, in the run folder's ``tensorboard/``."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nsgf.config.schema import Config
from nsgf.run.folder import RunFolder, dump_config


class TensorBoardMirror:
    """A folder for each phase, since each counts its own steps.

    A resumed phase begins its next file at the step of its first record, which hides what an
    interrupted session wrote after that step.
    """

    def __init__(self, config: Config, run: RunFolder) -> None:
        """Raise ImportError if tensorboard is missing or damaged."""
        from torch.utils.tensorboard import SummaryWriter

        self._begin, self._config = SummaryWriter, config
        self._folder = run.path / "tensorboard"
        self._writers: dict[str, Any] = {}
        self._steps: dict[str, int] = {}

    def record(self, values: dict[str, Any]) -> None:
        """Write the numbers of a record of metrics.jsonl or costs.jsonl, at once."""
        phase, step = values["phase"], values["step"]
        writer = self._writer(phase, step)
        self._steps[phase] = step
        for key, value in values.items():
            if key not in ("phase", "step") and isinstance(value, int | float):
                writer.add_scalar(key, value, step)
        writer.flush()  # a killed run then loses only what a resumed one writes again

    def picture(self, name: str, file: Path) -> None:
        """Write an image file; ``name`` is ``PHASE/WHAT``."""
        phase, _, what = name.partition("/")
        step = self._steps.get(phase, 0)
        with Image.open(file) as image:
            pixels = np.asarray(image.convert("RGB"))
        self._writer(phase, step).add_image(what, pixels, step, dataformats="HWC")

    def close(self, failed: bool) -> None:
        """Close the files, which do not say how a run ended."""
        with ExitStack() as closing:  # close each of them even if one fails
            for writer in self._writers.values():
                closing.callback(writer.close)

    def _writer(self, phase: str, step: int) -> Any:
        if phase not in self._writers:
            writer = self._begin(str(self._folder / phase), purge_step=step)
            settings = dump_config(self._config).replace("\n", "\n    ")
            writer.add_text("settings", f"    {settings}", step)
            self._writers[phase] = writer
        return self._writers[phase]
