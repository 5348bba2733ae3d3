import csv
import io
import math
from dataclasses import replace

import pytest

from nsgf.compare import report
from nsgf.compare.measure import Measured
from nsgf.compare.trials import Target, Trial
from nsgf.config.schema import Config
from nsgf.system.errors import UserError
from tests.conftest import shipped

CONFIG = shipped(
    "2d",
    "--compare.methods=[nsgf,icfm]",
    "--compare.targets=[moons]",
    "--compare.nfe=[10]",
    "--compare.seeds=3",
    "--compare.draws=1",
)


def row(method: str, seed: int, w2: float, nfe: int | None = 10, draw: int = 0) -> Row:
    return Row(
        Trial(Target("moons"), method, seed), nfe, draw, 100, 60.0, Measured(10, 0.5, {"w2": w2})
    )


def markdown(config: Config, rows: list[Row]) -> str:
    return report.markdown(report.configured_plan(config, rows), rows)


ROWS = [
    *(row("nsgf", seed, w2) for seed, w2 in enumerate([0.1, 0.2, 0.3])),
    *(row("icfm", seed, w2) for seed, w2 in enumerate([0.2, 0.3, 0.41])),
    *(row("nsgf", seed, 0.05, None) for seed in range(3)),
]


def test_means_spreads_floor_and_the_best_in_bold():
    lines = markdown(CONFIG, ROWS).splitlines()
    assert lines[0] == "| w2 | moons, 10 |"
    assert lines[2] == "| NSGF | **0.200 ± 0.100** |"
    assert lines[3] == "| I-CFM | 0.303 ± 0.105 |"
    assert lines[4] == "| floor | 0.050 |"


def test_differences_are_taken_seed_by_seed():
    """Each seed's spread of 0.1 is common to both methods and does not hide the difference."""
    text = markdown(CONFIG, ROWS)
    assert "| I-CFM | -0.103 ± 0.003 ahead |" in text
    both = [
        item._replace(
            measured=Measured(10, 0.5, {"w2": 0, "energy": 2 * item.measured.values["w2"]})
        )
        for item in ROWS
    ]
    assert "| NSGF minus, w2 |" in markdown(CONFIG, both)
    assert "| I-CFM | -0.207 ± 0.007 ahead |" in markdown(CONFIG, both)
    assert "| NSGF | 100 | 60 | 100 | 0.50 |" in text


def test_updates_that_take_as_long_as_the_slowest_method():
    """In proportion to the time of all networks; nothing is guessed where none was taken."""
    seconds = {"nsgf": 40.0, "icfm": 70.0}
    rows = [item._replace(train_seconds=seconds[item.trial.method]) for item in ROWS]
    text = markdown(CONFIG, rows)
    assert "| cost | updates | training, s | updates in the time of the slowest |" in text
    assert "| NSGF | 100 | 40 | 175 | 0.50 |" in text
    assert "| I-CFM | 100 | 70 | 100 | 0.50 |" in text
    rows = [item._replace(train_seconds=0.0) if item in ROWS[3:6] else item for item in ROWS]
    text = markdown(CONFIG, rows)
    assert "| NSGF | 100 | 60 | 100 | 0.50 |" in text
    assert "| I-CFM | 100 | - | - | 0.50 |" in text


def test_calls_that_a_method_cannot_do_with_are_dashes_in_all_tables():
    methods = ["nsgf++", "icfm"]
    config = replace(CONFIG, compare=replace(CONFIG.compare, methods=methods, nfe=[2, 10]))
    rows = [
        *(row("nsgf++", seed, 0.1) for seed in range(3)),
        *(row("icfm", seed, 0.2, nfe) for seed in range(3) for nfe in (2, 10)),
    ]
    text = markdown(config, rows)
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
    lines = markdown(CONFIG, rows).splitlines()
    assert lines[2].startswith("| NSGF | **0.400 ± 0.200")
    assert "| I-CFM | -0.167 ± 0.120 level |" in lines


def test_single_seed_shows_its_draws():
    rows = [row("nsgf", 0, w2, draw=draw) for draw, w2 in enumerate([0.1, 0.2, 0.3])]
    text = markdown(CONFIG, rows)
    assert text.splitlines()[2].startswith("| NSGF | **0.200 ± 0.100")
    assert "With one seed it speaks of that training run alone." in text


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


def test_what_is_missing_is_said():
    """A comparison that was stopped: seeds are counted, differences taken over common ones."""
    lines = markdown(CONFIG, [item for item in ROWS if item.trial != ROWS[5].trial]).splitlines()
    assert lines[3] == "| I-CFM | 0.250 ± 0.071 (2 measures) |"
    assert "| I-CFM | -0.100 ± 0.000 ahead |" in lines
    lines = markdown(CONFIG, [item for item in ROWS if item.trial.method == "nsgf"]).splitlines()
    assert lines[3] == "| I-CFM | - (0 measures) |"
    assert "| I-CFM | - |" in lines


def test_csv_has_a_line_for_each_measure():
    lines = list(csv.DictReader(io.StringIO(table_csv(ROWS))))
    assert len(lines) == 9
    assert lines[4] == {
        "target": "moons",
        "method": "icfm",
        "seed": "1",
        "draw": "0",
        "nfe": "10",
        "calls": "10",
        "updates": "100",
        "train_seconds": "60.0",
        "sample_seconds": "0.5",
        "w2": "0.3",
    }
    floor = lines[-1]
    assert (floor["method"], floor["nfe"], floor["calls"]) == ("floor", "", "")
    assert float(floor["w2"]) == 0.05


def test_csv_is_read_as_it_was_written(tmp_path):
    """Every measure to its last digit."""
    rows = [
        Row(
            Trial(Target("moons", "8gaussians"), "2rf", 4),
            *(100, 3, 40000, 61.5),
            Measured(99.5, 0.25, {"w2": math.inf, "1000 energy": -1 / 3}),
        ),
        Row(
            Trial(Target("moons", "8gaussians"), "own", 4),
            *(None, 3, 0, 0.0),
            Measured(0.0, 0.0, {"w2": 1e-17, "1000 energy": 0.1 + 0.2}),
        ),
    ]
    file = tmp_path / "table.csv"
    file.write_text(table_csv(rows))
    assert read_rows(file) == rows
    assert table_csv(read_rows(file)) == file.read_text()
    file.write_text(table_csv(ROWS))
    assert [item for item in read_rows(file) if item.nfe] == ROWS[:6]
    assert markdown(CONFIG, read_rows(file)) == markdown(CONFIG, ROWS)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("target,", "goal,", ": must be a table.csv of nsgf compare: target,method,seed"),
        (",w2\n", "\n", ": must be a table.csv of nsgf compare: target,method,seed"),
        ("icfm,0", "icfn,0", ", line 5: method = icfn: must be floor or one of own, nsgf,"),
        ("moons,icfm,0", "moon,icfm,0", ", line 5: target = moon: there is none of this name"),
        ("icfm,0,0,10", "icfm,0,0,ten", ", line 5: invalid literal for int() with base 10: 'ten'"),
        ("0.5,0.2\n", "0.5,0.2,0.2\n", ", line 3: 11 cells, but the head has 10"),
    ],
)
def test_other_tables_are_refused_with_the_line(tmp_path, before, after, told):
    text = table_csv(ROWS)
    assert before in text
    file = tmp_path / "table.csv"
    file.write_text(text.replace(before, after, 1))
    with pytest.raises(UserError) as refused:
        read_rows(file)
    assert str(refused.value).startswith(f"{file}{told}")


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"m" * 200_000, None], ids=["empty", "no text", "long", "missing"]
)
def test_files_that_are_no_table_are_refused(tmp_path, content):
    file = tmp_path / "table.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=r"table\.csv: (must be a table|No such file)"):
        read_rows(file)


def test_other_nfe_than_asked_for_is_said():
    """Heun's steps take two calls, dopri5 what it needs."""
    rows = [
        item._replace(measured=Measured(9, 0.5, item.measured.values)) if item.nfe else item
        for item in ROWS
    ]
    assert "| NSGF | **0.200 ± 0.100 (NFE 9)** |" in markdown(CONFIG, rows)


def test_diverged_method_does_not_hide_the_others():
    rows = [*ROWS[:3], *(row("icfm", seed, math.inf) for seed in range(3)), *ROWS[6:]]
    lines = markdown(CONFIG, rows).splitlines()
    assert lines[2] == "| NSGF | **0.200 ± 0.100** |"
    assert lines[3] == "| I-CFM | diverged |"
    assert "| I-CFM | diverged |" in lines[6:]
