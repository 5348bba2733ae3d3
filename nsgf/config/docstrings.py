"""The docstrings of the schema, for ``--help``, messages and docs/configuration.md."""

import ast
import inspect
from itertools import pairwise

from nsgf.config import schema
from nsgf.config.settings import SECTIONS


def setting_docs() -> dict[str, str]:
    """Return the docstrings of sections and settings by dotted key, in the order of the schema.

    The empty key is the configuration itself. Settings that phases inherit appear once, under
    ``optim``."""
    below = {
        node.name: {
            ast.unparse(this.target): " ".join(ast.literal_eval(text.value).split())
            for this, text in pairwise(node.body)
            if isinstance(this, ast.AnnAssign) and isinstance(text, ast.Expr)
        }
        for node in ast.parse(inspect.getsource(schema)).body
        if isinstance(node, ast.ClassDef)
    }
    found = {}
    for section, kind in SECTIONS.items():
        if kind is schema.OptimConfig and section != "optim":
            found[section] = "The keys of optim, for this phase only."
            continue
        found[section] = inspect.cleandoc(kind.__doc__ or "").replace("\n", " ")
        for name, text in below[kind.__name__].items():
            found[f"{section}.{name}".lstrip(".")] = text
    return found
