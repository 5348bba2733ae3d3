"""The HTML page of a run or of a comparison: one file that contains all pictures."""

import base64
import os
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any

from PIL import Image

from nsgf.config.values import Place, expand_path
from nsgf.plots.samples import cut_panels, save_figure
from nsgf.report import render
from nsgf.system.errors import wrong_setting
from nsgf.system.files import Plain, ensure_writable, replacing

BROAD = 700
"""Pictures wider than this many pixels are not shrunk to the width of a phone."""


class Album:
    """The pictures of a page, and their files. A figure may also have a file in a second format."""

    def __init__(self, home: Path, kind: str, out: Place | None) -> None:
        """Prepare a page in the folder ``home``, with a copy at ``out`` if given. Figures go into
        ``home/report``, as PNG and as ``kind`` (png, svg or pdf). Raise UserError if files cannot
        be written into ``home``, or if ``out`` does not end in .html."""
        self._pages = [home / "report.html"]
        if out is not None:
            copy = expand_path("out", out)
            if copy.suffix.lower() != ".html" or copy.is_dir():
                raise wrong_setting("out", out, "must end in .html, and be no folder")
            ensure_writable(copy.parent, "out")
            self._pages.insert(0, copy)
        self.folder = ensure_writable(home / "report")
        self._kinds = dict.fromkeys((kind, "png"))
        self.pictures: list[Plain] = []
        self.files: list[str] = []

    def draw(self, name: str, figure: Any, title: str, text: str) -> None:
        """Write a figure to ``NAME.png`` and ``NAME.KIND``, and add it to the page."""
        for kind in self._kinds:
            file = self.folder / f"{name}.{kind}"
            save_figure(figure, file)
            if kind != "png":
                self.files.append(str(file))
        self.add(file, title, text)  # kinds[-1]: PNG
        if len(figure.axes) > 1:
            panels = [(_as_link(part, "png"), width) for part, width in cut_panels(figure)]
            self.pictures[-1] |= {"panels": panels, "is_broad": False}

    def add(self, file: Path, title: str, text: str) -> None:
        """Add an existing picture to the page."""
        source = _as_link(file.read_bytes(), file.suffix[1:])
        with Image.open(file) as image:
            is_broad = image.width > BROAD
        panels = [(source, 100)]
        self.pictures.append({"title": title, "text": text, "is_broad": is_broad, "panels": panels})
        self.files.append(str(file))

    def write_page(self, template: str, **values: Any) -> list[str]:
        """Write the page from a template, with escaped values and shortened paths. Return all
        files: the copy if there is one, then the page."""
        # show only a folder below the user's home, because other paths may contain a person's name
        folder = os.path.relpath(os.curdir, os.path.expanduser("~"))
        folder = "" if folder.startswith(os.pardir) else shlex.quote(folder)
        date = f"{datetime.now():%Y-%m-%d %H:%M}"
        page = render(template, date=date, folder=folder, pictures=self.pictures, **values)
        for file in self._pages:
            with replacing(file) as stream:
                stream.write(page.encode(errors="replace"))
        return [*map(str, self._pages), *self.files]


def _as_link(content: bytes, kind: str) -> str:
    """Return a picture as a data URL."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
