import math
import threading
from dataclasses import replace

import pytest
import torch
from torch import nn

from nsgf.config.schema import DataConfig
from nsgf.data import ClassSampler, PointSampler, RowSampler, class_labels, gaussian
from nsgf.data.images import to_unit_range
from nsgf.phases.lines import (
    CachedStarts,
    LinePairs,
    LineTask,
    TimePredictorTask,
    measure_moments,
    pairing_threads,
)
from nsgf.phases.nsgf import NSGFTask
from nsgf.pool import TrajectoryPool
from nsgf.run.folder import RunFolder
from nsgf.sinkhorn.exact import optimal_pairs
from nsgf.system.distributed import ALONE, World
from nsgf.system.errors import UserError
from nsgf.user_data import load_data
from tests.conftest import CPU, new_phase, new_session, shipped


class Constant(PointSampler):
    """A sampler whose every sample is one value."""

    def __init__(self, value):
        super().__init__(gaussian((2,)), 0)
        self.value = value

    def at(self, positions):
        return 0 * super().at(positions) + self.value


def line(mu0=None, target=None, kind=LineTask, **options):
    pairs = LinePairs(mu0 or Constant(-1.0), target or Constant(3.0), CPU, **options)
    return kind(nn.Identity(), pairs, 0)


def batch(task, n):
    return task.batch(*task.draw(range(n)))


def test_points_lie_on_the_line_from_source_to_target():
    """The straight flow regresses X1 - X0 there, the time predictor the time."""
    start, end, t = line().draw(range(4000))
    assert (start == -1).all()
    assert (end == 3).all()
    (x, time), target = batch(line(), 4000)
    assert torch.equal(time, t)
    assert (target == 4).all()
    torch.testing.assert_close(x, (-1 + 4 * t).unsqueeze(1).expand(-1, 2))
    (only,), target = batch(line(kind=TimePredictorTask), 4000)
    assert torch.equal(only, x)
    assert torch.equal(target, t)


@pytest.mark.parametrize("kind", [LineTask, TimePredictorTask])
def test_ends_belong_to_the_class_of_their_label(kind):
    ends = ClassSampler([Constant(float(number)) for number in range(3)])
    task = kind(nn.Identity(), LinePairs(Constant(-1.0), ends, CPU), 0, classes=3)
    _, end, _, labels = task.draw(range(7, 407))
    assert torch.equal(end[:, 0].int(), class_labels(range(7, 407), 3))
    is_told = labels < 3
    assert 320 < int(is_told.sum()) < 400
    assert torch.equal(labels[is_told], end[is_told, 0].int())
    inputs = task.batch(*task.draw(range(8))).inputs
    assert len(inputs) == (3 if kind is LineTask else 1)  # where a sample is shows without it
    assert torch.equal(task.draw(range(9, 20))[3], labels[2:13])


def test_nsgf_regresses_the_velocity_of_the_pool():
    pool = TrajectoryPool(torch.empty(10, 3, 2), 0.5)
    pool.append(torch.tensor([0.0, 1.0, 3.0]).view(1, 3, 1).expand(10, 3, 2))
    (x, t), target = batch(NSGFTask(nn.Identity(), pool, 0), 64)
    # v = 2 at (0, t = 0) and 4 at (1, t = 1/2)
    torch.testing.assert_close(target, 2 + 2 * x)
    torch.testing.assert_close(target[:, 0], 2 + 4 * t)
    assert set(t.tolist()) == {0.0, 0.5}


def test_batches_of_all_tasks_depend_only_on_positions():
    """Any part can be drawn alone, later, or by another process.

    Past mistake: Random streams were saved as generator states, one for each process. A run could
    not continue with another number of processes.
    """
    images = torch.randint(256, (50, 1, 2, 2), dtype=torch.uint8)
    pool = TrajectoryPool(torch.empty(10, 3, 2), 0.5)
    pool.append(torch.randn(10, 3, 2))

    def tasks():
        both = PointSampler(gaussian((1, 2, 2)), 0), RowSampler(images, 1, to_unit_range, flip=True)
        return (NSGFTask(nn.Identity(), pool, 0), line(*both), line(*both, kind=TimePredictorTask))

    for one, other in zip(tasks(), tasks(), strict=True):
        whole = one.draw(range(700))
        for start, stop in ((690, 700), (0, 300), (300, 690)):
            for part, expected in zip(other.draw(range(start, stop)), whole, strict=True):
                assert torch.equal(part, expected[start:stop])


class Walk:
    """Steps that move by 100, and to the class that they are told; counts its calls."""

    def __init__(self):
        self.calls: list[int] = []

    def __call__(self, x, labels=None):
        self.calls.append(len(x))
        return x + 100 if labels is None else 0 * x + labels.view(-1, 1)


def cached(walk, count, classes=0):
    return CachedStarts(PointSampler(gaussian((2,)), 0), walk, CPU, count, classes)


@pytest.mark.parametrize(
    ("exp", "flag", "is_said"),
    [
        ("2d/nsgf++", "--flow.schedule=harmonic", True),
        ("2d/nsgf++", "--flow.schedule=constant", False),
        ("2d/nsgf++h", "--flow.schedule=harmonic", False),  # the lines start where it ends
    ],
)
def test_flow_that_leaves_the_straight_flow_no_work_is_said(exp, flag, is_said):
    line, _ = new_phase("nsf", shipped(exp, flag)).plan(CPU, None, World())
    assert ("flow.schedule" in line) is is_said


def test_starts_are_computed_each_time_or_once_and_repeated():
    walk = Walk()
    moved = line(cached(walk, None))
    for _ in range(2):  # without a number always new ones
        start, _, _ = moved.draw(range(16))
        torch.testing.assert_close(start, PointSampler(gaussian((2,)), 0).at(range(16)) + 100)
    assert walk.calls == [16, 16]
    walk = Walk()
    starts = cached(walk, 300)
    first = starts.at(range(300))
    assert torch.equal(starts.at(range(310, 890)), torch.cat([first[10:], first[:290]]))
    assert walk.calls == [256, 256]
    assert torch.equal(cached(Walk(), 300).at(range(890, 905)), torch.cat([first[290:], first[:5]]))


@pytest.mark.parametrize("count", [None, 300])
def test_nsgf_steps_get_the_label_of_each_start(count):
    starts = cached(Walk(), count, classes=3).at(range(250, 950))
    assert torch.equal(starts[:, 0].int(), class_labels(range(250, 950), 3))


@pytest.mark.parametrize("case", [("independent", None, None), ("ot", None, 8), ("ot", 32, 32)])
def test_lines_of_a_phase_are_paired_within_the_configured_group(tiny, tiny_run, case):
    """If no group is set, within a batch."""
    coupling, within, group = case
    nsf = replace(tiny.nsf, batch_size=8, coupling=coupling, coupling_batch=within)
    config = replace(tiny, nsf=nsf)
    data = load_data(tiny.data, 0)
    task = new_phase("nsf", config).task(new_session(config, tiny_run), data)
    start, end, _ = task.draw(range(8))
    streams = data.source("nsf"), data.target("nsf")
    expected = LinePairs(*streams, CPU, group=group).at(range(8))
    assert torch.equal(start, expected[0])
    assert torch.equal(end, expected[1])


def test_affine_starts_go_as_far_as_the_steps_of_the_flow(tiny, tmp_path):
    """Two steps of 0.2 keep 0.64 of the noise."""
    flow = replace(tiny.flow, steps=2, eta=0.2)
    config = replace(tiny, phases=["nsf"], nsf=replace(tiny.nsf, source="affine"), flow=flow)
    session = new_session(config, RunFolder(tmp_path))
    data = load_data(tiny.data, 0)
    start, _, _ = new_phase("nsf", config).task(session, data).draw(range(4096))
    # 8gaussians has mean 0 and covariance (5^2 / 2 + 0.1) I
    expected = (0.64 + 0.36 * 12.6**0.5) * data.source("nsf").at(range(4096))
    assert float((start - expected).norm() / expected.norm()) < 0.02


def test_moments_of_all_images():
    data = load_data(DataConfig(name="digits"), 0)
    mean, covariance = measure_moments(data.target("moments"), data.count)
    rows = data.images.flatten(1).double() / 127.5 - 1
    torch.testing.assert_close(mean, rows.mean(0))
    torch.testing.assert_close(covariance, rows.T.cov(correction=0))


@pytest.mark.parametrize("name", ["8gaussians", "moons"])
def test_moments_of_a_distribution_are_those_of_65536_samples(name):
    data = load_data(DataConfig(name=name), 0)
    mean, covariance = measure_moments(data.target("moments"), data.count)
    rows = data.target("moments").at(range(65_536)).double()
    torch.testing.assert_close(mean, rows.mean(0))
    torch.testing.assert_close(covariance, rows.T.cov(correction=0))


def handed(config, **changes):
    return replace(config, nsf=replace(config.nsf, source="nsgf", **changes))


def test_lines_of_a_phase_start_at_as_many_points_as_configured(tiny, tiny_run):
    """After the NSGF steps of the run, computed once and repeated."""
    config = handed(tiny, starts=12)
    session = new_session(config, tiny_run)
    start, _ = new_phase("nsf", config).pairs(session, load_data(tiny.data, 0)).at(range(24))
    assert torch.equal(start[:12], start[12:])
    assert len(start.unique(dim=0)) == 12


def test_starts_that_do_not_fit_into_memory_are_refused(tiny, monkeypatch):
    monkeypatch.setattr("nsgf.phases.lines.available_bytes", lambda: 799)

    def plan(config, world=ALONE):
        return new_phase("nsf", config).plan(CPU, None, world)

    for processes, needed in ((1, "800 B"), (2, "1.6 KB")):
        with pytest.raises(UserError, match=rf"nsf\.starts = 100: need {needed}"):
            plan(handed(tiny, starts=100), World(0, processes))
    plan(handed(tiny, starts=None))
    plan(replace(tiny, nsf=replace(tiny.nsf, starts=100)))


def sampler(seed):
    return PointSampler(gaussian((1, 2, 2)), seed)


def pairs(**options):
    return LinePairs(sampler(0), sampler(1), CPU, **options)


def test_each_group_of_samples_is_paired_as_a_whole():
    start, end = pairs(group=32).at(range(64))
    assert torch.equal(start, sampler(0).at(range(64)))
    for first in (0, 32):
        part = range(first, first + 32)
        drawn = sampler(1).at(part)[optimal_pairs(sampler(0).at(part), sampler(1).at(part))]
        assert torch.equal(end[first : first + 32], drawn)


@pytest.mark.parametrize("group", [None, 16])
def test_pair_depends_only_on_its_position(group):
    """Whichever part of a group is asked for, and whatever was asked for before."""
    whole = pairs(group=group).at(range(64))
    other = pairs(group=group)
    for start, stop in ((50, 64), (0, 10), (10, 50)):
        for part, expected in zip(other.at(range(start, stop)), whole, strict=True):
            assert torch.equal(part, expected[start:stop])


@pytest.mark.parametrize("classes", [0, 3])
def test_threads_change_no_bit(classes):
    """Groups in advance are drawn by one thread, in order, and paired by several."""
    options = {"group": 24, "classes": classes}
    alone = pairs(**options)
    threaded = pairs(threads=3, **options)
    for first in [*range(0, 96, 8), 8, 40, 0]:  # also back
        part = range(first, first + 8)
        for expected, drawn in zip(alone.at(part), threaded.at(part), strict=True):
            assert torch.equal(expected, drawn)


def test_next_groups_are_paired_while_the_first_is_used(monkeypatch):
    """A caller that waits for the second group finds it paired, by another thread."""
    seen = {}
    second = threading.Event()

    def record(start, end):
        seen[len(seen)] = threading.current_thread()
        if len(seen) > 1:
            second.set()
        return torch.arange(len(start))

    monkeypatch.setattr("nsgf.phases.lines.optimal_pairs", record)
    pairs(group=16, threads=2).at(range(4))
    assert second.wait(timeout=20)
    assert threading.current_thread() not in seen.values()


def test_threads_need_spare_cores_and_free_memory(tiny, tmp_path, monkeypatch):
    session = new_session(tiny, RunFolder(tmp_path))
    monkeypatch.setattr("nsgf.phases.lines.spare_cores", lambda device, processes: 4)
    monkeypatch.setattr("nsgf.phases.lines.available_bytes", lambda: 10**9)
    assert pairing_threads(session, None) == 0
    assert pairing_threads(session, 512) == 4
    assert pairing_threads(session, 2048) == 1
    assert pairing_threads(session, 16384) == 0


def test_error_of_a_thread_reaches_the_caller():
    line = LinePairs(Constant(0.0), Constant(math.nan), CPU, group=8, threads=2)
    with pytest.raises(UserError, match="not finite"):
        line.at(range(8))


def test_group_is_paired_only_once_for_successive_batches(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "nsgf.phases.lines.optimal_pairs",
        lambda start, end: seen.append(len(start)) or torch.arange(len(start)),
    )
    visited = pairs(group=64)
    for first in range(0, 128, 16):
        visited.at(range(first, first + 16))
    assert seen == [64, 64]
