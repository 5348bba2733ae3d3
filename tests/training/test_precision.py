import os
import subprocess
import sys

import pytest
import torch

from nsgf.config.schema import Config, TrainConfig
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from nsgf.training.precision import (
    Forward,
    device_settings,
    pick_precision,
    prepare_environment,
    sampling_precision,
)
from tests.training.toys import CPU, Scale

CARD = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("capability", "auto"),
    [((6, 0), "fp32"), ((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")],
)
def test_auto_precision_follows_the_card(monkeypatch, capability, auto):
    """A T4 (7.5) gets fp16, whatever torch's emulation of bf16 says; a P100 (6.0) fp32."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some card")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)
    assert pick_precision("auto", CARD) == auto
    assert pick_precision("fp16", CARD) == "fp16"
    assert pick_precision("auto", CPU) == "fp32"
    assert pick_precision("bf16", CPU) == "bf16"
    if auto != "bf16":
        with pytest.raises(UserError, match=r"bf16: Some card.*precision fp16 or auto"):
            pick_precision("bf16", CARD)


@pytest.mark.parametrize(
    ("capability", "found"),
    [
        (None, "fp32 fp32 bf16 fp32"),
        ((7, 5), "fp16 fp32 fp32 fp16"),
        ((8, 0), "bf16 fp32 bf16 fp16"),
    ],
)
def test_samples_are_drawn_in_the_runs_precision_or_in_float32(monkeypatch, capability, found):
    """None is a CPU: what a run was trained in elsewhere may not be there."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some card")
    device, wanted = CARD if capability else CPU, ("auto", "fp32", "bf16", "fp16")
    assert [
        sampling_precision(Config(train=TrainConfig(precision=trained)), device)
        for trained in wanted
    ] == found.split()


def test_solver_that_measures_its_error_has_float32():
    """In bf16 it takes 176 calls for digits at its usual tolerances, in float32 110."""
    config = Config(train=TrainConfig(precision="bf16"))
    config.sampling.solver = "dopri5"
    assert sampling_precision(config, CPU) == "fp32"


def test_untried_devices_compute_in_float32():
    assert pick_precision("auto", torch.device("mps")) == "fp32"
    for short in ("bf16", "fp16"):
        with pytest.raises(UserError, match=rf"train\.precision = {short}: untried on mps"):
            pick_precision(short, torch.device("mps"))


def test_device_settings_hold_inside_and_are_gone_outside():
    def now():
        return (
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.allow_tf32,
            torch.backends.cuda.matmul.allow_tf32,
        )

    before = now()
    with device_settings():
        assert now() == (True, True, True)
    assert now() == before


@pytest.mark.parametrize(
    ("own", "caches", "expected"),
    [
        ("", "/c", "/c/nsgf/compiled"),
        ("", "", "/h/.cache/nsgf/compiled"),
        ("", "c", "/h/.cache/nsgf/compiled"),  # the standard has a relative path ignored
        ("mine", "/c", "mine"),
    ],
)
def test_compiled_code_is_never_kept_in_a_run(own, caches, expected, monkeypatch):
    """A run may bring some from elsewhere."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", own)
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("XDG_CACHE_HOME", caches)
    prepare_environment(TrainConfig())
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == own
    prepare_environment(TrainConfig(compile=True))
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == expected


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_answers_are_float32_and_layers_are_not(precision):
    model, seen = Scale(), []
    model.fault = lambda answer, call: seen.append(answer.dtype) or answer
    answer = Forward(model, TrainConfig(precision=precision), CPU, World())(torch.ones(2, 1))
    assert answer.dtype == torch.float32
    expected = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    assert seen == [expected[precision]]


def test_allocator_is_configured_before_torch_is_loaded():
    """Expandable segments have to be asked for before; what the user set stays."""
    code = (
        "import sys, os, runpy\n"
        "import nsgf.__main__\n"
        "assert 'torch' not in sys.modules\n"
        "nsgf.__main__.configure_allocator()\n"
        "print(os.environ.get('PYTORCH_CUDA_ALLOC_CONF'))"
    )

    def printed(**environment):
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert printed() == "expandable_segments:True"
    own = "max_split_size_mb:64"
    assert printed(PYTORCH_CUDA_ALLOC_CONF=own) == own
    assert printed(PYTORCH_ALLOC_CONF=own) == "None"  # its new name, which the old one would beat
