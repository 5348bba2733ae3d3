import json

from nsgf.tracking import Tracker


def test_lines_go_to_terminal_log_and_metrics(tmp_path, capsys):
    tracker = Tracker(tmp_path)
    tracker.say("hello")
    tracker.record(phase="nsgf", step=1, loss=0.5)
    assert capsys.readouterr().out == "hello\n"
    assert (tmp_path / "log.txt").read_text().endswith(" hello\n")
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {
        "phase": "nsgf",
        "step": 1,
        "loss": 0.5,
    }


def test_rewind_drops_what_will_be_written_again(tmp_path):
    tracker = Tracker(tmp_path)
    tracker.rewind("nsgf", 3)
    for phase, step in (("nsgf", 5), ("nsf", 2), ("nsf", 4)):
        tracker.record(phase=phase, step=step)
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"phase": "nsf", "st')
    tracker.rewind("nsf", 2)
    kept = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert kept == [{"phase": "nsgf", "step": 5}, {"phase": "nsf", "step": 2}]
