import pytest

from nsgf.system.cards import CARDS, find_card
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
