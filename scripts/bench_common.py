"""What the benchmark scripts share: the machine's line, clocks, memory, command lines.

Import it before ``nsgf``: it lets a script run from a clone that is not installed.
"""

import argparse
import ctypes
import gc
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nsgf.command_line import parse
from nsgf.config.schema import Config
from nsgf.data import target_set
from nsgf.run.folder import RunFolder
from nsgf.run.log import Tracker
from nsgf.run.session import Session
from nsgf.system.errors import UserError
from nsgf.system.hardware import versions
from nsgf.training.precision import prepare_environment

FEW_FLOWS = 16
"""Mini-batches of the pool that is sampled: 151 MB for CIFAR-10, more than most caches."""


def processor() -> str:
    """Name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def machine(device: torch.device, note: str) -> str:
    """The line above a table: command, hardware, versions, and ``note``."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    what = f"{processor()}, {cores} of {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    if device.type == "cuda":
        what = f"{torch.cuda.get_device_name(device)}; {what}"
    named = ", ".join(f"{key} {versions()[key]}" for key in ("nsgf", "python", "torch", "geomloss"))
    command = " ".join([Path("scripts", Path(sys.argv[0]).name).as_posix(), *sys.argv[1:]])
    return f"`python {command}`: {what}; {named}; {note}."


def quiet_session(config: Config, device: torch.device, folder: Path) -> Session:
    """A session without a log, whose run lives in ``folder``."""
    return Session(config, RunFolder(folder), Tracker(folder, quiet=True), device)


def clock(device: torch.device) -> float:
    """Seconds, read when the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def busy_clock(device: torch.device) -> float:
    """Seconds of the processor, whatever else it does; on a card, of the clock."""
    return clock(device) if device.type == "cuda" else time.process_time()


def spread(times: list[float]) -> str:
    """Median, smallest and largest."""
    return f"{median(times):.3g} ({min(times):.3g} to {max(times):.3g})"


def status_bytes(key: str) -> int:
    """An entry of this process's status: VmRSS is memory in use now, VmHWM the most so far.

    Raises:
        UserError: not on Linux.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError as error:
        raise UserError(
            "memory of a process is measured on Linux only; use --device cuda"
        ) from error
    (entry,) = (line for line in lines if line.startswith(key + ":"))
    return int(entry.split()[1]) * 1024


def used_memory(device: torch.device) -> int:
    """Bytes that are in use now: on a card by torch's tensors, else by the process."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return status_bytes("VmRSS")


class PeakMemory:
    """Most bytes in use since it was made, beyond those in use then.

    Freed memory that the C library keeps for later would hide what is used again, so it is given
    back to the system first.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        gc.collect()
        used_memory(device)  # refuses systems where it is not known
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        else:
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        self._before = used_memory(device)

    def bytes(self) -> int:
        """So far."""
        if self._device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._device)
        else:
            peak = status_bytes("VmHWM")
        return peak - self._before


def last_of_each(words: list[str]) -> dict[str, list[str]]:
    """Each flag with its words; of a flag that stands there twice, the last: a script's own flags
    come after the user's.
    """
    given: dict[str, list[str]] = {}
    flag = ""
    for word in words:
        if word.startswith("--"):
            flag = word.partition("=")[0]
            given[flag] = [word]
        else:
            given.setdefault(flag, []).append(word)
    return given


def experiment(name: str, flags: list[str]) -> Config:
    """The configuration of an experiment with a small pool; images are random ones unless a
    folder of real ones is named.
    """
    given = last_of_each(["--pool-batches", str(FEW_FLOWS), *flags])
    if "--pool.num_batches" in given:
        del given["--pool-batches"]
    words = ["train", "--exp", name, *(word for part in given.values() for word in part)]
    real = not given.keys().isdisjoint({"--data-root", "--data.root", "--fake-data"})
    config = parse(words).config
    prepare_environment(config.train)
    if real or "root" not in target_set(config.data).uses:
        return config
    return parse([*words, "--fake-data"]).config


def parser(text: str | None) -> argparse.ArgumentParser:
    """A command line with what all scripts know; ``text`` is the script's docstring."""
    made = argparse.ArgumentParser(
        description=(text or "").splitlines()[0],
        epilog="Any other flag is one of `python -m nsgf train`.",
        allow_abbrev=False,
    )
    made.add_argument("--exp", default="digits", help="experiment: 2d, digits, mnist or cifar10")
    made.add_argument("--phase", choices=("nsgf", "nsf", "predictor"), default="nsgf")
    made.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    return made


def finish(main: Callable[[], None]) -> None:
    """Run a script; what the user got wrong ends with one line and exit code 2."""
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
