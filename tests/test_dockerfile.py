"""What of the Dockerfile can be told without docker."""

import json
import re
from pathlib import Path

from nsgf.cli.arguments import parse

ROOT = Path(__file__).parents[1]
LINES = (ROOT / "Dockerfile").read_text().splitlines()


def said(instruction):
    return [line.split(" ", 1)[1] for line in LINES if line.startswith(f"{instruction} ")]


def test_what_is_copied_exists_and_is_all_that_an_installation_reads():
    copied = {word for line in said("COPY") for word in line.split()[:-1]}
    assert all((ROOT / name).exists() for name in copied)
    text = (ROOT / "pyproject.toml").read_text()
    packages = re.search(r'^packages = \["(\w+)"\]', text, re.M)
    readme = re.search(r'^readme = "([\w.]+)"', text, re.M)
    included = re.findall(r'^"(\w+)" = "nsgf/\w+"$', text, re.M)
    assert copied == {"pyproject.toml", "LICENSE", packages[1], readme[1], *included}
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line[1:] for line in sent if line.startswith("!")} == copied


def test_it_runs_what_the_readme_shows():
    [entry], [words] = said("ENTRYPOINT"), said("CMD")
    command = " ".join([*json.loads(entry), *json.loads(words)])
    assert f"    {command}\n" in (ROOT / "README.md").read_text()
    assert parse(json.loads(words)).config.nsgf.iterations == 7000
