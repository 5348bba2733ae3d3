"""Compare a caller's method with methods of the package, as ``nsgf compare`` does."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from nsgf.api.samples import UserSamples, columns_text, request_with_data, split_data
from nsgf.commands.compare import compare as compare_methods
from nsgf.commands.report_comparison import report_comparison
from nsgf.comparison import TABLE, TABLE_COLUMNS, read_rows
from nsgf.comparison.trials import NAME, NAME_RULE, Comparison, DrawSamples
from nsgf.config.files import from_arguments, method_title
from nsgf.config.values import Place, to_plain
from nsgf.run.stop import stop_of_caller
from nsgf.system.errors import UserError, naming
from nsgf.system.output import show, silence
from nsgf.system.seeding import from_python


class Compared(NamedTuple):
    """Result of a comparison."""

    folder: Path
    """Folder with ``table.md``, ``table.csv``, ``table.tex``, pictures and ``report.html``."""
    table: str
    """Means, differences and costs, as Markdown."""
    rows: list[dict[str, Any]]
    """All measures, as in ``table.csv``: a row for each method, target, seed, draw and NFE."""


_COMPARE_ARGUMENTS = {
    "data.name": "dataset",
    "data.path": "data",
    "data.source": "source",
    "compare.methods": "against",
    "compare.nfe": "nfe",
    "compare.seeds": "seeds",
    "sinkhorn.blur": "blur",
    "data.columns": "columns",
    "data.held_out": "held_out",
}


@from_python(_COMPARE_ARGUMENTS)
def compare(
    exp: str | UserSamples | None = None,
    *,
    data: UserSamples | None = None,
    source: UserSamples | None = None,
    columns: Sequence[str | int] | str | None = None,
    held_out: float | None = None,
    methods: Mapping[str, DrawSamples] | Sequence[str] | str | None = None,
    against: Sequence[str] | str | None = None,
    dataset: str | None = None,
    nfe: Sequence[int] | None = None,
    seeds: int | None = None,
    blur: float | None = None,
    out_dir: Place | None = None,
    overrides: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Compared:
    """Compare your own methods with methods of the package on equal terms: the same noise, real
    samples and numbers of network calls. The methods of the package are trained first.

        nsgf.compare("digits", methods={"mine": draw}, against=["nsgf++h", "otcfm"], nfe=[5, 10])

    If you call it again, finished trainings are not repeated. Your functions are measured again.

    Args:
        exp: name of an experiment, such as ``2d``; or your samples, in the form of ``data``.
        data: your own points or images, as for ``nsgf.train``, without classes.
        source: samples to start from, as for ``nsgf.train``.
        columns: columns of points to use, as for ``nsgf.train``.
        held_out: fraction of the samples that no method is trained on (``data.held_out``).
        methods: functions ``draw(noise, nfe)`` by name. ``noise`` is ``(B, *shape)``: standard
            Gaussian, or samples of ``data.source``. If you pass a ``source``, its samples have the
            units of your data. The function calls its network ``nfe`` times for each sample, and
            returns B samples. Points have the units of ``data``. Images are floats in [-1, 1] or
            bytes, uint8. The function is called without gradients. With ``data.conditional``, its
            arguments are ``(noise, nfe, labels)``, where labels are int64 ``(B,)``. Later
            comparisons in the same folder show the last measures of the function until you remove
            ``TARGET/functions.jsonl``. A list of names, such as ``["nsgf", "otcfm"]``, means the
            same as ``against``.
        against: methods of the package, or YAML files; None: the experiment's methods.
        dataset: name of the data set (``data.name``), such as ``moons``.
        nfe: numbers of network calls; None: the experiment's numbers.
        seeds: number of training runs of each method. Your functions get the noise of each seed.
        blur: square root of the regularization eps of Sinkhorn flows (``sinkhorn.blur``).
        out_dir: folder for the comparison's folder; None: ``runs``.
        overrides: further settings by key, such as ``{"compare.updates": [1000]}``.
        quiet: whether to print nothing.

    Raises:
        UserError: an argument or a setting is wrong, a function did not return samples, or
            ``train.max_hours`` is over.
        KeyboardInterrupt: you pressed Ctrl-C. A checkpoint is saved. Repeat the call to continue.
    """
    exp, data = split_data(exp, data)
    named = {
        "exp": exp,
        "data.name": dataset,
        "out_dir": out_dir,
        "compare.methods": against,
        "compare.nfe": nfe,
        "compare.seeds": seeds,
        "sinkhorn.blur": blur,
        "data.columns": columns_text(columns),
        "data.held_out": held_out,
    }
    functions: Mapping[str, DrawSamples] = {}
    names = dict(_COMPARE_ARGUMENTS)
    if isinstance(methods, Mapping):
        functions = methods
    elif methods is not None:
        named["compare.methods"] = _package_methods(methods, against)
        names["compare.methods"] = "methods"
    with naming(names):
        request = request_with_data(
            "compare", data, None, {}, from_arguments(named, overrides), source
        )
        comparison = Comparison.of(request.config, request.methods, request.fixed)
    taken = [*comparison.methods, *map(method_title, comparison.methods)]
    for name, draw in functions.items():
        if not callable(draw) or not NAME.fullmatch(name) or name in taken:
            raise UserError(
                f'methods["{name}"]: must be a function draw(noise, nfe), its name {NAME_RULE}, '
                f"none of {taken}"
            )
    with (
        silence(quiet),
        stop_of_caller(request.config.train.max_hours, lambda _: "the same call continues") as stop,
    ):
        for note in request.notes:
            show(note)
        files = compare_methods(replace(comparison, functions=functions), stop)
        report_comparison(comparison.folder, request.config.out_dir)
    rows = [
        dict(zip(TABLE_COLUMNS, row, strict=False)) | dict(row.values)
        for row in read_rows(comparison.folder / TABLE)
    ]
    return Compared(comparison.folder, files[0].read_text("utf-8"), rows)


def _package_methods(methods: Any, against: Any) -> Any:
    """Return the argument ``methods`` as names of methods of the package. Raise UserError if it has
    functions, or if ``against`` has names too."""
    names = to_plain(methods)
    if any(map(callable, names if isinstance(names, list) else [names])):
        raise UserError('methods: a function needs a name, as in methods={"mine": draw}')
    if against is not None:
        raise UserError("methods: has names of methods, as against; leave one out")
    return names
