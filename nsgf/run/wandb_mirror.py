"""The mirror of a run at Weights & Biases, one W&B run per run folder.

wandb is imported only if a run asks for it. Its files are in the run folder's ``wandb/``.
"""

import os
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from os.path import lexists
from pathlib import Path
from typing import Any, Literal

from nsgf.config.schema import FAMILIES, Config
from nsgf.run.folder import RunFolder, name_within, write_text
from nsgf.system.errors import UserError, one_line

INIT_SECONDS = 15.0
"""Longest wait for the W&B server before a run is kept offline."""
FINISH_SECONDS = 60.0
"""Longest wait for uploads at the end; the rest stays in the run folder."""

SETTINGS = ("wandb/settings", ".wandb/settings")
"""Files of the working directory that wandb prefers to the user's own settings."""
MODES: dict[str, tuple[Literal["online", "offline"], ...]] = {
    "wandb": ("online", "offline"),
    "wandb-offline": ("offline",),
}
"""Modes that are tried in order, by ``tracking.tracker``."""


class WandbMirror:
    """A W&B run with a step axis of its own for each phase: ``nsgf/step`` for ``nsgf/*``."""

    def __init__(self, run: Any) -> None:
        self._run = run
        for phase in chain(*FAMILIES):
            run.define_metric(f"{phase}/step")
            run.define_metric(f"{phase}/*", step_metric=f"{phase}/step")

    def record(self, values: dict[str, Any]) -> None:
        """Log a record of metrics.jsonl or costs.jsonl under its phase: ``nsgf/loss``, ..."""
        phase = values.get("phase")
        prefix = f"{phase}/" if phase else ""
        self._run.log({prefix + key: value for key, value in values.items() if key != "phase"})

    def picture(self, name: str, file: Path) -> None:
        """Log an image file."""
        import wandb

        self._run.log({name: wandb.Image(str(file))})

    def close(self, failed: bool) -> None:
        """Finish the W&B run, as failed if training did not finish."""
        self._run.finish(exit_code=int(failed))


def open_wandb(config: Config, run: RunFolder, log: Callable[[str], None]) -> WandbMirror | None:
    """Return the W&B run of a run folder, begun or continued; None if there can be none.

    Without a server or an API key the run is kept offline. A settings file in the working directory
    may be somebody else's and name a server that gets the user's key: then nothing is mirrored.
    """
    failure = ""
    if foreign := next(filter(lexists, SETTINGS), None):
        log(
            f"W&B: not used: {Path(foreign).absolute()} may name a server that gets your key; what "
            "is yours of it belongs into ~/.config/wandb/settings, then remove it"
        )
        return None
    for mode in MODES[config.tracking.tracker]:
        try:
            begun = _begin(config, run, mode)
            mirror = WandbMirror(begun)
        except Exception as error:  # wandb raises many types, not all of them its own
            if mode == "offline":
                log(f"W&B: {failure}not used ({one_line(error)})")
                return None
            failure = f"not online ({one_line(error)}), "
            with suppress(Exception, SystemExit):  # the failed attempt still has the run's id
                import wandb

                wandb.teardown()
            continue
        kept = f"{failure}kept offline; upload it with: wandb sync {Path(begun.dir).parent}"
        log(f"W&B: {begun.url or kept}")
        return mirror
    return None


def run_id(run: RunFolder) -> str:
    """Return the W&B run's id, which is made once and kept in ``wandb_id.txt``.

    Raises:
        UserError: the file holds something else.
    """
    file = run.path / "wandb_id.txt"
    if not file.exists():
        write_text(file, uuid.uuid4().hex[:12] + "\n")
    found = file.read_text().strip()
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", found):  # wandb names folders after it
        raise UserError(f"{file} holds no id of a W&B run; remove it for a new one")
    return found


def _begin(config: Config, run: RunFolder, mode: Literal["online", "offline"]) -> Any:
    """Return a W&B run. Raise an exception of any type if wandb cannot begin one."""
    import wandb

    # silence before init also rules out its prompts
    wandb.setup(settings=wandb.Settings(silent=True))
    return wandb.init(
        mode=mode,
        project=os.environ.get("WANDB_PROJECT", "nsgf"),
        name=name_within(config, run),
        group=config.exp,
        id=run_id(run),
        resume="allow",
        config=asdict(config),
        allow_val_change=True,  # a resumed run may train longer
        dir=str(run.path),
        settings=wandb.Settings(
            silent=True,
            console="off",  # progress bars would fill its copy of the terminal
            init_timeout=INIT_SECONDS,
            finish_timeout=FINISH_SECONDS,
            disable_git=True,
            save_code=False,
        ),
    )
