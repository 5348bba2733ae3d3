import os
from unittest.mock import Mock

import pytest
import torch

from nsgf.__main__ import configure_allocator
from nsgf.config.schema import OptimConfig
from nsgf.system.errors import UserError
from nsgf.training.precision import (
    BFLOAT16_CHECKS,
    pick_precision,
    prepare_compiler,
    sampling_precision,
)
from tests.training.toys import CPU, Quadratic, Updates

CARD = torch.device("cuda", 0)


def pretend_card(monkeypatch, capability):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some card")


@pytest.mark.parametrize(
    ("capability", "auto"), [((6, 0), "fp32"), ((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16")]
)
def test_auto_precision_follows_the_card(monkeypatch, capability, auto):
    """A T4 (7.5) gets fp16, whatever torch's emulation of bf16 says; a P100 (6.0) fp32."""
    pretend_card(monkeypatch, capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)
    assert pick_precision("auto", CARD, is_images=False) == auto
    assert pick_precision("fp16", CARD, is_images=False) == "fp16"
    if auto != "bf16":
        with pytest.raises(UserError, match=r"train.precision.*bf16: Some card.* fp16 or auto"):
            pick_precision("bf16", CARD, is_images=False)


@pytest.mark.parametrize("unit", BFLOAT16_CHECKS)
def test_auto_is_bf16_for_images_where_the_cpu_multiplies_it(monkeypatch, unit):
    assert pick_precision("auto", CPU, is_images=True) == "fp32"
    assert pick_precision("bf16", CPU, is_images=False) == "bf16"
    monkeypatch.setattr(torch.cpu, unit, lambda: True, raising=False)
    assert pick_precision("auto", CPU, is_images=True) == "bf16"
    assert pick_precision("auto", CPU, is_images=False) == "fp32"
    assert pick_precision("fp32", CPU, is_images=True) == "fp32"
    for trained, expected in (("fp32", "fp32"), ("bf16", "bf16"), ("auto", "bf16")):
        assert sampling_precision("auto", "euler", CPU, True, trained) == expected
    monkeypatch.delattr(torch.cpu, unit)  # an older torch
    assert pick_precision("auto", CPU, is_images=True) == "fp32"


@pytest.mark.parametrize(
    ("capability", "found"),
    [
        (None, "fp32 fp32 bf16 fp32"),
        ((7, 5), "fp16 fp32 fp32 fp16"),
        ((8, 0), "bf16 fp32 bf16 fp16"),
    ],
)
def test_sampling_precision_is_that_of_the_run_or_float32(monkeypatch, capability, found):
    """None is a CPU: what a run was trained in elsewhere may not be there."""
    pretend_card(monkeypatch, capability)
    device = CARD if capability else CPU
    for setting, expected in zip(("auto", "fp32", "bf16", "fp16"), found.split(), strict=True):
        assert sampling_precision(setting, "euler", device, is_images=False) == expected
        # dopri5 measures its error
        assert sampling_precision(setting, "dopri5", device, is_images=False) == "fp32"


@pytest.mark.parametrize(
    ("own", "caches", "expected"),
    [("", "/c", "/c/nsgf/compiled"), ("", "", "/h/.cache/nsgf/compiled"), ("mine", "/c", "mine")],
)
def test_compiled_code_is_kept_outside_of_runs(own, caches, expected, monkeypatch):
    """A run may bring some from elsewhere.

    Past mistake: Compiled code was stored beside the runs, so resuming a copied run could execute
    its code.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", own)
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("XDG_CACHE_HOME", caches)
    assert prepare_compiler() == expected
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == expected


def test_user_without_a_home_names_the_folder_of_compiled_code(monkeypatch):
    """As in a container whose user has no entry in the list of users."""
    for key in ("HOME", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError("uid not found")))
    with pytest.raises(UserError, match="set TORCHINDUCTOR_CACHE_DIR"):
        prepare_compiler()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_training_computes_in_the_precision_and_returns_float32(precision):
    task, seen = Quadratic(), []
    task.model.fault = lambda answer, call: seen.append(answer.dtype) or answer
    answer = Updates(task, OptimConfig(), precision=precision).state.forward(torch.ones(2, 1))
    assert answer.dtype == torch.float32
    expected = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    assert seen == [expected[precision]]


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, "max_split_size_mb:64"),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, None),  # the old name would beat it
    ],
)
def test_allocator_has_expandable_segments_unless_the_user_set_it(own, expected, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(own))
    configure_allocator()
    assert os.environ.get("PYTORCH_CUDA_ALLOC_CONF") == expected
