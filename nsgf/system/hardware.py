"""Device, free memory and versions of this machine."""

import gc
import math
import os
import re
import resource
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from nsgf.system.errors import wrong_setting
from nsgf.system.output import format_bytes

CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
DRIVER = Path("/proc/driver/nvidia/version")
MOST_SPARE = 4
"""Largest number of spare cores that are used."""


def pick_device(name: str) -> torch.device:
    """Return the device that ``name`` (auto, cpu, cuda, cuda:N) selects.

    A selected card becomes torch's current card. auto and cuda select the current card. With
    several processes, each process has a card for itself. auto does not select a card that torch
    cannot use. Raise UserError if the device does not exist, or if this build of torch has no code
    for it."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() and not _unusable_card() else "cpu"
    device = torch.device(name)
    if device.type != "cuda":
        return device
    if (device.index or 0) >= (count := torch.cuda.device_count()):
        raise wrong_setting("device", name, f"this machine has {count} CUDA devices; use auto")
    if device.index is None:  # some functions of torch need the number of the card
        device = torch.device("cuda", torch.cuda.current_device())
    if problem := _kernel_problem(device):
        raise wrong_setting("device", name, f"{problem}; or use cpu")
    torch.cuda.set_device(device)  # streams, events and memory use the current card by default
    return device


def _kernel_problem(device: torch.device) -> str | None:
    """Return the reason why this build of torch cannot use a card. Return None if it has code for
    the card's generation, or code that the driver can translate (``compute_``)."""
    major, minor = torch.cuda.get_device_capability(device)
    built = " ".join(torch.cuda.get_arch_list())
    codes = re.findall(r"(sm|compute)_(\d+)", built)  # builds for AMD use different names
    if not codes or any(
        int(code) <= 10 * major + minor and (kind == "compute" or int(code) // 10 == major)
        for kind, code in codes
    ):
        return None
    return (
        f"{torch.cuda.get_device_name(device)} is of generation {major}.{minor}, which torch "
        f"{torch.__version__} does not support ({built}); install a build that does"
    )


def _unusable_card() -> str | None:
    """Return the reason why torch cannot use this machine's card. Return None if torch can use the
    card, or if there is no card."""
    if torch.cuda.is_available():
        return _kernel_problem(torch.device("cuda", torch.cuda.current_device()))
    if DRIVER.exists() and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs"
        return f"torch {torch.__version__}, built for {build}, cannot use this machine's card"
    return None


def cgroup_folders() -> list[Path]:
    """Return the folders of this process's control groups, of version 1 or 2, and of all groups
    above them. Each of these groups may limit the process."""
    folders = [CGROUPS, CGROUPS / "memory"]
    with suppress(OSError):  # only Linux has this file
        for line in OWN_GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):  # "" in version 2
                group = CGROUPS / controller / path.lstrip("/")
                folders += [group, *group.parents]
    return folders


def available_bytes() -> int:
    """Return the free main memory in bytes, within the limits of containers and jobs. Cached files
    count as free, because the system drops them when it needs memory."""
    available = psutil.virtual_memory().available
    for folder in cgroup_folders():
        for limit, usage, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            # the file may be missing, or the limit "max"
            with suppress(OSError, ValueError, KeyError):
                most = int((folder / limit).read_text())
                stat = dict(map(str.split, (folder / "memory.stat").read_text().splitlines()))
                used = int((folder / usage).read_text()) - int(stat[cached])
                available = min(available, max(0, most - used))
    return available


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # missing on macOS and Windows
        cores = len(os.sched_getaffinity(0))
    for folder in cgroup_folders():
        with suppress(OSError, ValueError):  # the file may be missing, or the quota "max"
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            cores = min(cores, math.ceil(quota / period))
    return cores


def spare_cores(device: torch.device, processes: int) -> int:
    """Return the number of cores that training on a CPU leaves unused, for each of ``processes``
    processes. The number is at most MOST_SPARE. Return 0 for a card."""
    if device.type != "cpu":
        return 0
    spare = available_cores() // processes - torch.get_num_threads()
    return min(max(spare, 0), MOST_SPARE)


def existing_folder(path: Path) -> Path:
    """Return ``path`` if it exists, otherwise the nearest existing folder above it."""
    while not path.exists():
        path = path.absolute().parent
    return path


def free_disk_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of ``folder``, which need not exist yet."""
    return shutil.disk_usage(existing_folder(folder)).free


def release_memory(device: torch.device) -> None:
    """Release the memory that torch caches on a device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes. For a card it is the peak since the last reset, otherwise
    the peak of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def describe_device(device: torch.device, processes: int = 1) -> str:
    """Return one line that describes the device and the free memory."""
    free = f"{format_bytes(available_bytes())} of main memory free"
    if device.type != "cuda":
        together = f", {processes} processes" if processes > 1 else ""
        unusable = f"; {reason}" if (reason := _unusable_card()) else ""
        return f"CPU, {available_cores()} cores{together}, {free}{unusable}"
    free_cuda, total_cuda = torch.cuda.mem_get_info(device)
    if torch.cuda.device_count() > 1:
        free += f"; {processes} of {torch.cuda.device_count()} cards used"
        if processes == 1:
            free += " (torchrun --nproc-per-node N -m nsgf train uses N)"
    return (
        f"{torch.cuda.get_device_name(device)}, {format_bytes(free_cuda)} of "
        f"{format_bytes(total_cuda)} free, {free}"
    )
