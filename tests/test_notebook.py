"""The notebook as a hosted machine runs it, all cells in order, in two sessions.

Past mistake: A page said that a `!` cell prints lines. It was tried in a pipe, but the kernel
gives a terminal, and the notebook filled with bars.
"""

import os
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "notebooks" / "nsgf_kaggle.ipynb"


def printed(folder):
    """What the cells say when they run in this folder."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    pictures = ["a picture" for output in outputs if "image" in str(output.get("data", ()))]
    return "".join(output.get("text", "") for output in outputs) + "\n".join(pictures)


@pytest.mark.e2e
@pytest.mark.timeout(600)  # two sessions of six commands each
def test_notebook_trains_and_goes_on_from_a_read_only_input(tmp_path, monkeypatch):
    """Past mistake: The notebook looked for folders `EXP-*`, which includes smoke runs. After
    `--smoke` nothing was trained.
    """
    for name, value in {
        "NSGF_EXP": "digits",
        "NSGF_FLAGS": "--smoke --device cpu",
        "NSGF_HOURS": "1",
        "NSGF_INPUTS": str(tmp_path / "input"),
        "NSGF_OUT": str(tmp_path / "runs"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        # the kernel of this environment, whichever others are installed
        "JUPYTER_PATH": str(Path(sys.prefix) / "share" / "jupyter"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }.items():
        monkeypatch.setenv(name, value)
    # what is not asked for is not resumed
    for name in ("runs/digits-20260101_000000", "input/digits-small-smoke-20260101_000000"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text("exp: digits\n")
    first = printed(tmp_path)
    assert "continues" not in first
    assert "nsf: done" in first
    assert "step/s" not in first  # of a bar
    assert "report.html" in first
    assert first.count("a picture") == 3  # after both phases, and the moving one
    (run,) = (tmp_path / "runs").glob("digits-smoke-*")
    assert first.count(run.name) > 3
    shutil.move(run, tmp_path / "input" / "last-session" / "runs" / run.name)
    second = printed(tmp_path)
    assert "continues" in second
    assert "nsf: finished" in second
    assert (tmp_path / "runs" / run.name / "report.html").exists()


def test_notebook_is_kept_without_outputs():
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
