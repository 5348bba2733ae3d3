"""The search of settings before a comparison."""

from statistics import mean

import pytest

import nsgf
from nsgf.cli import main
from nsgf.commands import compare as engine
from nsgf.commands.compare import comparison_plan
from nsgf.comparison import Row, read_rows
from nsgf.comparison.tuning import choices_of, ranking
from nsgf.config.layers import change
from nsgf.system.errors import UserError
from tests.commands.test_report import Page
from tests.comparison.table_rows import in_folder
from tests.conftest import compared

TUNE_FLAG = "--compare.tune=lr=1e-9,1e-2 flow.steps=2,3 sampling.spacing=1,2"
FLAGS = (
    *("--smoke", "--compare.targets=[moons]", "--device=cpu", "--compare.nfe=[2]"),
    *("--num-samples=256", "--evaluation.w2_samples=256", "--model.mlp.width=32"),
    *("--train-iters=40", "--batch-size=64", "--compare.draws=2"),
)


def searched(out_dir, *flags):
    given = {flag.partition("=")[0]: flag for flag in (*FLAGS, TUNE_FLAG, *flags)}
    return in_folder(compared("2d", *given.values()), out_dir)


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch):
    monkeypatch.setattr(engine, "save_pictures", lambda *_: [])


GRID = "--compare.tune=lr=1e-3,3e-3 peer.sigma=0,0.1 sinkhorn.blur=0.1,0.2,0.3 flow.steps=2,3"


@pytest.mark.parametrize(
    ("method", "names", "count"),
    [
        ("nsgf++h", {"lr", "sinkhorn.blur", "flow.steps"}, 12),
        ("affine", {"lr"}, 2),  # with harmonic steps
        ("otcfm+", {"lr", "peer.sigma"}, 4),
        ("onecall", {"lr"}, 2),
    ],
)
def test_a_method_tries_the_settings_that_it_uses(method, names, count):
    found = choices_of(compared("2d", f"--methods={method}", GRID).methods[method])
    assert len({one.title for one in found}) == len(found) == count
    for one in found:
        assert {text.split()[0] for text in one.title.split(", ")} == names


@pytest.mark.parametrize(
    ("flags", "useless"),
    [
        ("--methods=nsgf", "sinkhorn.scaling=0.5,0.8"),
        ("--methods=nsgf --flow.kind=energy", "sinkhorn.blur=0.1,0.2"),
        ("--methods=nsgf --flow.schedule=harmonic", "flow.eta=0.2,0.5"),
        ("--methods=nsgf++", "nsf.coupling_batch=4,8"),
        ("--methods=affine", "nsf.starts=64,128"),
        ("--methods=icfm", "peer.coupling_batch=4,8"),
        ("--methods=1rf", "peer.sigma=0,0.1"),
        ("--methods=nsgf++h --sampling.solver=dopri5", "sampling.spacing=1,2"),
    ],
)
def test_settings_that_change_nothing_are_not_tried(flags, useless):
    """Past mistake: The search asked whether a section is used, not whether a setting has an
    effect. Equal trainings counted as a search.
    """
    config = compared("2d", *flags.split(), f"--compare.tune=lr=1e-3,3e-3 {useless}")
    assert [one.title for one in choices_of(config.methods[flags.split()[0][10:]])] == [
        "lr 0.001",
        "lr 0.003",
    ]


def test_a_setting_is_tried_where_another_one_gives_it_an_effect():
    """Past mistake: The search decided from a method's defaults whether a setting has an effect,
    so `flow.eta` was never tried beside `flow.schedule constant`.
    """
    grid = "--compare.tune=flow.eta=0.2,0.5 flow.schedule=harmonic,constant"
    found = choices_of(compared("2d", "--methods=nsgf", grid).methods["nsgf"])
    assert [one.title for one in found] == [
        "flow.schedule harmonic",
        "flow.eta 0.2, flow.schedule constant",
        "flow.eta 0.5, flow.schedule constant",
    ]


def test_a_method_cannot_bring_its_own_search(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("phases: [nsgf]\ncompare: {tune: {lr: [1.0e-4, 1.0e-3]}}\n")
    with pytest.raises(UserError, match=r"^compare\.tune = "):
        compared("2d", f"--methods=nsgf,{file}")


def test_a_choice_reaches_all_networks_of_the_method():
    grid = "--compare.tune=nsgf.lr=0.1,0.2 lr=0.5,0.6 sampling.spacing=2,3"
    config = compared("2d", "--methods=nsgf++", grid).methods["nsgf++"]
    choice, *others = choices_of(config)
    assert len(others) == 7
    assert choice.title == "lr 0.5, nsgf.lr 0.1, sampling.spacing 2.0"
    assert choice.trained == "lr 0.5, nsgf.lr 0.1"
    own = change(config, choice.settings)
    assert [getattr(own, phase).lr for phase in own.phases] == [0.1, 0.5, 0.5]
    assert own.sampling.spacing == 2
    assert own.peer.lr == config.peer.lr


@pytest.mark.parametrize(
    ("tune", "key"),
    [
        ("peer.sigmas=0,1", r"peer\.sigmas"),
        ("data.name=moons,scurve", r"compare\.tune = data\.name"),
        ("nsgf.iterations=5,10", r"compare\.tune = nsgf\.iterations"),
        ("lr", r"compare\.tune = lr"),
        ("lr=", r"compare\.tune = lr"),
        ("lr=1e-3", r"compare\.tune = lr"),
        ("lr=1e-3,0.001", r"compare\.tune = lr"),
        ("batch_size=8,16", r"compare\.tune = batch_size"),
        ("peer.method=icfm,otcfm", r"compare\.tune = peer\.method"),
        ("sampling.guidance=1,2", r"compare\.tune = sampling\.guidance"),
        ("peer.sigma=0,0.1", r"compare\.tune = peer\.sigma"),
        ("lr=fast", r"compare\.tune\.lr"),
        ("lr=1e-3,3e-3 lr=1e-2,1e-1", r"compare\.tune"),
        ("pool.storage=memory,disk", r"compare\.tune = pool\.storage"),
        ("lr=-1,1e-3", r"nsgf\.lr"),
    ],
)
def test_wrong_settings_to_search_are_refused_before_any_work(tmp_path, tune, key):
    """Past mistake: A script for ablations trained for half an hour before it reported a missing
    package, and took `--seed 7` for `--seeds 7`.
    """
    with pytest.raises(UserError, match=key):
        comparison_plan(searched(tmp_path, "--compare.methods=[nsgf]", f"--compare.tune={tune}"))


def test_a_useless_rate_is_not_chosen(tmp_path, monkeypatch):
    """Neither seed nor draw of the search is in a table, what is finished is not done again."""
    methods = "--compare.methods=[nsgf,otcfm,1rf]"
    own = searched(tmp_path, methods)
    said = []
    engine.compare(own, log=said.append)
    # 4 of NSGF, 2 rates and 2 spacings of the others
    assert "trials: 3 and 12 of the search, measured: 0" in said[1]
    tried = read_rows(own.folder / "search.csv")
    assert len(tried) == 12 * 2  # two draws
    assert {(row.seed, row.nfe) for row in tried} == {(1000, 2)}
    means = {
        row.method: mean(each.values["1000 energy"] for each in tried if each.method == row.method)
        for row in tried
    }
    chosen = {method: texts[0] for (_, method), texts in ranking(tried).items()}
    assert chosen.keys() == {"nsgf", "otcfm", "1rf"}
    for method, text in chosen.items():
        assert "lr 0.01" in text
        own_means = [means[label] for label in means if label.startswith(f"{method}:")]
        assert means[f"{method}: {text}"] == min(own_means)
    trained = {trial.method: trial.experiment.config for trial in own.trials_of(own.methods)}
    assert {config.peer.lr for config in trained.values()} == {1e-3}  # before the search
    folders = {path.name for path in own.folder.glob("moons/*-seed*")}
    assert len(folders) == 3 + 4 + 2 + 2  # spacings share a training
    assert {name.rpartition("seed")[2] for name in folders} == {"0", "1000"}
    assert nsgf.load(own.folder / "moons/otcfm-seed0").config.peer.lr == 1e-2
    rows = read_rows(own.folder / "table.csv")
    assert {row.seed for row in rows} == {0}
    for name in ("table.md", "table.tex"):
        text = (own.folder / name).read_text()
        assert "lr 0.01, flow.steps" in text
        assert text.count("(best of 4)") == 3
    assert main(["report", "--compare", str(own.folder)]) == 0
    assert Page(own.folder / "report.html").text.count("(best of 4)") == 3

    monkeypatch.setattr(engine, "train", None)
    monkeypatch.setattr(engine, "generate", None)
    before = (own.folder / "search.csv").read_text()
    said.clear()
    engine.compare(searched(tmp_path, methods), log=said.append)
    assert "measured: 15" in said[1]
    assert (own.folder / "search.csv").read_text() == before


def test_calls_of_the_search(tmp_path):
    """As many as a method can make; a method that no table has is not searched.

    Past mistake: A setting was removed that runs already had in their files, so these runs could
    not be opened.
    """
    methods = "--compare.methods=[nsgf++,onecall,nsgf]"
    own = searched(tmp_path, methods, "--compare.nfe=[1,2,4]", "--compare.tune_nfe=8")
    calls = {trial.method: trial.nfe for trial in own.tuning_trials}
    assert calls == {"nsgf++": [8], "onecall": [1], "nsgf": [8]}
    few = searched(tmp_path, methods, "--compare.tune_nfe=1")
    assert {trial.method for trial in few.tuning_trials} == {"nsgf"}


def test_settings_that_diverge_lose(tmp_path):
    """A search must not end by what it is meant to find; a method that is not searched is checked
    before it begins.

    Past mistake: A search ended at a blur or an eta with which flows fail. Only the error of
    updates that are not finite was caught.
    """
    flags = ("--compare.methods=[nsgf,onecall,icfm]", "--flow.schedule=constant")
    tune = "--compare.tune=flow.eta=1e5,0.2 generator.blurs=[[1e-5],[0.2]]"
    own = searched(tmp_path, *flags, tune, "--train-iters=3", "--compare.nfe=[1,2]")
    engine.compare(own, log=lambda _: None)
    ranked = ranking(read_rows(own.folder / "search.csv"))
    assert [texts[0] for texts in ranked.values()] == ["flow.eta 0.2", "generator.blurs [0.2]"]
    tune = "--compare.tune=peer.lr=1e-3,1e-2"
    with pytest.raises(UserError, match=r"pool\.num_batches"):
        comparison_plan(searched(tmp_path / "x", *flags, tune, "--pool-batches=900000000"))


def test_points_are_selected_by_the_energy_distance():
    """W2 of a finite sample is mostly chance.

    Past mistake: The search selected by W2 of 2,048 points and took a learning rate that was
    worse by the measure of the claim.
    """
    measures = {"a": {"w2": 1.0, "1000 energy": 3.0}, "b": {"w2": 2.0, "1000 energy": 1.0}}
    rows = [
        Row("moons", f"nsgf: {name}", 7, 0, 2, 2.0, 5, 1.0, 1.0, own)
        for name, own in measures.items()
    ]
    assert ranking(rows) == {("moons", "nsgf"): ["b", "a"]}
    images = [row._replace(values={"imagenet_frechet": row.values["w2"]}) for row in rows]
    assert ranking(images) == {("moons", "nsgf"): ["a", "b"]}


def test_own_methods_are_not_searched_and_the_table_says_so(tmp_path):
    flags = dict(flag[2:].split("=", 1) for flag in FLAGS if "=" in flag and "num-" not in flag)
    del flags["train-iters"], flags["batch-size"]
    flags |= {"smoke": True, "compare.tune": {"lr": [1e-9, 1e-3]}, "evaluation.num_samples": 32}
    how = {"against": ["icfm"], "out_dir": tmp_path, "overrides": flags, "quiet": True}
    found = nsgf.compare("2d", methods={"mine": lambda noise, _: noise}, **how)
    assert "| mine | not searched |" in found.table
    assert "| I-CFM | lr 0.001 (best of 2) |" in found.table
