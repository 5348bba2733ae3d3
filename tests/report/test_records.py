import json
from pathlib import Path

import pytest

import nsgf
from nsgf.report.records import LOG_LINES, REMARKS, Cost, costs, curves, log_lines, remarks
from nsgf.run.folder import RunFolder
from nsgf.run.log import RunLog

ROOT = Path(nsgf.__file__).parent


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return RunFolder.prepare(tmp_path / "run")


def test_curves_are_those_of_the_phases(run):
    log = RunLog(run.path)
    for phase, step in (("nsgf", 10), ("nsgf", 20), ("nsf", 10)):
        log.record(phase=phase, step=step, loss=1 / step, grad_norm=float(step), lr=0.1)
    first, second = curves(run)
    assert (first.phase, first.steps, first.loss) == ("nsgf", [10, 20], [0.1, 0.05])
    assert (second.phase, second.steps, second.grad_norm) == ("nsf", [10], [10.0])


def test_speed_of_a_line_holds_since_the_line_before(run):
    log = RunLog(run.path)
    for step, speed, peak in ((10, 5.0, 100), (40, 10.0, 300), (50, 10.0, 200)):
        log.record_cost(phase="nsgf", step=step, steps_per_second=speed, peak_memory=peak)
    assert costs(run) == {"nsgf": Cost(2.0 + 3.0 + 1.0, 300)}


@pytest.mark.parametrize(
    "line",
    [
        *('{"phase": "nsgf", "st', "[]", "{}", '{"phase": "nsgf", "step": null}', "[" * 10**5),
        '{"phase": "nsgf", "step": Infinity, "loss": 1, "grad_norm": 1, "steps_per_second": 1, '
        '"peak_memory": 1}',
        '{"phase": "nsgf", "step": 1, "loss": "1", "grad_norm": 1, "steps_per_second": 1, '
        '"peak_memory": Infinity}',
        '{"phase": "nsgf", "step": 1, "loss": NaN, "steps_per_second": 0, "peak_memory": 1}',
    ],
)
def test_lines_that_are_no_records_are_passed_over(run, line):
    whole = {"phase": "nsgf", "step": 1, "loss": 1.0, "grad_norm": 1.0}
    cost = {"phase": "nsgf", "step": 1, "steps_per_second": 1.0, "peak_memory": 1}
    for name, good in (("metrics", whole), ("costs", cost)):
        (run.path / f"{name}.jsonl").write_text(f"{line}\n{json.dumps(good)}\n")
    assert [curve.steps for curve in curves(run)] == [[1]]
    assert costs(run) == {"nsgf": Cost(1.0, 1)}


def test_a_run_that_says_nothing_yet(run):
    assert (curves(run), costs(run), log_lines(run)) == ([], {}, [])


def test_of_a_long_log_the_end_is_shown(run):
    (run.path / "log.txt").write_text("".join(f"line {n}\n" for n in range(1000)))
    assert log_lines(run)[-1] == "line 999"
    assert len(log_lines(run)) == LOG_LINES


def test_remarks_are_what_the_program_says():
    """Words that nothing says any more would find nothing."""
    said = "".join(file.read_text() for file in ROOT.rglob("*.py") if file.name != "records.py")
    assert [words for words in REMARKS if words not in said] == []
    assert remarks(["a", f"b{REMARKS[0]}c"]) == [f"b{REMARKS[0]}c"]
