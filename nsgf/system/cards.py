"""Graphics cards as their makers describe them, for plans on machines without one, and to say how
much of a card an update uses.

From NVIDIA's data sheets of the T4, Tesla P100 (PCIe, 16 GB), Tesla V100 (SXM2, 16 GB), L4, A10G
(as made for AWS), A100 (40 GB), H100 (SXM) and H200 (SXM). Peaks of tensor cores are those of dense
matrices: newer sheets print twice as much, with sparsity. The P100 has no tensor cores, its fp16 is
that of the ordinary ones. Compute capabilities are those of NVIDIA's CUDA documentation.
"""

import re
from typing import NamedTuple

from nsgf.system.errors import UserError


class Host(NamedTuple):
    """A machine that such a card is often lent with."""

    name: str
    memory: float
    """Bytes of main memory that programs get."""
    disk: float
    """Bytes of disk that outlast a session."""


KAGGLE = Host("Kaggle", 29e9, 20e9)


class Card(NamedTuple):
    """What a data sheet says of a card."""

    name: str
    memory: float
    """Bytes."""
    fp32: float
    """Operations a second in float32, without tensor cores."""
    half: float
    """The same in fp16 or bf16."""
    bandwidth: float
    """Bytes a second from and to its memory."""
    capability: tuple[int, int]
    """Compute capability."""
    host: Host | None = None
    unlike: tuple[str, ...] = ()
    """Words in the names of other makes of it, which have other peaks."""

    def peak(self, precision: str, tf32: bool = False) -> float:
        """Operations a second in fp32, bf16 or fp16; TF32 has half of bf16's where it exists."""
        if precision != "fp32":
            return self.half
        return self.half / 2 if tf32 and self.capability >= (8, 0) else self.fp32


CARDS = (
    Card("t4", 16e9, 8.1e12, 65e12, 320e9, (7, 5), KAGGLE),
    Card("p100", 16e9, 9.3e12, 18.7e12, 732e9, (6, 0), KAGGLE, ("sxm2",)),
    Card("v100", 16e9, 15.7e12, 125e12, 900e9, (7, 0), unlike=("pcie", "fhhl")),
    Card("l4", 24e9, 30.3e12, 121e12, 300e9, (8, 9)),
    Card("a10g", 24e9, 31.5e12, 70e12, 600e9, (8, 6)),
    Card("a100", 40e9, 19.5e12, 312e12, 1555e9, (8, 0)),
    Card("h100", 80e9, 67e12, 989e12, 3350e9, (9, 0), unlike=("pcie", "nvl")),
    Card("h200", 141e9, 67e12, 989e12, 4800e9, (9, 0), unlike=("nvl",)),
)


def find_card(name: str) -> Card:
    """The card of this name, in any case.

    Raises:
        UserError: it is not in the table.
    """
    for card in CARDS:
        if card.name == name.lower():
            return card
    raise UserError(f"--assume {name}: must be one of {', '.join(card.name for card in CARDS)}")


def card_named(called: str) -> Card | None:
    """The card that torch calls so, e.g. ``Tesla T4``; None: not in the table, or a part of one."""
    words = set(re.findall(r"[a-z0-9]+", called.lower()))
    for card in CARDS:
        if card.name in words and words.isdisjoint(("mig", *card.unlike)):
            return card
    return None


def speed(rate: float, called: str = "", precision: str = "fp32", tf32: bool = False) -> str:
    """Operations a second for people, with their share of the peak of a card that is known.

    Args:
        rate: operations a second.
        called: torch's name of the card; empty: a CPU.
        precision: fp32, bf16 or fp16.
        tf32: whether matrices in float32 may use TF32.
    """
    card = card_named(called)
    if card is None:
        return f"{rate / 1e12:.3g} TFLOP/s" if called else f"{rate / 1e9:.3g} GFLOP/s"
    peak = card.peak(precision, tf32)
    kind = precision if peak in (card.half, card.fp32) else "tf32"
    share = f"{100 * rate / peak:.2g} % of the {card.name}'s peak in {kind}"
    return f"{rate / 1e12:.3g} TFLOP/s, {share}"
