import os
import re
import subprocess
from types import SimpleNamespace

import psutil
import pytest
import torch

from nsgf.run import folder
from nsgf.system import hardware
from nsgf.system.distributed import take_card
from nsgf.system.errors import UserError
from nsgf.system.hardware import (
    _unusable_card,
    available_bytes,
    available_cores,
    describe_device,
    peak_memory,
    pick_device,
    spare_cores,
)
from tests.conftest import CPU


def pretend(monkeypatch, cards=1, **fakes):
    """Let torch.cuda answer as on a machine with cards."""
    known = {
        "is_available": lambda: cards > 0,
        "device_count": lambda: cards,
        "current_device": lambda: cards - 1,
        "set_device": lambda device: None,
        "get_device_capability": lambda device: (9, 0),
        "get_device_name": lambda device: "Some card",
        "mem_get_info": lambda device: (8 * 10**9, 16 * 10**9),
    }
    for name, fake in (known | fakes).items():
        monkeypatch.setattr(torch.cuda, name, fake)


def write_cgroup(folder, **texts):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)


MAX = {
    "memory__max": "1000000\n",
    "memory__current": "900000\n",
    "memory__stat": "anon 500\ninactive_file 300000\n",
}
OLD = {
    "memory__limit_in_bytes": "5000",
    "memory__usage_in_bytes": "4500",
    "memory__stat": "total_inactive_file 1000",
}


@pytest.mark.parametrize(
    ("groups", "own", "expected"),
    [
        ({}, None, 600_000),
        ({"": MAX}, None, 400_000),
        ({"": {**MAX, "memory__max": "max\n"}}, None, 600_000),
        ({"memory": {**OLD, "memory__usage_in_bytes": "9000"}}, None, 0),
        ({"job": MAX}, "0::/job/step/task\n", 400_000),  # a job of Slurm, a scope of systemd
        ({"other": MAX}, "0::/job\n", 600_000),
        ({"memory/job": OLD}, "4:cpu,memory:/job/step\n0::/\n", 1500),
        ({"": MAX}, "0::/../elsewhere\n", 400_000),
    ],
)
def test_free_memory_is_within_the_limits_of_containers_and_jobs(
    groups, own, expected, tmp_path, monkeypatch
):
    """Cached files count as free.

    Past mistake: Memory limits were read at the root of the control groups, but a process can be
    in a nested group. Jobs of Slurm were killed.
    """
    system = SimpleNamespace(available=600_000, total=10**6)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: system)
    for name, texts in groups.items():
        write_cgroup(tmp_path / "root" / name, **texts)
    (tmp_path / "own").write_text(own or "")
    monkeypatch.setattr(hardware, "CGROUPS", tmp_path / "root")
    monkeypatch.setattr(hardware, "OWN_GROUPS", tmp_path / "own")
    assert available_bytes() == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"cpu__max": "250000 100000\n"}, 3),
        ({"cpu__max": "max 100000\n"}, 6),
        ({"cpu__weight": "100\n"}, 6),
    ],
)
def test_cores_are_those_of_the_process(texts, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(6), raising=False)
    write_cgroup(tmp_path / "job", **texts)
    (tmp_path / "own").write_text("0::/job/step\n")
    monkeypatch.setattr(hardware, "CGROUPS", tmp_path)
    monkeypatch.setattr(hardware, "OWN_GROUPS", tmp_path / "own")
    assert available_cores() == expected


def test_idle_cards_are_mentioned(monkeypatch):
    pretend(monkeypatch, cards=2)
    card = torch.device("cuda")
    assert "1 of 2 cards used (torchrun --nproc-per-node" in describe_device(card)
    assert "torchrun" not in describe_device(card, processes=2)
    pretend(monkeypatch, cards=1)
    assert "cards" not in describe_device(card)


@pytest.mark.parametrize(
    ("capability", "built", "usable"),
    [
        ((6, 0), "sm_75 sm_80 sm_90 compute_120", False),  # a P100 and a build without its code
        ((7, 5), "sm_75 sm_80 sm_90", True),
        ((8, 9), "sm_75 sm_86 sm_90", True),
        ((12, 0), "sm_90a", False),
        ((12, 0), "sm_90 compute_90", True),  # translated by the driver
        ((9, 4), "gfx90a gfx942", True),
    ],
)
def test_card_without_kernels_is_not_taken(monkeypatch, capability, built, usable):
    fakes = {"get_device_capability": lambda device: capability, "get_arch_list": built.split}
    pretend(monkeypatch, **fakes)
    assert pick_device("auto").type == ("cuda" if usable else "cpu")
    if usable:
        assert pick_device("cuda").type == "cuda"
        return
    with pytest.raises(
        UserError, match=r"device = cuda: Some card is of generation.*does not support"
    ):
        pick_device("cuda")
    assert "Some card is of generation" in describe_device(CPU)


def test_card_that_torch_cannot_use_is_mentioned(monkeypatch, tmp_path):
    pretend(monkeypatch, cards=0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(hardware, "DRIVER", tmp_path / "version")
    assert _unusable_card() is None
    (tmp_path / "version").touch()
    assert "cannot use this" in str(_unusable_card())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    assert _unusable_card() is None


def test_cards_have_numbers_and_become_the_current_one(monkeypatch):
    """auto and cuda mean torch's current card, which a process of torchrun sets to its own.

    Past mistake: The device `cuda` was passed on without a number. torch 2.4 failed, and on
    `cuda:1` losses were read too early.
    """
    used = [2]
    fakes = {"set_device": lambda card: used.append(getattr(card, "index", card))}
    pretend(monkeypatch, 3, **fakes, current_device=lambda: used[-1])
    assert [pick_device(name).index for name in ("auto", "cuda", "cuda:1")] == [2, 2, 1]
    assert used == [2, 2, 2, 1]
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert take_card("auto")
    assert pick_device("cuda").index == 0
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(UserError, match="process 4 on a machine with 3 CUDA devices"):
        take_card("cuda")


@pytest.mark.parametrize(
    ("cores", "processes", "threads", "expected"),
    [(2, 1, 1, 1), (2, 1, 2, 0), (2, 2, 1, 0), (8, 2, 1, 3), (64, 1, 1, 4), (4, 1, 8, 0)],
)
def test_spare_cores_are_those_that_training_leaves(
    cores, processes, threads, expected, monkeypatch
):
    monkeypatch.setattr(hardware, "available_cores", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert spare_cores(CPU, processes) == expected
    assert spare_cores(torch.device("cuda"), processes) == 0


def test_peak_memory_keeps_the_highest():
    before = peak_memory(CPU)
    block = torch.ones(80 * 2**20 // 4)
    del block
    after = peak_memory(CPU)
    assert 10**7 < before <= after
    assert after >= 80 * 2**20


def test_provenance_names_versions_commit_and_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "CHECKOUT", tmp_path)
    known = folder.provenance()
    assert {"nsgf", "torch", "geomloss", "python", "machine"} <= known.keys()
    assert known["commit"] is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "a").write_text("1")
    subprocess.run([*git, "add", "a"], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    commit = folder.provenance()["commit"]
    assert re.fullmatch("[0-9a-f]{40}", commit)
    (tmp_path / "a").write_text("2")
    assert folder.provenance()["commit"] == f"{commit}-dirty"
