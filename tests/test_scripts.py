"""The benchmark scripts, each in a setting of seconds."""

import json
import math
import re
import runpy
import sys
import time
from dataclasses import replace
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import record_function

from nsgf.compare.report import latex, markdown
from nsgf.compare.rows import read_rows
from nsgf.compare.tables import configured_plan
from nsgf.compare.trials import Target, Trial, trial_config, updates
from nsgf.config.schema import PHASES
from nsgf.data import DATA_SETS
from tests.conftest import shipped

SCRIPTS = Path(__file__).parents[1] / "scripts"
SMALL = ("--model.mlp.width=16", "--batch-size=16", "--sinkhorn-batch=16", "--pool-batches=2")
CPU = torch.device("cpu")


@pytest.fixture
def scripts(monkeypatch):
    """Import a script as a module, without running it."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return lambda name: runpy.run_path(str(SCRIPTS / f"{name}.py"))


def test_no_script_has_a_librarys_name():
    """The folder of a script comes first on the path of all that it imports."""
    libraries = {*packages_distributions(), *sys.stdlib_module_names, "tabulate"}
    assert not libraries & {file.stem for file in SCRIPTS.glob("*.py")}


@pytest.fixture
def output(scripts, monkeypatch, capsys):
    """What a script prints, or where it ends with exit code 2, its complaint."""

    def run(script: str, *flags: str, code: int = 0) -> str:
        module = scripts(script)
        monkeypatch.setattr(sys, "argv", [f"{script}.py", "--device", "cpu", *flags])
        try:
            module["bench_common"].finish(module["main"])
            ended = 0
        except SystemExit as exit_:
            ended = exit_.code
        printed = capsys.readouterr()
        assert ended == code, printed.err
        return printed.out if code == 0 else printed.err

    return run


def table(text: str) -> list[list[str]]:
    """Cells of the rows below the first header."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


class Mean:
    """A solver whose velocity is the mean of the targets, and something of the companions."""

    def __init__(self, own: float) -> None:
        self.own = own

    def velocity(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y.mean(0) + self.own / len(x) + 0 * x


@pytest.mark.parametrize(("n", "m"), [(16, 8), (5, 30), (5, 32)])
def test_bench_targets_divides_errors_into_bias_and_spread(scripts, n, m):
    """Of a mean of m out of 32 both are known: none, and what drawing without replacement leaves;
    what depends on the number of companions alone is bias."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 1, 2, 2, generator=generator), torch.randn(32, 1, 2, 2)
    exact = Mean(0.0).velocity(x, y)
    size = float(exact[0].norm())
    found, seconds = scripts("bench_targets")["measured"](Mean(3.0), x, y, exact, n, m, 400)
    assert found.bias == pytest.approx(3.0 / n * 2 / size, abs=0.15)
    variance = y.flatten(1).var(0, correction=1).sum() / m * (1 - m / 32)
    assert found.spread == pytest.approx(float(variance.sqrt()) / size, rel=0.05, abs=1e-3)
    assert found.error**2 == pytest.approx(found.bias**2 + found.spread**2, rel=0.02)
    assert len(seconds) == 400 * (40 // n)


def test_bench_targets_corrects_the_mean_of_few_velocities(scripts):
    """Gaps of 1 and 3 from a velocity of 2; another particle has been seen only once."""
    total, squares, counts = (torch.tensor(row) for row in ([4.0, 9.0], [10.0, 81.0], [2.0, 1.0]))
    divided = scripts("bench_targets")["_divided"]
    found = divided(total.view(2, 1), squares, counts, torch.tensor([[2.0], [5.0]]))
    expected = [math.sqrt(square) / 2 for square in (5.0, 3.0, 2.0)]
    assert list(found) == pytest.approx(expected)


@pytest.mark.e2e
def test_bench_divergence_tells_times_and_errors(output):
    text = output("bench_divergence", "--only=digits", "--repeats=1", "--scalings", "0.5")
    far, near = table(text)
    assert far[:4] == ["digits", "16 x 128 x 64", "0.5", "far"]
    assert near[3] == "near"
    for _, _, _, _, theirs_ms, ours_ms, faster, *errors in (far, near):
        assert float(faster) == pytest.approx(float(theirs_ms) / float(ours_ms), rel=0.05)
        gradients, values = errors[:2], errors[2:]
        for theirs, ours in (gradients, values):
            assert float(ours.removesuffix(" %")) < 0.2 < float(theirs.removesuffix(" %"))


def test_bench_targets_measures_fewer_and_times_more_than_the_reference(output):
    text = output("bench_targets", "--reference=300", "--rounds=2", "--steps=2")
    assert "reference n = m = 300 of 1797 images, 2 rounds" in text
    rows = [row for row in table(text) if row[0].isdigit()]
    assert [row[:2] for row in rows] == 2 * [
        ["256", str(m)] for m in (64, 128, 256, 300, 512, 1024, 1797)
    ]
    for row in rows:
        known = int(row[1]) <= 300
        assert all(cell.endswith(" %") == known for cell in row[2:5])
        assert float(row[5]) > 0
    errors = [float(row[2].split()[0]) for row in rows[:4]]
    assert errors == sorted(errors, reverse=True)
    assert 0 < errors[-1] < errors[0] < 100


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--exp", "2d"), "--exp 2d: must be an image set"),
        (("--reference=256",), "--reference 256: must be > 256"),
        (("--rounds=1",), "--rounds 1: must be >= 2"),
        (("--sinkhorn.blur=0",), "sinkhorn.blur = 0.0: must be > 0"),
    ],
)
def test_bench_targets_refuses_what_it_cannot_measure(output, flags, told):
    assert told in output("bench_targets", *flags, code=2)


@pytest.mark.e2e
def test_profile_step_divides_a_step_among_its_stages(tmp_path, output):
    trace = tmp_path / "trace.json"
    text = output(
        *("profile_step", "--exp", "2d", "--steps", "40", "--trace", str(trace)),
        *("--train.log_every=500", *SMALL),
    )
    rows = table(text)
    assert [row[0] for row in rows] == [
        *("sample", "transfer", "forward", "backward", "optimizer", "other"),
        *("log line, 1 in 500", "step"),
    ]
    times = [float(row[1]) for row in rows]
    shares = [float(row[2].rstrip(" %")) for row in rows]
    assert all(took > 0 for took in (*times[:6], times[-1]))
    assert sum(times[:-1]) == pytest.approx(times[-1], rel=1e-3)
    assert sum(shares[:-1]) == pytest.approx(100, abs=0.4)
    found = re.search(r"Outside forward, backward and optimizer: ([\d.]+) %", text)
    assert found
    assert float(found[1]) == pytest.approx(100 - sum(shares[2:5]), abs=0.3)
    written = trace.read_text()
    for stage in ("sample", "transfer", "forward", "backward", "optimizer"):
        assert f'"name": "{stage}"' in written


@pytest.mark.e2e
def test_profile_step_reaches_the_networks_before_the_phase(output):
    """Phase 2 from the output of phase 1, whose network is then made without training."""
    text = output(
        "profile_step", "--exp", "2d", "--phase", "nsf", "--steps=8", "--nsf.source=nsgf", *SMALL
    )
    assert "2d, nsf, batch of 16" in text


def test_the_stop_watch_leaves_inner_stages_to_themselves(scripts):
    """Exclusive times of nested stages, on steps of known length."""
    watch = scripts("profile_step")["StopWatch"](CPU, log_every=3)
    with watch.running():
        with record_function("forward"):  # before the first step: belongs to none
            pass
        for _ in range(6):
            with record_function("sample"):
                time.sleep(0.002)
                with record_function("transfer"):
                    time.sleep(0.02)
            with record_function("somebody else's"), record_function("forward"):
                time.sleep(0.002)
            time.sleep(0.01)
    lengths = watch.lengths(warm_up=1)
    assert [length.logs for length in lengths] == [False, True, False, False]
    assert [length.stages is None for length in lengths] == [True, False, True, False]
    for length in lengths[1::2]:
        assert length.stages["transfer"] >= 0.02
        assert 0.002 <= length.stages["sample"] < length.whole - 0.03
        assert length.stages["backward"] == 0
        assert length.other >= 0.01
        parts = sum(length.stages.values()) + length.other
        assert parts == pytest.approx(length.whole)


def test_marks_are_as_they_were_after_the_stop_watch(scripts):
    before = record_function.__enter__, record_function.__exit__
    watch = scripts("profile_step")["StopWatch"](CPU, log_every=3)
    with pytest.raises(KeyError), watch.running():
        raise KeyError
    assert (record_function.__enter__, record_function.__exit__) == before


@pytest.mark.e2e
def test_bench_train_compares_all_combinations(output):
    text = output(
        *("bench_train", "--exp", "2d", "--batch", "8,32", "--pool-dtype", "float32,float16"),
        *("--overfit", "--steps=3", "--repeats=3", "--warm-up=2"),
        *SMALL,
    )
    rows = table(text)
    assert [row[0] for row in rows] == [
        f"batch {size}, fp32, pool dtype {kind}{data}"
        for size in (8, 32)
        for kind in ("float32", "float16")
        for data in ("", ", one fixed batch")
    ]
    for label, ms, rate, speed, drawing, memory, computing in rows:
        size = 8 if label.startswith("batch 8") else 32
        assert float(rate) == pytest.approx(1e3 * size / float(ms), rel=2e-3)
        assert float(speed) > 0
        assert 0 <= float(drawing) < float(ms)
        assert memory.split()[1] in ("B", "KB", "MB")
        assert computing.endswith(" GFLOP/s")
    flops = {row[0]: float(row[1]) * float(row[6].split()[0]) for row in rows}
    small, *_, large = flops.values()
    assert large == pytest.approx(4 * small, rel=5e-3)
    assert rows[0][3] == "1.000"
    assert text.count("times the time of one fixed batch") == 4


@pytest.mark.e2e
def test_bench_train_compares_both_ends_of_a_run(output):
    text = output("bench_train", "--exp", "2d", "--phase", "predictor", "--steady=30", *SMALL)
    rows = table(text)
    assert [row[0] for row in rows] == ["first 10 of 30", "last 10", "last / first"]
    assert float(rows[2][1]) == pytest.approx(float(rows[1][1]) / float(rows[0][1]), rel=5e-3)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--card-memory=16"], "error: --card-memory 16: needs a CUDA device, not cpu"),
        (["--batch=0"], "error: nsgf.batch_size = 0"),
        (["--phase=nsf", "--pool-dtype=float32,float16"], "only phase nsgf samples from a pool"),
    ],
)
def test_bench_train_refuses_in_one_line(flags, message, output):
    text = output("bench_train", "--exp", "2d", *flags, code=2)
    assert message in text
    assert "Traceback" not in text


@pytest.mark.parametrize("room", [0, 1, 2, 7, 100, 129, 1000])
def test_largest_batch_is_found_to_an_eighth(scripts, room):
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= room

    found = scripts("bench_train")["largest"](fits, limit=4096)
    assert found <= room < found + max(1, found // 8) + 1
    assert len(tried) == len(set(tried)) < 20


def test_largest_batch_stops_at_its_limit(scripts):
    assert scripts("bench_train")["largest"](lambda size: True, limit=100) == 64


def test_updates_are_those_of_the_step_loop(scripts, tiny, tiny_run):
    """The same batches and losses as a training run of the same configuration."""
    import json

    updates = scripts("bench_updates")
    phase = updates["Phase"]("nsf", tiny, CPU)
    steps = updates["Updates"](phase, tiny)
    losses = []
    for _ in range(4):
        steps.step()
        losses.append(steps._pending.read().loss)
    lines = map(json.loads, (tiny_run.path / "metrics.jsonl").read_text().splitlines())
    logged = [line["loss"] for line in lines if line["phase"] == "nsf"]
    assert sum(losses) / 4 == pytest.approx(logged[0], rel=1e-6)


def test_a_fixed_batch_stays_the_same(scripts, tiny):
    updates = scripts("bench_updates")
    phase = updates["Phase"]("nsf", tiny, CPU)
    fixed, real = (updates["Updates"](phase, tiny, fixed=choice) for choice in (True, False))
    batches = []
    for steps in (fixed, fixed, real, real):
        steps.step()
        batches.append(steps._pending.batch.target)
    assert torch.equal(batches[0], batches[1])
    assert torch.equal(batches[0], batches[2])
    assert not torch.equal(batches[2], batches[3])


@pytest.fixture
def merged(scripts, monkeypatch, capsys, tmp_path):
    """What merge_tables prints of tables with these lines, or its complaint, without the folder."""

    def run(tables: dict[str, str], *flags: str, code: int = 0) -> str:
        for name, lines in tables.items():
            (tmp_path / name).write_text("\n".join([TABLE_HEAD, *lines.split(), ""]))
        files = [str(tmp_path / name) for name in tables]
        monkeypatch.setattr(sys, "argv", ["merge_tables.py", *files, *flags])
        module = scripts("merge_tables")
        try:
            module["finish"](module["main"])
            ended = 0
        except SystemExit as exit_:
            ended = exit_.code
        printed = capsys.readouterr()
        assert ended == code, printed.err
        return printed.out if code == 0 else printed.err.replace(f"{tmp_path}/", "")

    return run


TABLE_HEAD = "target,method,seed,draw,nfe,calls,updates,train_seconds,sample_seconds,w2"
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


def test_tables_of_several_files_are_one(merged):
    """Seeds of one file, a method of the other; what is missing beside others is said."""
    lines = merged({"a.csv": FIRST, "b.csv": SECOND}).splitlines()
    assert lines[:7] == [
        "| w2 | moons, 10 | moons, 100 |",
        "| --- | --- | --- |",
        "| NSGF | **0.200 ± 0.141** | **0.100 (1 measure)** |",
        "| I-CFM | 0.350 ± 0.212 | - |",
        "| OT-CFM | 0.400 (1 measure) | - |",
        "| floor | 0.060 ± 0.014 | 0.060 ± 0.014 |",
        "",
    ]
    assert "| I-CFM | -0.150 ± 0.050 level | - |" in lines
    assert "| NSGF | 100 | 60 | 117 | 0.50 | 5.00 |" in lines


def test_table_is_that_of_the_comparison(merged):
    """On the kept measures: the lines that a comparison of these methods and calls writes."""
    config = shipped("2d", "--compare.methods=[otcfm,nsgf]", "--compare.nfe=[100]")
    file = Path(__file__).parents[1] / "docs" / "results" / "2d.csv"
    kept = {"otcfm", "nsgf"}
    rows = [
        row
        for row in read_rows(file)
        if row.nfe is None or (row.nfe == 100 and row.trial.method in kept)
    ]
    text = merged({}, str(file), "--methods", "otcfm", "nsgf", "--nfe", "100")
    assert text == markdown(configured_plan(config, rows), rows)
    text = merged({}, str(file), "--methods", "otcfm", "nsgf", "--nfe", "100", "--latex")
    assert text == latex(configured_plan(config, rows), rows)


def test_measures_of_several_files_are_drawn_against_calls(merged, tmp_path):
    figure = tmp_path / "nfe.svg"
    assert "| NSGF |" in merged({"a.csv": FIRST, "b.csv": SECOND}, "--figure", str(figure))
    assert "<svg" in figure.read_text()
    told = merged({}, "--figure", str(tmp_path / "nfe.tiff"), str(tmp_path / "a.csv"), code=2)
    assert "nfe.tiff: must end in .png, .svg, .pdf" in told


def test_table_shows_what_is_asked_for(merged):
    """The floor too is that of the seeds that are shown alone."""
    both = {"a.csv": FIRST, "b.csv": SECOND}
    lines = merged(both, "--first", "otcfm", "--nfe", "10").splitlines()
    assert [line.split(" | ")[0] for line in lines[:6]] == [
        *("| w2", "| ---", "| OT-CFM", "| NSGF", "| I-CFM", "| floor")
    ]
    lines = merged(both, "--methods", "otcfm", "--nfe", "10").splitlines()
    assert lines[:4] == [
        "| w2 | moons, 10 |",
        "| --- | --- |",
        "| OT-CFM | **0.400** |",
        "| floor | 0.050 |",
    ]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("icfm,1", "icfm,0", "a.csv and b.csv: moons, icfm, seed 0, draw 0, NFE 10 is in both"),
        (
            "0.0500000001",
            "0.0500001",
            "a.csv and b.csv: the floors of moons, seed 0, draw 0 have w2",
        ),
        ("100,50.0", "200,50.0", "a.csv and b.csv: 100 and 200 updates of icfm on moons"),
        (",w2", ",w3", "a.csv and b.csv: must have the same measures"),
    ],
)
def test_tables_that_do_not_belong_together_are_refused(merged, tmp_path, before, after, told):
    text = "\n".join([TABLE_HEAD, *SECOND.split(), ""])
    assert before in text
    (tmp_path / "b.csv").write_text(text.replace(before, after, 1))
    said = merged({"a.csv": FIRST}, str(tmp_path / "b.csv"), code=2)
    assert told in said
    assert said.count("\n") == 1


def test_images_have_one_floor_for_all_seeds(merged):
    """Machines that trained different seeds cannot hide that their classifiers differ."""
    line = "digits,{},{},0,{},10.0,100,60.0,0.5,{}"
    tables = {
        f"{seed}.csv": "\n".join(
            [line.format("icfm", seed, 10, 1), line.format("floor", seed, "", 2 + seed)]
        )
        for seed in (0, 1)
    }
    assert "the floors of digits have w2 2 and 3" in merged(tables, code=2)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--methods rf", "--methods rf: must be among nsgf, icfm"),
        ("--first otcfm", "--first otcfm: must be among nsgf, icfm"),
        ("--nfe 10 20", "--nfe 20: must be among 10, 100"),
        ("--methods icfm --nfe 100", "nothing to show"),
    ],
)
def test_tabulate_refuses_what_the_files_do_not_have(merged, flags, told):
    assert told in merged({"a.csv": FIRST}, *flags.split(), code=2)


def test_ablations_use_draws_of_their_own(tmp_path, monkeypatch, capsys, scripts):
    """Settings are not chosen by the draws that a comparison is judged with; T 5 has a run of its
    own, and the table a line for each variant."""
    ablate = scripts("ablate")
    flags = ["--smoke", "--model.mlp.width=16", "--num-samples=16"]
    variants = ["--only", "configs/2d.yaml", "T 5", "--targets", "moons"]
    monkeypatch.setattr(
        sys, "argv", ["ablate.py", "2d", *variants, "--out-dir", str(tmp_path), *flags]
    )
    ablate["main"]()
    text = (tmp_path / "ablate-2d.md").read_text()
    assert text in capsys.readouterr().out
    assert [line.split(" | ")[0] for line in text.splitlines()[1:5]] == [
        "| w2",
        "| ---",
        "| configs/2d.yaml",
        "| T 5",
    ]
    first = ablate["FIRST_SEED"]
    runs = {
        path.parent.name
        for path in tmp_path.glob("ablate-2d/*/compare-2d-smoke/moons/*/checkpoints")
    }
    assert runs == {f"nsgf-seed{first}"}
    assert first > 100


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("2d --only T5", "--only T5: must be among configs/2d.yaml, "),
        ("2d --seed 3", "--seeds N trains N of them"),
        ("2d --seeds 0", "--seeds 0: must be >= 1"),
        ("2d --targets moon", "compare.targets"),
        ("digits --targets moons", "--targets: for 2d alone"),
        ("2d --smoke --sinkhorn.blur 0", "sinkhorn.blur"),
    ],
)
def test_ablations_that_cannot_be_are_refused_before_any_work(
    tmp_path, monkeypatch, capsys, scripts, words, told
):
    ablate = scripts("ablate")
    argv = ["ablate.py", *words.split(), "--out-dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as ended:
        ablate["main"]()
    assert ended.value.code == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.e2e
def test_ablation_looks_at_its_last_variant_before_it_trains_the_first(
    tmp_path, monkeypatch, capsys, scripts
):
    ablate = scripts("ablate")
    argv = ["ablate.py", "digits", "--smoke", "--out-dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    with pytest.raises(SystemExit) as ended:
        ablate["main"]()
    assert ended.value.code == 2
    assert "torchdiffeq" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.e2e
def test_variants_share_the_classifier_and_a_first_phase_that_is_the_same(
    tmp_path, monkeypatch, capsys, scripts
):
    """T 1 has a first phase of its own; the other two differ in the second alone."""
    monkeypatch.setitem(DATA_SETS, "digits", replace(DATA_SETS["digits"], classifier_epochs=1))
    ablate = scripts("ablate")
    words = ["digits", "--only", "NSGF++", "coupling ot", "T 1", "--smoke"]
    words += ["--num-samples=16", "--compare.nfe=[4]", "--device=cpu"]
    monkeypatch.setattr(sys, "argv", ["ablate.py", *words, "--out-dir", str(tmp_path)])
    ablate["main"]()
    text = capsys.readouterr().out
    assert text.count("classifier of digits: trained on") == 1
    assert len(list(tmp_path.rglob(".classifiers"))) == 1
    assert text.count("ablate: nsgf as in") == 1
    files = sorted(tmp_path.rglob("phase1_nsgf.pt"))
    assert len({file.read_bytes() for file in files}) == 2
    assert len(files) == 3
    seconds = {file.read_bytes() for file in tmp_path.rglob("phase2_nsf.pt")}
    assert len(seconds) == 3


@pytest.mark.e2e
def test_variant_with_a_fixed_time_takes_the_mean_that_its_own_predictor_finds(
    tmp_path, monkeypatch, capsys, scripts
):
    """Sampled from the run that it shares with the variant that is entered at predicted times."""
    monkeypatch.setitem(DATA_SETS, "digits", replace(DATA_SETS["digits"], classifier_epochs=1))
    ablate = scripts("ablate")
    words = ["digits", "--only", "NSGF++", "tau fixed to its mean", "--smoke"]
    words += ["--num-samples=16", "--compare.nfe=[4]", "--device=cpu"]
    monkeypatch.setattr(sys, "argv", ["ablate.py", *words, "--out-dir", str(tmp_path)])
    ablate["main"]()
    (record,) = tmp_path.rglob("digits/own-seed*/compare.json")
    measures = json.loads(record.read_text())["measures"]
    taus = [json.loads(measure["key"])["sampling"]["tau"] for measure in measures]
    predicted, fixed = taus
    assert predicted is None
    assert 0 < fixed < 1
    assert fixed != 0.5
    assert "| tau fixed to its mean | 4.000 |" in capsys.readouterr().out


def test_variants_of_digits_are_recipes_of_their_own(scripts, tmp_path):
    """Whatever the experiment's file has, with as many updates as each other."""
    ablate = scripts("ablate")
    own = SimpleNamespace(exp="digits", out_dir=str(tmp_path))
    found = {}
    for label, flags in ablate["VARIANTS"]["digits"].items():
        trial = Trial(Target("digits"), ablate["METHOD"]["digits"], 0)
        config = ablate["_config"](own, [*flags.split(), "--device=cpu"], trial)
        found[label] = trial_config(config, trial)
        assert max(map(len, Path(config.out_dir).parts)) < 200
    assert {updates(config) for config in found.values()} == {1800}
    handed = found["hand-over"]
    assert (handed.phases, handed.nsf.source, handed.flow.steps) == (["nsgf", "nsf"], "nsgf", 2)
    assert found["hand-over, T 3"].flow.steps == 3
    assert found["hand-over, T 3"].nsf == handed.nsf
    assert found["hand-over, pairs as drawn"].nsf.coupling == "independent"
    assert (found["T 3"].phases, found["T 3"].flow.steps) == (list(PHASES), 3)


def test_ablation_of_changed_settings_does_not_show_old_figures(
    tmp_path, monkeypatch, capsys, scripts
):
    """Its folders are named after flags alone; a changed YAML file has the same ones."""
    ablate = scripts("ablate")
    words = ["2d", "--only", "configs/2d.yaml", "--targets", "moons", "--smoke"]
    argv = ["ablate.py", *words, "--model.mlp.width=16", "--num-samples=16"]
    monkeypatch.setattr(sys, "argv", [*argv, "--out-dir", str(tmp_path)])
    ablate["main"]()
    (run,) = tmp_path.glob("ablate-2d/*")
    run.rename(run.with_name(run.name.replace("width-16", "width-32")))
    argv = ["--model.mlp.width=32" if word.endswith("width=16") else word for word in argv]
    monkeypatch.setattr(sys, "argv", [*argv, "--out-dir", str(tmp_path)])
    with pytest.raises(SystemExit):
        ablate["main"]()
    assert "trained with other settings (model.mlp.width" in capsys.readouterr().err
