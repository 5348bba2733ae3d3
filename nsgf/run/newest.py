"""The newest run of an experiment that a command can use."""

from pathlib import Path

from nsgf.run.checkpoint import read_good_header
from nsgf.run.folder import RunFolder, dated_folders, folder_stem
from nsgf.run.foreign import check_links
from nsgf.system.errors import UserError, cause


def newest_run(
    out_dir: Path, exp: str, *, smoke: bool = False, method: str | None = None, resume: bool = False
) -> tuple[RunFolder, str]:
    """Return the newest run of an experiment with a readable checkpoint, and a line that names it
    and says why newer runs are skipped.

    With ``resume``, a run with only a pool counts too; if there is none either, a run with only
    settings. ``method`` None: any. Raise UserError if there is no such run."""
    stem, passed, begun = folder_stem(exp, smoke), list[str](), list[RunFolder]()
    dated = dated_folders(out_dir.expanduser(), stem)
    for run in (RunFolder(path) for _, _, path in reversed(dated)):
        if not run.config_file.is_file():
            continue
        try:
            check_links(run.path)
            settings = run.read_settings()
            if method not in (None, settings.get("method")):
                continue
            begun.append(run)
            saved = [phase for phase in settings.get("phases", []) if run.has_checkpoint(phase)]
            if saved:
                read_good_header(run.checkpoint_file(saved[0]))
            elif not (resume and run.pool.exists()):
                raise UserError("no checkpoint")
        except (UserError, OSError) as error:
            why = cause(error) if isinstance(error, OSError) else str(error)
            passed.append(f"{run.path.name} ({why.removeprefix(f'{run.path}: ')})")
            continue
        return run, f"run {run.path}" + (f"; skipped: {', '.join(passed)}" if passed else "")
    if resume and begun:
        return begun[0], f"run {begun[0].path}"
    of_method = f" with method {method}" if method else ""
    unusable = f" can be used; skipped: {', '.join(passed)}" if passed else ""
    hint = "train one, or name its folder with --run DIR"
    if not smoke and dated_folders(out_dir.expanduser(), folder_stem(exp, True)):
        hint = "add --smoke to use the smoke run, or train one"
    raise UserError(f"no run of {stem}{of_method} in {out_dir}{unusable}: {hint}")
