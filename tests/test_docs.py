"""The documentation names files and tests that exist."""

import pydoc
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]


@pytest.mark.parametrize("doc", DOCS, ids=lambda doc: doc.name)
def test_named_files_and_tests_exist_and_nothing_is_left_to_be_filled_in(doc):
    text, file = doc.read_text(), None
    assert "@@" not in text
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    assert not [link for link in links if "://" not in link and not (doc.parent / link).exists()]
    for named, test in re.findall(r"`([\w/]*test_\w+\.py)?(?:::(test_\w+))?`", text):
        file = ROOT / "tests" / named.removeprefix("tests/") if named else file
        assert not named or file.is_file(), named
        if test:
            assert re.search(rf"^def {test}\(", file.read_text(), re.M), f"{file}::{test}"


def test_only_pyproject_names_the_address_of_the_repository():
    address = re.search(r'^Repository = "(.+?)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    texts = [*DOCS, *ROOT.glob("notebooks/*"), *ROOT.glob("nsgf/share/*.j2"), ROOT / "Dockerfile"]
    assert not [file for file in texts if address in file.read_text()]


def test_docstrings_of_the_api_page_are_markdown():
    """Roles of Sphinx, such as :func:, would be shown as they are."""
    for place in re.findall(r"^::: (\S+)$", (ROOT / "docs/api.md").read_text(), re.M):
        named = pydoc.locate(place)
        for text in [part.__doc__ or "" for part in (named, *vars(named).values())]:
            assert not re.search(r":\w+:`|::$", text, re.M), place
