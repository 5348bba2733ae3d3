"""Hooks of mkdocs.yml: the README is the home page; links out of docs/ lead to the repository."""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
ADDRESS = re.search(r'^Repository = "(.+?)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]


def on_files(files, config):
    files.append(File.generated(config, "index.md", abs_src_path=str(ROOT / "README.md")))


def on_page_markdown(markdown, page, **_):
    if page.is_homepage:  # its links start at the top of the repository
        relative = r'(\]\(|(?:src|srcset|href)=")(?!\w+:|#)'
        markdown = re.sub(relative, r"\1../", markdown).replace("../docs/", "")
    return markdown.replace("](../", f"]({ADDRESS}/blob/main/")
