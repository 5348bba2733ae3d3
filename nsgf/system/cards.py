"""Graphics cards as their makers describe them, for plans on machines without one.

From NVIDIA's data sheets of the T4, Tesla P100 (PCIe, 16 GB), Tesla V100 (SXM2, 16 GB), L4, A10G
(as made for AWS), A100 (40 GB), H100 (SXM) and H200 (SXM). Peaks of tensor cores are those of dense
matrices: newer sheets print twice as much, with sparsity. The P100 has no tensor cores, its fp16 is
that of the ordinary ones. Compute capabilities are those of NVIDIA's CUDA documentation.
"""

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

    def peak(self, precision: str, tf32: bool = False) -> float:
        """Operations a second in fp32, bf16 or fp16; TF32 has half of bf16's where it exists."""
        if precision != "fp32":
            return self.half
        return self.half / 2 if tf32 and self.capability >= (8, 0) else self.fp32


CARDS = (
    Card("t4", 16e9, 8.1e12, 65e12, 320e9, (7, 5), KAGGLE),
    Card("p100", 16e9, 9.3e12, 18.7e12, 732e9, (6, 0), KAGGLE),
    Card("v100", 16e9, 15.7e12, 125e12, 900e9, (7, 0)),
    Card("l4", 24e9, 30.3e12, 121e12, 300e9, (8, 9)),
    Card("a10g", 24e9, 31.5e12, 70e12, 600e9, (8, 6)),
    Card("a100", 40e9, 19.5e12, 312e12, 1555e9, (8, 0)),
    Card("h100", 80e9, 67e12, 989e12, 3350e9, (9, 0)),
    Card("h200", 141e9, 67e12, 989e12, 4800e9, (9, 0)),
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
