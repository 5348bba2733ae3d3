import pytest

from nsgf.system.cards import CARDS, card_named, find_card, speed
from nsgf.system.errors import UserError


def test_cards_are_found_in_any_case():
    assert [find_card(card.name.upper()) for card in CARDS] == list(CARDS)


def test_unknown_cards_are_refused_with_the_list():
    with pytest.raises(UserError, match=r"--assume k80: must be one of t4, p100, .*, h200$"):
        find_card("k80")


def test_peak_follows_the_precision():
    """TF32 has half the rate of bf16, and is there from compute capability 8.0 on."""
    t4, a100 = find_card("t4"), find_card("a100")
    assert [t4.peak("fp16"), t4.peak("fp32"), t4.peak("fp32", True)] == [65e12, 8.1e12, 8.1e12]
    assert [a100.peak("bf16", True), a100.peak("fp32")] == [312e12, 19.5e12]
    assert a100.peak("fp32", tf32=True) == 156e12


@pytest.mark.parametrize("card", CARDS)
def test_units_are_those_of_one_card(card):
    """A slipped power of ten would make every plan wrong."""
    assert 1e10 < card.memory < 2e11
    assert 5e12 < card.fp32 < card.half < 2e15
    assert 2e11 < card.bandwidth < 1e13


@pytest.mark.parametrize(
    ("called", "card"),
    [
        ("Tesla T4", "t4"),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
    ],
)
def test_names_that_torch_gives_are_known(called, card):
    assert card_named(called) == find_card(card)


@pytest.mark.parametrize(
    "called",
    [
        *("Tesla V100-PCIE-16GB", "NVIDIA H100 PCIe", "NVIDIA H200 NVL", "Tesla P100-SXM2-16GB"),
        *("NVIDIA H200 MIG 1g.18gb", "NVIDIA GH200 480GB", "NVIDIA A10", "NVIDIA L40S", ""),
    ],
)
def test_other_makes_and_parts_of_a_card_have_other_peaks(called):
    assert card_named(called) is None


def test_speed_is_told_with_its_share_where_the_peak_is_known():
    assert speed(13e12, "Tesla T4", "fp16") == "13 TFLOP/s, 20 % of the t4's peak in fp16"
    assert speed(13e12, "NVIDIA H200", "fp32", tf32=True).endswith(
        ", 2.6 % of the h200's peak in tf32"
    )
    assert speed(2.04e12, "NVIDIA GH200 480GB", "bf16") == "2.04 TFLOP/s"
    assert speed(3.14e9) == "3.14 GFLOP/s"
