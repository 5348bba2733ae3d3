import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
import torch

from nsgf.method import run_flow, step_sizes
from nsgf.pool import pool_folder
from nsgf.run.folder import RunFolder
from nsgf.sinkhorn import build_flow
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from nsgf.user_data import load_data
from tests.conftest import shipped
from tests.pool.conftest import CPU, HalfWay, Killed, build, pool_settings, with_pool


@pytest.mark.parametrize(("name", "targets"), [("2d", None), ("digits", None), ("2d", 12)])
def test_built_pool_holds_the_flows_of_its_samplers(name, targets):
    config = shipped(name, "--pool-batches=3", "--sinkhorn-batch=8", "--steps=2")
    sinkhorn = replace(config.sinkhorn, target_batch=targets)
    config = with_pool(replace(config, sinkhorn=sinkhorn), build_batch=2)
    data, solver = load_data(config.data, 0), build_flow(config.flow.kind, config.sinkhorn)
    pool = build(config, solver=solver)
    source, target = data.source("p"), data.target("p")
    for batch in range(3):
        x, y = source.sample(8), target.sample(targets or 8)
        etas = step_sizes(config.flow.steps, config.flow.step_size)
        expected = run_flow(solver, x[None], y[None], etas)[0]
        stored = pool._positions[8 * batch : 8 * batch + 8]
        torch.testing.assert_close(stored, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(stored[:, 0], x)


@pytest.mark.parametrize("together", [1, 2, 3, 7, 50, "auto"])
def test_chunks_change_nothing(config, together):
    solver = HalfWay()
    pool = build(with_pool(config, build_batch=together), solver=solver)
    assert sum(solver.calls) == 7
    assert max(solver.calls) == (1 if together == "auto" else min(together, 7))
    assert torch.equal(pool._positions, build(with_pool(config, build_batch=1))._positions)


@pytest.mark.parametrize("flag", ["--flow.eta=1e9", "--sinkhorn.blur=1e-20"])
@pytest.mark.parametrize("kind", ["sinkhorn", "geomloss"])
def test_flows_that_fail_numerically_name_their_settings(flag, kind):
    """Past mistake: An annealing loop that started at an infinite diameter never ended: input was
    checked for finite values, results were not.
    """
    flags = ["--pool-batches=1", "--sinkhorn-batch=8", f"--flow.kind={kind}"]
    config = shipped("2d", "--flow.schedule=constant", flag, *flags)
    with pytest.raises(UserError, match=r"flow\.eta"):
        build(config, solver=build_flow(kind, config.sinkhorn))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pool_built_on_cuda_is_the_same(config, dtype):
    chosen = with_pool(config, dtype=dtype)
    pool = build(chosen, device=torch.device("cuda"))
    assert pool._positions.device == CPU
    torch.testing.assert_close(pool._positions, build(chosen)._positions)


class Sociable(HalfWay):
    """Moves each flow by a part of the mean of those beside it."""

    def velocity(self, x, y):
        return super().velocity(x, y) + 1e-3 * x.mean()


class Apart(World):
    """One of several processes, which agree without asking each other."""

    def agree(self, value):
        return value

    def any(self, flag, *, has_worked=False):
        return flag


@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_processes_build_the_flows_of_one_bit_for_bit(config, tmp_path, storage, size, monkeypatch):
    """Also where a flow's rounding depends on the flows beside it.

    Past mistake: Shares of a pool cut through groups of flows that are solved together, so two
    processes built another pool than one.
    """
    chosen = with_pool(config, storage=storage, num_batches=30)
    monkeypatch.setattr("nsgf.pool.settings.BUILD_BYTES", 3 * pool_settings(config).flow_bytes())
    folders, parts, calls = [], [], []
    for world in (Apart(rank, size) for rank in range(size)):
        solver = Sociable()
        folders.append(pool_folder(RunFolder(tmp_path), world))
        parts.append(build(chosen, folders[-1], solver, world=world)._positions)
        calls += solver.calls
    assert [folder.name for folder in folders] == [f"part{k + 1}of{size}" for k in range(size)]
    assert max(map(len, parts)) - min(map(len, parts)) <= config.sinkhorn.batch_size
    alone = Sociable()
    assert torch.equal(torch.cat(parts), build(chosen, solver=alone)._positions)
    assert calls == alone.calls == [2, 3] * 6


# --- a full card ---------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_full_card_halves_the_flows_at_a_time(config, storage, monkeypatch):
    """The same flows, and nothing of what did not fit is counted."""
    said = []
    monkeypatch.setattr("nsgf.pool.release_memory", lambda device: said.append("given back"))
    solver = HalfWay(room=2, unconverged=1)
    pool = build(with_pool(config, storage=storage, build_batch=7), solver=solver, lines=said)
    assert solver.calls == [7, 3, 1, 1, 1, 1, 1, 1, 1]
    assert torch.equal(pool._positions, build(config)._positions)
    assert solver.report.unconverged == 7
    assert said.count("given back") == 2
    assert [re.findall(r"\d+", line) for line in said if "card" in line] == [["7", "3"], ["3", "1"]]


def test_single_flow_that_does_not_fit_names_the_setting(config):
    with pytest.raises(UserError, match=r"sinkhorn\.batch_size = 8: "):
        build(config, solver=HalfWay(room=0))


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_pool_that_goes_on_takes_the_flows_together_that_it_took(config, tmp_path, storage):
    """What is computed together is rounded together, whatever is free the next time."""
    chosen = with_pool(config, storage=storage, build_batch=3)
    dying, folder = HalfWay(room=3, fail_at=3), tmp_path / "pool"
    real, rooms = dying.start, iter([3, 1, 1])
    dying.start = lambda *clouds: setattr(dying, "room", next(rooms, 1)) or real(*clouds)
    with pytest.raises(Killed):
        build(chosen, folder, dying)
    assert dying.calls == [3, 3, 1]
    again = HalfWay()
    build(chosen, folder, again)
    assert again.calls == {"memory": [3, 1, 1, 1, 1], "disk": [1, 1, 1]}[storage]


@dataclass(frozen=True)
class Rounds(Apart):
    """One of two processes, with the answers of the other and its own."""

    others: Iterator[bool] = field(default_factory=lambda: iter(()))
    flags: list[bool] = field(default_factory=list)

    def any(self, flag, *, has_worked=False):
        self.flags.append(flag)
        return next(self.others, False) or flag


def test_full_card_of_one_process_delays_the_other_only_by_its_flows(config):
    """Both ask each other twice for each try, also for one that did not fit."""
    config, full, tries = with_pool(config, build_batch=7), Rounds(1, 2), HalfWay(room=1)
    build(config, solver=tries, world=full)
    assert tries.calls == [4, 2, 1, 1, 1, 1]
    done, own = Rounds(0, 2, others=iter(full.flags)), HalfWay()
    part = build(config, solver=own, world=done)
    assert own.calls == [3]
    assert torch.equal(part._positions, build(config)._positions[: 3 * 8])
    assert len(done.flags) == len(full.flags) == 3 + 2 * 6
