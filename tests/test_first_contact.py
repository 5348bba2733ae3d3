"""The report of scripts/first_contact.py; its stages are tried by --tiny."""

import re
import runpy
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "first_contact.py"


@pytest.fixture
def script():
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def contact(script, tmp_path, monkeypatch):
    """Run all stages, which are said to end with these codes (None: not in time; else 0)."""

    def run(codes: dict[str, int | None], *flags: str) -> tuple[int, str, list[str]]:
        commands: list[str] = []

        def execute(words, seconds):
            assert seconds > 0
            commands.append(" ".join(words))
            said = "nsgf: 0.2 s an update, about 2 h\n" if "preflight" in words else "fine\n"
            code = next((codes[part] for part in codes if part in commands[-1]), 0)
            return code, said

        monkeypatch.setitem(script["main"].__globals__, "execute", execute)
        monkeypatch.setitem(script["main"].__globals__, "find_spec", lambda name: name)
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--out", str(tmp_path), *flags])
        code = script["main"]()
        return code, (tmp_path / "first_contact.md").read_text(), commands

    return run


def test_all_stages_are_tried_and_told(contact, script, tmp_path):
    code, text, commands = contact({}, "--data-root=/my data")
    assert code == 0
    for stage in (*script["STAGES"], script["LAST"]):
        assert f"| {stage.name} | green | 0 |" in text
    assert not any("{" in command for command in commands if not command.startswith("-c "))
    assert "missing: nothing" in text
    assert sum("--data-root=/my data" in command for command in commands) == 2
    assert "fine" in (tmp_path / "logs" / "smoke.txt").read_text()


@pytest.mark.parametrize(("code", "why"), [(2, "exit code 2"), (None, "no end within 80 s")])
def test_a_red_stage_stops_no_other(contact, code, why):
    ended, text, commands = contact({"--exp=2d --smoke": code})
    assert ended == 1
    assert f"| smoke | red: {why} | 0 |" in text
    assert text.count("| red: ") == 1
    assert "--exp=2d" in commands[3]
    assert "torture.py" in commands[4]
    assert "| MNIST | green | 0 |" in text


def test_what_is_missing_or_for_a_card_is_left_out(contact, script, monkeypatch):
    _, text, _ = contact({}, "--tiny")
    assert "| compiled | left out: for a card | 0 |" in text
    run, stage = script["run"], script["Stage"]
    monkeypatch.setitem(run.__globals__, "find_spec", lambda name: None)
    outcome = run(stage("one", 1, "nsgf", ("ot", "geomloss")), {}, 1, None)
    assert outcome.said == "left out: needs ot, geomloss"


def test_the_last_stage_keeps_its_time_and_takes_what_preflight_measured(contact, script):
    """With less than its reserve left nothing else begins; half of what is left is for updates."""
    code, text, commands = contact({}, "--minutes=1")
    assert code == 0
    assert "| smoke | left out: no time was left | 0 |" in text
    assert "| MNIST | green | 0 |" in text
    assert f"; 1 green, 0 red, {len(script['STAGES'])} left out" in text
    assert len(commands) == 3
    outcome, affordable = script["Outcome"], script["affordable"]
    measured = "nsgf: 0.5 s an update, x\nnsf: 0.4 s an update\npredictor: 1e-1 s an update\n"
    slow = "nsgf: 9 s an update\n"  # of the experiment before
    outcomes = [outcome("smoke", "green"), outcome("preflight", "green", 1, slow + measured)]
    assert affordable(outcomes, 200) == 100
    assert affordable([], 0) == 20


def test_a_stage_that_the_whole_time_cuts_short_is_not_red(script):
    """What is red took longer than its own limit."""
    run, stage = script["run"], script["Stage"]("one", 30, "nsgf")
    assert run(stage, {}, 40, lambda *_: (None, "")).said == "red: no end within 30 s"
    short = "left out: 20 s were left, in which it did not end"
    assert run(stage, {}, 20, lambda *_: (None, "")).said == short


def test_no_stage_reads_a_run_of_another(script):
    """Each one that samples, measures or goes on with a run trains it first, in the same folder."""
    for stage in (*script["STAGES"], script["LAST"]):
        trained: set[str] = set()
        for command in stage.commands.splitlines():
            experiment = re.search(r"--exp=\{?(\w+)", command)
            folder = re.search(r"\{(?:where|runs)\}(\S*)", command)
            if "nsgf train" in command and "--resume" not in command:
                trained.add(f"{experiment[1]}{folder[1]}")
            elif "nsgf sample" in command or "nsgf evaluate" in command or "--resume" in command:
                assert f"{experiment[1]}{folder[1]}" in trained, command


def test_stages_that_are_not_asked_for_are_not_tried(contact):
    code, text, commands = contact({"": 1}, "--only", "versions", "small")
    assert code == 1
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")] == [
        *("| stage", "| versions", "| a small card"),
    ]
    assert len(commands) == 2


@pytest.mark.e2e
def test_a_command_ends_with_all_that_it_started(script):
    execute = script["execute"]
    assert execute(["-c", "print(3); raise SystemExit(4)"], 60) == (4, "3\n")
    sleeps = (
        "import subprocess as s, sys; child = s.Popen(['sleep', '200'], start_new_session=True); "
        "print(child.pid, flush=True); child.wait()"
    )
    code, said = execute(["-c", sleeps], 5)  # as torchrun starts its workers
    assert code is None
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(int(said)).status() != "zombie":  # a killed one needs a moment
            time.sleep(0.01)


@pytest.mark.e2e
def test_shell_script_hands_its_words_on(monkeypatch):
    monkeypatch.setenv("PYTHON", "echo")
    words = ["bash", str(SCRIPT.with_suffix(".sh")), "--only", "a small card"]
    assert subprocess.check_output(words, text=True) == f"{SCRIPT} --only a small card\n"
