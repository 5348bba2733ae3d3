"""The changes that scripts/mutation.py tries."""

import difflib
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators


@dataclass
class Mutant:
    """One change: ``lines`` of ``file`` (a path below the root) are those of its statement."""

    file: str
    lines: tuple[int, int]
    code: str = field(repr=False)
    diff: list[str]
    result: str = "survived"


class Proposals(cst.CSTVisitor):
    """Every change of a module that is worth trying: no annotations, decorators or prose."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        self.found: list[tuple[cst.CSTNode, cst.CSTNode, tuple[int, int]]] = []
        self._statement: tuple[int, int] | None = None

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom):
            return False
        if isinstance(node, cst.SimpleString | cst.FormattedString) and " " in _text(node):
            return False
        if isinstance(node, cst.Assign) and any(w in _text(node) for w in ("__all__", "TypeVar")):
            return False
        place = self.get_metadata(PositionProvider, node, None)
        if isinstance(node, cst.SimpleStatementLine):
            self._statement = place.start.line, place.end.line
        if place is None:
            return True
        lines = self._statement or (place.start.line, place.end.line)
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                self.found += [(node, changed, lines) for changed in operator(node)]
        if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
            self.found.append((node, cst.Expr(cst.Ellipsis()), lines))
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.SimpleStatementLine):
            self._statement = None


def _text(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


class Source:
    """A module and what may be changed in it."""

    def __init__(self, root: Path, file: Path) -> None:
        self.name = str(file.relative_to(root))
        self._text = file.read_text()
        wrapper, proposals = MetadataWrapper(cst.parse_module(self._text)), Proposals()
        wrapper.visit(proposals)
        self._module, self.proposals = wrapper.module, proposals.found

    def lines_of(self, number: int) -> set[tuple[str, str]]:
        """The lines of a proposal's statement, each with the name of the file."""
        first, last = self.proposals[number][2]
        return {(self.name, line.strip()) for line in self._text.splitlines()[first - 1 : last]}

    def mutant(self, number: int) -> Mutant:
        node, changed, lines = self.proposals[number]
        code = self._module.deep_replace(node, changed).code
        texts = self._text.splitlines(), code.splitlines()
        return Mutant(self.name, lines, code, [*difflib.unified_diff(*texts, n=0, lineterm="")][2:])
