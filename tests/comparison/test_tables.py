import math

import pytest

from nsgf.cli.arguments import parse
from nsgf.comparison.tables import (
    all_tables,
    cost_table,
    measure_table,
    tables_text,
    verdict,
    write_report,
)
from nsgf.comparison.trials import FLOOR, NOISE_ROW, Comparison
from tests.comparison.table_rows import ROWS, in_folder, row
from tests.conftest import compared


@pytest.mark.parametrize(
    ("differences", "metric", "word"),
    [
        ([-0.1, -0.11, -0.09], "w2", "ahead"),
        ([0.1, 0.11, 0.09], "w2", "behind"),
        ([0.1, -0.1, 0.05], "w2", "level"),
        ([0.1, 0.11, 0.09], "imagenet_recall", "ahead"),
        ([-0.1], "w2", "(one measure)"),
        ([-0.1, -0.2, -0.15], "w2", "ahead"),
        ([-0.1, -0.2, -0.3], "w2", "level"),  # p = 0.074
        ([-0.1, -0.3], "w2", "level"),  # two standard errors, but of two values
        ([-0.1, math.inf], "w2", "diverged"),
        ([], "w2", "-"),
    ],
)
def test_verdict(differences, metric, word):
    """Past mistake: Verdicts used normal quantiles in place of Student's t for two or three
    seeds. One of five was wrong.
    """
    assert verdict(differences, metric).endswith(word)


def test_pure_noise_is_the_last_line_and_no_method():
    rows = [*ROWS, row(NOISE_ROW, 0, 9.0, None)]
    head, *_, floor, noise = table = measure_table(rows, "w2")
    assert [line[0] for line in table[1:]] == [*("NSGF", "I-CFM", "floor", "pure noise")]
    assert (head, floor[1], noise[1]) == (["W2 ↓", "moons, NFE 10"], "0.050", "9.000")
    text = tables_text("table.tex", all_tables(rows))
    assert text.index("midrule\nfloor") < text.index("pure noise")
    assert len(cost_table(rows)) == 3


def test_each_measure_has_its_differences_unless_there_is_one_method():
    both = [item._replace(values={"w2": 0, "energy": 2 * item.values["w2"]}) for item in ROWS]
    assert "| NSGF minus, W2 ↓ |" in tables_text("table.md", all_tables(both))
    assert "| I-CFM | -0.207 ± 0.007 ahead |" in tables_text("table.md", all_tables(both))
    assert "minus" not in tables_text(
        "table.md", all_tables([item for item in ROWS if item.method != "icfm"])
    )


def several(nsgf, icfm, draws):
    """Measures by seed, each with its draws beside."""
    return [
        row(method, seed, w2 + noise, draw=draw)
        for method, found in {"nsgf": nsgf, "icfm": icfm}.items()
        for seed, w2 in enumerate(found)
        for draw, noise in enumerate(draws)
    ]


DIVERGED = several([0.1, 0.2, 0.3], [math.inf] * 3, [0])
CELLS = {
    # each seed's spread of 0.1 is common to both methods and does not hide the difference
    "**0.200 ± 0.100** | 0.303 ± 0.105 | -0.103 ± 0.003 ahead": ROWS,
    # each network is off by its own amount, the same in all its draws, which are no seeds
    "**0.400 ± 0.200** | 0.567 ± 0.252 | -0.167 ± 0.120 level": several(
        [0.1, 0.5, 0.3], [0.2, 0.5, 0.7], [0.0, 0.1, 0.2]
    ),
    # a single seed shows its draws, and no method is the best
    "0.200 ± 0.100 | 0.300 ± 0.100 | -0.100 ± 0.000 ahead": several([0.1], [0.2], [0, 0.1, 0.2]),
    # differences are of the common seeds
    "**0.200 ± 0.100** | 0.250 ± 0.071 (2 of 3 measures) | -0.100 ± 0.000 ahead": ROWS[:5]
    + ROWS[6:],
    # a diverged method does not hide the others
    "**0.200 ± 0.100** | diverged | diverged": DIVERGED,
    # Heun's steps take two calls, dopri5 what it needs
    "**0.200 ± 0.100 (NFE 9)** | 0.303 ± 0.105 (NFE 9) | -0.103 ± 0.003 ahead": [
        item._replace(calls=9.0) for item in ROWS
    ],
}
"""Cells of NSGF, of I-CFM and of their difference, and the rows that give them."""


@pytest.mark.parametrize("cells", CELLS)
def test_means_spreads_and_differences(cells):
    """Past mistake: Several draws of one network were counted as several networks, so luck of one
    network could have been called a lead.

    Past mistake: The verdict used W2 only, and the next table contradicted it.

    Past mistake: One run with five draws was reported as a method's result. With five runs one
    verdict was different.
    """
    nsgf, icfm, difference = cells.split(" | ")
    lines = tables_text("table.md", all_tables(CELLS[cells])).splitlines()
    assert lines[2:4] == [f"| NSGF | {nsgf} |", f"| I-CFM | {icfm} |"]
    assert f"| I-CFM | {difference} |" in lines[4:]


def test_larger_recall_is_better():
    for rows, best in ((ROWS, 2), (DIVERGED, 1)):
        recall = [item._replace(values={"recall": item.values["w2"]}) for item in rows]
        bold = ["**" in line[1] for line in measure_table(recall, "recall")]
        assert bold == [line == best for line in range(len(bold))]


def test_updates_that_take_as_long_as_the_slowest_method():
    """In proportion to the time of all networks; nothing is guessed where none was taken."""
    seconds = {"nsgf": 40.0, "icfm": 70.0, FLOOR: 0.0}
    table = cost_table([item._replace(train_seconds=seconds[item.method]) for item in ROWS])
    assert table[1:] == [
        ["NSGF", "100", "40", "175", "0.50"],
        ["I-CFM", "100", "70", "100", "0.50"],
    ]
    table = cost_table([*ROWS[:3], *(item._replace(train_seconds=0.0) for item in ROWS[3:6])])
    assert table[1:] == [["NSGF", "100", "60", "100", "0.50"], ["I-CFM", "100", "-", "-", "0.50"]]


def test_cells_without_a_measure_are_dashes_in_all_tables():
    """For example where a method needs more calls."""
    rows = [
        *(row("nsgf++", seed, 0.1) for seed in range(3)),
        *(row("icfm", seed, 0.2, nfe)._replace(calls=nfe) for seed in range(3) for nfe in (2, 10)),
    ]
    text = tables_text("table.md", all_tables(rows))
    assert "| NSGF++ | - | **0.100** |" in text
    assert "| NSGF++ | 100 | 60 | 100 | - | 0.50 |" in text
    assert "| I-CFM | - | -0.100 ± 0.000 ahead |" in text
    assert tables_text("table.tex", all_tables(rows)).count(" & -- & ") == 4


def test_latex_has_the_tables_of_the_markdown():
    rows = [
        item._replace(target="8gaussians_moons", values={"recall & 100%": item.values["w2"]})
        for item in ROWS
    ]
    text = tables_text("table.tex", all_tables(rows))
    assert "recall \\& 100\\% & 8gaussians\\_moons, NFE 10 \\\\\n" in text
    assert "NSGF & \\textbf{0.200 $\\pm$ 0.100} \\\\\n" in text
    assert "I-CFM & $-$0.103 $\\pm$ 0.003 ahead \\\\\n" in text
    assert "NSGF & 100 & 60 & 100 & 0.50 \\\\\n" in text
    less = [item._replace(values={"w2": -item.values["w2"]}) for item in ROWS]
    assert r"& \textbf{$-$0." in tables_text("table.tex", all_tables(less))
    tables = text[text.index(r"\begin") :]
    assert tables.count("%") == tables.count(r"\%")


def test_stored_settings_train_the_same_again(tmp_path):
    """Also where flags and a method of one's own made them."""
    file = tmp_path / "mine.yaml"
    file.write_text("phases: [nsgf, nsf]\nnsf: {source: nsgf}\n")
    methods = f"--compare.methods=[nsgf++,{file}]"
    flags = ("--steps=3", "--compare.seeds=2", "--smoke", "--batch-size=16")
    comparison = in_folder(compared("2d", methods, *flags), tmp_path)
    comparison.folder.mkdir()
    write_report(comparison, ROWS)
    file.unlink()
    request = parse(["compare", "--config", str(comparison.folder / "comparison.yaml")])
    again = Comparison.of(request.config, request.methods)
    assert again.methods == comparison.methods
    assert len(again.trials) == len(comparison.trials)
    assert Comparison.stored(comparison.folder).methods == comparison.methods
