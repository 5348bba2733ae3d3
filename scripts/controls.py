"""Is the Sinkhorn flow needed? OT-CFM with the hand-over's pairs, from other starts than noise; and
a one-call generator, trained by the energy distance.

    python scripts/controls.py scaled 0.36 --exp digits --compare.updates [1800]
    python scripts/controls.py RUN 0.36 --exp digits --compare.updates [1400]
    python scripts/controls.py energy --exp digits --compare.updates [2000]

``scaled`` starts from (1 - a) z, ``shrunken`` from (1 - a) z + a m, for noise z and the mean m of
the data, without a network. RUN is the folder of a trained OT-CFM: two Euler steps to time a, not
in the NFE, by one network for all seeds. a = 0.36 is the way of two NSGF steps with eta 0.2. All
other flags go to `nsgf compare`.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import nsgf
from nsgf.cli import main
from nsgf.cli.arguments import parse
from nsgf.config.files import config_folder
from nsgf.data import Data, data_shape
from nsgf.data.points import Gaussian
from nsgf.sinkhorn.drift import Drift, mean_cost
from nsgf.system.files import write_text


def shrunken(rows: Tensor, way: float) -> Callable[[Tensor], Tensor]:
    """Return the map of noise (n, D) towards the mean of the data (N, D)."""
    mean = rows.mean(0)
    return lambda z: (1 - way) * z + way * mean


def euler_steps(run: str, way: float) -> Callable[[Tensor], Tensor]:
    """Return two Euler steps of a trained straight flow, from time 0 to ``way``."""
    loaded = nsgf.load(run, device="cpu")
    network, shape = loaded.networks["peer"], data_shape(loaded.config.data)

    @torch.no_grad()
    def carried(z: Tensor) -> Tensor:
        x = z.view(-1, *shape)
        for t in (0.0, way / 2):
            x = x + way / 2 * network(x, torch.full((len(x),), t))
        return x.flatten(1)

    return carried


def start_from(starts: str, way: float, data: Data) -> None:
    """Replace all noise by the starts."""
    if starts in ("scaled", "shrunken"):
        assert data.count is not None
        rows = data.target("controls").sample(data.count).flatten(1)
        carry = shrunken(rows if starts == "shrunken" else 0 * rows, way)
    else:
        carry = euler_steps(starts, way)
    draw = Gaussian.draw

    def drawn(self: Gaussian, n: int, generator: torch.Generator) -> Tensor:
        noise = draw(self, n, generator)
        return carry(noise.flatten(1)).view_as(noise)

    Gaussian.draw = drawn  # type: ignore[method-assign]


def energy_velocity(self: Drift, made: Tensor, real: Tensor) -> Tensor:
    """Return the steepest descent of the energy distance, unbiased, in the units of Drift."""

    def pull(x: Tensor, y: Tensor, count: int) -> Tensor:
        weights = torch.cdist(x, y).clamp_min(0.01).reciprocal() / count  # x adds nothing to itself
        return weights @ y - weights.sum(-1, keepdim=True) * x

    x, y = made.float().flatten(2), real.float().flatten(2)
    v = pull(x, y, y.shape[1]) - pull(x, x, x.shape[1] - 1)
    return v.view_as(made) * mean_cost(made, real).sqrt()


if __name__ == "__main__":
    starts, *flags = sys.argv[1:]
    way = None if starts == "energy" else flags.pop(0)
    config = parse(["compare", *flags]).config
    name, like = (f"{Path(starts).resolve().name}-{way}", "otcfm+") if way else (starts, "onecall")
    file = Path(config.out_dir) / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, (config_folder() / "methods" / f"{like}.yaml").read_text("utf-8"))
    if way:
        start_from(starts, float(way), Data(config.data, config.seed))
    else:
        Drift.velocity = torch.no_grad()(energy_velocity)  # type: ignore[method-assign]
    raise SystemExit(main(["compare", *flags, "--methods", str(file)]))
