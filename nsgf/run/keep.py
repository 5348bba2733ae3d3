"""``train.keep: light``: what a finished phase leaves is what later phases and samples read."""

from collections.abc import Callable
from dataclasses import replace

from nsgf.config.files import build, read_settings
from nsgf.config.schema import Config, PhaseName
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder, dump_config, earlier, write_text
from nsgf.system.hardware import format_bytes

KEPT = ("phase", "step", "precision", "config", "model", "ema")
"""Parts of a checkpoint without which nobody could use its network."""


def lighten(run: RunFolder, phase: PhaseName, log: Callable[[str], None]) -> None:
    """Leave of a finished phase one checkpoint with last and averaged weights, and log a line.

    The optimizer's state goes, and with it the checkpoint before. What was put aside stays: it
    is of other updates, and nobody could make it again. Doing it again changes nothing.

    Raises:
        UserError: the checkpoint cannot be read, or the lighter one cannot be written.
    """
    file = run.checkpoint_file(phase)
    older = earlier(file)
    before = sum(each.stat().st_size for each in (file, older) if each.exists())
    if not checkpoint.read_header(file).get("light"):
        payload = checkpoint.load(file)
        kept = {key: payload[key] for key in KEPT if key in payload}
        checkpoint.save(file, {**kept, "light": True})
    older.unlink(missing_ok=True)  # what was just replaced
    freed = before - file.stat().st_size
    if freed > 0:
        log(f"{phase}: kept light, {format_bytes(freed)} are freed; it cannot be trained longer")


def remember(run: RunFolder) -> None:
    """Let the settings of a run in which nothing is trained any more say that it is kept light.

    Raises:
        UserError: they cannot be read.
    """
    saved = build(Config, read_settings(run.config_file))
    if saved.train.keep != "light":
        kept = replace(saved, train=replace(saved.train, keep="light"))
        write_text(run.config_file, dump_config(kept))
