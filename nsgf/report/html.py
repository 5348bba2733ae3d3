"""Self-contained HTML pages."""

import base64
import mimetypes
from datetime import datetime
from pathlib import Path
from typing import Any

from nsgf.run.folder import replacing
from nsgf.system.errors import shorten_paths


def write_page(folder: Path, template: str, **values: Any) -> Path:
    """Write ``report.html`` from a template of this folder. Values are escaped, and absolute paths
    shortened."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    engine = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=lambda value: shorten_paths(value) if type(value) is str else value,
    )
    made = f"{datetime.now():%Y-%m-%d %H:%M}"
    page = engine.get_template(f"{template}.html.j2").render(made=made, **values)
    file = folder / "report.html"
    with replacing(file) as stream:
        stream.write(page.encode(errors="replace"))
    return file


def data_uri(file: Path) -> str:
    """Return a picture as it is embedded in a page."""
    kind = mimetypes.guess_type(file.name)[0]
    return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"
