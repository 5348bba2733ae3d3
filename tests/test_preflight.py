from dataclasses import replace

import pytest
import torch

from nsgf.phases import get_phase
from nsgf.phases.reflow import PATHS
from nsgf.preflight import preflight
from nsgf.system.hardware import format_hours
from tests.conftest import shipped
from tests.pool.conftest import HalfWay

CPU = torch.device("cpu")
SMALL = ("--pool-batches=2", "--sinkhorn-batch=8", "--model.unet.channels=32")


def test_preflight_says_memory_and_time_of_every_phase(tiny):
    lines = list(preflight(tiny))
    text = "\n".join(lines)
    for part in ("machine: CPU", "pool: 4 flows", "nsgf: 12 updates", "all phases: about"):
        assert part in text
    for phase in tiny.phases:
        assert any(line.startswith(f"{phase}: ") and " s an update" in line for line in lines)


def test_a_line_is_said_before_the_next_is_worked_for(tiny, monkeypatch):
    """Networks that a CPU takes minutes for leave nobody in silence."""
    monkeypatch.setattr("nsgf.preflight.training_plan", lambda *_: pytest.fail("too early"))
    assert next(iter(preflight(tiny))).startswith("machine: ")


@pytest.mark.parametrize(("seconds", "text"), [(5, "5.0 s"), (90, "1.5 min"), (7200, "2.0 h")])
def test_times_for_people(seconds, text):
    assert format_hours(seconds) == text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--nsf.source=nsgf"], ["nsf, NSGF steps", "predictor, NSGF steps"]),
        (["--nsf.coupling=ot"], ["nsf, pairs", "predictor, pairs"]),
        (["--phases=[peer,reflow]"], ["reflow, paths"]),
    ],
)
def test_preflight_times_what_comes_beside_the_updates(flags, words):
    if not flags[0].startswith("--phases"):
        flags = ["--phases=[nsgf,nsf,predictor]", *flags]
    small = ("--steps=2", "--smoke", "--model.mlp.width=4", "--device=cpu")
    lines = list(preflight(shipped("2d", *small, *flags)))
    for part in words:
        assert any(line.startswith(f"{part}: about") for line in lines), part


def test_all_paths_and_batches_are_counted():
    """In units of what is timed, which for images on a CPU is a part of a batch."""
    flags = ("--reflow.pairs=3000", "--reflow.ode_steps=7", "--nsf.source=nsgf", "--smoke")
    flags = (*flags, "--nsf.coupling=independent", "--nsf.coupling_batch=null")
    for name, together, batch in (("2d", PATHS, 4), ("digits", 8, 4)):
        config = shipped(name, *flags)
        (paths,) = get_phase("reflow").preparations(config, CPU)
        (steps,) = get_phase("nsf").preparations(config, CPU)
        assert paths.units == 7 * 3000 / together
        assert len(paths.unit()) == together
        assert steps.units == config.nsf.iterations
        assert len(steps.unit()) == batch


def test_time_of_a_whole_batch_follows_from_the_part_that_is_timed(monkeypatch):
    """Of images a CPU times a part of the batch, and scales it."""
    flags = ("--phases=[nsgf]", "--batch-size=64", "--train-iters=100", "--device=cpu", *SMALL)
    monkeypatch.setattr("nsgf.preflight._median_seconds", lambda *_: 0.5)
    lines = list(preflight(shipped("digits", *flags)))
    assert "nsgf: 4 s an update, about 6.7 min" in lines  # 8 batches of 8 samples


@pytest.mark.parametrize(("flows", "together"), [(50, 18), (7, 7)])
def test_flows_of_the_pool_are_timed_together_as_they_are_built(flows, together):
    """On a card a flow alone takes as long as a hundred."""
    flags = ("--sinkhorn-batch=8", "--steps=2", "--pool.build_batch=18", "--device=cpu")
    config = shipped("digits", *flags, f"--pool-batches={flows}")
    (pool,) = get_phase("nsgf").preparations(config, CPU)
    assert pool.units == flows / together
    assert [part.shape for part in pool.unit()] == [(together * 8, 3, 1, 8, 8)]


def test_full_card_halves_the_flows_that_are_timed_as_those_that_are_built(monkeypatch, capsys):
    """Then the phase's updates are measured all the same."""
    solver = HalfWay(room=2)
    monkeypatch.setattr("nsgf.phases.nsgf.build_solver", lambda _: solver)
    small = ("--sinkhorn-batch=8", "--steps=2", "--model.mlp.width=4", "--device=cpu")
    lines = list(preflight(shipped("2d", "--phases=[nsgf]", "--pool-batches=7", *small)))
    assert solver.calls == [7, 3] + 4 * 7 * [1]
    assert not any(line.startswith("NO") for line in lines)
    assert any(line.startswith("nsgf: ") and " s an update" in line for line in lines)
    assert "7 flows at a time do not fit into the card's memory; continuing with 3" in (
        capsys.readouterr().out
    )


def test_single_flow_that_does_not_fit_is_red(monkeypatch):
    monkeypatch.setattr("nsgf.phases.nsgf.build_solver", lambda _: HalfWay(room=0))
    lines = list(preflight(shipped("2d", "--phases=[nsgf]", "--smoke", "--device=cpu")))
    assert lines[-1].startswith("NO sinkhorn.batch_size = 8: ")


def test_what_was_tried_is_said_and_measured_time_makes_sessions(tiny):
    lines = list(preflight(tiny, 1.0, "train --exp tiny"))
    for found in ("ok memory and disk", "ok data: "):
        assert any(line.startswith(found) for line in lines)
    for phase in tiny.phases:
        assert f"ok {phase}: an update is finite" in lines
        assert any(line.startswith(f"ok {phase}: checkpoint of ") for line in lines)
    assert lines[-1].startswith("    train --exp tiny --max-hours 0.9    # nsgf ")
    assert not any(line.startswith("NO") for line in lines)


def test_all_that_would_stop_a_run_is_said_at_once(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    wrong = replace(
        tiny,
        out_dir=str(tmp_path / "file" / "runs"),
        pool=replace(tiny.pool, num_batches=10**9),
    )
    lines = list(preflight(wrong))
    red = [line for line in lines if line.startswith("NO ")]
    assert len(red) == 1 + len(tiny.phases) + 1
    assert "--pool-batches" in red[0]
    assert all("--out-dir DIR" in line for line in red[1:-1])
    assert "--session-hours: nsgf begins with" in red[-1]
    assert sum(" s an update" in line for line in lines) == len(tiny.phases)


def test_only_what_trains_the_network_is_told_as_its_fault(tiny, monkeypatch):
    fault = ValueError("a mistake of ours")

    def fail(*_):
        raise fault

    monkeypatch.setattr("nsgf.preflight.updates_finite", fail)
    with pytest.raises(ValueError, match=r"^a mistake of ours$"):
        list(preflight(tiny))
