"""The shape of the package: imports point one way."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import nsgf

ROOT = Path(nsgf.__file__).parent
FILES = {
    ".".join(("nsgf", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): file
    for file in sorted(ROOT.rglob("*.py"))
}


def imported(module):
    """Modules of the package that this one imports, at its top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = {f"{node.module}.{name.name}" for name in node.names}
            names |= parts & FILES.keys() or {node.module}
    return {name for name in names if name in FILES and name != module}


def test_imports_point_one_way():
    try:
        list(TopologicalSorter({module: imported(module) for module in FILES}).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_folders_and_the_files_beside_them_import_in_the_order_of_the_architecture_page():
    """So there is no circle of any length.

    Past mistake: Circles were looked for in pairs, and four places formed one.
    """
    page = (ROOT.parent / "docs" / "architecture.md").read_text()
    order = re.findall(r"`(\w+)`", re.search(r"in this order: ([^(]*)", page)[1])
    places = {name: order.index(name.split(".")[1]) for name in FILES.keys() - {"nsgf"}}
    assert len(order) == len(set(places.values()))
    for module, place in places.items():
        later = [name for name in imported(module) if places[name] > place]
        assert not later, f"{module} imports {later}"
