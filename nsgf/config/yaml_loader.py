"""YAML as plain values and nothing else."""

import re
from collections import Counter
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Plain values as in YAML 1.2: 1e-4 is a number, no is a text. No aliases, no key twice."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias (*name): write the values out, or use the section optim")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        count = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, times in count.items():
            if times > 1:
                raise yaml.YAMLError(f"{key}: twice in one section")
        return super().construct_mapping(node, deep)


for _kind, _pattern, _first in (
    ("null", r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9_]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_pattern})$"), _first
    )


def load_yaml(text: str) -> Any:
    """The plain values that a YAML text stands for.

    Raises:
        yaml.YAMLError: no YAML, an alias, a key twice, or a tag that is no plain value.
        ValueError: a number that is none, e.g. of too many digits.
    """
    return _Loader(text).get_single_data()
