"""Write docs/configuration.md from the schema.

python scripts/write_configuration_doc.py
"""

from pathlib import Path

from nsgf.cli.arguments import OF_SAMPLING, SHORT_FLAGS, setting_docs
from nsgf.config.schema import MANY, OF_PHASES
from nsgf.config.settings import KEYS
from nsgf.config.values import describe_type, format_value
from nsgf.phases import get_phases
from nsgf.resolve import SMOKE

FILE = Path(__file__).parents[1] / "docs" / "configuration.md"
HEAD = """# Configuration

Written by `python scripts/write_configuration_doc.py` from `nsgf/config/schema.py`; do not edit.

Every setting below is a key of a YAML file and a flag: `lr` in the section `nsgf` is
`--nsgf.lr 1e-4`. `--exp NAME` reads `configs/NAME.yaml`, `--config FILE` any other file. A file
holds only what differs from the defaults. `nsgf COMMAND --print-config` prints all values that a
command would use, and a run keeps them in its `config.yaml`.

## Which value holds

Later ones win:

1. the default;
2. the method's file, `configs/methods/NAME.yaml`;
3. for own data what is chosen by their number and shape ([own data](own-data.md));
4. the experiment's file, then its section for the method, `methods.NAME`;
5. `--smoke`, see below;
6. `--optim.KEY`, for every phase ({phases});
7. short flags that set a key in several sections (`--lr`, `--batch-size`, `--train-iters`,
   `--num-samples`);
8. flags of one key, such as `--nsf.lr`.

Within a file, the section `optim` holds for every phase that does not set a value in its own
section.

A command that works on a run starts from the run's `config.yaml` in place of a file, and `--smoke`
then only selects a smoke run. `--config FILE` lays a file over the run's settings; its section
`optim` reaches all phases that it does not set itself.

YAML is read as version 1.2 without aliases: `1e-4` is a number, `no` is a text, and false only
where true or false belongs, a key that stands twice is an error.

## Resuming

*On resume*: `yes`, a resumed run takes the new value; `no`, a checkpoint of another value is
refused; `after the phase`, not while the phase is half done. A finished phase keeps what it was
trained with. See [resuming](resuming.md).
"""


def document() -> str:
    """The whole page."""
    lines = [HEAD.format(phases=", ".join(OF_PHASES)), *_short_flags()]
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
    cells = [f"`{key}`", allowed, f"`{format_value(item.default)}`", meaning, on_resume(key)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def on_resume(key: str) -> str:
    """Whether a setting may change when a run is resumed."""
    section, _, name = key.partition(".")
    if not KEYS[key].is_free and {section, key} & fixed_keys():
        return "no"
    if section in ("optim", *OF_PHASES) and name != "iterations":
        return "after the phase"
    return "yes"


def fixed_keys() -> set[str]:
    """Sections and leaves that some phase's training samples or network follow from."""
    return {key for phase in get_phases(OF_PHASES) for key in phase.follows}


def _short_flags() -> list[str]:
    lines = ["## Short flags", "", "| Flag | Sets |", "| --- | --- |"]
    for flag, keys in SHORT_FLAGS.items():
        others = ", ".join(f"`{key}`" for key in OF_SAMPLING.get(flag, ()))
        extra = f"; of `sample` and `evaluate`: {others}" if others else ""
        lines.append(f"| `{flag} X` | {', '.join(f'`{key}`' for key in keys)}{extra} |")
    lines.append("| `--fake-data` | `data.fake: true` |")
    smoke = ", ".join(f"`{key}: {format_value(value)}`" for key, value in SMOKE.items())
    lines.append(f"| `--smoke` | `smoke: true`, {smoke} |")
    return [
        *lines,
        "",
        "`--sinkhorn-batch` changes `pool.num_batches` so that the pool keeps its total of "
        "trajectories, unless that is given too.",
    ]


def main() -> None:
    """Write the page."""
    FILE.write_text(document(), encoding="utf-8")
    print(FILE)


if __name__ == "__main__":
    main()
