"""Read and write YAML with plain values only."""

import re
from collections import Counter
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes texts such as ``08`` and ``no``, which YAML 1.1 or 1.2 would convert."""

    def ignore_aliases(self, data: Any) -> bool:
        return True  # the loader refuses aliases


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Loader of plain values as in YAML 1.2: 1e-4 is a number, no is a text. Repeated keys are
    errors. PyYAML's parser in C is ten times as fast, but not in every build."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        count = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, times in count.items():
            if times > 1:
                raise yaml.YAMLError(f"{key}: twice in one section")
        return super().construct_mapping(node, deep)


for _kind, _pattern in (
    ("null", r"null|Null|NULL|~|"),
    ("bool", r"true|True|TRUE|false|False|FALSE"),
    ("int", r"[-+]?(0|[1-9][0-9_]{0,30})"),
    ("float", r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
):
    for _either in (_Loader, _Dumper):
        _whole = re.compile(f"(?:{_pattern})$")
        _either.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", _whole, None)


def dump_yaml(content: dict[str, Any]) -> str:
    """Return YAML that :func:`load_yaml` reads back as the same values in the same order."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False)


def load_yaml(text: str) -> Any:
    """Return the plain values of a YAML text.

    Raises:
        yaml.YAMLError: the text is not YAML, or has an alias, a repeated key or a tag that is not
            a plain value.
    """
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=_Loader)):
            raise yaml.YAMLError("an alias (*name): write the values out, or use the section optim")
        return _Loader(text).get_single_data()
    except Exception as error:  # PyYAML raises many types for a value with a wrong tag
        raise yaml.YAMLError(str(error)) from error
