"""Write the tables of docs/configuration.md from the schema."""

from pathlib import Path

from nsgf.cli.arguments import OF_SAMPLING, SHORT_FLAGS
from nsgf.cli.help import setting_docs
from nsgf.config.layers import KEYS
from nsgf.config.schema import MANY, OF_PHASES
from nsgf.config.values import describe_type, format_value
from nsgf.phases import PHASES
from nsgf.settings.resolve import SMOKE

FILE = Path(__file__).parents[1] / "docs" / "configuration.md"
HEAD_END = "| Flag | Sets |\n"
"""Last line of the text that is written by hand. The tables below it are generated."""


def document() -> str:
    """Return the whole page."""
    head = FILE.read_text(encoding="utf-8").partition(HEAD_END)[0]
    lines = [head + HEAD_END + "| --- | --- |", *_short_flags()]
    is_table = False
    for key, meaning in setting_docs().items():
        if key in KEYS:
            lines += [] if is_table else ["", *_TABLE]
            lines.append(_row(key, meaning))
        else:
            title = f"`{key}`" if key else "Top level"
            lines += ["", f"## {title}", "", meaning if key else "Keys outside of any section."]
        is_table = key in KEYS
    return "\n".join([*lines, ""])


_TABLE = ["| Key | Allowed | Default | Meaning | On resume |", "| --- | --- | --- | --- | --- |"]


def _row(key: str, meaning: str) -> str:
    item = KEYS[key]
    allowed = describe_type(item.kind)
    if item.range:
        allowed += f", {item.range}".removesuffix(f" and <= {MANY}")
    meaning += "".join(f" Only if {condition}." for condition in item.conditions)
    cells = [f"`{key}`", allowed, f"`{format_value(item.default)}`", meaning, _on_resume(key)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _on_resume(key: str) -> str:
    """Return whether a setting may change when a run is resumed."""
    section, _, name = key.partition(".")
    fixed = {name for phase in PHASES.values() for name in phase.follows}
    # the samples or a network of a phase depend on this setting
    if not KEYS[key].is_free and {section, key} & fixed:
        return "no"
    if section in ("optim", *OF_PHASES) and name != "iterations":
        return "after the phase"
    return "yes"


def _short_flags() -> list[str]:
    lines = []
    for flag, keys in SHORT_FLAGS.items():
        others = ", ".join(f"`{key}`" for key in OF_SAMPLING.get(flag, ()))
        extra = f"; of `sample` and `evaluate`: {others}" if others else ""
        lines.append(f"| `--{flag} X` | {', '.join(f'`{key}`' for key in keys)}{extra} |")
    smoke = ", ".join(f"`{key}: {format_value(value)}`" for key, value in SMOKE.items())
    last = ["| `--fake-data` | `data.fake: true` |", f"| `--smoke` | `smoke: true`, {smoke} |"]
    return [*lines, *last]


if __name__ == "__main__":
    FILE.write_text(document(), encoding="utf-8")
    print(FILE)
