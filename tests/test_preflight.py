from dataclasses import replace

from nsgf.phases import PHASES
from nsgf.pool import build_batch
from nsgf.preflight import preflight
from tests.conftest import shipped
from tests.pool.conftest import CPU


def test_each_phase_is_tried_and_timed(tiny, tmp_path):
    tiny = replace(tiny, out_dir=str(tmp_path / "runs"))
    lines = list(preflight(tiny, 1.0, "train --exp tiny"))
    assert lines[0].startswith("machine: CPU")
    assert any(line.startswith("ok data: ") for line in lines)
    for phase in tiny.phases:
        assert any(line.startswith(f"ok {phase}: ") for line in lines)
    assert lines[-1] == "    train --exp tiny --max-hours 0.9"
    assert not list(tmp_path.iterdir())


def test_time_of_a_run_follows_from_updates_and_preparation(tiny, monkeypatch):
    """As many updates and flows as a run has, at the measured speed."""
    clock = iter(range(1000))
    monkeypatch.setattr("nsgf.experiment.time.perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr("nsgf.phases.nsgf.build_batch", lambda *_: 2)
    long = replace(tiny, phases=["nsgf"], nsgf=replace(tiny.nsgf, iterations=36_000))
    (line,) = [line for line in preflight(long) if line.startswith("ok nsgf")]
    assert "with 4.0 s of preparation" in line  # half of the flows took two ticks
    assert "20.0 h" in line  # 36,000 updates of two ticks


def test_long_runs_are_shared_out_among_sessions(tiny):
    long = replace(tiny, phases=["nsgf"], nsgf=replace(tiny.nsgf, iterations=10**9))
    *_, whole, first, later = preflight(long, 2.0, "train")
    assert not whole.endswith("sessions: 1")
    assert first.endswith("train --max-hours 1.8")
    assert "train --resume --max-hours 1.8" in later


def test_trial_of_a_phase_prepares_a_part():
    config = shipped("2d/2rf", "--reflow.pairs=640")
    short, times = PHASES["reflow"].trial(config, CPU)
    assert (short.reflow.pairs, times) == (64, 10)
    config = shipped("2d", "--sinkhorn-batch=4096", "--pool-batches=100")
    short, times = PHASES["nsgf"].trial(config, CPU)
    assert short.pool.num_batches == build_batch(config, (2,), CPU) == 100 / times


def test_all_that_stops_a_run_is_said_at_once(tmp_path):
    no_pool_no_data = shipped("mnist", f"--data-root={tmp_path}", "--pool-batches=1000000000")
    red = [line for line in preflight(no_pool_no_data) if line.startswith("NO ")]
    assert len(red) == 2
    assert "pool.num_batches" in red[0]
    assert "data.root" in red[1]


def test_folder_that_cannot_be_written_stops_a_run(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    *_, last = preflight(replace(tiny, out_dir=str(tmp_path / "file" / "runs")))
    assert last.startswith("NO ")
    assert "out_dir=DIR" in last
