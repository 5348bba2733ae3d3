"""The scripts, each at a size of seconds."""

import ast
import csv
import os
import random
import re
import runpy
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nsgf.cli import main
from nsgf.comparison import read_rows
from nsgf.comparison.tables import all_tables, tables_text
from nsgf.config.schema import DataConfig
from nsgf.run import checkpoint
from nsgf.run.checkpoint import previous_file
from nsgf.user_data import load_data
from tests.run.test_reliability import torture
from tests.sinkhorn import reference

ROOT = Path(__file__).parents[1]
SCRIPTS = {file.stem: file for file in sorted((ROOT / "scripts").rglob("*.py"))}
SMALL = ("--model.mlp.width=16", "--batch-size=16", "--sinkhorn-batch=16", "--pool-batches=2")


def test_no_script_has_a_librarys_name_or_imports_from_tests():
    """The folder of a script comes first on the path of everything that it imports.

    Past mistake: A script was named `tabulate.py`, and torch imported it in place of the library.
    """
    assert not {*packages_distributions(), *sys.stdlib_module_names} & SCRIPTS.keys()
    for script in SCRIPTS.values():
        for node in ast.walk(ast.parse(script.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and str(node.module).startswith("tests"))


@pytest.fixture
def script(monkeypatch):
    """The names in a script, which is not run."""

    def names_of(name):
        monkeypatch.syspath_prepend(str(SCRIPTS[name].parent))
        return runpy.run_path(str(SCRIPTS[name]))

    return names_of


@pytest.fixture
def run(monkeypatch, capsys):
    """What a script prints, or its error message where it ends with exit code 2."""

    def run(name, *flags, code=0):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *flags])
        ended = 0
        try:
            runpy.run_path(str(SCRIPTS[name]), run_name="__main__")
        except SystemExit as exit_:
            ended = exit_.code
        printed = capsys.readouterr()
        assert ended == code, printed.err
        return printed.out if code == 0 else printed.err

    return run


def cells(text):
    """The rows of all tables, without heads and rules."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rules = {number for number, line in enumerate(lines) if not re.search(r"\w", line)}
    heads = rules | {number - 1 for number in rules}
    return [line.strip("| ").split(" | ") for n, line in enumerate(lines) if n not in heads]


@pytest.mark.parametrize(("blur", "step"), [(0.5, 1.0), (0.1, 0.3)])
def test_bench_precision_solves_transport_exactly(script, blur, step):
    """As the tests' own solver does, from the start to the end of a flow.

    Past mistake: The solver was compared with rivals at one setting each and one problem in a
    case. "24 to 66 times faster" was 0.8 to 4.9 times. The script now searches the settings of
    each rival.
    """
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(60, 2, generator=generator)
    x = y[:50] + step * torch.randn(50, 2, generator=generator)
    found = script("bench_precision")["exact_velocity"](x, y, blur)
    assert reference.relative_error(found, reference.velocity(x, y, blur)) < 1e-6


def test_bench_targets_knows_more_of_the_end_points_with_more_targets(script):
    names = script("bench_targets")
    names["measure"].__globals__["PROBES"] = 128
    data = load_data(DataConfig(name="digits"), 0)
    found = {m: names["measure"](data, "digits", 64, m) for m in (64, 1797)}
    shares = [found[64][3], found[1797][3]]
    assert 0.2 < shares[0] < shares[1] < 1
    assert 0 < found[64][4] < 1  # of the variance of the data
    assert names["measure"](data, "digits", 64, 64, blur=2)[3] > shares[0] + 0.1


def test_bench_points_sees_a_lost_part_and_repeats_nothing(script, tmp_path):
    names = script("bench_points")
    names["Judge"].__init__.__globals__.update(POINTS=900, HELD_OUT=300)
    judge = names["Judge"]("mixture-8")
    real = judge.floors[1]
    (part,) = torch.as_tensor(judge.parts).mode(0)[:1]
    nearest = judge.parts[torch.cdist(real / judge.scale, judge.known).argmin(1)]
    whole, less = judge.measure(real, 0), judge.measure(real[nearest != part], 0)
    assert (whole["parts_lost"], less["parts_lost"]) == (0, 1)
    assert all(less[name] > whole[name] for name in ("w2", "energy", "parts_off"))


@pytest.mark.e2e
def test_bench_points_measures_each_ended_run_once(script, tmp_path):
    """Past mistake: The script took each run folder for a finished run, so measuring beside a
    training ended in an error.
    """
    names = script("bench_points")
    names["measure"].__globals__.update(POINTS=900, HELD_OUT=64, CALLS=(3, 5))
    np.save(tmp_path / "x.npy", names["Judge"]("pinwheel").points)
    words = f"--exp points --data.path {tmp_path}/x.npy --smoke --methods nsgf,icfm"
    assert main(["compare", *words.split(), "--out-dir", str(tmp_path / "pinwheel")]) == 0
    for _ in range(2):
        names["measure"](tmp_path, tmp_path / "points.csv")
        rows = [*csv.DictReader((tmp_path / "points.csv").open())]
        assert len(rows) == 4 + 2 * 2


@pytest.mark.e2e
def test_bench_train(run):
    flags = ("--device=cpu", "--exp=2d", "--steps=3", *SMALL)
    ((*labels, ms, rate, speed, peak),) = cells(run("bench", "train", *flags, "--repeats=1"))
    assert (labels, speed) == (["nsgf", "as configured", "16"], "1.000")
    assert float(rate.replace(",", "")) == pytest.approx(16e3 / float(ms.split()[0]), rel=0.01)
    assert float(peak.split()[0]) > 0


def test_bench_combines_the_values_that_it_varies(script):
    options = SimpleNamespace(exp="2d", vary=["precision=fp32,bf16", "batch-size=8,32"])
    found = script("bench")["variants"](options, ["--steps=5"])
    assert found[1].label == "precision fp32, batch-size 32"
    configs = [variant.config for variant in found]
    assert [config.train.precision for config in configs] == ["fp32", "fp32", "bf16", "bf16"]
    assert [config.nsgf.batch_size for config in configs] == [8, 32, 8, 32]
    assert {config.flow.steps for config in configs} == {5}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train --exp 2d --batch-size 0", "nsgf.batch_size"),
        ("train --exp 2d --vary nsgf.batchsize=1,2", "--nsgf.batchsize"),
        ("train --repeats 0", "--repeats"),
        ("tables none.csv", "none.csv"),
    ],
)
def test_bench_refuses_in_one_line_before_any_work(words, told, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert told in run("bench", *words.split(), code=2).splitlines()[-1]
    assert not list(tmp_path.iterdir())


HEAD = "target,method,seed,draw,nfe,calls,updates,train_seconds,sample_seconds,"
FIRST = """
moons,nsgf,0,0,10,10.0,100,60.0,0.5,0.1
moons,nsgf,0,0,100,100.0,100,60.0,5.0,0.1
moons,icfm,0,0,10,10.0,100,50.0,0.5,0.2
moons,floor,0,0,,0.0,0,0.0,0.0,0.05
"""
SECOND = """
moons,nsgf,1,0,10,10.0,100,60.0,0.5,0.3
moons,icfm,1,0,10,10.0,100,50.0,0.5,0.5
moons,otcfm,0,0,10,10.0,100,70.0,0.5,0.4
moons,floor,0,0,,0.0,0,0.0,0.0,0.0500000001
moons,floor,1,0,,0.0,0,0.0,0.0,0.07
"""


@pytest.fixture
def tables(run, tmp_path):
    """What `bench.py tables` prints of two files with these lines."""

    def tables(*texts, flags="", code=0, measure="w2"):
        files = []
        for number, text in enumerate(texts):
            files.append(tmp_path / f"{number}.csv")
            files[-1].write_text("\n".join([HEAD + measure, *text.split(), ""]))
        return run("bench", "tables", *map(str, files), *flags.split(), code=code)

    return tables


def test_tables_of_several_files_are_one(tables, tmp_path):
    """Seeds of one file, a method of the other; a cell with fewer measures says so."""
    text = tables(FIRST, SECOND, flags=f"--figure {tmp_path}/nfe.svg")
    assert text.splitlines()[:6] == [
        "| W2 ↓ | moons, NFE 10 | moons, NFE 100 |",
        "| --- | --- | --- |",
        "| NSGF | **0.200 ± 0.141** | **0.100 (1 of 2 measures)** |",
        "| I-CFM | 0.350 ± 0.212 | - |",
        "| OT-CFM | 0.400 (1 of 2 measures) | - |",
        "| floor | 0.060 ± 0.014 | 0.060 ± 0.014 |",
    ]
    assert "<svg" in (tmp_path / "nfe.svg").read_text()


def test_table_is_that_of_the_comparison(run):
    """With some of its methods and calls, and their floors."""
    file = ROOT / "docs" / "results" / "2d.csv"
    rows = sorted(
        (
            row
            for row in read_rows(file)
            if row.nfe is None or (row.nfe == 100 and row.method in ("otcfm", "nsgf"))
        ),
        key=lambda row: row.method == "nsgf",
    )
    flags = ["--methods", "otcfm", "nsgf", "--nfe", "100", "--latex"]
    assert run("bench", "tables", str(file), *flags) == tables_text("table.tex", all_tables(rows))


@pytest.mark.parametrize(
    ("before", "after"), [("icfm,1", "icfm,0"), ("0.0500000001", "0.051"), ("100,50.0", "200,50.0")]
)
def test_tables_that_do_not_belong_together_are_refused(tables, before, after):
    """A measure in both files, other data or another network, other updates."""
    assert before in SECOND
    told = tables(FIRST, SECOND.replace(before, after, 1), code=2)
    assert "0.csv and " in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("flags", ["--methods rf", "--nfe 20", "--figure nfe.tiff"])
def test_tables_refuse_what_the_files_do_not_have(tables, flags):
    assert flags in tables(FIRST, flags=flags, code=2)


@pytest.mark.parametrize("seed", range(4))
def test_torture_damages_the_newest_checkpoint(script, tmp_path, seed):
    """Past mistake: A rename changed half of a string, `--damage` never hit the newest
    checkpoint, and this test passed without its guard.
    """
    files = [tmp_path / "run" / "checkpoints" / f"phase{phase}.pt" for phase in "21"]
    for file in files:
        for step in (1, 2):
            checkpoint.save(file, {"phase": "nsf", "step": step, "config": {}})
    os.utime(files[1], (0, 0))
    files += [previous_file(file) for file in files]
    assert script("torture")["_damage"](tmp_path, random.Random(seed)) == 1
    for file in files[1:]:
        checkpoint.load(file)
    with pytest.raises(checkpoint.Unreadable):
        checkpoint.load(files[0])


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_torture_kills_and_resumes_commands():
    """At a few moments; tests/run/test_reliability.py tries all of them."""
    names = ["train, pool on disk", "compare"]
    rows = cells("\n".join(torture("--every", "100", "--scenario", *names)))
    assert [row[0] for row in rows] == names
    for _, operations, kills, _ in rows:
        assert int(operations) > 0 < int(kills)
