"""The files of a comparison: tables as Markdown, LaTeX and CSV, and its settings."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from nsgf.compare.rows import Row, table_csv
from nsgf.compare.tables import (
    Cell,
    Plan,
    Table,
    configured_plan,
    cost_table,
    difference_tables,
    measure_tables,
)
from nsgf.compare.trials import Comparison
from nsgf.config.yaml_loader import dump_yaml
from nsgf.run.folder import write_text

TABLE, SETTINGS = "table.csv", "comparison.yaml"
"""Files of a comparison's folder: its measures, and the settings of its command."""
LEGEND = (
    "Mean ± standard deviation over seeds, each the mean of its draws (over the draws where there "
    "is one seed); the best mean in bold. Below: the mean difference within the same seed and "
    "draw ± its standard error; ahead or behind by a t test at 5 %, which happens by chance in one "
    "cell of twenty. With one seed the test concerns that training run only. A dash: no measure, "
    "for example because the method needs more calls."
)
COST_LEGEND = (
    "Training is the time of all of a method's networks, with the pool, NSGF steps and pairs; 2-RF "
    "includes 1-RF. For a comparison at equal time pass the fourth column, in this order, to "
    "--compare.updates [...] with another --out-dir."
)
IN_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$"}
)
"""LaTeX's special characters, escaped."""


def write_report(comparison: Comparison, rows: Sequence[Row]) -> list[Path]:
    """Write ``table.md``, ``table.csv``, ``table.tex`` and the settings into the comparison's
    folder, and return the files of tables."""
    folder, plan = comparison.folder, configured_plan(comparison, rows)
    write_text(folder / SETTINGS, settings_text(comparison))
    texts = {
        "table.md": markdown(plan, rows),
        TABLE: table_csv(rows),
        "table.tex": latex(plan, rows),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def settings_text(comparison: Comparison) -> str:
    """Return the comparison as an experiment's file, with a section of all settings per method."""
    settings, own = asdict(comparison.config), comparison.config.compare
    del settings["phases"]  # those of the methods hold
    settings["compare"] = asdict(replace(own, methods=list(comparison.methods)))
    settings["methods"] = {name: asdict(own) for name, own in comparison.methods.items()}
    return dump_yaml(settings)


def markdown(plan: Plan, rows: Sequence[Row]) -> str:
    """Return all tables as Markdown: a table for each measure, differences, costs."""
    parts = [
        *map(_markdown_table, measure_tables(plan, rows)),
        LEGEND,
        *map(_markdown_table, difference_tables(plan, rows)),
        _markdown_table(cost_table(plan, rows)),
        COST_LEGEND,
    ]
    return "".join(f"{part}\n\n" for part in parts)[:-1]


def latex(plan: Plan, rows: Sequence[Row]) -> str:
    """Return the same tables for LaTeX with the package booktabs, a ``tabular`` each."""
    parts = [
        r"% \usepackage{booktabs}",
        _comment(LEGEND),
        *map(_latex_table, measure_tables(plan, rows)),
        *map(_latex_table, difference_tables(plan, rows)),
        _comment(COST_LEGEND),
        _latex_table(cost_table(plan, rows)),
    ]
    return "".join(f"{part}\n\n" for part in parts)[:-1]


def _markdown_table(table: Table) -> str:
    lines = [
        [f"**{cell.text}**" if cell.is_best else cell.text for cell in line]
        for line in [*table.lines, *table.foot]
    ]
    every = [table.head, ["---"] * len(table.head), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in every)


def _latex_table(table: Table) -> str:
    body = [_latex_line(line) for line in table.lines]
    if table.foot:
        body += [r"\midrule", *(_latex_line(line) for line in table.foot)]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}",
            r"\toprule",
            _latex_line([Cell(text) for text in table.head]),
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def _latex_line(cells: Sequence[Cell]) -> str:
    return " & ".join(map(_latex_cell, cells)) + r" \\"


def _latex_cell(cell: Cell) -> str:
    """Return a cell for LaTeX; a minus sign before a number is typeset as one."""
    text = "--" if cell.text == "-" else cell.text.translate(IN_LATEX)
    text = re.sub(r"^-(?=\d)", "$-$", text)
    return rf"\textbf{{{text}}}" if cell.is_best else text


def _comment(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="% ", subsequent_indent="% ")
