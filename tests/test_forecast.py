import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from nsgf.forecast import (
    LAUNCH,
    OPTIMIZER_LAUNCHES,
    OPTIMIZER_VALUES,
    POOL_RATE,
    SINKHORN_UPDATES,
    USABLE,
    Work,
    counted,
    forecast,
    largest_batch,
    pool_work,
    sampling_work,
    solve_work,
    update_work,
)
from nsgf.phases import get_phase
from nsgf.phases.base import Problems
from nsgf.pool.plan import build_batch
from nsgf.system.cards import CARDS, Card, find_card
from nsgf.system.errors import UserError
from nsgf.system.hardware import format_hours
from nsgf.training.memory import TrainingMemory, training_memory
from nsgf.training.task import Batch, squared_error
from tests.conftest import shipped

SIMPLE = Card("simple", memory=1e9, fp32=100.0, half=1000.0, bandwidth=10.0, capability=(7, 5))
TINY = ("--model.mlp.width=16", "--sinkhorn-batch=16", "--pool-batches=4", "--batch-size=8")


def plan(name: str, *flags: str, card: str = "t4", hours: float = 12.0) -> list[str]:
    return forecast(shipped(name, *flags), find_card(card), hours, "python -m nsgf train")


def test_work_of_a_tiny_network_is_the_one_on_paper():
    """B samples through layers of 3 x 5 and 5 x 2: twice for the values, twice for the gradients of
    the weights, and once more, for those of the 5 values in between."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
        batch = Batch((torch.empty(7, 3),), torch.empty(7, 2))
    work = counted(lambda: squared_error(model, batch).backward())
    assert work.flops == 2 * 7 * (15 + 10) + 2 * 7 * (15 + 10) + 2 * 7 * 10


def test_convolutions_count_their_pixels():
    with torch.device("meta"):
        model, x = nn.Conv2d(3, 4, 3, padding=1, bias=False), torch.empty(2, 3, 8, 8)
    work = counted(lambda: model(x))
    assert work.flops == 2 * (3 * 3 * 3) * 4 * (2 * 8 * 8)
    assert work.launches == 1
    assert work.traffic == 4 * (3 * 128 + 3 * 4 * 9 + 4 * 128)


def test_views_and_fresh_memory_are_no_launches():
    x = torch.empty(4, 6, device="meta")
    work = counted(lambda: torch.empty_like(x).view(-1).t())
    assert work == Work(0, 0, 0)
    assert counted(lambda: x.t() + x.t()) == Work(0, 3 * 4 * 24, 1)


def test_time_is_matrices_then_memory_and_at_least_the_launches():
    assert Work(flops=500).seconds(SIMPLE, "fp32") == pytest.approx(10)  # half of the peak
    assert Work(flops=600).seconds(SIMPLE, "fp16") == pytest.approx(2)  # 30 % of it
    assert Work(500, 30).seconds(SIMPLE, "fp32") == pytest.approx(13)
    assert Work(launches=1000).seconds(SIMPLE, "fp16") == pytest.approx(1000 * LAUNCH)
    assert Work(500, 30, 1000).seconds(SIMPLE, "fp32") == pytest.approx(13)


@pytest.mark.parametrize(
    ("name", "tera", "launches", "hours"),
    [("cifar10", 4.78, 1571, (3.0, 4.4)), ("mnist", 0.162, 819, (1.0, 1.2))],
)
def test_shipped_settings_on_a_t4(name, tera, launches, hours):
    """Launches: of a real update in 16 bit on a CPU, whose attention is one operation."""
    config = shipped(name)
    work = update_work(config, get_phase("nsgf"), "fp16")
    assert work.flops / 1e12 == pytest.approx(tera, rel=2e-3)
    assert work.launches == pytest.approx(launches, rel=0.07)
    both = 2 * config.nsgf.iterations * work.seconds(find_card("t4"), "fp16") / 3600
    assert hours[0] < both < hours[1]


def test_sixteen_bits_halve_the_traffic_and_cast_each_weight():
    config, phase = shipped("2d", *TINY), get_phase("nsgf")
    weights = list(phase.network(config.model, (2,)).parameters())
    optimizer = 4 * OPTIMIZER_VALUES * sum(weight.numel() for weight in weights)
    full, half = (update_work(config, phase, precision) for precision in ("fp32", "bf16"))
    assert half.flops == full.flops
    assert half.launches == full.launches + 2 * len(weights)
    assert 2 * (half.traffic - optimizer) == full.traffic - optimizer
    parts = update_work(shipped("2d", *TINY, "--accumulate=2"), phase, "fp32")
    assert parts.launches == 2 * full.launches - OPTIMIZER_LAUNCHES


def test_recomputed_activations_are_counted():
    flags = ("--batch-size=2", "--model.unet.channels=32", "--model.unet.mult=[1]")
    whole, again = (
        update_work(
            shipped("digits", *flags, f"--model.checkpoint_activations={on}"),
            get_phase("nsgf"),
            "fp32",
        )
        for on in ("false", "true")
    )
    assert 1.2 < again.flops / whole.flops < 1.4


def test_pool_grows_with_its_flows_and_the_square_of_their_size():
    """Products over the coordinates are four of n x n x D for each step of a flow."""
    config, card = shipped("cifar10"), find_card("t4")
    shape, n = (3, 32, 32), 128
    work = pool_work(config, shape, card)
    assert work.flops == pytest.approx(2500 * 5 * 4 * 2 * n**2 * 3072, rel=0.01)
    matrices, clouds = 2 * SINKHORN_UPDATES + 20, 10
    assert work.traffic == pytest.approx(2500 * 5 * 4 * (matrices * n**2 + clouds * n * 3072))
    more = pool_work(shipped("cifar10", "--sinkhorn.target_batch=1000"), shape, card)
    products = n * (n + 1000) * 3072
    assert more.flops == pytest.approx(2500 * 5 * 4 * (products + n * 1000 * SINKHORN_UPDATES))
    read = n * (10 * n + (2 * SINKHORN_UPDATES + 10) * 1000) + 5 * (n + 1000) * 3072
    assert more.traffic == pytest.approx(2500 * 5 * 4 * read)
    twice = pool_work(shipped("cifar10", "--pool-batches=5000"), shape, card)
    assert twice.flops == pytest.approx(2 * work.flops)
    assert twice.launches == pytest.approx(2 * work.launches)
    alone = pool_work(shipped("cifar10", "--pool.build_batch=1"), shape, card)
    together = build_batch(config, shape, torch.device("cpu"), card.memory)
    assert alone.launches == pytest.approx(together * work.launches)


def test_transport_of_a_generator_is_part_of_its_time():
    """It cannot be run on shapes: counted by its problems, towards data and among halves."""
    config = shipped("mnist/onecall")
    (line,) = [one for one in plan("mnist/onecall") if one.startswith("generator, transport")]
    towards, among = Problems(2, 128, 2048, 784), Problems(2, 128, 128, 784)
    each = sum(solve_work(one).seconds(find_card("t4"), "fp32") for one in (towards, among))
    seconds = each * config.generator.iterations
    assert line == (
        f"generator, transport at {SINKHORN_UPDATES} Sinkhorn updates a problem: about "
        f"{format_hours(seconds)}"
    )
    more = shipped("mnist/onecall", "--generator.blurs=[0.1,0.2]")
    (twice,) = get_phase("generator").preparations(more, torch.device("cpu"))
    assert len(twice.problems) == 4


def test_batch_that_is_not_split_must_fit_the_card():
    huge = ("--generator.batch_size=60000", "--generator.targets=60000")
    (red,) = (line for line in plan("digits/onecall", *huge) if line.startswith("NO "))
    assert red.startswith("NO generator: about 19.4 GB on the card, and its batch cannot be split")


def test_sampling_counts_the_calls_of_each_network():
    config = shipped("digits/nsgf++", "--sampling.batch_size=2", "--sampling.straight_steps=3")
    found = sampling_work(config, "fp32")
    assert found is not None
    work, calls = found
    assert calls == config.flow.steps + 1 + 3
    flow = update_work(shipped("digits", "--batch-size=2"), get_phase("nsgf"), "fp32")
    assert work.flops == pytest.approx((calls - 1) * flow.flops / 3, rel=0.05)
    omega = shipped("digits/nsgf++", "--sampling.omega=0.1")
    assert sampling_work(replace(omega, phases=["nsgf"]), "fp32") is not None
    assert sampling_work(omega, "fp32") is None


def test_samples_in_16_bit_take_half_the_traffic_and_cast_no_weight_in_a_call():
    config = shipped("2d", *TINY, "--phases=[nsgf]", "--steps=7")
    (full, _), (half, _) = (sampling_work(config, kind) for kind in ("fp32", "fp16"))
    assert half == Work(full.flops, full.traffic / 2, full.launches)


def test_time_of_samples_and_paths_is_that_of_their_precision(monkeypatch):
    """On a T4 with the tensor cores of 16 bit; paths as training, whatever samples are drawn in."""

    def seconds(*flags):
        wide = ("--model.unet.mult=[1]", "--model.unet.channels=256", "--phases=[peer,reflow]")
        lines = plan("digits", *wide, *flags, card="t4")
        found = (re.fullmatch(r"([ ,\w]+): .*about ([.\d]+)", line) for line in lines)
        return {match[1]: float(match[2]) for match in found if match}

    monkeypatch.setattr("nsgf.forecast.format_hours", str)
    fast, slow = seconds(), seconds("--precision=fp32")
    for line in ("reflow, paths", "sample", "evaluate"):
        assert 3 < slow[line] / fast[line] < 6
    samples = seconds("--sampling.precision=fp32")
    for line in ("reflow, paths", "peer"):
        assert samples[line] == fast[line]
    for line in ("sample", "evaluate"):
        assert samples[line] == slow[line]


def test_largest_batch_is_the_last_that_fits():
    needed = TrainingMemory(10, 100_000_000, 80_000_000, 8, "fp32", 1)
    assert largest_batch(needed, SIMPLE) == 80  # 900 MB less 100, in samples of 10
    assert largest_batch(needed._replace(fixed=2 * 10**9), SIMPLE) == 0
    config, phase, t4 = shipped("cifar10", "--precision=fp16"), get_phase("predictor"), CARDS[0]
    most = largest_batch(training_memory(config, phase, torch.device("cpu")), t4)
    for size, fits in ((most, True), (most + 2, False)):
        changed = shipped("cifar10", "--precision=fp16", f"--predictor.batch_size={size}")
        total = training_memory(changed, phase, torch.device("cpu")).total
        assert (total <= USABLE * t4.memory) == fits


def test_paths_of_reflow_are_walked_in_each_session():
    flags = ("--phases=[peer,reflow]", "--reflow.pairs=1000000", "--reflow.ode_steps=100")
    lines = plan("cifar10", *flags, card="t4")
    assert lines[-1].startswith("NO --session-hours: reflow begins with ")
    assert lines[-1].endswith("or fewer --reflow.pairs")


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_memory_of_the_machine_at_hand_is_not_asked_for(monkeypatch, storage):
    monkeypatch.setattr("nsgf.pool.plan.available_bytes", lambda: 10**6)
    lines = plan("2d", f"--pool.storage={storage}", card="t4")
    assert not [line for line in lines if line.startswith("NO ") and "sinkhorn" in line]


@pytest.mark.parametrize("card", [card.name for card in CARDS])
def test_no_card_is_asked_for(card, monkeypatch):
    def asked(*_):
        raise AssertionError("asks for a card")

    for name in ("is_available", "device_count", "get_device_capability", "mem_get_info"):
        monkeypatch.setattr(torch.cuda, name, asked)
    monkeypatch.setattr(torch.cuda, "get_device_properties", asked)
    first, *lines = plan("2d", *TINY, card=card)
    assert first.startswith(f"one {card}, computed, not measured")
    expected = {"p100": "fp32", "t4": "fp16", "v100": "fp16"}.get(card, "bf16")
    assert f", {expected}, " in first
    assert any(line.startswith("all phases: about") for line in lines)
    assert any("29.0 GB of memory free" in line for line in lines) == (card in ("t4", "p100"))


def test_pool_in_memory_is_built_again_in_each_session():
    lines = plan("digits/nsgf++", "--phases=[nsgf]", "--pool-batches=1000000", hours=0.05)
    (pool,) = (line for line in lines if line.startswith("pool at "))
    assert 1_000_000 * 128 * 6 * 64 * 4 / POOL_RATE > 0.04 * 3600  # its bytes alone take so long
    assert "min" in pool
    assert lines[-1].startswith("NO --session-hours: nsgf begins with")
    assert any(line.startswith("NO pool.num_batches = 1000000") for line in lines)


def test_what_a_usual_host_cannot_keep_is_red():
    big = ("--phases=[nsgf]", "--model.mlp.width=16384", "--model.mlp.depth=4")
    lines = plan("2d", *big)
    assert any(line.startswith("NO disk: ") and "Kaggle keeps 20.0 GB" in line for line in lines)
    assert any(line.startswith("NO nsgf: not even one sample fits") for line in lines)


def test_flows_too_large_for_the_card_are_red():
    lines = plan("2d", "--phases=[nsgf]", *TINY[:1], "--sinkhorn-batch=30000", card="v100")
    assert any(line.startswith("NO pool: 18.") and "--sinkhorn-batch" in line for line in lines)
    flags = ("--phases=[nsgf]", *TINY, "--sinkhorn.target_batch=300000000")
    (red,) = (line for line in plan("2d", *flags, card="v100") if line.startswith("NO "))
    assert red.endswith("use a smaller --sinkhorn-batch or --sinkhorn.target_batch")


def test_what_comes_beside_the_updates_is_part_of_the_sessions(monkeypatch):
    """Launches alone decide here: two flow steps before each update of the straight flow."""
    for module in ("forecast", "sessions"):
        monkeypatch.setattr(f"nsgf.{module}.format_hours", lambda seconds: f"{seconds:.6f}")
    flags = ("--phases=[nsgf,nsf]", "--steps=2", "--nsf.source=nsgf", "--nsf.coupling=ot", *TINY)
    lines = plan("2d", *flags)
    found = [re.fullmatch(r"([\w, ]+): .*about ([\d.]+)", line) for line in lines]
    seconds = {match[1]: float(match[2]) for match in found if match}
    assert "nsf, pairs: not counted" in lines
    whole = seconds["nsf"] + seconds["nsf, NSGF steps"]
    assert float(lines[-1].rpartition(" ")[2]) == pytest.approx(whole, abs=1e-5)
    assert seconds["nsf, NSGF steps"] > 2 * 20_000 * 5 * LAUNCH


def test_partners_among_all_data_are_found_in_float32():
    """Whatever the precision of the networks is; by products on the card's slow units."""
    flags = ("--phases=[nsgf,nsf]", "--nsf.coupling=semidiscrete", "--semidiscrete.passes=1000")
    found = []
    for precision in ("fp16", "fp32"):
        lines = plan("mnist/nsgf++", *flags, f"--precision={precision}")
        (text,) = (line for line in lines if line.startswith("nsf, partners: about "))
        found.append(text)
    assert found[0] == found[1]


def test_sampling_and_evaluation_have_their_time():
    found = [line.split(", about")[0] for line in plan("2d", *TINY, "--evaluation.repeats=2")]
    assert "sample: to draw 4096 samples of 10 network calls in fp16" in found
    assert "evaluate: to draw 8192 samples of 10 network calls in fp16" in found


def test_bf16_is_refused_where_the_card_has_none():
    with pytest.raises(UserError, match=r"bf16: a card \(compute capability 7\.5\) has none"):
        plan("2d", "--precision=bf16")
