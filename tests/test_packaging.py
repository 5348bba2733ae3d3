"""What is declared is what is used: dependencies, and when they are loaded."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LATE = ("matplotlib", "sklearn", "ot", "wandb", "scipy", "torchvision")
OPTIONAL = {"flash_sinkhorn", "torch_fidelity", "torchdiffeq", "torchcfm"}
PACKAGE = {"PIL": "pillow", "ot": "POT", "sklearn": "scikit-learn", "yaml": "pyyaml"}
"""Names of packages where they are not those of their modules."""


def listed(name: str) -> list[str]:
    """A list of requirements in pyproject.toml (Python 3.10 has no reader of it)."""
    text = (ROOT / "pyproject.toml").read_text()
    inside = re.search(rf"^{name} = \[(.*?)\]$", text, re.DOTALL | re.MULTILINE)
    assert inside
    return re.findall(r'"([^"]+)"', re.sub(r"#.*", "", inside[1]))


def test_requirements_and_pyproject_agree():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    required = [line for line in lines if line and not line.startswith("#")]
    assert required == [*listed("dependencies"), *listed("fidelity")]


def test_what_the_package_imports_is_declared():
    declared = {re.split(r"[\[>]", line)[0] for line in listed("dependencies")}
    used = set()
    for file in (ROOT / "nsgf").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                used |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                used.add(node.module.split(".")[0])
    used -= {*sys.stdlib_module_names, *OPTIONAL, "nsgf"}
    assert {PACKAGE.get(name, name) for name in used} == declared


def loaded_after(statement: str) -> set[str]:
    """The packages that a fresh process has loaded."""
    code = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("words", [["train", "--help"], ["train", "--exp", "2d", "--sede=3"]])
def test_help_and_typos_load_nothing_that_takes_long(words):
    loaded = loaded_after(f"from nsgf.cli import main; main({words})")
    assert "nsgf" in loaded
    assert not loaded & {*LATE, "torch", "numpy"}


@pytest.mark.e2e
def test_training_code_loads_libraries_where_they_are_used():
    everything = "import nsgf.experiment, nsgf.compare.compare, nsgf.sampling.generate"
    assert not loaded_after(everything) & set(LATE)
