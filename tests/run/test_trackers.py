"""Trackers: the choice, a failure, what TensorBoard reads, and W&B by a stand-in and offline."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, call

import pytest

from nsgf.cli import main
from nsgf.commands.train import train
from nsgf.config.layers import sections_of
from nsgf.config.schema import OF_PHASES, TrackingConfig
from nsgf.experiment import Experiment
from nsgf.run.folder import RunFolder
from nsgf.run.trackers import open_tracker, run_id
from nsgf.settings import resolve
from nsgf.system.errors import UserError
from tests.conftest import records


def tracked(config, tracker):
    return replace(config, tracking=TrackingConfig(tracker=tracker))


def open_for(config, run, lines):
    """The tracker of a configuration; its lines go into a list."""
    return open_tracker(config.tracking.tracker, sections_of(config), run, lines.append)


# --- the choice ---------------------------------------------------------------------------------


def test_missing_package_is_refused_before_anything_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(resolve, "find_spec", lambda _: None)
    file = tmp_path / "own.yaml"
    file.write_text("exp: 2d\ntracking: {tracker: tensorboard}")
    for command in ("train", "compare"):
        assert main([command, f"--config={file}", "--smoke", f"--out-dir={tmp_path / 'runs'}"]) == 2
        assert "tracking.tracker = tensorboard" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_resumed_run_needs_the_package_only_if_the_command_names_it(tiny, monkeypatch, capsys):
    """The run's settings may come from another machine.

    Past mistake: A resumed run required the package of the tracker that it was started with.
    """
    run = train(Experiment(replace(tiny, phases=["nsgf"])))
    run.write_config(tracked(tiny, "tensorboard"))
    monkeypatch.setattr(resolve, "find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    argv = ["train", "--run", str(run.path), "--resume"]
    assert main([*argv, "--tracker", "tensorboard"]) == 2
    assert "tracking.tracker = tensorboard" in capsys.readouterr().err
    assert main(argv) == 0
    log = (run.path / "log.txt").read_text()
    assert log.count("tensorboard: not used") == 1
    assert "nsf: done" in log


# --- TensorBoard --------------------------------------------------------------------------------


def shown(folder):
    """A phase as TensorBoard reads it."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return events


def test_tensorboard_shows_each_phase_over_its_own_steps(tiny):
    config = tracked(tiny, "tensorboard")
    run = train(Experiment(replace(config, train=replace(config.train, preview=True))))
    for phase in config.phases:
        events = shown(run.path / "tensorboard" / phase)
        for file, key in (("metrics", "loss"), ("costs", "peak_memory")):
            lines = [line for line in records(run, file) if line["phase"] == phase]
            found = events.Scalars(key)
            assert [event.step for event in found] == [line["step"] for line in lines]
            assert [event.value for event in found] == pytest.approx([line[key] for line in lines])
        assert events.Tags()["images"] == ["samples"]
        assert "settings/text_summary" in events.Tags()["tensors"]


def test_resumed_run_shows_each_step_once(tiny):
    """Killed after records that come after its checkpoint.

    Past mistake: TensorBoard keeps what an interrupted session wrote after its checkpoint, so a
    resumed curve went back.
    """
    config = replace(tracked(tiny, "tensorboard"), phases=["nsgf"])
    run = train(Experiment(config))
    folder = run.path / "tensorboard" / "nsgf"
    checkpoint = run.checkpoint_file("nsgf")
    checkpoint.with_suffix(".earlier.pt").replace(checkpoint)  # of step 10, after the record of 8
    train(Experiment(config), run)
    steps = [event.step for event in shown(folder).Scalars("loss")]
    assert steps == [record["step"] for record in records(run)] == [*range(1, 13)]


# --- W&B ----------------------------------------------------------------------------------------


@pytest.fixture
def wandb(monkeypatch):
    """A module ``wandb`` that notes its calls."""
    run = Mock(url="https://wandb.ai/x", dir="wandb/offline-run-1/files")
    module = Mock(Settings=dict, Image="image {}".format, **{"init.return_value": run})
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return module


WANDB = {"WANDB_PROJECT": "project", "WANDB_NAME": "name", "WANDB_RUN_GROUP": "group"}


@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.parametrize("mode", ["online", "offline", "disabled"])
def test_environment_wins_over_our_defaults(mode, is_set, tiny, wandb, monkeypatch):
    """An upload that the user has switched off would be lost time, or worse.

    Past mistake: The program's defaults overrode variables of the user's environment, and an
    offline W&B run was lost.

    Past mistake: A keyword was removed because its value is the default. wandb's default is the
    account's setting, which may upload the user's script.
    """
    for key, value in {**WANDB, "WANDB_MODE": mode}.items():
        monkeypatch.setenv(key, value) if is_set else monkeypatch.delenv(key, raising=False)
    run, lines = RunFolder.create(tiny), []
    open_for(tracked(tiny, "wandb"), run, lines).close(True)
    wandb.init.return_value.finish.assert_called_once_with(exit_code=1)  # as of a failed run
    begun = wandb.init.call_args.kwargs
    expected = [*WANDB.values()] if is_set else ["nsgf", "/".join(run.path.parts[-2:]), "2d"]
    assert [begun[key] for key in ("project", "name", "group")] == expected
    assert begun["mode"] == (mode if is_set else "online")
    assert begun["settings"]["save_code"] is False
    assert ("wandb sync" in lines[0]) == (is_set and mode == "offline")


def test_resumed_run_is_the_same_wandb_run(tiny, wandb):
    config = tracked(tiny, "wandb")
    run = train(Experiment(replace(config, phases=["nsgf"])))
    train(Experiment(config), run)
    first, second = (begun.kwargs for begun in wandb.init.call_args_list)
    assert first["reinit"] == second["reinit"] == "create_new"
    assert first["id"] == second["id"] == (run.path / "wandb_id.txt").read_text().strip()
    assert first["config"]["nsgf"]["iterations"] == 12
    assert first["dir"] == str(run.path)
    assert first["resume"] == "allow"
    assert wandb.init.return_value.finish.call_args_list == [call(exit_code=0)] * 2
    assert (run.path / "log.txt").read_text().count("wandb: https://wandb.ai/x") == 2


def test_wandb_history_is_that_of_metrics_jsonl_under_each_phase(tiny, wandb):
    config = tracked(tiny, "wandb-offline")
    run = train(Experiment(replace(config, train=replace(config.train, preview=True))))
    noted = wandb.init.return_value
    logged = [each.args[0] for each in noted.log.call_args_list]
    for phase in config.phases:
        expected = [line for line in records(run) if line["phase"] == phase]
        rows = [row for row in logged if f"{phase}/loss" in row]
        for key in ("step", "loss"):
            assert [row[f"{phase}/{key}"] for row in rows] == [line[key] for line in expected]
        [picture] = [row[f"{phase}/samples"] for row in logged if f"{phase}/samples" in row]
        assert picture.startswith("image ")
    for phase in OF_PHASES:
        noted.define_metric.assert_any_call(f"{phase}/*", step_metric=f"{phase}/step")
    assert not any("phase" in row for row in logged)


def test_wandb_that_fails_is_one_line(tiny, wandb):
    """Past mistake: wandb without network waits for its full time-out, keeps the run's id and
    replaces `sys.exit` and `sys.excepthook`. Runs did not fall back to offline and had wrong exit
    codes.
    """
    wandb.init.side_effect = ConnectionError("no way\nout")
    lines = []
    config = tracked(tiny, "wandb-offline")
    assert open_for(config, RunFolder.create(tiny), lines) is None
    assert lines == ["wandb-offline: not used (no way out)"]
    begun = wandb.init.call_args.kwargs
    assert begun["mode"] == "offline"
    assert begun["settings"]["init_timeout"] <= 15


@pytest.mark.parametrize("folder", ["wandb", ".wandb"])
def test_settings_in_the_working_directory_choose_no_server(folder, tiny, wandb, monkeypatch):
    """They may lie in a run folder that somebody else has made.

    Past mistake: wandb reads `wandb/settings` in the working folder, so the user's key could go
    to a foreign server.
    """
    monkeypatch.chdir(RunFolder.create(tiny).path)
    Path(folder).mkdir()
    Path(folder, "settings").write_text("[default]\nbase_url = http://elsewhere.example\n")
    lines = []
    assert open_for(tracked(tiny, "wandb"), RunFolder.create(tiny), lines) is None
    wandb.init.assert_not_called()
    assert str(Path(folder, "settings").absolute()) in lines[0]


@pytest.mark.parametrize("content", ["../../x", "", "a b", "x" * 99])
def test_wandb_ids_that_are_paths_are_refused(content, tmp_path):
    (tmp_path / "wandb_id.txt").write_text(content)
    with pytest.raises(UserError, match=r"wandb_id\.txt"):
        run_id(RunFolder(tmp_path))


CALLER = """
import os, sys
import torch, wandb
import nsgf
from wandb.errors import term

folder, has_run = sys.argv[1], sys.argv[2] == "True"
mine = wandb.init(mode="offline", project="outer", dir=folder) if has_run else None


def process():
    names = {name: value for name, value in os.environ.items() if "WANDB" in name}
    return sys.exit, sys.excepthook, names, term._silent, wandb.run, wandb.log


before = process()
x = torch.randn(40, 2)
settings = {"tracking.tracker": "wandb-offline", "train.preview": False, "pool.num_batches": 2}
seen = []
how = {"quiet": True, "callback": lambda _: seen.append(process())}
run = nsgf.train(x, iterations=2, batch_size=8, out_dir=folder, overrides=settings, **how)
resumed = {"tracking.tracker": "wandb-offline", "nsgf.iterations": 4}
nsgf.train(resume=run.path, overrides=resumed, **how)
assert seen == [before] * 4, (before, seen)
assert process() == before, (before, process())
assert not wandb.setup().settings.silent
if mine is not None:
    mine.log({"mine": 1})
    assert not [key for key in mine.summary.keys() if "nsgf" in str(key)]
    mine.finish()
"""


@pytest.mark.e2e
@pytest.mark.parametrize("has_run", [True, False])
def test_wandb_of_the_caller_stays_as_it_is(has_run, tmp_path):
    """Also when a run is resumed, which continues its own W&B run.

    Past mistake: `wandb.init` returned the open run of the caller's script, which got the records
    of training and was finished.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    own = {"OMP_NUM_THREADS": "1", "WANDB_CONFIG_DIR": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", CALLER, str(tmp_path), str(has_run)]
    done = subprocess.run(
        command, env={**kept, **own}, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [run] = tmp_path.glob("points-*")
    name = (run / "wandb_id.txt").read_text().strip()
    assert {file.name for file in run.glob("wandb/offline-run-*/*.wandb")} == {f"run-{name}.wandb"}


@pytest.mark.e2e
def test_wandb_itself_keeps_a_run_offline(tmp_path):
    """Without the user's settings of wandb."""
    command = [sys.executable, "-m", "nsgf", "train", "--exp", "2d", "--pool-batches", "2"]
    command += ["--device", "cpu", "--train-iters", "5", "--tracker", "wandb-offline"]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    own = {"OMP_NUM_THREADS": "1", "WANDB_CONFIG_DIR": str(tmp_path), "HOME": str(tmp_path)}
    command += ["--out-dir", str(tmp_path)]
    printed = subprocess.check_output(command, env={**kept, **own}, text=True)
    [line] = [line for line in printed.splitlines() if line.startswith("wandb-offline: kept")]
    [file] = Path(line.split("wandb sync ")[1]).glob("run-*.wandb")
    assert file.stat().st_size > 1000
