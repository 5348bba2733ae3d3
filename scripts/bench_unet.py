"""Speed and memory of our UNet beside torchcfm's, at equal settings: forward and backward.

    python scripts/bench_unet.py [--device cuda] [--precision bf16] [--channels-last] [--compile]

All variants are timed in turn, in one process, in milliseconds per call and gradient: the median of
the repeats, with the smallest and largest in brackets. Ratios are medians of the ratios within one
turn, which a busy machine disturbs less. Equal numbers of weights show that the
settings are equal. "kept" is what autograd holds for the backward pass beside the weights. torchcfm
is no dependency of ours: pip install --no-deps torchcfm==1.0.7
"""

import argparse
import copy
import sys
from contextlib import nullcontext
from statistics import median
from typing import Any, NamedTuple

import torch
from bench_common import clock, machine
from torch import Tensor, nn

from nsgf.command_line import parse
from nsgf.config.schema import UNetConfig
from nsgf.data import data_set, data_shape
from nsgf.models import count_parameters
from nsgf.models.unet import UNet
from nsgf.system.hardware import format_bytes, pick_device
from nsgf.training.memory import kept_bytes

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
CASES = {
    "cifar10": [],
    "mnist": ["--model.unet.attention=[28]"],  # where attention is most of the work
}
"""Experiments, and flags on top of their shipped settings."""
HEADER = (
    "| networks | variant | weights | ms | times as fast as torchcfm | kept | peak |\n"
    "|---|---|---|---|---|---|---|"
)


class Variant(NamedTuple):
    """A network, and the layout of its inputs."""

    name: str
    model: nn.Module
    layout: torch.memory_format
    time_first: bool

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        x = x.contiguous(memory_format=self.layout)
        return self.model(t, x) if self.time_first else self.model(x, t)


def main() -> None:
    args = parse_arguments()
    try:
        import torchcfm.models.unet as theirs
    except ImportError as error:
        print(f"{error}; try: pip install --no-deps torchcfm==1.0.7", file=sys.stderr)
        sys.exit(2)
    device = pick_device(args.device)
    args.device = str(device)
    note = f"{args.precision}, batch {args.batch}, {args.repeats} repeats after two warm-ups"
    print(machine(device, note) + "\n")
    print(HEADER)
    for name, flags in CASES.items():
        if args.only in name:
            config = parse(["train", "--exp", name, *flags]).config
            shape = data_shape(config.data)
            found = variants(theirs.UNetModel, config.model.unet, shape, args)
            for line in rows(f"{name}, attention at {config.model.unet.attention}", found, args):
                print(line, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="of autocast")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="only experiments whose name contains this")
    parser.add_argument("--channels-last", action="store_true", help="add both in this layout")
    parser.add_argument("--compile", action="store_true", help="add both under torch.compile")
    parser.add_argument("--recompute", action="store_true", help="add checkpoint_activations")
    return parser.parse_args()


def variants(
    library: Any, config: UNetConfig, shape: tuple[int, ...], args: argparse.Namespace
) -> list[Variant]:
    """torchcfm's network first, then ours, then what the flags add."""
    torch.manual_seed(0)
    theirs = library(
        dim=shape,
        num_channels=config.channels,
        num_res_blocks=config.res_blocks,
        channel_mult=config.mult,
        attention_resolutions=",".join(map(str, config.attention)),
        num_heads=config.heads,
        num_head_channels=config.head_channels or -1,
        use_scale_shift_norm=config.scale_shift,
        dropout=config.dropout,
    )
    ours = UNet(shape, config)
    for model in (theirs, ours):
        awake(model.to(args.device))
    plain, last = torch.contiguous_format, torch.channels_last
    both = [Variant("torchcfm", theirs, plain, True), Variant("ours", ours, plain, False)]
    found = list(both)
    if args.recompute:
        recompute = UNet(shape, config, checkpoint_activations=True).to(args.device)
        recompute.load_state_dict(ours.state_dict())
        found.append(Variant("ours, recomputing", recompute, plain, False))
    if args.channels_last:
        for name, model, _, first in both:
            model = copy.deepcopy(model).to(memory_format=last)
            found.append(Variant(f"{name}, channels_last", model, last, first))
    if args.compile:
        for name, model, layout, first in [v for v in found if v.name != "ours, recomputing"]:
            compiled = torch.compile(copy.deepcopy(model))
            found.append(Variant(f"{name}, compiled", compiled, layout, first))
    return found


def awake(model: nn.Module) -> None:
    """Random values where there are zeros, so that no gradient is zero."""
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.02)


def rows(title: str, found: list[Variant], args: argparse.Namespace) -> list[str]:
    """One line of the table per variant."""
    shape = (args.batch, *data_set("cifar10" if title.startswith("cifar10") else "mnist").shape)
    x, t = torch.randn(shape, device=args.device), torch.rand(args.batch, device=args.device)
    times: list[list[float]] = [[] for _ in found]
    peaks = [0.0] * len(found)
    for repeat in range(args.repeats + 2):
        for place in range(len(found)):
            i = (place + repeat) % len(found)  # everyone comes first in its turn
            taken, peaks[i] = measure(found[i], x, t, args)
            if repeat > 1:
                times[i].append(taken)
    lines = []
    for variant, taken_ms, peak in zip(found, times, peaks, strict=True):
        ratio = median(a / b for a, b in zip(times[0], taken_ms, strict=True))
        with precision(args):
            kept = kept_bytes(variant.model, *((t, x) if variant.time_first else (x, t)))
        lines.append(
            f"| {title} | {variant.name} | {count_parameters(variant.model):,} "
            f"| {median(taken_ms):.4g} ({min(taken_ms):.4g} to {max(taken_ms):.4g}) "
            f"| {ratio:.2f} | {format_bytes(kept)} "
            f"| {format_bytes(peak) if peak else ''} |"
        )
    return lines


def measure(
    variant: Variant, x: Tensor, t: Tensor, args: argparse.Namespace
) -> tuple[float, float]:
    """Milliseconds of a forward and backward pass; on CUDA also the bytes at their peak."""
    variant.model.zero_grad(set_to_none=True)
    cuda = args.device.startswith("cuda")
    before = 0
    if cuda:
        torch.cuda.reset_peak_memory_stats(args.device)
        before = torch.cuda.memory_allocated(args.device)
    start = clock(torch.device(args.device))
    with precision(args):
        loss = variant(x, t).float().square().mean()
    loss.backward()
    taken = (clock(torch.device(args.device)) - start) * 1e3
    return taken, torch.cuda.max_memory_allocated(args.device) - before if cuda else 0


def precision(args: argparse.Namespace) -> Any:
    kind = PRECISIONS[args.precision]
    device = args.device.partition(":")[0]
    return torch.autocast(device, dtype=kind) if kind else nullcontext()


if __name__ == "__main__":
    main()
