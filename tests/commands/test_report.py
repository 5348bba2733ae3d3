import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import pytest
import torch
from PIL import Image

import nsgf
from nsgf.cli import main
from nsgf.commands.preview import show_preview
from nsgf.commands.report import (
    Drawing,
    changed_from_recipe,
    measure_rows,
    phase_rows,
    report_run,
)
from nsgf.commands.sample import sample_run
from nsgf.commands.train import train
from nsgf.experiment import Experiment
from nsgf.plots.figures import draw_fields
from nsgf.run.checkpoint import load, previous_file, save
from nsgf.sampling.sampler import FlowSampler, NSGFSteps, StraightFlow
from nsgf.sinkhorn import build_flow
from nsgf.system.errors import UserError
from tests.conftest import STYLE, new_session, shipped
from tests.sinkhorn.reference import first_velocity


class Page(HTMLParser):
    """Where a page points to, and what it says."""

    def __init__(self, file):
        super().__init__()
        self.links: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(file.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_page_of_points_has_everything_in_it(small_run, tmp_path, capsys, monkeypatch):
    """Past mistake: Commands of a report were tried in one folder only, and a relative
    `data.root` was not found from there.
    """
    here = tmp_path / "my files"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ["report", "--run", str(small_run.path)]
    assert main([*words, "--out", "page.pdf"]) == 2
    assert "out = page.pdf: must end in .html" in capsys.readouterr().err
    assert main([*words, "--figures", "pdf", "--out", "page.html"]) == 0
    files = capsys.readouterr().out.splitlines()
    assert files[-1] == "page.html"  # where a terminal shows it
    assert files[0] == str(small_run.path / "report.html")
    assert Path(files[0]).read_bytes() == Path(files[-1]).read_bytes()
    page = Page(Path(files[-1]))
    assert page.open == []
    assert page.links
    assert all(link.startswith("data:image/") for link in page.links)
    names = {Path(file).name for file in files[:-1]}
    assert {"curves.png", "way.png", "field.png", "way.gif", "tau.png", "way.pdf"} <= names
    for stem in ("curves", "way", "field", "tau"):
        assert (small_run.path / "report" / f"{stem}.pdf").read_bytes().startswith(b"%PDF")
    assert "12 of 12" in page.text
    assert "cd ~/'my files'\n" in page.text
    assert f"train --run {os.path.relpath(small_run.path)} --resume" in page.text
    assert "nsf.iterations 12" in page.text
    assert "(NFE)8" in page.text


@pytest.mark.parametrize(
    ("command", "chosen"),
    [
        ("2d --peer.lr 1 --max-hours 1 --device cpu --dataset moons", "as in the recipe"),
        ("2d --seed 3 --lr 3e-3", "seed 3, nsgf.lr 0.003"),
        ("mnist/otcfm --sinkhorn.blur 1 --peer.sigma 0.2", "peer.sigma 0.2"),
    ],
)
def test_settings_that_differ_from_the_recipe_are_shown(command, chosen):
    config = shipped(*command.split())
    assert changed_from_recipe(config) == chosen
    if config.exp == "mnist":  # without files of this name
        text = changed_from_recipe(replace(config, exp="mine", method="own"))
        assert "peer.sigma 0.2" in text.split(", ")
        assert "model.unet.mult [1, 2, 2]" in text


def test_page_of_images_shows_the_nearest(digits_run, tmp_path):
    config, run = digits_run
    files = report_run(Experiment(replace(config, out_dir=str(tmp_path))), run)
    assert {"samples.png", "way.png", "nearest.png", "way.gif"} <= {
        Path(file).name for file in files
    }
    assert "smoke run" in Page(Path(files[0])).text
    assert Path(files[0]) == tmp_path / run.path.name / "report.html"
    assert not (run.path / "report").exists()


def test_what_files_say_is_no_html(small, small_run):
    """A batch of samples is no larger than ``sampling.batch_size``."""
    with (small_run.path / "log.txt").open("a") as log:
        log.write("too long ago\n" + 399 * "\n")
        log.write("nsgf: step 3 skipped, <script>alert(1)</script>\n")
    (small_run.path / "metrics.json").write_text(
        json.dumps({"exp": "<b>", "w2": 1.0, "nfe": 9.0, "updates": {"nsgf": "5 of 12"}})
    )
    few = replace(small, sampling=replace(small.sampling, batch_size=7))
    text = Path(report_run(Experiment(few), small_run)[0]).read_text()
    for words in ("7 samples, 8 network calls", "NFE 9", "nsgf 5 of 12", "&lt;script&gt;alert(1)"):
        assert words in text
    for words in ("<script>", "<b>", "too long ago"):  # of the log the last 400 lines
        assert words not in text


def test_measures_stand_beside_floors_and_what_is_reported():
    metrics = {"fid": 4.25, "w2": 2.0, "w2_floor": 1.5, "nearest_real": 3.0, "nfe": 60.0}
    metrics |= {"nearest_real_among_real": 2.5, "exp": "mnist", "w2_std": 0.25, "tau_std": 0.1}
    metrics |= {"imagenet_samples": 99, "guidance": 2.0, "imagenet_precision": 0.92}
    metrics |= {"imagenet_precision_floor": 0.9, "imagenet_precision_noise": 0.95}
    metrics |= {"kid": 0.5, "kid_floor": None, "kid_std": "x", "w2_standardised": None}
    assert measure_rows(shipped("mnist").data, metrics) == [
        ("FID ↓", "4.25", "", "3.8 at NFE 60"),
        ("W2 ↓", "2 ± 0.25", "1.5", ""),
        ("distance to nearest real image", "3", "2.5", ""),
        ("precision, ImageNet features ↑", "0.92", "0.9; pure noise: 0.95", ""),
        ("KID ↓", "0.5", "not known", ""),
    ]
    assert measure_rows(shipped("mnist", "--fake-data").data, metrics)[0][-1] == ""


def test_page_of_a_run_that_diverged_says_so(small, small_run):
    file = small_run.checkpoint_file("nsgf")
    payload = load(file)
    huge = {key: 1e30 * part for key, part in payload["ema"].items()}
    save(file, {**payload, "ema": huge})
    page = Page(Path(report_run(Experiment(small), small_run)[0]))
    assert "training has diverged" in page.text
    assert len(page.links) == 6  # loss and gradient of three phases


def test_phases_that_are_not_trained_yet_say_so(small, small_run):
    file = small_run.checkpoint_file("predictor")
    file.unlink()
    previous_file(file).unlink()
    rows = {name: columns for name, *columns in phase_rows(Experiment(small).phases(), small_run)}
    assert rows["time predictor (predictor)"][0] == "0 of 12"
    assert rows["gradient flow (nsgf)"][0] == "12 of 12"
    assert float(rows["gradient flow (nsgf)"][1]) > 0
    for file in small_run.path.glob("checkpoints/*"):
        file.unlink()
    with pytest.raises(UserError, match="nothing is trained yet"):
        phase_rows(Experiment(small).phases(), small_run)


def test_a_style_of_the_user_changes_no_picture(small, small_run):
    """Nor does a system without LaTeX."""
    session = new_session(small, small_run)
    experiment = Experiment(replace(small, train=replace(small.train, preview=True)))

    def pictures():
        for file in small_run.path.rglob("*.png"):
            file.unlink()
        show_preview(experiment, session, experiment.load_data(), experiment.phases()[0])
        sample_run(Experiment(small), small_run)
        report_run(Experiment(small), small_run)
        return {file: file.read_bytes() for file in small_run.path.rglob("*.png")}

    before = pictures()
    with matplotlib.rc_context(STYLE):
        assert pictures() == before
    assert {file.name for file in before} >= {"phase1_nsgf.png", "trajectory.png", "field.png"}


def test_fields_are_the_flow_s_and_the_network_s(tiny):
    """At the first step the flow's is the solver's; a network that answers its time tells it.
    Without steps of the flow there is no field."""
    experiment = Experiment(tiny)
    data = experiment.load_data()

    def velocity_fields(leg, network):
        sampler = FlowSampler([leg(network, tiny.sampling, tiny.flow)], experiment.target)
        return Drawing(experiment, data, sampler, None, None, "NSGF")._velocity_fields()

    def answer_time(x, t):
        return t[:, None].expand(-1, 2)

    fields = velocity_fields(NSGFSteps, answer_time)
    steps = tiny.flow.steps
    assert [title for title, *_ in fields] == [f"Step {k} of {steps}" for k in (1, 2, 3)]
    for (_, _, learned, _), time in zip(fields, (0, 1 / 3, 2 / 3), strict=True):
        torch.testing.assert_close(learned, torch.full_like(learned, time), atol=1e-5, rtol=0)
    target = data.target("report", "field").sample(tiny.sinkhorn.targets)
    _, x, _, velocity = fields[0]
    expected = first_velocity(build_flow(tiny.flow.kind, tiny.sinkhorn), x, target)
    torch.testing.assert_close(velocity, expected, rtol=1e-3, atol=1e-4)
    data.in_units = lambda x: 3 * x + 7
    _, *scaled = velocity_fields(NSGFSteps, answer_time)[0]
    wanted = (3 * x + 7, 3 * fields[0][2], 3 * velocity)
    for part, other in zip(scaled, wanted, strict=True):
        torch.testing.assert_close(part, other, rtol=1e-3, atol=1e-4)
    panel = draw_fields(fields, ("age", "width")).axes[0]
    assert (panel.get_xlabel(), panel.get_aspect()) == ("age", "auto")
    assert velocity_fields(StraightFlow, lambda x, t: x) == []


def test_page_of_an_unfinished_run_says_how_to_continue(small, small_run):
    experiment = Experiment(small)
    assert "not finished" not in Page(Path(report_run(experiment, small_run)[0])).text
    longer = experiment.change({"nsf.iterations": 30})
    text = Page(Path(report_run(longer, small_run)[0])).text
    place = os.path.relpath(small_run.path)
    words = f": nsf 12 of 30 updates; continue with: python -m nsgf train --run {place} --resume"
    assert words in " ".join(text.split())


def test_page_shows_the_samples_of_a_run_once(small, small_run):
    """The last phase has the samples of the run. Its picture is shown only if no others can be
    drawn."""
    small_run.samples.mkdir()
    for phase in small.phases:
        Image.new("RGB", (8, 8)).save(small_run.preview_file(phase))
    names = {Path(file).name for file in report_run(Experiment(small), small_run)}
    last = small_run.preview_file(small.phases[-1]).name
    first = small_run.preview_file(small.phases[0]).name
    assert ("way.png" in names, first in names, last in names) == (True, True, False)
    file = small_run.checkpoint_file("nsgf")
    payload = load(file)
    save(file, {**payload, "ema": {key: 1e30 * part for key, part in payload["ema"].items()}})
    names = {Path(file).name for file in report_run(Experiment(small), small_run)}
    assert ("way.png" in names, last in names) == (False, True)


def test_page_of_samples_from_memory_names_no_internal_file(tmp_path):
    run = nsgf.train(
        torch.randn(40, 2),
        source=torch.randn(40, 2),
        method="otcfm",
        iterations=2,
        device="cpu",
        out_dir=str(tmp_path),
    )
    assert main(["report", "--run", str(run.path)]) == 0
    file = run.path / "report.html"
    page = Page(file)
    assert f"OT-CFM on your data: {run.path.name}" in page.text
    for words in ("sourceyour data", "datapoints: your data", "methodOT-CFM"):
        assert words in "".join(page.text.split("\n"))
    assert not re.search(r"points-[0-9a-f]{12}", page.text)
    text = file.read_text("utf-8")  # wide tables scroll on a phone
    assert text.count("<table") == text.count('<div class="wide"><table')


def test_log_and_page_say_how_far_flows_end_from_the_data(tmp_path):
    flags = "--smoke --device=cpu --sinkhorn.batch_size=128 --pool.num_batches=2"
    config = shipped("2d/nsgf", *flags.split(), f"--out-dir={tmp_path}")
    experiment = Experiment(config)
    run = train(experiment)
    log = (run.path / "log.txt").read_text()
    (line,) = [line for line in log.splitlines() if "energy distance" in line]
    page = Page(Path(report_run(experiment, run)[0]))
    assert f"P{line.partition(' p')[2]}." in page.text
