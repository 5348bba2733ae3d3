"""The recipes of docs/extending.md, applied to a copy of the package, do what they promise."""

import ast
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import nsgf
from tests.test_api import SMALL
from tests.test_inputs import MyUNet

ROOT = Path(__file__).parents[1]
RUN = """
import sys
from nsgf.cli import main
assert not any(main(words.split()) for words in sys.argv[2:])
exec(sys.argv[1])
"""
CHECKS = {
    "A 2D target": """
        import torch
        from nsgf.config.schema import DataConfig
        from nsgf.user_data import load_data
        points = load_data(DataConfig(name="ring"), 0).target("x").sample(2000)
        torch.testing.assert_close(points.T.cov(), 4.5 * torch.eye(2), rtol=0, atol=0.4)
    """,
    "An image set": """
        import numpy as np
        from nsgf.config.schema import DataConfig
        from nsgf.user_data import load_data
        images = load_data(DataConfig(name="glyphs", root="."), 0).images
        assert np.array_equal(images, np.load("glyphs.npz")["images"])
    """,
    "A loss": """
        import torch
        from nsgf.phases.lines import LineTask
        from nsgf.training.task import Batch
        batch = Batch((torch.zeros(4),), torch.zeros(4))
        assert LineTask.loss(None, lambda x: x + 10, batch) == 10 - 0.5
    """,
    "A flow": """
        import glob
        import torch
        import nsgf
        from pathlib import Path
        from nsgf.method import run_flow
        from nsgf.sinkhorn.kernel import KernelFlow
        x, y = torch.zeros(1, 1, 2), torch.tensor([[[3.0, 4.0]]])
        moved = run_flow(KernelFlow(5.0), x, y, [0.1])[0, 0, 1]
        torch.testing.assert_close(moved, 0.1 * torch.tensor([3.0, 4.0]) * 2.718281828 ** -0.5)
        nsgf.load(glob.glob("runs/2d-smoke-*")[0]).export("out")
        card = Path("out/README.md").read_text()
        assert "by a neural kernel gradient flow" in card
        assert "kernel's discrepancy, in place of" in card
        assert "blur 0.25" not in card
    """,
    "An ODE solver": """
        import torch
        from nsgf.config.schema import SamplingConfig
        from nsgf.sampling.solvers import SOLVERS, integrate
        config, calls = SamplingConfig(solver="midpoint", straight_steps=1), []
        square = lambda x, t: calls.append(t) or t.view(-1, 1) ** 2
        assert integrate(square, torch.zeros(1, 1), torch.zeros(1), config) == 0.5**2
        assert len(calls) == SOLVERS["midpoint"].calls
    """,
    "A measure": """
        import glob, json
        from pathlib import Path
        from nsgf.comparison import read_rows
        (found,) = map(json.load, map(open, glob.glob("runs/2d-smoke-*/metrics.json")))
        assert found["coordinate_w1"] > 0 < found["coordinate_w1_floor"]
        rows = read_rows(Path("runs/compare-2d-smoke/table.csv"))
        assert all("coordinate_w1" in row.values for row in rows)
    """,
    "A phase": """
        import torch
        from nsgf.phases.curved import CurvedTask
        start, end, t, h = *torch.randn(2, 3, 2), torch.tensor([0.2, 0.5, 0.9]), 1e-3
        at = lambda t: CurvedTask.batch(None, start, end, t)
        slope = (at(t + h).inputs[0] - at(t - h).inputs[0]) / (2 * h)
        torch.testing.assert_close(at(t).target, slope, rtol=1e-2, atol=1e-3)
        torch.testing.assert_close(at(torch.ones(3)).inputs[0], end)
    """,
}
"""What a recipe promises, as code that runs after its commands."""


class Recipe(NamedTuple):
    """A section of the document."""

    title: str
    edits: list[tuple[str, str]]
    """File and code."""
    commands: list[str]


def read_recipes():
    recipes = []
    for section in (ROOT / "docs/extending.md").read_text().split("\n## ")[1:]:
        recipe = Recipe(section.splitlines()[0], [], [])
        parts = re.split(r"((?:^ {8}.*\n+)+)", section, flags=re.M)
        for text, block in zip(parts[::2], parts[1::2], strict=False):
            if named := re.findall(r"^\d\.  `([\w./]+)`", text, re.M):
                file = named[-1]
            edits, _, commands = textwrap.dedent(block).partition("python -m nsgf ")
            if edits:
                recipe.edits.append((file, edits))
            if commands:
                recipe.commands.extend(commands.split("python -m nsgf "))
        recipes.append(recipe)
    return recipes


def apply_code(source, code):
    """Return a module with the code of a recipe, where ``...`` stands for the present code."""
    new = ""
    for chunk in re.split(r"\n(?=[\w@])", code):
        kind, name = re.match(r"(class |)(\w*)", chunk).groups()
        if name in ("from", "import"):
            source = re.sub(r"^(?=from |import )", f"{chunk}\n", source, count=1, flags=re.M)
        elif "..." in chunk:
            old = statement(source, name)
            kept = old if kind else old[:-1].rstrip().rstrip(",") + ","
            new += kept + chunk.partition("...")[2].removeprefix(",")
            source, new = source.replace(old, new, 1), ""
        else:
            new += f"{chunk}\n\n\n"
    return source + new


def statement(source, name):
    """The text of the top-level class or assignment of this name."""
    for node in ast.parse(source).body:
        targets = getattr(node, "targets", [getattr(node, "target", node)])
        if name in (getattr(target, key, None) for target in targets for key in ("id", "name")):
            return ast.get_source_segment(source, node)
    raise AssertionError(f"{name} is not there")


@pytest.mark.e2e
def test_lines_for_python_run(tmp_path, monkeypatch):
    """As they stand there, with a smaller pool and fewer updates."""
    page, train, runs = (ROOT / "docs/extending.md").read_text(), nsgf.train, []
    network = textwrap.dedent(re.search(r"(?:^ {4}\S.*\n+)+", page, re.M)[0])

    def short_train(*data, **how):
        small = {} if "resume" in how else SMALL | {"nsf.starts": 20, "pool.num_batches": 10}
        runs.append(train(*data, **how, overrides=small))
        return runs[-1]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nsgf, "train", short_train, raising=False)
    exec(network, {"nsgf": nsgf, "MyUNet": MyUNet, "x": images(100, 8), "y": np.arange(100) % 10})
    assert [run.config.data.conditional for run in runs] == [False, False, True]
    assert {run.config.model.network for run in runs} == {"MyUNet"}


PAGE = (ROOT / "docs/training-loop.md").read_text()
BLOCKS = re.findall(r"(?:^ {4}.*\n|(?<=\n)\n(?= {4}))+", PAGE, re.M)
SETUP, TORCHCFM, SAMPLE, POOL, LIGHTNING = map(textwrap.dedent, BLOCKS)


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore")  # of Lightning, about workers and loggers
@pytest.mark.parametrize(
    ("loop", "line"),
    [
        pytest.param(TORCHCFM, "matcher = nsgf.SinkhornFlowMatcher.*", id="torchcfm"),
        pytest.param(TORCHCFM, "matcher = Exact.*|from torchcfm.*", id="torchcfm-with-ours"),
        pytest.param(POOL, "", id="pool"),
        pytest.param(LIGHTNING, "", id="lightning"),
    ],
)
def test_loops_of_the_page_train(loop, line, tmp_path, monkeypatch):
    """As they stand there, without the ``line`` that chooses the other matcher."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    loop = re.sub(line, "", loop) if line else loop
    cpu = {
        "epochs=60": "epochs=60, accelerator='cpu', enable_progress_bar=False",
        "batches=20": "batches=20, device='cpu'",
        "in pool:": "in [*pool] * 5:",
    }
    for old, new in cpu.items():
        loop = loop.replace(old, new)
    names = {}
    exec(SETUP + loop + SAMPLE, names)
    # the pool's constant steps stop before the data, when 0.8^5 of the way are left
    left = 0.8**5 if "Pool" in loop else 0.0
    x, data = names["x"], names["data"]
    torch.testing.assert_close(x.mean(0), (1 - left) * data.mean(0), rtol=0, atol=0.2)
    torch.testing.assert_close(x.std(0), torch.full((2,), 0.5 + 0.5 * left), rtol=0.25, atol=0)


def images(count, size):
    return np.random.default_rng(0).integers(256, size=(count, 1, size, size), dtype=np.uint8)


RECIPES = read_recipes()


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize("recipe", [one for one in RECIPES if one.edits], ids=lambda one: one.title)
def test_recipe_works(recipe, tmp_path):
    """Past mistake: The page's recipe for a phase was refused, because recipes were read and
    never run.

    Past mistake: The test looked only at the exit code, and the solver of a recipe was never
    called.
    """
    for folder in ("nsgf", "configs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for name, code in recipe.edits:
        file = tmp_path / name
        file.write_text(apply_code(file.read_text(), code) if file.exists() else code)
    assert recipe.commands
    np.savez(tmp_path / "glyphs.npz", images=images(64, 16))
    cheap = "--device cpu --train.preview false"
    words = [f"{command.replace('DIR', '.')} {cheap}" for command in recipe.commands]
    done = subprocess.run(
        [sys.executable, "-c", RUN, textwrap.dedent(CHECKS[recipe.title]), *words],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
