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

ROOT = Path(__file__).parents[1]
RUN = "import sys; from nsgf.cli import main; sys.exit(any(main(w.split()) for w in sys.argv[1:]))"


class Recipe(NamedTuple):
    """A section of the document."""

    title: str
    edits: list[tuple[str, str]]
    """File and code."""
    commands: list[str]


def read_recipes() -> list[Recipe]:
    recipes = []
    for section in (ROOT / "docs/extending.md").read_text().split("\n## ")[1:]:
        recipe = Recipe(section.splitlines()[0], [], [])
        parts = re.split(r"((?:^ {7}.*\n+)+)", section, flags=re.M)
        for text, block in zip(parts[::2], parts[1::2], strict=False):
            if named := re.findall(r"^\d\. `([\w./]+)`", text, re.M):
                file = named[-1]
            edits, _, commands = textwrap.dedent(block).partition("python -m nsgf ")
            if edits:
                recipe.edits.append((file, edits))
            if commands:
                recipe.commands.extend(commands.split("python -m nsgf "))
        recipes.append(recipe)
    return recipes


def apply_code(source: str, code: str) -> str:
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


def statement(source: str, name: str) -> str:
    """The text of the top-level class or assignment of this name."""
    for node in ast.parse(source).body:
        targets = getattr(node, "targets", [getattr(node, "target", node)])
        if name in (getattr(target, key, None) for target in targets for key in ("id", "name")):
            return ast.get_source_segment(source, node)
    raise AssertionError(f"{name} is not there")


RECIPES = read_recipes()


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize("recipe", [one for one in RECIPES if one.edits], ids=lambda one: one.title)
def test_recipe_works(recipe, tmp_path):
    for folder in ("nsgf", "configs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for name, code in recipe.edits:
        file = tmp_path / name
        file.write_text(apply_code(file.read_text(), code) if file.exists() else code)
    assert recipe.commands
    np.savez(tmp_path / "glyphs.npz", images=np.zeros((64, 1, 16, 16), np.uint8))
    cheap = "--device cpu --train.preview false"
    words = [f"{command.replace('DIR', '.')} {cheap}" for command in recipe.commands]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
