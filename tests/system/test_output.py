import io
import os
import subprocess
import sys
from threading import Thread

import pytest

from nsgf.run.progress import Progress
from nsgf.system.output import show, show_error, silence

STREAMS = pytest.mark.parametrize(("name", "say"), [("stdout", show), ("stderr", show_error)])


@STREAMS
def test_closed_pipe_ends_nothing(monkeypatch, name, say):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(f"sys.{name}", stream)
        for _ in range(2):
            say("x" * 100_000)
        stream.flush()


@pytest.mark.e2e
def test_command_in_a_removed_folder_is_one_line(tmp_path):
    """Torch's own library would end the process."""
    gone = tmp_path / "gone"
    command = f"mkdir {gone}; cd {gone}; rmdir {gone}; exec {sys.executable} -m nsgf train --exp 2d"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("nsgf: error: cannot use the working directory: ")


def test_silence_is_that_of_one_thread_and_leaves_the_streams(capsys):
    streams = sys.stdout, sys.stderr
    with silence():
        assert (sys.stdout, sys.stderr) == streams
        show("nothing")
        show_error("nothing")
        with Progress("work", 1, "step") as progress:
            progress.update()
        print("of the caller")
        thread = Thread(target=show, args=["of another thread"])
        thread.start()
        thread.join()
        with silence(False):
            show("of a callback")
    show("of the end")
    out, err = capsys.readouterr()
    assert out == "of the caller\nof another thread\nof a callback\nof the end\n"
    assert err == ""


@STREAMS
def test_characters_that_a_terminal_lacks_are_escaped(monkeypatch, name, say):
    """Past mistake: `UnicodeEncodeError` is a `ValueError`. A character that the terminal's
    encoding lacks was taken for a closed terminal, and output ended.
    """
    written = io.BytesIO()
    monkeypatch.setattr(f"sys.{name}", io.TextIOWrapper(written, encoding="ascii"))
    say("0.5 ± 0.1")
    say("and on")
    assert written.getvalue() == b"0.5 \\xb1 0.1\nand on\n"


@pytest.mark.e2e
@pytest.mark.parametrize("streams", [">&- 2>&-", ">/dev/full 2>/dev/full"])
def test_streams_that_are_closed_or_full_change_no_exit_code(tmp_path, streams):
    """Also of a command that continues its work: its log has all lines.

    Past mistake: `sys.stderr` is None when the stream is closed. Errors then ended with exit code
    1.
    """

    def code(flags):
        command = f"{sys.executable} -m nsgf train --exp 2d --smoke --device cpu {flags}"
        return subprocess.call(f"{command} --out-dir {tmp_path} {streams}", shell=True)

    assert code("--help") == 0
    assert code("--lr -1") == 2
    assert not list(tmp_path.iterdir())
    assert code("") == 0
    [log] = tmp_path.glob("*/log.txt")
    assert "nsgf: done, " in log.read_text()


@pytest.mark.parametrize("say", [show, show_error])
def test_control_characters_are_escaped(say, capsys):
    """Past mistake: Control characters were escaped in some places only. They must be escaped
    where lines are printed.
    """
    say("two\nlines of \x1b]0;title\x07 \x9b31m \r \u202e \udc80 é")
    shown = "".join(capsys.readouterr())
    assert shown == "two\nlines of \\x1b]0;title\\x07 \\x9b31m \\r \\u202e \\udc80 é\n"
