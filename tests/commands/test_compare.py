"""Small comparisons from end to end: trained once, measured once, left to others, reported."""

import copy
import json
import re
import shutil
from dataclasses import replace

import pytest
import torch

from nsgf.cli import main
from nsgf.commands import compare as engine
from nsgf.commands.compare import Work, compare, comparison_plan
from nsgf.comparison import read_rows
from nsgf.config.files import TITLES
from nsgf.metrics import measures
from nsgf.metrics.yardstick import Yardstick
from nsgf.run.checkpoint import previous_file
from nsgf.run.lock import lock_folder
from nsgf.run.stop import Stopped, StopRequest
from nsgf.system.errors import UserError
from tests.comparison.table_rows import in_folder
from tests.conftest import compared, records
from tests.system.test_distributed import torchrun

FLAGS = (
    *("--smoke", "--compare.targets=[moons]", "--compare.methods=[nsgf,nsgf++,1rf,2rf]"),
    *("--model.mlp.width=16", "--num-samples=32", "--evaluation.w2_samples=16", "--device=cpu"),
)


def moons(out_dir, *flags):
    """Four methods on moons, with other flags in place of FLAGS or besides."""
    given = {flag.partition("=")[0]: flag for flag in (*FLAGS, *flags)}
    return in_folder(compared("2d", *given.values()), out_dir)


@pytest.fixture
def comparison(tmp_path):
    return moons(tmp_path)


def run(comparison):
    said = []
    return compare(comparison, log=said.append), said


def first_trial(comparison):
    return comparison.trials[0]


@pytest.fixture(autouse=True)
def _no_pictures(finished_once, monkeypatch):
    """Drawing takes longer than training and measuring; the finished one has its picture."""
    monkeypatch.setattr(engine, "save_pictures", lambda *_: [])


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory):
    """A finished comparison, its files and what it said; never written to."""
    comparison = moons(tmp_path_factory.mktemp("moons"))
    return comparison, *run(comparison)


@pytest.fixture
def finished(comparison, finished_once, tmp_path):
    """This test's own copy of a finished comparison."""
    shutil.copytree(finished_once[0].folder.parent, tmp_path, dirs_exist_ok=True)
    return comparison


def test_comparison_trains_measures_and_reports(finished_once):
    """Past mistake: A new check required `config.yaml` in a trial before it was trained, and
    every comparison was refused.
    """
    _, files, said = finished_once
    assert [file.name for file in files] == ["table.md", "table.csv", "table.tex", "moons.png"]
    assert all(file.stat().st_size > 0 for file in files)
    assert said[1] == "compare: trials: 4, measured: 0, updates in all: 25"
    assert "| floor |" in files[0].read_text()


def test_what_is_finished_is_not_done_again(finished, monkeypatch):
    folder = finished.folder
    tables = [(folder / name).read_text() for name in ("table.md", "table.csv")]
    for owner, name in ((engine, "train"), (engine, "generate"), (Yardstick, "measure")):
        monkeypatch.setattr(owner, name, None)
    second, said = run(finished)
    assert [file.read_text() for file in second[:2]] == tables
    assert "measured: 4" in said[1]


def test_other_nfe_are_measured_without_training(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "train", None)
    files, _ = run(moons(tmp_path, "--compare.nfe=[3]"))
    assert {row.nfe for row in read_rows(files[1])} == {3, None}


def test_few_calls_are_measured_where_a_method_can_do_with_them(tmp_path):
    """A method that has no other cells is not trained."""
    methods = "--compare.methods=[nsgf++,nsgf++h,onecall,nsgf]"
    own = moons(tmp_path, methods, "--compare.nfe=[4,2,3]", "--compare.updates=[6]")
    files, said = run(own)
    assert "trials: 3, measured: 0, updates in all: 18" in said[1]
    assert not list(own.folder.glob("moons/onecall*"))
    measured = [(row.method, row.nfe, row.calls) for row in read_rows(files[1]) if row.nfe]
    calls = {"nsgf++": (3, 4), "nsgf++h": (2, 3, 4), "nsgf": (2, 3, 4)}
    assert set(measured) == {(name, nfe, nfe) for name in calls for nfe in calls[name]}


def test_smoke_comparison_has_calls_for_every_method(tmp_path):
    """Else a method would first be tried by the comparison that is meant."""
    plan = comparison_plan(moons(tmp_path, f"--compare.methods=[{','.join(TITLES)}]"))
    assert "trials: 12," in plan[1]


def test_floor_belongs_to_its_seed_draw_and_sample_counts(tmp_path):
    floors = []
    for flags in ((), ("--seed=1",), ("--num-samples=20",), ("--evaluation.w2_samples=8",)):
        variant = moons(tmp_path, "--compare.draws=2", *flags)
        work = Work(variant, StopRequest(), lambda _: None)
        assert work.finish(first_trial(variant))
        floors += [tuple(row.values.values()) for row in work.rows() if row.method == "floor"]
    assert len(set(floors)) == 8
    lines = (variant.folder / "moons" / "floors.jsonl").read_text().splitlines()
    assert {json.loads(line)["key"]["edition"] for line in lines} == {2}


def test_a_new_measure_is_computed_and_the_others_are_not_again(finished, monkeypatch):
    old = [replace(one, compute=None) for one in measures.MEASURES]
    new = measures.Measure({"mean": "mean"}, "units", lambda x, y: float(x.mean() - y.mean()))
    monkeypatch.setattr(measures, "MEASURES", [*old, new])
    monkeypatch.setattr(engine, "train", None)
    before = read_rows(finished.folder / "table.csv")
    after = read_rows(run(finished)[0][1])
    for row, same in zip(after, before, strict=True):
        assert row.values == {**same.values, "mean": row.values["mean"]}
    assert "| mean ↓ |" in (finished.folder / "table.md").read_text()


def test_damaged_measure_is_measured_again(finished, monkeypatch):
    table = (finished.folder / "table.md").read_text().splitlines()[:6]
    for file in finished.folder.glob("*/**/*s.jsonl"):
        if file.name in ("measures.jsonl", "floors.jsonl"):
            file.write_bytes(file.read_bytes()[:-9])
    files, said = run(finished)
    assert files[0].read_text().splitlines()[:6] == table
    assert len([line for line in said if re.search(r"NFE \d", line)]) == 3
    monkeypatch.setattr(engine, "generate", None)
    run(finished)


def test_all_methods_start_from_the_same_noise_and_meet_the_same_target(tmp_path, monkeypatch):
    """Past mistake: Each run chose its classifier and reference images by its seed, so two runs
    were measured with two instruments.
    """
    targets = []
    noise = []
    real = engine.generate

    def watch_target(samples, reals):
        targets.append(reals.clone())
        return 0.0

    def watch_noise(sampler, source, n, *rest):
        noise.append(copy.deepcopy(source).sample(n))
        return real(sampler, source, n, *rest)

    w2 = replace(measures.MEASURES[0], compute=watch_target)
    monkeypatch.setattr(measures, "MEASURES", [w2])
    monkeypatch.setattr(engine, "generate", watch_noise)
    flags = ("--compare.draws=2", "--compare.nfe=[2]", "--compare.methods=[nsgf,1rf]")
    run(moons(tmp_path, *flags))
    assert len(targets) == 2 * 2 + 2  # two methods and the floor, two draws
    assert len(noise) == 2 * 2
    for drawn in (targets, noise):
        assert torch.equal(drawn[0], drawn[2])
        assert torch.equal(drawn[1], drawn[3])
        assert not torch.equal(drawn[0], drawn[1])


def test_samples_that_are_not_finite_are_diverged(tmp_path, monkeypatch):
    real = engine.generate
    monkeypatch.setattr(engine, "generate", lambda *how: replace(real(*how), finite=False))
    files, _ = run(moons(tmp_path, "--compare.methods=[nsgf]"))
    assert "| NSGF | diverged |" in files[0].read_text()


def test_stop_between_two_measures(comparison):
    stop, said = StopRequest(), []

    def log(line):
        if re.search(r"NFE \d", line):
            said.append(line)
            stop.follow()

    with pytest.raises(Stopped):
        compare(comparison, stop, log)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("flag", "key"),
    [
        ("--flow.steps=4", r"flow\.steps"),
        ("--precision=bf16", r"train\.precision"),
        ("--compare.updates=[3]", "iterations"),
        ("--reflow.pairs=9", r"reflow\.pairs"),
    ],
)
def test_cells_of_other_settings_are_refused_before_any_work(
    finished, tmp_path, monkeypatch, flag, key
):
    """Past mistake: Stored measures were named by the number of updates only, so a comparison
    with other settings showed old figures.
    """
    monkeypatch.setattr(engine, "train", None)
    with pytest.raises(UserError, match=f"other settings .*{key}"):
        run(moons(tmp_path, flag))


def test_tables_are_written_after_each_trial(tmp_path, monkeypatch):
    """A comparison that runs for days, or is killed, can be looked at, with its floors.

    Past mistake: A comparison wrote its tables only at the end.
    """
    few = moons(tmp_path, "--compare.methods=[nsgf,1rf]", "--compare.nfe=[2]")
    table, seen = few.folder / "table.csv", []
    real = Work.finish

    def watching(work, trial):
        seen.append([row.method for row in read_rows(table)] if table.exists() else None)
        return real(work, trial)

    monkeypatch.setattr(Work, "finish", watching)
    run(few)
    assert seen == [None, ["nsgf", "floor"]]


@pytest.mark.e2e
def test_two_workers_compare_what_one_does(comparison, finished_once):
    """The same measures, told once."""
    words = ["compare", "--exp=2d", *FLAGS, f"--out-dir={comparison.folder.parent}"]
    done = torchrun("-m", "nsgf", "--", *words)
    assert done.returncode == 0, done.stderr

    def measures(comparison):
        rows = read_rows(comparison.folder / "table.csv")
        return [row._replace(train_seconds=0, sample_seconds=0) for row in rows]

    assert len(measures(comparison)) > 4
    assert measures(comparison) == measures(finished_once[0])
    assert done.stdout.count("table.csv") == done.stdout.count("| cost |") == 1
    assert done.stdout.count("trials: 4, measured: 0") == 1


def test_cell_of_another_process_is_left_to_it(finished):
    work, trial = Work(finished, StopRequest(), lambda _: None), first_trial(finished)
    trial.measures.unlink()
    with lock_folder(trial.run.path):
        assert not work.finish(trial)
    assert work.finish(trial)
    assert trial.measures.exists()


def test_time_of_training_is_each_methods_own(finished):
    """1-RF and 2-RF share a folder; what reflow takes is not 1-RF's."""
    pool = records(first_trial(finished).run, "costs")
    assert [line["prepare_seconds"] > 0 for line in pool] == [True, *[False] * (len(pool) - 1)]
    folder = finished.folder / "moons/rf-seed0"
    costs = {"steps_per_second": 1.0, "peak_memory": 1}
    lines = [
        {"phase": phase, "step": 5, "prepare_seconds": seconds, **costs}
        for phase, seconds in (("peer", 0.0), ("reflow", 10.0))
    ]
    (folder / "costs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    seconds = {row.method: row.train_seconds for row in read_rows(run(finished)[0][1])}
    assert (seconds["1rf"], seconds["2rf"]) == (5, 20)


def test_damaged_checkpoint_is_no_other_setting(finished):
    """Training restores the one before; a comparison must not ask to throw it away."""
    files = finished.folder.glob("*/*/checkpoints/*.pt")
    newest = next(file for file in files if previous_file(file).exists())
    newest.write_bytes(newest.read_bytes()[:-200])
    comparison_plan(finished)


def test_links_out_of_a_comparison_are_refused(comparison, tmp_path):
    path = comparison.folder / "moons/nsgf-seed0/checkpoints"
    path.parent.mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    path.symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="link out of that folder"):
        run(comparison)


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (["--num-samples=1"], "evaluation.num_samples"),
        (["--compare.updates=[2]", "--compare.methods=[nsgf++]"], "compare.updates"),
        (["--compare.nfe=[2]", "--compare.methods=[onecall,nsgf++]"], "compare.nfe"),
        (["--compare.methods=[nsgf,own]"], "method"),
        (["--sampling.omega=0.1"], "sampling.omega"),
        # NSGF comes last here; the other would have been trained before it was refused
        (["--pool-batches=1000000000", "--compare.methods=[icfm,nsgf]"], "pool.num_batches"),
    ],
)
def test_what_cannot_be_compared_is_one_line(tmp_path, capsys, flags, key):
    """Past mistake: Packages and settings of methods were checked after the first training, and
    hours were lost before the error.
    """
    assert main(["compare", "--exp", "2d", "--smoke", "--out-dir", str(tmp_path), *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"nsgf: error: {key}")
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("*/*/*/checkpoints/*"))
