"""The phases together, with small networks, mostly on points."""

import gc
import itertools
import os
import re
import shutil
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from nsgf.commands.resume import Resumption, finish_restart
from nsgf.commands.train import train
from nsgf.config.files import METHOD_NAMES
from nsgf.config.layers import build, change, values
from nsgf.config.schema import OF_PHASES
from nsgf.experiment import Experiment
from nsgf.phases.base import load_network
from nsgf.phases.lines import NSF
from nsgf.pool import build_pool
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder, dump_config
from nsgf.sinkhorn.energy import energy_distance
from nsgf.system.errors import UserError
from nsgf.training.precision import BFLOAT16_CHECKS
from nsgf.user_data import load_data
from tests.conftest import CPU, new_session, records, shipped


def pending_phases(config, run, *first):
    return Resumption(Experiment(config), run).pending_phases(*first)


def with_phases(config, count):
    return replace(config, phases=config.phases[:count])


def weights(run):
    """The checkpoints that are there, by phase."""
    files = {phase: run.checkpoint_file(phase) for phase in ("nsgf", "nsf", "predictor")}
    return {phase: checkpoint.load(file) for phase, file in files.items() if file.exists()}


def assert_equal(one, other):
    """Assert the same weights, averages and steps, bit for bit."""
    for phase, payload in weights(one).items():
        counterpart = weights(other)[phase]
        for part in ("model", "ema"):
            for name, tensor in payload[part].items():
                assert torch.equal(tensor, counterpart[part][name]), (phase, part, name)
        assert payload["step"] == counterpart["step"]


SHORT = {
    "device": "cpu",
    "data.name": "moons",
    "sinkhorn.batch_size": 128,
    "flow.schedule": "constant",  # leaves a straight flow some work
    "flow.eta": 0.2,
    "pool.num_batches": 4,
    "model.mlp.width": 32,
    "nsf.starts": 512,
    "nsf.coupling_batch": 128,
    "peer.coupling_batch": 128,
    "reflow.pairs": 512,
    "train.preview": False,
}
"""Settings of a short training of any method, with the updates below."""
UPDATES = {"iterations": 200, "batch_size": 128, "lr": 1e-2, "ema_decay": 0.9}


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_short_training_brings_samples_of_each_method_near_the_data(method, tmp_path):
    """The energy distance falls to less than a third of the distance from noise to data."""
    updates = {f"{phase}.{key}": UPDATES[key] for phase in OF_PHASES for key in UPDATES}
    config = change(shipped(f"2d/{method}"), SHORT | updates | {"out_dir": str(tmp_path)})
    sampler, _ = Experiment(config).load_sampler(train(Experiment(config)))
    data = load_data(config.data, config.seed)
    noise = data.source("test").at(range(1000))
    real = data.target("test").at(range(1000))
    before = energy_distance(noise, real)
    after = energy_distance(sampler(noise).x, real)
    assert after < before / 3


def test_phases_in_three_sessions_equal_one(tiny, tiny_run):
    run = train(Experiment(with_phases(tiny, 1)))
    for count in (2, 3):
        train(Experiment(with_phases(tiny, count)), run)
    assert_equal(tiny_run, run)


def test_resume_of_a_finished_run_changes_nothing(tiny, tiny_run, monkeypatch, capsys):
    monkeypatch.setattr("nsgf.commands.train.fit", lambda *_: pytest.fail("trained again"))
    files = (tiny_run.path / "metrics.jsonl", tiny_run.config_file)
    before = [file.read_text() for file in files]
    moved = replace(tiny, data=replace(tiny.data, path="x"))
    for changed in (tiny, moved, replace(tiny, nsgf=replace(tiny.nsgf, lr=0.7))):
        train(Experiment(changed), tiny_run)
        said = capsys.readouterr().out
        assert "nothing is left to train" in said
        assert ("ignored: data.path" in said) is (changed is moved)
        assert ("ignored: nsgf.lr" in said) is (changed.nsgf.lr == 0.7)
    assert [file.read_text() for file in files] == before


def test_finished_phases_keep_the_values_of_their_training(tiny, tiny_run, capsys):
    """Past mistake: `--resume-phase 3 --lr X` wrote the new rate for finished phases too. Config,
    `list` and model card named a rate that no phase was trained with.
    """
    changed = {"nsgf.lr": 0.7, "nsgf.iterations": 6, "predictor.lr": 0.7}
    train(Experiment(change(tiny, changed)), tiny_run, "predictor")
    said = capsys.readouterr().out
    assert all(f"ignored: {key}" in said for key in ("nsgf.lr", "nsgf.iterations"))
    assert "ignored: predictor" not in said
    assert build(tiny_run.read_settings()) == change(tiny, {"predictor.lr": 0.7})


def test_settings_without_a_path_of_data_are_resumed(tiny_run):
    content = yaml.safe_load(tiny_run.config_file.read_text())
    del content["data"]["path"]
    tiny_run.config_file.write_text(yaml.safe_dump(content))
    train(Experiment(build(tiny_run.read_settings())), tiny_run)


@pytest.mark.parametrize("phase", ["nsgf", "nsf", "predictor", "affine"])
def test_run_killed_inside_a_phase_resumes_to_the_same_weights(tiny, tiny_run, phase, monkeypatch):
    """The third update after the second checkpoint never happens; the run resumes there.

    Past mistake: Fewer updates for an unfinished phase ended it and were then called ignored,
    because two functions decided. The run could not be resumed.
    """
    if phase == "affine":  # and to the same map
        phase, tiny = "nsf", replace(tiny, phases=["nsf"], nsf=replace(tiny.nsf, source="affine"))
        tiny_run = train(Experiment(tiny))
    real_save = checkpoint.save

    def dying_save(file, payload):
        real_save(file, payload)
        if payload["phase"] == phase and payload["step"] == 10:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save", dying_save)
    run = RunFolder.create(tiny)
    with pytest.raises(KeyboardInterrupt):
        train(Experiment(tiny), run)
    monkeypatch.setattr(checkpoint, "save", real_save)
    assert pending_phases(tiny, run)[0][0] == phase
    with pytest.raises(UserError, match=f"{phase}.iterations"):  # are done already
        train(Experiment(change(tiny, {f"{phase}.iterations": 10})), run)
    train(Experiment(tiny), run)
    assert_equal(tiny_run, run)


@pytest.mark.parametrize("first", [None, "nsf"])
def test_more_iterations_continue_a_finished_phase(tiny, tiny_run, first):
    longer = change(tiny, {"nsf.iterations": 20})
    train(Experiment(longer), tiny_run, first)
    assert build(tiny_run.read_settings()) == longer
    assert weights(tiny_run)["nsf"]["step"] == 20
    assert weights(tiny_run)["nsgf"]["step"] == 12
    assert "phase2_nsf.previous1.pt" not in _files(tiny_run)


def test_starting_at_a_finished_phase_trains_it_anew_and_keeps_the_old(tiny, tiny_run):
    before = {name: file.read_bytes() for name, file in _files(tiny_run).items()}
    train(Experiment(tiny), tiny_run, "nsf")
    after = _files(tiny_run)
    assert after["phase1_nsgf.pt"].read_bytes() == before["phase1_nsgf.pt"]
    for name in ("phase2_nsf", "phase3_predictor"):
        assert after[f"{name}.previous1.pt"].read_bytes() == before[f"{name}.pt"]
    assert_equal(tiny_run, train(Experiment(tiny)))


class Killed(BaseException):
    """Ends a process without any cleaning up."""


def kill_before(moment, patch):
    """Let the file operation of that number fail, and all after it."""
    numbers = itertools.count(1)

    def dying(real):
        def operation(*arguments, **keywords):
            if next(numbers) >= moment:
                raise Killed
            return real(*arguments, **keywords)

        return operation

    for place, name in ((Path, "open"), (Path, "replace"), (Path, "unlink"), (os, "fsync")):
        patch.setattr(place, name, dying(getattr(place, name)))


def test_kill_at_any_operation_keeps_the_old_run_or_continues_with_the_new_settings(
    tiny, trained_once, tmp_path, monkeypatch
):
    new = replace(tiny, nsgf=replace(tiny.nsgf, lr=0.02))

    def newest(run, kind=""):
        return {
            phase: file.read_bytes()
            for phase in tiny.phases
            if (file := run.checkpoint_file(phase).with_suffix(f"{kind}.pt")).exists()
        }

    before, outcomes = newest(RunFolder(trained_once)), []
    for moment in itertools.count(1):
        run = RunFolder(Path(shutil.copytree(trained_once, tmp_path / str(moment))))
        measures = run.path / "metrics.json"
        measures.write_text("{}")
        with monkeypatch.context() as patch:
            kill_before(moment, patch)
            try:
                Resumption(Experiment(new), run).restart(new.phases, print)
                break
            except Killed:
                pass
        for file in run.path.iterdir():  # no other file may decide
            if file.is_file() and file not in (run.config_file, run.restart_file):
                file.unlink()
        config = build(run.read_settings())  # as the next command reads them
        finish_restart(run, print)
        is_new = run.config_file.read_text() == dump_config(new)
        assert dump_config(config) == run.config_file.read_text()
        assert pending_phases(config, run)[0] == (new.phases if is_new else [])
        assert newest(run) == ({} if is_new else before)
        assert newest(run, ".previous1") == (before if is_new else {})
        outcomes.append(is_new)
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {False, True}
    assert not measures.exists()  # of the earlier weights


def test_nothing_is_set_aside_when_training_is_refused(tiny, tiny_run, monkeypatch):
    """Nor is a new folder made.

    Past mistake: `--resume-phase` renamed the old checkpoint before it checked device, pool and
    data. A typing error could cost a finished phase.
    """
    with pytest.raises(UserError, match="CUDA devices"):
        train(Experiment(replace(tiny, device="cuda:99")), tiny_run, "nsgf")
    monkeypatch.setattr("nsgf.pool.available_bytes", lambda: 1000)
    for run in (tiny_run, None):
        with pytest.raises(UserError, match=r"sinkhorn\.batch_size = 16"):
            train(Experiment(tiny), run, "nsgf")
    assert not [name for name in _files(tiny_run) if "previous" in name]
    assert list(Path(tiny.out_dir).iterdir()) == [tiny_run.path]


def _files(run):
    return {file.name: file for file in (run.path / "checkpoints").iterdir()}


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("nsf.source", "nsgf", "prior"),
        ("nsf.coupling", "ot", "independent"),
        ("model.mlp.width", 32, 16),
    ],
)
def test_phases_two_and_three_must_share_their_lines_and_networks(
    tiny, tiny_run, key, value, found
):
    """Past mistake: A resume could train predictor and straight flow on different lines, because
    a shared setting was fixed for one phase only.
    """
    longer = build({**values(tiny), key: value, "predictor.iterations": 20})
    with pytest.raises(UserError, match=rf"{re.escape(key)}: the checkpoint has {found}"):
        train(Experiment(longer), tiny_run)


def test_phase_one_cannot_change_under_phases_that_start_from_it(tiny):
    config = replace(tiny, nsf=replace(tiny.nsf, source="nsgf"))
    run = train(Experiment(config))
    longer = replace(config, nsgf=replace(config.nsgf, iterations=20))
    for wanted in (longer, with_phases(longer, 1)):
        with pytest.raises(UserError, match="--resume-phase 1"):
            train(Experiment(wanted), run)
    train(Experiment(longer), run, "nsgf")
    assert weights(run)["nsgf"]["step"] == 20


def test_half_done_phase_starts_anew_with_the_one_it_stands_on(tiny):
    half = replace(tiny, nsf=replace(tiny.nsf, source="nsgf"))
    run = train(Experiment(with_phases(half, 2)))
    config = replace(half, nsf=replace(half.nsf, iterations=20))
    assert pending_phases(config, run, "nsgf") == (config.phases, ["nsgf", "nsf"])


def test_lines_from_nsgf_start_where_algorithm_2_ends(tiny, tiny_run):
    """The transport of phase 2 covers the flow time T eta in T steps."""
    config = replace(tiny, nsf=replace(tiny.nsf, source="nsgf"))
    data = load_data(tiny.data, tiny.seed)
    nsgf, nsf = Experiment(config).phases(["nsgf", "nsf"])
    pairs = nsf.pairs(new_session(config, tiny_run), data)
    x = data.source("nsf").at(range(5))
    network = load_network(nsgf, tiny_run, CPU).network
    average = weights(tiny_run)["nsgf"]["ema"]
    assert torch.equal(network.layers[0].weight, average["layers.0.weight"])
    expected = x
    for step in range(3):
        expected = expected + tiny.flow.eta * network(expected, torch.full((5,), step / 3))
    torch.testing.assert_close(pairs.at(range(5))[0], expected)


def test_pool_is_gone_when_the_next_phase_starts(tiny, monkeypatch):
    alive, real_task = [], NSF.task

    def build(*arguments):
        pool = build_pool(*arguments)
        alive.append(weakref.ref(pool))
        return pool

    def check_then_train(*arguments):
        gc.collect()
        assert alive[0]() is None
        return real_task(*arguments)

    monkeypatch.setattr("nsgf.phases.nsgf.build_pool", build)
    monkeypatch.setattr(NSF, "task", check_then_train)
    train(Experiment(tiny))
    assert len(alive) == 1


def test_pool_on_disk_is_removed_when_phase_one_is_done(tiny):
    config = replace(tiny, pool=replace(tiny.pool, storage="disk"))
    run = train(Experiment(with_phases(config, 1)))
    assert not list(run.path.rglob("positions.bin"))
    assert "pool: removed from the disk" in (run.path / "log.txt").read_text()
    train(Experiment(replace(config, nsgf=replace(config.nsgf, iterations=14))), run)
    assert weights(run)["nsgf"]["step"] == 14


def test_finished_run_is_cleaned_and_sorted_too(tiny, tiny_run):
    """A kill after the last phase's last checkpoint leaves both to the next session."""
    tiny_run.pool.mkdir(exist_ok=True)
    (tiny_run.pool / "positions.bin").write_bytes(b"left behind by a kill")
    metrics = tiny_run.path / "metrics.jsonl"
    before = metrics.read_text()
    lines = before.splitlines(keepends=True)
    metrics.write_text("".join(lines[-12:] + lines[:-12]))
    train(Experiment(tiny), tiny_run)
    assert not list(tiny_run.path.rglob("positions.bin"))
    assert metrics.read_text() == before
    metrics.write_text(before + "no record\n")
    train(Experiment(tiny), tiny_run)


def test_losses_are_those_of_earlier_versions(trained_once):
    """Data, seeds, flows, networks and updates of a run keep their numbers, up to rounding."""
    lines = records(RunFolder(trained_once))
    values = torch.tensor([[line["loss"], line["grad_norm"]] for line in lines])
    found = values.view(9, 4, 2).mean(1).flatten().tolist()
    expected = [3.305676, 0.793317, 3.760234, 0.646153, 2.851034, 0.570283]  # nsgf
    expected += [14.439660, 1.206244, 14.967840, 2.365355, 13.965528, 1.183059]  # nsf
    expected += [0.094505, 0.060837, 0.091038, 0.059586, 0.083090, 0.067630]  # predictor
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("began", "has_units"), [("fp32", True), ("bf16", False)])
def test_run_keeps_the_precision_it_began_with(began, has_units, digits_run, tmp_path, monkeypatch):
    """Also on another machine, where auto selects another one."""
    config, finished = digits_run
    run = RunFolder(Path(shutil.copytree(finished.path, tmp_path / "run")))
    first, *later = map(run.checkpoint_file, config.phases)
    checkpoint.save(first, {**checkpoint.load(first), "precision": began})
    for file in later:
        file.unlink()
    monkeypatch.setattr(torch.cpu, BFLOAT16_CHECKS[0], lambda: has_units, raising=False)
    train(Experiment(config), run)
    assert [checkpoint.load(file)["precision"] for file in later] == [began, began]
