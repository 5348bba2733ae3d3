"""What TensorBoard itself reads of a run."""

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsgf.config.schema import PHASES, TrackingConfig
from nsgf.experiment import train
from nsgf.run.tensorboard_mirror import TensorBoardMirror

pytest.importorskip("tensorboard", reason="the extra `test` has it")


def shown(folder: Path) -> Any:
    """A phase as TensorBoard has it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return events


def records(file: Path, phase: str) -> list[dict]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in lines if line["phase"] == phase]


def test_it_shows_each_phase_over_its_own_steps_with_settings_and_picture(tiny):
    config = replace(tiny, tracking=TrackingConfig(tracker="tensorboard"))
    run = train(replace(config, train=replace(config.train, preview=True)))
    for phase in PHASES:
        events = shown(run.path / "tensorboard" / phase)
        for file, key in (("metrics", "loss"), ("metrics", "lr"), ("costs", "peak_memory")):
            lines = records(run.path / f"{file}.jsonl", phase)
            expected = [(line["step"], line[key]) for line in lines]
            found = [(event.step, event.value) for event in events.Scalars(key)]
            assert [step for step, _ in found] == [step for step, _ in expected]
            assert [value for _, value in found] == pytest.approx([v for _, v in expected])
        assert events.Tags()["images"] == ["samples"]
        [text] = events.Tensors("settings/text_summary")
        assert b"    exp: 2d" in text.tensor_proto.string_val[0]


def test_run_that_goes_on_shows_each_step_once(tiny):
    """Stopped after records that come after its checkpoint, as a killed run is."""
    config = replace(tiny, tracking=TrackingConfig(tracker="tensorboard"), phases=["nsgf"])
    whole = train(config)
    file, folder = whole.path / "metrics.jsonl", whole.path / "tensorboard" / "nsgf"
    checkpoint = whole.checkpoint_file("nsgf")
    checkpoint.with_suffix(".earlier.pt").replace(checkpoint)  # of step 10, after the record of 8
    train(config, whole)
    assert len(list(folder.iterdir())) == 2
    steps = [event.step for event in shown(folder).Scalars("loss")]
    assert steps == [one["step"] for one in records(file, "nsgf")] == [4, 8, 12]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_folder_that_vanishes_costs_the_mirror_not_the_run(tiny, monkeypatch):
    """One line is logged, and no thread of TensorBoard's writer is left."""
    record = TensorBoardMirror.record

    def record_and_vanish(self: TensorBoardMirror, values: dict[str, Any]) -> None:
        record(self, values)
        shutil.rmtree(self._folder)

    monkeypatch.setattr(TensorBoardMirror, "record", record_and_vanish)
    before = set(threading.enumerate())
    run = train(replace(tiny, tracking=TrackingConfig(tracker="tensorboard"), phases=["nsgf"]))
    said = (run.path / "log.txt").read_text()
    assert said.count("tracking: nothing is mirrored from here on") == 1
    assert "nsgf: done" in said
    assert set(threading.enumerate()) <= before
