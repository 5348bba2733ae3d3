"""The documentation names files and tests that exist, and its commands work."""

import pydoc
import re
import shlex
import textwrap
from pathlib import Path

import pytest

from nsgf.cli import main
from nsgf.cli.arguments import parse

ROOT = Path(__file__).parents[1]
FIRST_STEPS = ROOT / "docs" / "first-steps.md"
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


def test_each_fact_has_a_script_or_a_test_and_the_versions_of_its_scripts():
    page = (ROOT / "docs/facts.md").read_text()
    tables = re.findall(r"^\|[- |]+\n((?:\|.*\n)+)", page, re.M)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) > 20
    for row in rows:
        evidence = re.findall(r"\]\(\.\./((?:findings|tests)/[\w/]+\.(?:sh|py))\)", row)
        assert [file for file in evidence if (ROOT / file).is_file()], row
        scripts = "".join((ROOT / file).read_text() for file in evidence if file.endswith(".sh"))
        versions = row.split(" | ")[2].split(", ")
        assert not [version for version in versions if version not in scripts], row
    scripts = {file.name for file in ROOT.glob("findings/*.sh")} - {"run_all.sh"}
    assert not [name for name in scripts if f"(../findings/{name})" not in page]


def test_only_pyproject_names_the_address_of_the_repository():
    address = re.search(r'^Repository = "(.+?)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    texts = [*DOCS, *ROOT.glob("notebooks/*"), *ROOT.glob("nsgf/share/*.j2"), ROOT / "Dockerfile"]
    assert not [file for file in texts if address in file.read_text()]


def test_badges_are_true():
    settings = (ROOT / "pyproject.toml").read_text()
    versions = re.findall(r"Python :: (3\.\d+)", settings)
    badge = (ROOT / "docs/results/badge-python.svg").read_text()
    assert f">{versions[0]} to {versions[-1]}<" in badge
    assert 'license = { text = "MIT" }' in settings


def test_docstrings_of_the_api_page_are_markdown():
    """Roles of Sphinx, such as :func:, would be shown as they are."""
    for place in re.findall(r"^::: (\S+)$", (ROOT / "docs/api.md").read_text(), re.M):
        named = pydoc.locate(place)
        for text in [part.__doc__ or "" for part in (named, *vars(named).values())]:
            assert not re.search(r":\w+:`|::$", text, re.M), place


def test_the_example_of_a_change_fits_the_code():
    """Lines that the example changes, and the lines around them, are in the named files."""
    page = (ROOT / "CONTRIBUTING.md").read_text().replace("\n    ", "\n")
    changes = re.findall(r"```diff\n\+\+\+ (\S+)\n(.*?)```", page, re.S)
    assert len(changes) == 2
    for file, change in changes:
        old = [line[1:] for line in change.splitlines() if not line.startswith("+")]
        assert "\n".join(old) in (ROOT / file).read_text(), file


def commands_of(page: Path) -> list[list[str]]:
    """The words after ``nsgf`` of each command in a code block or a table."""
    text = re.sub(r" \\\n +", " ", page.read_text())  # commands of several lines
    found = re.findall(r"(?:^ {4}(?:\S+ )?python -m |`)nsgf (\w+.*?)(?:$|`)", text, re.M)
    return [shlex.split(words, comments=True) for words in found]


@pytest.fixture
def blocks(tmp_path, monkeypatch):
    """The code blocks of the first steps. The first one was run in the working folder: it writes a
    table and pictures."""
    monkeypatch.chdir(tmp_path)
    found = re.findall(r"(?:^ {4}.*\n+)+", FIRST_STEPS.read_text(), re.M)
    exec(textwrap.dedent(found[0]), {})
    return found


def test_commands_that_train_are_accepted(blocks):
    """As the pages show them, with the data of the first steps.

    Past mistake: No test read the commands on the pages, so a page could name a removed flag.
    """
    others = {"--resume", "--resume-phase", "N1,N2,N3"}
    names, *rows = Path("flowers.csv").read_text().splitlines()
    kinds = [f"{row},{'AB'[number % 2]}" for number, row in enumerate(rows)]
    Path("kinds.csv").write_text("\n".join([f"{names},kind", *kinds]))
    for words in [words for page in DOCS for words in commands_of(page)]:
        if "--data.path" in words:
            own = "flowers.csv" if "points" in words else "pictures"
            own = "kinds.csv" if "--data.label" in words else own
            for flag in {"--data.path", "--data.source"} & {*words}:
                words[words.index(flag) + 1] = own
        if words[0] in ("train", "compare") and "--exp" in words and not others & {*words}:
            parse([word.removesuffix(",mine.yaml") for word in words])


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_commands_of_the_first_steps_run(blocks):
    """As they stand there, with fewer updates."""
    small = "--train-iters 4 --batch-size 8 --pool-batches 2"
    for words in commands_of(FIRST_STEPS):
        if "--minutes" in words:
            kind = "--nsf.starts 40" if "images" in words else "--model.mlp.width 16"
            words = [*words[: words.index("--minutes")], *small.split(), *kind.split()]
        assert main([word.replace("20000", "6") for word in words]) == 0
    assert len(Path("more-flowers.csv").read_text().splitlines()) == 1001
    exec(textwrap.dedent(blocks[-1]), {})
    assert Path("flowers.png").exists()
