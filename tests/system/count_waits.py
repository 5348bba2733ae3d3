"""The table "What the host waits for" of docs/performance.md: `python -m tests.system.count_waits`.

Whole networks and the configured flows; batches of 2, since no count depends on their size.
"""

import io
from collections import Counter
from contextlib import redirect_stdout
from tempfile import TemporaryDirectory

import torch

from nsgf.cli import main
from nsgf.config.schema import PHASES
from nsgf.sampling.sampler import NSGFSteps, StraightFlow
from nsgf.sinkhorn.batched import BatchedSolver
from nsgf.training.loop import PhaseLoop
from nsgf.training.prefetch import Batches
from tests.cli.test_commands import LOCAL_IMAGES
from tests.system.pretended_card import pretended_card

EXPERIMENTS = ("2d", "digits", "mnist", "cifar10")
FLAGS = (
    *("--device=cuda", "--train-iters=4", "--batch-size=2", "--pool-batches=2", "--steps=5"),
    *("--train.preview=false", "--sampling.num_samples=2", "--sampling.straight_steps=5"),
)


def cell(counts: Counter[str], steps: int = 1) -> str:
    """Launches and waits per step of a call."""
    waits = sum(count for what, count in counts.items() if what.startswith("wait"))
    per = counts["calls"] * steps
    return f"{counts['launches'] / per:.0f} / {waits / per:.3g}"


def column(exp: str, folder: str) -> dict[str, str]:
    """What one experiment launches and waits for, by kind of work."""
    where, cells = ["--exp", exp, "--out-dir", folder], {}
    with pretended_card() as card:
        with card.counted(BatchedSolver, "solve_centred") as solves:
            for number, phase in enumerate(PHASES, start=1):
                flags = (
                    ["--resume"] if number > 1 else FLAGS + ("--fake-data",) * (exp in LOCAL_IMAGES)
                )
                with (
                    card.counted(PhaseLoop, "_update") as updates,
                    card.counted(PhaseLoop, "_settle") as outcomes,
                    card.counted(Batches, "_load") as drawing,
                ):
                    main(["train", *where, *flags, f"--phases=[{','.join(PHASES[:number])}]"])
                outcomes.pop("calls")
                cells[f"update, {phase}"] = cell(updates + outcomes)
                cells[f"its batch, {phase}, in a thread"] = cell(drawing)
        cells["flow step of the pool, all flows of a chunk"] = cell(solves)
        with (
            card.counted(NSGFSteps, "carry") as first,
            card.counted(StraightFlow, "carry") as second,
        ):
            main(["sample", *where])
        cells["sampling: an NSGF step"] = cell(first, 5)
        cells["sampling: a straight step, euler"] = cell(second, 5)
    return cells


if __name__ == "__main__":
    torch.set_num_threads(1)
    columns = []
    for name in EXPERIMENTS:
        with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
            columns.append(column(name, folder))
    print("| launches / waits | " + " | ".join(EXPERIMENTS) + " |\n|---" + "|---:" * 4 + "|")
    for work in columns[0]:
        print(f"| {work} | " + " | ".join(cells[work] for cells in columns) + " |")
