import pytest
import torch

from nsgf.errors import UserError
from nsgf.hardware import available_bytes, describe, format_bytes, pick_device, versions


def test_device_names():
    assert pick_device("cpu") == torch.device("cpu")
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert pick_device("auto").type == expected


def test_missing_cuda_device_is_one_line():
    count = torch.cuda.device_count()
    with pytest.raises(UserError, match=f"has {count} CUDA devices"):
        pick_device(f"cuda:{count}")


def test_free_memory_is_plausible():
    assert 10**8 < available_bytes() < 10**14


@pytest.mark.parametrize(
    ("count", "text"), [(999, "999 B"), (1500, "1.5 KB"), (23.6e9, "23.6 GB"), (2e15, "2000.0 TB")]
)
def test_bytes_for_people(count, text):
    assert format_bytes(count) == text


def test_description_and_versions():
    assert "free" in describe(torch.device("cpu"))
    assert {"nsgf", "torch", "geomloss", "python"} <= versions().keys()
