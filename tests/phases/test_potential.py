import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nsgf.data import Data, ImageSampler, data_size
from nsgf.experiment import train
from nsgf.phases import get_phase
from nsgf.phases.potential import learned_potential, potential_file, potential_plan
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.run.log import Tracker
from nsgf.run.session import Session
from nsgf.run.stop import Stopped, StopRequest
from nsgf.sinkhorn.semidiscrete import BATCH, Semidiscrete
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from nsgf.system.hardware import format_bytes
from nsgf.training.memory import LiveBytes
from nsgf.training.prefetch import draws_ahead
from tests.conftest import shipped

CPU = torch.device("cpu")


@pytest.fixture
def config(tmp_path):
    """A peer on 512 random images of 8x8, with potentials of one pass."""
    return shipped(
        "digits/nsgf++",
        "--fake-data",
        "--phases=[peer]",
        "--peer.method=otcfm",
        "--peer.coupling=semidiscrete",
        "--semidiscrete.passes=3",
        "--train-iters=2",
        "--batch-size=4",
        "--train.preview=false",
        "--device=cpu",
        f"--out-dir={tmp_path / 'runs'}",
    )


@pytest.fixture
def session(config, tmp_path) -> Session:
    run = RunFolder.prepare(tmp_path / "run")
    return Session(config, run, Tracker(run.path), CPU)


def data(config) -> Data:
    return Data(config.data, config.seed)


def forget(session) -> None:
    """Remove the potentials, and those of the file before."""
    for file in session.run.path.glob("checkpoints/semidiscrete*"):
        file.unlink()


def log(session) -> str:
    return (session.run.path / "log.txt").read_text()


def test_potentials_are_learned_once_and_kept(session, monkeypatch):
    first = learned_potential(session, data(session.config))
    assert first.step == first.steps == 6
    assert "semidiscrete: error of a point's mass" in log(session)
    monkeypatch.setattr(Semidiscrete, "climb", None)
    again = learned_potential(session, data(session.config))
    assert torch.equal(again.average, first.average)
    assert "6 of 6 steps are in" in log(session)


def test_interrupted_ascent_ends_at_the_same_potentials(session, monkeypatch):
    whole = learned_potential(session, data(session.config))
    forget(session)
    climb, now = Semidiscrete.climb, 0.0
    stopping = replace(session, stop=StopRequest(max_hours=1, clock=lambda: now))

    def climb_and_ask(self, wins, gap):
        nonlocal now
        climb(self, wins, gap)
        now = 3600.0 * (self.step == 4)

    monkeypatch.setattr(Semidiscrete, "climb", climb_and_ask)
    with pytest.raises(Stopped, match="semidiscrete: 4 of 6 steps kept"):
        learned_potential(stopping, data(session.config))
    assert checkpoint.load(potential_file(session.run))["step"] == 4
    monkeypatch.setattr(Semidiscrete, "climb", climb)
    resumed = learned_potential(session, data(session.config))
    assert torch.equal(resumed.average, whole.average)
    assert torch.equal(resumed.potential, whole.potential)


class Meeting:
    """Threads that share numbers as processes do."""

    def __init__(self, size: int) -> None:
        self._size, self._said = size, {}
        self._barrier = threading.Barrier(size, timeout=60)

    def world(self, rank: int):
        plain = World(rank, self._size)
        return SimpleNamespace(
            size=self._size,
            is_main=plain.is_main,
            share=plain.share,
            wait=self._barrier.wait,
            any=lambda flag: flag,
            agree=lambda value: self._all(rank, value)[0],
            mean=lambda value: torch.stack(self._all(rank, value)).sum(0) / self._size,
        )

    def _all(self, rank: int, value) -> list:
        self._said[rank] = value
        self._barrier.wait()
        said = [self._said[rank] for rank in range(self._size)]
        self._barrier.wait()
        return said


@pytest.mark.parametrize("size", [2, 41])  # float32 has 41 * (1 / 41) < 1
def test_processes_learn_what_one_does(session, monkeypatch, size):
    """Also where their cards round the first gap differently."""
    alone = learned_potential(session, data(session.config))
    forget(session)
    meeting, mine, gap = Meeting(size), threading.local(), Semidiscrete.gap
    monkeypatch.setattr(Semidiscrete, "gap", lambda *args: gap(*args) * (1 + mine.rank / 10**4))

    def learn(rank: int) -> Semidiscrete:
        mine.rank = rank
        own = replace(session, world=meeting.world(rank))
        return learned_potential(own, data(session.config))

    with ThreadPoolExecutor(size) as threads:
        both = list(threads.map(learn, range(size)))
    for dual in both:
        assert torch.equal(dual.average, alone.average)
    words = [line for line in log(session).splitlines() if "error of a point's mass" in line]
    assert len({word.partition("semidiscrete")[2] for word in words}) == 1


def test_potentials_of_other_settings_are_learned_anew(session):
    one = learned_potential(session, data(session.config))
    other = replace(session, config=replace(session.config, seed=5))
    two = learned_potential(other, data(other.config))
    assert not torch.equal(one.average, two.average)
    assert "learned anew" in log(session)


def test_potentials_of_a_version_without_a_setting_are_its_own(session, monkeypatch):
    learned_potential(session, data(session.config))
    file = potential_file(session.run)
    payload = checkpoint.load(file)
    known = {key: value for key, value in payload["config"].items() if "found" not in key}
    assert known != payload["config"]
    checkpoint.save(file, {**payload, "config": known})
    monkeypatch.setattr(Semidiscrete, "climb", None)
    learned_potential(session, data(session.config))
    assert "learned anew" not in log(session)


def test_potentials_follow_the_weights_of_the_steps_that_starts_come_from(config, monkeypatch):
    """A phase 1 that is trained again, to other weights, must not meet the old potentials."""
    monkeypatch.setattr("nsgf.phases.potential.CHECK_PASSES", 1)
    config = replace(
        config,
        flow=replace(config.flow, steps=1),
        semidiscrete=replace(config.semidiscrete, passes=1),
    )
    flags = replace(config, phases=["nsgf", "nsf"], pool=replace(config.pool, num_batches=2))
    nsf = replace(flags.nsf, source="nsgf", coupling="semidiscrete")
    flags = replace(flags, nsf=nsf, sinkhorn=replace(flags.sinkhorn, batch_size=8))
    run = train(flags)
    file = run.path / "checkpoints" / "semidiscrete.pt"
    before = checkpoint.load(file)
    longer = replace(flags, nsgf=replace(flags.nsgf, iterations=4))
    train(longer, run, first="nsgf")
    after = checkpoint.load(file)
    assert before["config"]["steps"] == after["config"]["steps"] == flags.flow.steps
    assert before["config"]["weights"] != after["config"]["weights"]
    assert not torch.equal(before["model"]["g"], after["model"]["g"])


def test_lines_end_at_the_partners_of_their_starts(config, session):
    task = get_phase("peer").task(session, data(config))
    start, end, *_ = task.draw(range(3, 9))
    assert torch.equal(start, data(config).source("peer").at(range(3, 9)))
    dual = learned_potential(session, data(config))
    assert torch.equal(end, dual.partners(start))
    everything = data(config).everything(CPU)
    assert all((everything == image).flatten(1).all(1).any() for image in end)


def test_lines_of_both_phases_share_the_potentials(config):
    nsf = replace(config.nsf, coupling="semidiscrete")
    run = train(replace(config, nsf=nsf, phases=["nsgf", "nsf", "predictor"]))
    assert (run.path / "log.txt").read_text().count("error of a point's mass") == 1


def test_damaged_potentials_are_refused(session):
    learned_potential(session, data(session.config))
    file = potential_file(session.run)
    payload = checkpoint.load(file)
    checkpoint.save(file, {**payload, "model": {"g": torch.zeros(3)}})
    with pytest.raises(UserError, match="does not fit the data; remove it"):
        learned_potential(session, data(session.config))


def test_plan_tells_what_is_learned_and_what_it_takes(session):
    config = session.config
    text = potential_plan("peer.coupling", config, CPU)
    assert text.startswith("semidiscrete: potentials of 512 samples in 6 steps of 256, ")
    points, costs = 512 * 64, 512 * 2 * BATCH
    assert text.endswith(f", {format_bytes(4 * (points + costs))} on the device")


def test_memory_is_what_the_plan_says(session):
    """The images, and the costs of a step with what their choice takes."""
    images, whole = data(session.config), []
    images.everything = lambda device: torch.rand(8192, 1, 8, 8)
    with LiveBytes() as live:
        whole.append(learned_potential(session, images))
    planned = 4 * 8192 * (64 + 2 * BATCH)
    assert 0.5 * planned < live.peak < 1.1 * planned


def test_data_that_do_not_fit_are_refused(config, monkeypatch):
    monkeypatch.setattr("nsgf.phases.potential.available_bytes", lambda: 1000)
    with pytest.raises(UserError, match=r"^peer\.coupling = semidiscrete: 512 samples .*groups"):
        potential_plan("peer.coupling", config, CPU)


@pytest.mark.parametrize("name", ["digits", "mnist", "cifar10"])
def test_samples_are_counted_without_loading_them(name):
    config = shipped(name).data
    assert data_size(config) == {"digits": 1797, "mnist": 60_000, "cifar10": 100_000}[name]
    fake = replace(config, fake=True)
    assert data_size(fake) == len(Data(fake, 0).everything(CPU))


def test_everything_has_the_mirrored_images_too():
    both = Data(replace(shipped("digits").data, flip=True), 0).everything(CPU)
    assert len(both) == 2 * 1797
    assert torch.equal(both[1797:], both[:1797].flip(-1))
    assert (float(both.min()), float(both.max())) == (-1, 1)


def test_steps_of_a_pass_cover_all_points(session):
    dual = learned_potential(session, data(session.config))
    assert dual.steps * BATCH == 3 * 512


def test_potentials_are_checked_once_even_when_stopped_before(session, monkeypatch):
    learned_potential(session, data(session.config))
    file = potential_file(session.run)
    checkpoint.save(file, {**checkpoint.load(file), "checked": False})
    learned_potential(session, data(session.config))
    assert log(session).count("error of a point's mass") == 2
    assert checkpoint.load(file)["checked"] is True


def test_second_interrupt_leaves_what_was_saved(session, monkeypatch):
    """In the middle of a step potentials and step do not agree."""

    def interrupted(self, wins, gap):
        self.potential += 1
        raise KeyboardInterrupt

    monkeypatch.setattr(Semidiscrete, "climb", interrupted)
    with pytest.raises(KeyboardInterrupt):
        learned_potential(session, data(session.config))
    assert not potential_file(session.run).exists()


def test_potentials_are_kept_now_and_then(session, monkeypatch):
    train = replace(session.config.train, checkpoint_minutes=1e-9)
    saved = []
    save = checkpoint.save
    monkeypatch.setattr(
        "nsgf.phases.potential.checkpoint.save",
        lambda file, payload: (saved.append(payload["step"]), save(file, payload)),
    )
    session = replace(session, config=replace(session.config, train=train))
    learned_potential(session, data(session.config))
    assert saved[:6] == [1, 2, 3, 4, 5, 6]


def test_starts_that_are_not_finite_are_refused(session):
    broken = data(session.config)
    broken.source = lambda name: ImageSampler(broken.images, 0)
    broken.images = broken.images.float() * torch.nan
    with pytest.raises(UserError, match="semidiscrete: starts or images are not finite"):
        learned_potential(session, broken)


def test_lines_with_partners_are_never_drawn_beside_an_update(config, session):
    task = get_phase("peer").task(session, data(config))
    prefetching = replace(config, train=replace(config.train, prefetch=True))
    assert not draws_ahead(prefetching, task, CPU)
    task.draws_between = False
    assert draws_ahead(prefetching, task, CPU)


def test_partners_are_counted_in_learning_and_in_training(config):
    (part,) = get_phase("peer").preparations(config, CPU)
    assert part.exact
    assert part.units == 6 + 8 + 2 * 4 / BATCH
    assert part.unit().shape == (BATCH, 1, 8, 8)


def test_all_data_are_held_once():
    """What comes and goes while they are prepared is small beside them."""
    flipped = Data(replace(shipped("mnist").data, fake=True, flip=True), 0)
    flipped.images = flipped.images.repeat(40, 1, 1, 1)
    with LiveBytes() as live:
        points = flipped.everything(CPU)
        Semidiscrete(points, 1)
    assert points.nbytes == 2 * 40 * 512 * 784 * 4
    assert live.peak < 1.4 * points.nbytes
