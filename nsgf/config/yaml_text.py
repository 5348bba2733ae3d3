"""YAML from files and flags: plain values only, and no text may cost more than its length.

A few lines of YAML can stand for more values than any memory holds (aliases of aliases), nest
deeper than the stack, or name functions to call. All of that is refused before a value is made.
"""

import re
from typing import Any

import yaml

MAX_DEPTH = 20
"""Sections and lists inside each other; a configuration has 4."""
MAX_VALUES = 100_000
"""Values plus characters of their texts, with every alias counted as what it stands for."""
MAX_DIGITS = 40
"""Characters of an integer."""

_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_FLOAT_PATTERN = re.compile(
    r"[-+]?(?:\d[\d_]*\.[\d_]*|\.\d[\d_]*|\d[\d_]*(?=[eE]))(?:[eE][-+]?\d+)?$"
    r"|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
)
"""YAML 1.2's: 1e-4 is a number."""


class Refused(yaml.YAMLError):
    """A text that other readers of YAML would choke on."""


class _Loader(yaml.SafeLoader):
    """Plain values; the depth is bounded while nodes are made."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Refused(f"nested more than {MAX_DEPTH} deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_yaml_int(self, node: Any) -> int:
        if len(node.value) > MAX_DIGITS:
            raise Refused(f"an integer of more than {MAX_DIGITS} digits")
        return int(super().construct_yaml_int(node))


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in pairs if tag not in (_FLOAT, _TIMESTAMP)]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_FLOAT, _FLOAT_PATTERN, list("-+0123456789."))
_Loader.add_constructor(_INT, _Loader.construct_yaml_int)


def load(text: str) -> Any:
    """The plain values that a YAML text stands for.

    Args:
        text: one document.

    Raises:
        Refused: more values, digits or depth than allowed, or a value that is none of its tag's.
        yaml.YAMLError: no YAML, a key twice, or a tag that is no plain value.
    """
    if len(text) > MAX_VALUES:
        raise Refused(f"more than {MAX_VALUES} characters")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _measure(node, {}, set())
        return loader.construct_document(node)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        # what yaml's constructors raise for a scalar that does not suit its explicit tag
        raise Refused(f"a value does not suit its type: {error}") from error


def _measure(node: Any, known: dict[int, tuple[int, int]], inside: set[int]) -> tuple[int, int]:
    """Values and height of a node with its aliases written out.

    Args:
        node: a node of the graph that the text composes to.
        known: results by id of the node; an alias is its anchor's node.
        inside: ids of the nodes around this one.

    Raises:
        yaml.YAMLError: it contains itself, has a key twice, or is too large.
    """
    if id(node) in known:
        return known[id(node)]
    if id(node) in inside:
        raise Refused("an alias stands for a part that contains it")
    size, height = 1, 0
    if isinstance(node, yaml.ScalarNode):
        size += len(node.value)
    else:
        inside.add(id(node))
        if isinstance(node, yaml.MappingNode):
            _refuse_twice(node)
            parts = [part for pair in node.value for part in pair]
        else:
            parts = node.value
        for part in parts:
            more, below = _measure(part, known, inside)
            size, height = size + more, max(height, below + 1)
        inside.remove(id(node))
    if size > MAX_VALUES or height > MAX_DEPTH:
        raise Refused("its aliases stand for too many values")
    known[id(node)] = size, height
    return size, height


def _refuse_twice(node: yaml.MappingNode) -> None:
    seen = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                raise yaml.YAMLError(f"{key.value}: twice, at {key.start_mark.line + 1}")
            seen.add(key.value)
