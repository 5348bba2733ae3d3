import math

import pytest

from nsgf.cli.arguments import parse
from nsgf.compare.results import FLOOR
from nsgf.compare.tables import latex, markdown, measure_table, verdict, write_report
from nsgf.compare.trials import Comparison
from nsgf.report.comparison import stored_comparison
from tests.compare.table_rows import ROWS, in_folder, row
from tests.conftest import compared


@pytest.mark.parametrize(
    ("differences", "metric", "word"),
    [
        ([-0.1, -0.11, -0.09], "w2", "ahead"),
        ([0.1, 0.11, 0.09], "w2", "behind"),
        ([0.1, -0.1, 0.05], "w2", "level"),
        ([0.1, 0.11, 0.09], "classifier_recall", "ahead"),
        ([-0.1], "w2", "(one measure)"),
        ([-0.1, -0.2, -0.15], "w2", "ahead"),
        ([-0.1, -0.3], "w2", "level"),  # two standard errors, but of two values
        ([-0.1, math.inf], "w2", "diverged"),
        ([], "w2", "-"),
    ],
)
def test_verdict(differences, metric, word):
    assert verdict(differences, metric).endswith(word)


def test_means_spreads_floor_and_the_best_in_bold():
    lines = markdown(ROWS).splitlines()
    assert lines[0] == "| w2 | moons, 10 |"
    assert lines[2] == "| NSGF | **0.200 ± 0.100** |"
    assert lines[3] == "| I-CFM | 0.303 ± 0.105 |"
    assert lines[4] == "| floor | 0.050 |"
    rows = [item._replace(values={"recall": item.values["w2"]}) for item in ROWS]
    assert measure_table(rows, "recall")[2] == ["I-CFM", "**0.303 ± 0.105**"]


def test_differences_are_taken_seed_by_seed():
    """Each seed's spread of 0.1 is common to both methods and does not hide the difference."""
    assert "| I-CFM | -0.103 ± 0.003 ahead |" in markdown(ROWS)
    both = [item._replace(values={"w2": 0, "energy": 2 * item.values["w2"]}) for item in ROWS]
    assert "| NSGF minus, w2 |" in markdown(both)
    assert "| I-CFM | -0.207 ± 0.007 ahead |" in markdown(both)
    assert "minus" not in markdown([item for item in ROWS if item.method != "icfm"])


def test_updates_that_take_as_long_as_the_slowest_method():
    """In proportion to the time of all networks; nothing is guessed where none was taken."""
    seconds = {"nsgf": 40.0, "icfm": 70.0, FLOOR: 0.0}
    text = markdown([item._replace(train_seconds=seconds[item.method]) for item in ROWS])
    assert "| cost | updates | training, s | updates in the time of the slowest |" in text
    assert "| NSGF | 100 | 40 | 175 | 0.50 |" in text
    assert "| I-CFM | 100 | 70 | 100 | 0.50 |" in text
    text = markdown(
        [item._replace(train_seconds=0.0) if item in ROWS[3:6] else item for item in ROWS]
    )
    assert "| NSGF | 100 | 60 | 100 | 0.50 |" in text
    assert "| I-CFM | 100 | - | - | 0.50 |" in text


def test_cells_without_a_measure_are_dashes_in_all_tables():
    """For example where a method cannot do with so few calls."""
    rows = [
        *(row("nsgf++", seed, 0.1) for seed in range(3)),
        *(row("icfm", seed, 0.2, nfe)._replace(calls=nfe) for seed in range(3) for nfe in (2, 10)),
    ]
    text = markdown(rows)
    assert "| NSGF++ | - | **0.100** |" in text
    assert "| NSGF++ | 100 | 60 | 100 | - | 0.50 |" in text
    assert "| I-CFM | - | -0.100 ± 0.000 ahead |" in text
    assert latex(rows).count(" & -- & ") == 4


def test_draws_of_one_network_are_not_counted_as_seeds():
    """Each network is off by its own amount, the same in all its draws."""
    rows = [
        row(method, seed, w2 + noise, draw=draw)
        for method, found in {"nsgf": [0.1, 0.5, 0.3], "icfm": [0.2, 0.5, 0.7]}.items()
        for seed, w2 in enumerate(found)
        for draw, noise in enumerate([0.0, 0.1, 0.2])
    ]
    lines = markdown(rows).splitlines()
    assert lines[2].startswith("| NSGF | **0.400 ± 0.200")
    assert "| I-CFM | -0.167 ± 0.120 level |" in lines


def test_single_seed_shows_its_draws():
    rows = [row("nsgf", 0, w2, draw=draw) for draw, w2 in enumerate([0.1, 0.2, 0.3])]
    assert markdown(rows).splitlines()[2].startswith("| NSGF | **0.200 ± 0.100")


def test_missing_measures_are_counted_and_differences_are_of_common_seeds():
    lines = markdown([*ROWS[:5], *ROWS[6:]]).splitlines()
    assert lines[3] == "| I-CFM | 0.250 ± 0.071 (2 of 3 measures) |"
    assert "| I-CFM | -0.100 ± 0.000 ahead |" in lines


def test_other_nfe_than_asked_for_is_said():
    """Heun's steps take two calls, dopri5 what it needs."""
    assert "**0.200 ± 0.100 (NFE 9)**" in markdown([item._replace(calls=9.0) for item in ROWS])


@pytest.mark.parametrize("metric", ["w2", "recall"])
def test_diverged_method_does_not_hide_the_others(metric):
    rows = [*ROWS[:3], *(row("icfm", seed, math.inf) for seed in range(3)), *ROWS[6:]]
    lines = markdown([item._replace(values={metric: item.values["w2"]}) for item in rows])
    assert lines.splitlines()[2:4] == ["| NSGF | **0.200 ± 0.100** |", "| I-CFM | diverged |"]
    assert lines.count("| I-CFM | diverged |") == 2


def test_latex_has_the_tables_of_the_markdown():
    rows = [
        item._replace(target="8gaussians_moons", values={"a_b & 100%": item.values["w2"]})
        for item in ROWS
    ]
    text = latex(rows)
    measures = r"""
\begin{tabular}{lr}
\toprule
a\_b \& 100\% & 8gaussians\_moons, 10 \\
\midrule
NSGF & \textbf{0.200 $\pm$ 0.100} \\
I-CFM & 0.303 $\pm$ 0.105 \\
\midrule
floor & 0.050 \\
\bottomrule
\end{tabular}
"""
    assert measures in text
    assert "I-CFM & $-$0.103 $\\pm$ 0.003 ahead \\\\\n" in text
    assert "NSGF & 100 & 60 & 100 & 0.50 \\\\\n" in text
    tables = text[text.index(r"\begin") :].split(r"\end{tabular}")
    assert [part.count("%") - part.count(r"\%") for part in tables] == [0, 0, 0, 0]
    assert all(line[0] == "%" for line in text[: text.index(r"\begin")].splitlines() if line)


def test_stored_settings_train_the_same_again(tmp_path):
    """Also where flags and a method of one's own made them."""
    file = tmp_path / "mine.yaml"
    file.write_text("phases: [nsgf, nsf]\nnsf: {source: nsgf}\n")
    methods = f"--compare.methods=[nsgf++,{file}]"
    comparison = in_folder(compared("2d", methods, "--steps=3", "--compare.seeds=2"), tmp_path)
    comparison.folder.mkdir()
    write_report(comparison, ROWS)
    file.unlink()
    request = parse(["compare", "--config", str(comparison.folder / "comparison.yaml")])
    again = Comparison.of(request.config, request.methods)
    assert again.methods == comparison.methods
    assert list(again.trials()) == list(comparison.trials())
    stored = stored_comparison(comparison.folder)
    assert stored.methods == comparison.methods
