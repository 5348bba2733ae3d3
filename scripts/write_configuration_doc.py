"""Write docs/configuration.md from the schema.

python scripts/write_configuration_doc.py
"""

from itertools import chain
from pathlib import Path

from nsgf.cli.flags import OF_SAMPLING, SHORT_FLAGS, SMOKE
from nsgf.config.describe import Entry, sections, yaml_words
from nsgf.config.schema import FAMILIES, OF_PHASES
from nsgf.phases import get_phases

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
2. for own data what is chosen by their number and shape ([own data](own-data.md));
3. the section `optim` of the file, for every phase ({phases});
4. what the file sets in a phase's own section;
5. `--smoke`, see below;
6. `--optim.KEY`, for every phase; `--optim.iterations` not for peers;
7. short flags that set a key in several sections (`--lr`, `--batch-size`, `--train-iters`,
   `--num-samples`);
8. flags of one key, such as `--nsf.lr`.

`peer.iterations` that is not given, or null, is the sum of the phases that the peer is compared
with: those in `phases`, or all of NSGF++ if `phases` names peers alone and the file no others.
`reflow.iterations` is then that of `peer`.

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
    parts = [HEAD.format(phases=", ".join(OF_PHASES)), _short_flags()]
    for section in sections():
        title = f"`{section.key}`" if section.key else "Top level"
        meaning = section.meaning if section.key else "Keys outside of any section."
        parts.append(f"## {title}\n\n{meaning}\n")
        if section.entries:
            parts.append("\n".join([*_TABLE, *map(_row, section.entries)]) + "\n")
    return "\n".join(parts)


_TABLE = ["| Key | Allowed | Default | Meaning | On resume |", "| --- | --- | --- | --- | --- |"]


def _row(entry: Entry) -> str:
    default = entry.default if entry.key not in ("peer.iterations", "reflow.iterations") else "null"
    cells = [f"`{entry.key}`", entry.allowed, f"`{default}`", entry.meaning, on_resume(entry)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def on_resume(entry: Entry) -> str:
    """Whether a setting may change when a run is resumed."""
    section, _, name = entry.key.partition(".")
    if not entry.free and (section in fixed_keys() or entry.key in fixed_keys()):
        return "no"
    if section in ("optim", *OF_PHASES) and name != "iterations":
        return "after the phase"
    return "yes"


def fixed_keys() -> set[str]:
    """Sections and leaves that some phase's training samples or network follow from."""
    return {key for phase in get_phases([*chain(*FAMILIES)]) for key in phase.follows}


def _short_flags() -> str:
    lines = ["## Short flags\n", "| Flag | Sets |", "| --- | --- |"]
    for flag, keys in SHORT_FLAGS.items():
        others = ", ".join(f"`{key}`" for key in OF_SAMPLING.get(flag, ()))
        extra = f"; of `sample` and `evaluate`: {others}" if others else ""
        lines.append(f"| `{flag} X` | {', '.join(f'`{key}`' for key in keys)}{extra} |")
    lines.append("| `--fake-data` | `data.fake: true` |")
    smoke = ", ".join(f"`{key}: {yaml_words(value)}`" for key, value in SMOKE.items())
    lines.append(f"| `--smoke` | `smoke: true`, {smoke} |")
    lines.append(
        "\n`--sinkhorn-batch` changes `pool.num_batches` so that the pool keeps its total of "
        "trajectories, unless that is given too."
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    FILE.write_text(document(), encoding="utf-8")
    print(FILE)


if __name__ == "__main__":
    main()
