"""What ``--help`` and ``--version`` print."""

from nsgf import __version__
from nsgf.command_line import COMMANDS, CONTROL, SHORT_FLAGS, WITHOUT_RUN
from nsgf.config.describe import sections
from nsgf.config.files import OF_PHASES

WIDTH = 100
CONTROL_HELP = {
    "config": ("--config FILE", "YAML file instead of --exp; over a run: on top"),
    "run": ("--run DIR", "run folder; default: the newest of --exp"),
    "resume": ("--resume", "go on from the newest checkpoint of the run"),
    "resume_phase": ("--resume-phase N", "go on at phase N, anew where phase N is finished"),
    "print_config": ("--print-config", "print the resolved configuration and stop"),
}
SHORT_HELP = {
    "--train-iters": "updates of every phase",
    "--batch-size": "samples of an update, of every phase",
    "--lr": "learning rate of every phase",
    "--pool-batches": "flows that fill the trajectory pool",
    "--sinkhorn-batch": "particles of a flow; keeps the pool's total",
    "--steps": "steps T of the flow, or with which it is sampled",
    "--dataset": "target, see data.name",
    "--data-root": "folder of the image sets",
    "--out-dir": "folder that holds the run folders",
    "--num-samples": "samples to draw or to measure",
    "--precision": "auto, fp32, bf16 or fp16",
    "--accumulate": "parts of a batch, for less memory",
    "--max-hours": "hours after which training saves a checkpoint and ends",
    "--detect-anomaly": "first updates that look for the origin of a nan",
    "--inception-weights": "file with torch-fidelity's Inception weights",
    "--wandb": "online, offline or disabled",
}
EXAMPLES = {
    "train": (
        "--exp 2d --dataset moons --steps 10",
        "--exp cifar10 --sinkhorn-batch 32 --out-dir runs",
        "--exp mnist --smoke --fake-data          # does everything work here?",
        "--exp cifar10 --resume                   # go on with its newest run",
    ),
    "sample": ("--exp digits --num-samples 64", "--run runs/digits-20260101_120000 --steps 5"),
    "evaluate": ("--exp digits", "--run runs/2d-20260101_120000 --num-samples 4096"),
    "compare": ("--exp 2d --dataset moons --compare.seeds 1", "--exp digits --smoke"),
    "preflight": ("--exp cifar10", "--exp mnist --batch-size 64"),
}


def help_text(argv: list[str]) -> str | None:
    """What a command line that asks for help or the version prints; None: it asks for neither."""
    if not argv or argv[0] in ("-h", "--help"):
        return _overview()
    if argv[0] == "--version":
        return __version__
    if argv[0] in COMMANDS and {"-h", "--help"} & set(argv):
        return _command(argv[0])
    return None


def _overview() -> str:
    lines = ["usage: nsgf COMMAND [flags]", "", "Neural Sinkhorn Gradient Flow (NSGF++).", ""]
    lines += [f"  {name:10} {text}" for name, text in COMMANDS.items()]
    lines += ["", "nsgf COMMAND --help lists the flags of a command. Examples:"]
    return "\n".join([*lines, *(f"  nsgf {name} {EXAMPLES[name][0]}" for name in COMMANDS)])


def _command(command: str) -> str:
    """Short flags, settings by section, examples; one line each."""
    lines = [f"usage: nsgf {command} --exp NAME [flags]", "", f"{COMMANDS[command]}.", "", "flags:"]
    lines.append(_line("--exp NAME", "experiment: 2d, digits, mnist, cifar10"))
    lines += [_line(*CONTROL_HELP[name]) for name in CONTROL[command]]
    lines += [_line(f"{flag} X", SHORT_HELP[flag]) for flag in SHORT_FLAGS]
    lines.append(_line("--smoke", "a few updates and samples, to try whether all works"))
    lines.append(_line("--fake-data", "random images in place of the image set"))
    lines += ["", "settings (--KEY VALUE, each with its default):"]
    for section in sections():
        if section.key:
            lines += [_cut(f"{section.key}: {section.meaning}")]
        for entry in section.entries:
            if entry.key in ("exp", "smoke"):
                continue  # told above
            lines.append(_line(f"--{entry.key} {entry.default}", entry.meaning))
        if section.key == "optim":
            phases = ", ".join(OF_PHASES)
            lines.append(f"  the same keys for one phase alone: {phases}, as in --nsgf.lr 0.001")
    lines += ["", "examples:", *(f"  nsgf {command} {words}" for words in EXAMPLES[command])]
    if command not in WITHOUT_RUN:
        lines += ["", "Flags win over files; a flag of one leaf wins over a short flag of several."]
    return "\n".join(lines)


def _line(flag: str, meaning: str) -> str:
    return _cut(f"  {flag:36} {meaning}")


def _cut(line: str) -> str:
    """A line of at most WIDTH characters: its first sentence, or as much as there is room for."""
    line = line.split(". ")[0].rstrip(".")
    if len(line) > WIDTH:
        line = line.split("; ")[0]
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 4].rsplit(' ', 1)[0]} ..."
