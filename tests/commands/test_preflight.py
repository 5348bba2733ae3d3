from dataclasses import replace

from nsgf.commands.preflight import preflight
from nsgf.experiment import Experiment
from nsgf.pool.settings import PoolSettings
from tests.conftest import shipped
from tests.pool.conftest import CPU


def test_each_phase_is_tried_and_timed(tiny, tmp_path):
    """Past mistake: preflight did not halve flows on a full card and said NO to an experiment
    that trains.
    """
    tiny = replace(tiny, out_dir=str(tmp_path / "runs"))
    lines = [*map(str, preflight(Experiment(tiny), 1.0, "train --exp tiny"))]
    assert lines[0].startswith("machine: CPU")
    assert any(line.startswith("ok data: ") for line in lines)
    for phase in tiny.phases:
        assert any(line.startswith(f"ok {phase}: ") for line in lines)
    assert lines[-1] == "    train --exp tiny --max-hours 0.9"
    assert not list(tmp_path.iterdir())


def test_time_of_a_run_follows_from_updates_and_preparation(tiny, monkeypatch):
    """As many updates and flows as a run has, at the measured speed.

    Past mistake: preflight took the fastest of a few updates and never saw the pairing of a
    group, a cost of every few updates: 7 minutes in place of 40.
    """
    clock = iter(range(1000))
    monkeypatch.setattr("nsgf.commands.train.time.perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(PoolSettings, "group_size", lambda *_: 2)
    long = replace(tiny, phases=["nsgf"], nsgf=replace(tiny.nsgf, iterations=36_000))
    lines = map(str, preflight(Experiment(long)))
    (line,) = [line for line in lines if line.startswith("ok nsgf")]
    assert "with 4.0 s of preparation" in line  # half of the flows took two ticks
    assert "20.0 h" in line  # 36,000 updates of two ticks


def test_long_runs_are_shared_out_among_sessions(tiny):
    long = replace(tiny, phases=["nsgf"], nsgf=replace(tiny.nsgf, iterations=10**9))
    *_, whole, first, later = map(str, preflight(Experiment(long), 2.0, "train"))
    assert not whole.endswith("sessions: 1")
    assert first.endswith("train --max-hours 1.8")
    assert "train --resume --max-hours 1.8" in later


def test_estimate_of_a_phase_prepares_a_part():
    """Past mistake: preflight timed one flow at a time while training builds a hundred together.
    The pool's time was 2.5 times too long for digits.
    """
    (reflow,) = Experiment(shipped("2d/2rf", "--reflow.pairs=640")).phases(["reflow"])
    assert reflow.shortened(CPU) == ({"reflow.pairs": 64}, 10)
    (nsgf,) = Experiment(shipped("2d", "--sinkhorn-batch=4096", "--pool-batches=100")).phases()[:1]
    layer, times = nsgf.shortened(CPU)
    assert layer["pool.num_batches"] == nsgf.pool_settings.group_size(CPU) == 100 / times


def test_all_that_stops_a_run_is_said_at_once(tmp_path):
    no_pool_no_data = shipped("mnist", f"--data-root={tmp_path}", "--pool-batches=1000000000")
    findings = preflight(Experiment(no_pool_no_data))
    problems = [finding for finding in findings if finding.is_problem]
    assert len(problems) == 2
    assert "pool.num_batches" in problems[0].text
    assert "data.root" in problems[1].text


def test_folder_that_cannot_be_written_stops_a_run(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    *_, last = preflight(Experiment(replace(tiny, out_dir=str(tmp_path / "file" / "runs"))))
    assert str(last).startswith("NO ")
    assert "out_dir=DIR" in last.text
