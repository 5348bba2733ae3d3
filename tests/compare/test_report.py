import math
import re
from dataclasses import replace

import pytest

from nsgf.cli.arguments import parse
from nsgf.compare import report
from nsgf.compare.measure import Measured
from nsgf.compare.report import LEGEND
from nsgf.compare.rows import Row
from nsgf.compare.tables import configured_plan, plan_of_rows
from nsgf.compare.trials import Comparison
from nsgf.report.comparison import stored_comparison
from tests.compare.table_rows import COMPARISON, ROWS, in_folder, row
from tests.conftest import compared


def markdown(comparison: Comparison, rows: list[Row]) -> str:
    return report.markdown(configured_plan(comparison, rows), rows)


def test_means_spreads_floor_and_the_best_in_bold():
    lines = markdown(COMPARISON, ROWS).splitlines()
    assert lines[0] == "| w2 | moons, 10 |"
    assert lines[2] == "| NSGF | **0.200 ± 0.100** |"
    assert lines[3] == "| I-CFM | 0.303 ± 0.105 |"
    assert lines[4] == "| floor | 0.050 |"


def test_differences_are_taken_seed_by_seed():
    """Each seed's spread of 0.1 is common to both methods and does not hide the difference."""
    text = markdown(COMPARISON, ROWS)
    assert "| I-CFM | -0.103 ± 0.003 ahead |" in text
    both = [
        item._replace(
            measured=Measured(10, 0.5, {"w2": 0, "energy": 2 * item.measured.values["w2"]})
        )
        for item in ROWS
    ]
    assert "| NSGF minus, w2 |" in markdown(COMPARISON, both)
    assert "| I-CFM | -0.207 ± 0.007 ahead |" in markdown(COMPARISON, both)
    assert "| NSGF | 100 | 60 | 100 | 0.50 |" in text


def test_updates_that_take_as_long_as_the_slowest_method():
    """In proportion to the time of all networks; nothing is guessed where none was taken."""
    seconds = {"nsgf": 40.0, "icfm": 70.0}
    rows = [item._replace(train_seconds=seconds[item.trial.method]) for item in ROWS]
    text = markdown(COMPARISON, rows)
    assert "| cost | updates | training, s | updates in the time of the slowest |" in text
    assert "| NSGF | 100 | 40 | 175 | 0.50 |" in text
    assert "| I-CFM | 100 | 70 | 100 | 0.50 |" in text
    rows = [item._replace(train_seconds=0.0) if item in ROWS[3:6] else item for item in ROWS]
    text = markdown(COMPARISON, rows)
    assert "| NSGF | 100 | 60 | 100 | 0.50 |" in text
    assert "| I-CFM | 100 | - | - | 0.50 |" in text


def test_calls_that_a_method_cannot_do_with_are_dashes_in_all_tables():
    flags = ("--compare.methods=[nsgf++,icfm]", "--compare.nfe=[2,10]", "--compare.seeds=3")
    comparison = compared("2d", "--compare.targets=[moons]", *flags)
    rows = [
        *(row("nsgf++", seed, 0.1) for seed in range(3)),
        *(row("icfm", seed, 0.2, nfe) for seed in range(3) for nfe in (2, 10)),
    ]
    text = markdown(comparison, rows)
    assert "| NSGF++ | - | **0.100** |" in text
    assert "| NSGF++ | 100 | 60 | 100 | - | 0.50 |" in text
    assert "| I-CFM | - | -0.100 ± 0.000 ahead |" in text


def test_draws_of_one_network_are_not_counted_as_seeds():
    """Each network is off by its own amount, the same in all its draws."""
    rows = [
        row(method, seed, w2 + noise, draw=draw)
        for method, found in {"nsgf": [0.1, 0.5, 0.3], "icfm": [0.2, 0.5, 0.7]}.items()
        for seed, w2 in enumerate(found)
        for draw, noise in enumerate([0.0, 0.1, 0.2])
    ]
    lines = markdown(COMPARISON, rows).splitlines()
    assert lines[2].startswith("| NSGF | **0.400 ± 0.200")
    assert "| I-CFM | -0.167 ± 0.120 level |" in lines


def test_single_seed_shows_its_draws():
    rows = [row("nsgf", 0, w2, draw=draw) for draw, w2 in enumerate([0.1, 0.2, 0.3])]
    text = markdown(COMPARISON, rows)
    assert text.splitlines()[2].startswith("| NSGF | **0.200 ± 0.100")


def test_what_is_missing_is_said():
    """A comparison that was stopped: seeds are counted, differences taken over common ones."""
    rows = [item for item in ROWS if item.trial != ROWS[5].trial]
    lines = markdown(COMPARISON, rows).splitlines()
    assert lines[3] == "| I-CFM | 0.250 ± 0.071 (2 measures) |"
    assert "| I-CFM | -0.100 ± 0.000 ahead |" in lines
    rows = [item for item in ROWS if item.trial.method == "nsgf"]
    lines = markdown(COMPARISON, rows).splitlines()
    assert lines[3] == "| I-CFM | - (0 measures) |"
    assert "| I-CFM | - |" in lines


def test_other_nfe_than_asked_for_is_said():
    """Heun's steps take two calls, dopri5 what it needs."""
    rows = [
        item._replace(measured=Measured(9, 0.5, item.measured.values)) if item.nfe else item
        for item in ROWS
    ]
    assert "| NSGF | **0.200 ± 0.100 (NFE 9)** |" in markdown(COMPARISON, rows)


def test_diverged_method_does_not_hide_the_others():
    rows = [*ROWS[:3], *(row("icfm", seed, math.inf) for seed in range(3)), *ROWS[6:]]
    lines = markdown(COMPARISON, rows).splitlines()
    assert lines[2] == "| NSGF | **0.200 ± 0.100** |"
    assert lines[3] == "| I-CFM | diverged |"
    assert "| I-CFM | diverged |" in lines[6:]


def latex_tables(text: str) -> list[list[list[str]]]:
    """The cells of each tabular, line by line; asserts that LaTeX could read it."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    bare = re.sub(r"\\\\|\\[&%$#_{}]", "", "\n".join(lines))
    depth = 0
    for character in bare:
        depth += (character == "{") - (character == "}")
        assert depth >= 0
    assert depth == 0
    assert not set("%#_~^") & set(bare)
    assert bare.count("$") % 2 == 0
    assert bare.isascii()
    tables = []
    for part in "\n".join(lines).split(r"\begin{tabular}")[1:]:
        body, end, rest = part.partition(r"\end{tabular}")
        assert end
        assert rest.strip() == ""
        first, *inside = body.strip().splitlines()
        columns = re.fullmatch(r"\{(l(r*))\}", first)[1]
        assert inside[0] == r"\toprule"
        assert inside[2] == r"\midrule"
        assert inside[-1] == r"\bottomrule"
        cells = []
        for line in inside:
            if line in (r"\toprule", r"\midrule", r"\bottomrule"):
                continue
            assert line.endswith(r" \\")
            cells.append(re.split(r"(?<!\\) & ", line[:-3]))
            assert len(cells[-1]) == len(columns)
        tables.append(cells)
    return tables


def test_latex_has_the_tables_of_the_markdown():
    rows = [
        item._replace(
            trial=replace(item.trial, target=replace(item.trial.target, source="8gaussians")),
            measured=Measured(10, 0.5, {"a_b & 100%": item.measured.values["w2"]}),
        )
        for item in ROWS
    ]
    plan = plan_of_rows(rows)
    text = report.latex(plan, rows)
    measures, differences, costs = latex_tables(text)
    assert measures == [
        [r"a\_b \& 100\%", r"8gaussians\_moons, 10"],
        ["NSGF", r"\textbf{0.200 $\pm$ 0.100}"],
        ["I-CFM", r"0.303 $\pm$ 0.105"],
        ["floor", "0.050"],
    ]
    assert differences[1:] == [["I-CFM", r"$-$0.103 $\pm$ 0.003 ahead"]]
    assert costs[1] == ["NSGF", "100", "60", "100", "0.50"]
    assert text.index(r"\midrule") < text.rindex(r"\midrule" + "\nfloor") < text.index("minus")
    comments = " ".join(line.removeprefix("% ") for line in text.splitlines() if line[:1] == "%")
    assert LEGEND in comments
    assert r"\usepackage{booktabs}" in comments


@pytest.mark.parametrize("text", ["a\\b", "{x}", "x^2 ~ $5 #1", "50% & 7_8 ± 1"])
def test_what_means_something_to_latex_is_escaped(text):
    rows = [item._replace(measured=Measured(10, 0.5, {text: 1.0})) for item in ROWS]
    assert len(latex_tables(report.latex(plan_of_rows(rows), rows))) == 3


def test_cells_without_a_measure_are_dashes_in_latex_too():
    rows = [*ROWS, *(row("icfm", seed, 0.1, 2) for seed in range(3))]
    measures, differences, _ = latex_tables(report.latex(plan_of_rows(rows), rows))
    assert measures[1][1] == differences[1][1] == "--"


def test_report_is_three_tables_and_the_settings_that_they_follow_from(tmp_path):
    comparison = in_folder(COMPARISON, tmp_path)
    comparison.folder.mkdir()
    files = report.write_report(comparison, ROWS)
    assert [file.name for file in files] == ["table.md", "table.csv", "table.tex"]
    plan = configured_plan(comparison, ROWS)
    assert files[0].read_text() == report.markdown(plan, ROWS)
    assert files[2].read_text() == report.latex(plan, ROWS)
    stored = stored_comparison(comparison.folder)
    assert stored is not None
    assert stored.methods == comparison.methods


def test_stored_settings_train_the_same_again(tmp_path):
    """Also where flags and a method of one's own made them."""
    file = tmp_path / "mine.yaml"
    file.write_text("phases: [nsgf, nsf]\nnsf: {source: nsgf}\n")
    methods = f"--compare.methods=[nsgf++,{file}]"
    comparison = in_folder(compared("2d", methods, "--steps=3", "--compare.seeds=2"), tmp_path)
    comparison.folder.mkdir()
    report.write_report(comparison, ROWS)
    file.unlink()
    request = parse(["compare", "--config", str(comparison.folder / "comparison.yaml")])
    again = Comparison.of(request.config, request.methods)
    assert again.methods == comparison.methods
    assert list(again.trials()) == list(comparison.trials())
