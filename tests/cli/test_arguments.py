import dataclasses
from dataclasses import asdict, replace

import pytest
import yaml

from nsgf.cli import main
from nsgf.cli.arguments import parse
from nsgf.cli.flags import COMMANDS, SHORT_FLAGS
from nsgf.config.files import config_folder, methods
from nsgf.config.leaves import leaves
from nsgf.config.schema import OF_PHASES, Config, OptimConfig, Settings
from nsgf.run.folder import RunFolder, dump_config
from nsgf.system.errors import UserError
from tests.conftest import shipped


def value(config: Config, key: str):
    return {name: found for name, found, _ in leaves(config)}[key]


def test_order_is_defaults_then_yaml_then_flags(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("exp: mine\nnsgf:\n  lr: 5e-4\n  batch_size: 7\n")
    config = parse(["train", "--config", str(file), "--nsgf.batch_size=9"]).config
    assert config.exp == "mine"
    assert config.nsgf.lr == 5e-4
    assert config.nsgf.batch_size == 9
    assert config.nsf.lr == Config().nsf.lr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_one_line_for_each_leaf_and_short_flag(command, capsys):
    assert main([command, "--exp", "2d", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 225
    assert max(map(len, lines)) <= 100
    flags = [line.split()[0] for line in lines if line.startswith("  --")]
    for key, _, _ in leaves(Settings()):
        section, _, name = key.rpartition(".")
        inherits = section in OF_PHASES and name in asdict(OptimConfig())
        if not inherits:
            assert flags.count(f"--{key}") == 1, key
    assert "nsgf, nsf, predictor, peer, reflow, generator" in "\n".join(lines)
    for flag in (*SHORT_FLAGS, "--smoke", "--fake-data"):
        assert flag in flags[:32]
    assert lines[-3:] != [""] * 3


def test_every_leaf_is_documented():
    import ast
    import inspect

    from nsgf.config import schema as config

    for node in ast.parse(inspect.getsource(config)).body:
        if isinstance(node, ast.ClassDef):
            assert ast.get_docstring(node)
            for this, following in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(this, ast.AnnAssign) and "Config" not in ast.dump(this.annotation):
                    assert isinstance(following, ast.Expr), ast.dump(this.target)


FAN_OUT = [
    ("--train-iters", "5", 5, ("nsgf.iterations", "nsf.iterations", "predictor.iterations")),
    ("--batch-size", "6", 6, ("nsgf.batch_size", "nsf.batch_size", "predictor.batch_size")),
    ("--lr", "1e-2", 0.01, ("nsgf.lr", "nsf.lr", "predictor.lr")),
    ("--steps", "3", 3, ("flow.steps",)),
    ("--pool-batches", "2", 2, ("pool.num_batches",)),
    ("--sinkhorn-batch", "16", 16, ("sinkhorn.batch_size",)),
    ("--seed", "4", 4, ("seed",)),
    ("--device", "cpu", "cpu", ("device",)),
    ("--precision", "bf16", "bf16", ("train.precision",)),
    ("--out-dir", "/y", "/y", ("out_dir",)),
    ("--num-samples", "3", 3, ("sampling.num_samples", "evaluation.num_samples")),
    ("--tracker", "tensorboard", "tensorboard", ("tracking.tracker",)),
]


@pytest.mark.parametrize(("flag", "text", "expected", "keys"), FAN_OUT)
@pytest.mark.parametrize("join", [True, False])
def test_short_flags_reach_every_leaf_they_mean(flag, text, expected, keys, join):
    config = shipped("digits", *([f"{flag}={text}"] if join else [flag, text]))
    for key in keys:
        assert value(config, key) == expected


def test_no_leaf_of_that_name_is_forgotten():
    """A new phase or a new copy of a setting must join the short flag."""
    for flag, name in (
        ("--train-iters", "iterations"),
        ("--batch-size", "batch_size"),
        ("--lr", "lr"),
    ):
        keys = {
            key
            for key, _, _ in leaves(Config())
            if key.endswith("." + name) and key.split(".")[0] in OF_PHASES
        }
        assert set(SHORT_FLAGS[flag]) == keys
        assert len(keys) == 6


def test_later_flags_win_over_short_ones():
    config = shipped("digits", "--train-iters=5", "--nsf.iterations=7")
    assert [getattr(config, p).iterations for p in ("nsgf", "nsf", "predictor")] == [5, 7, 5]


def test_a_flag_of_one_leaf_wins_wherever_it_stands():
    config = shipped("digits", "--nsf.iterations=7", "--train-iters=5")
    assert [getattr(config, p).iterations for p in ("nsgf", "nsf", "predictor")] == [5, 7, 5]


RESOLVED = [  # experiment, key, value: worth what it was when every phase had a block of its own
    ("2d", "reflow.schedule", "cosine"),
    ("2d", "peer.iterations", 20_000),
    ("digits", "peer.iterations", 1800),
    ("digits", "predictor.ema_decay", 0.995),
    ("mnist", "reflow.iterations", 200_000),
    ("cifar10", "nsf.warmup_steps", 5000),
    ("cifar10", "predictor.warmup_steps", 0),
    ("cifar10", "predictor.lr", 1e-4),
    ("cifar10", "peer.ema_decay", 0.9999),
    ("cifar10", "reflow.iterations", 80_000),
]


@pytest.mark.parametrize(("exp", "key", "expected"), RESOLVED)
def test_phases_inherit_what_they_do_not_set(exp, key, expected):
    assert value(shipped(exp), key) == expected


def test_optim_as_a_flag_lies_above_what_the_file_says_of_a_phase_and_below_other_flags():
    config = shipped("cifar10", "--optim.lr=3e-3", "--nsf.lr=2e-3")
    assert [getattr(config, p).lr for p in OF_PHASES] == [3e-3, 2e-3, 3e-3, 3e-3, 3e-3, 3e-3]
    config = shipped("digits", "--optim.iterations=7", "--smoke")
    assert [getattr(config, p).iterations for p in OF_PHASES] == [7] * 6
    config = shipped("digits/nsgf++", "--optim.iterations=7")
    assert [getattr(config, p).iterations for p in OF_PHASES] == [7] * 6
    config = shipped("cifar10", "--lr=3e-3", "--optim.lr=1")
    assert [getattr(config, p).lr for p in OF_PHASES] == [3e-3] * 6
    assert "optim" not in asdict(config)


def test_smaller_sinkhorn_batch_keeps_the_pools_total_and_says_so():
    request = parse(["train", "--exp", "cifar10", "--sinkhorn-batch", "32"])
    assert request.config.sinkhorn.batch_size == 32
    assert request.config.pool.num_batches == 10_000
    assert "2500 -> 10000" in request.notes[0]


def test_both_given_are_both_taken():
    request = parse(["train", "--exp", "cifar10", "--sinkhorn-batch=32", "--pool-batches=5"])
    assert (request.config.sinkhorn.batch_size, request.config.pool.num_batches) == (32, 5)
    assert request.notes == ()
    request = parse(["train", "--exp", "cifar10", "--sinkhorn-batch=32", "--pool.num_batches=5"])
    assert request.config.pool.num_batches == 5


def test_smoke_is_small_and_explicit_flags_win():
    config = shipped("cifar10", "--smoke")
    assert config.nsf.iterations == config.predictor.iterations == config.nsgf.iterations == 5
    assert config.pool.num_batches == 2
    assert config.model == shipped("cifar10").model
    assert not config.evaluation.inception
    assert not config.evaluation.classifier
    assert shipped("cifar10", "--train-iters", "3", "--smoke").nsf.iterations == 3


def test_fake_data_and_dataset():
    assert shipped("mnist", "--fake-data").data.fake
    assert shipped("2d", "--dataset", "moons").data.name == "moons"


def test_resolved_configuration_reads_back(config_names, own_data, tmp_path):
    for name in config_names:
        config = shipped(name, "--sinkhorn.blur=0.123", *own_data.get(name, ()))
        file = tmp_path / f"{name}.yaml"
        file.write_text(dump_config(config))
        assert parse(["train", "--config", str(file)]).config == config


def test_shipped_files_hold_only_known_differences(config_names):
    """A value is written down because it differs, or because its source is worth naming."""
    for name in config_names:
        given = yaml.safe_load((config_folder() / f"{name}.yaml").read_text())
        assert given["exp"] == name
        assert given["method"] in methods()
        known = {field.name for field in dataclasses.fields(Settings)} | {"methods"}
        assert set(given) <= known


@pytest.mark.parametrize("method", methods())
@pytest.mark.parametrize("exp", ["2d", "digits", "mnist", "cifar10"])
def test_every_method_trains_on_every_shipped_set(exp, method):
    config = shipped(exp, f"--method={method}")
    assert config.method == method
    assert (
        config.phases
        == yaml.safe_load((config_folder() / "methods" / f"{method}.yaml").read_text())["phases"]
    )


def test_layers_win_in_their_order(tmp_path):
    """Defaults, method, experiment, its section for the method, flags."""
    method, file = tmp_path / "mine.yaml", tmp_path / "set.yaml"
    method.write_text("phases: [nsgf]\nnsgf: {lr: 0.1}\nflow: {steps: 2, eta: 0.1}\n")
    file.write_text(
        f"exp: set\nmethod: {method}\nflow: {{eta: 0.2}}\noptim: {{batch_size: 7}}\n"
        "methods: {mine: {optim: {clip_norm: 3.0}, sinkhorn: {blur: 0.3}}}\n"
    )
    config = parse(["train", "--config", str(file), "--sinkhorn.blur=0.4"]).config
    assert (config.method, config.phases) == ("mine", ["nsgf"])
    assert (config.flow.steps, config.flow.eta, config.sinkhorn.blur) == (2, 0.2, 0.4)
    assert (config.nsgf.lr, config.nsgf.batch_size, config.nsgf.clip_norm) == (0.1, 7, 3.0)
    other = parse(["train", "--config", str(file), "--method=nsgf++"]).config
    assert (other.method, other.nsgf.clip_norm, other.nsgf.batch_size) == ("nsgf++", 1.0, 7)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("exp: a\nmethods: 3\n", "methods"),
        ("exp: a\nmethods: {nsgf: 3}\n", r"methods\.nsgf"),
        ("exp: a\nmethods: {nsgf: {nsfg: {lr: 1}}}\n", r"methods\.nsgf\.nsfg"),
    ],
)
def test_wrong_sections_of_methods_are_refused(tmp_path, text, key):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(UserError, match=key):
        parse(["train", "--config", str(tmp_path / "a.yaml")])


def test_method_of_a_complete_configuration_cannot_change(tiny):
    run = RunFolder.create(replace(tiny, method="nsgf"))
    assert parse(["train", "--config", str(run.config_file)]).config.method == "nsgf"
    for flags in (["--config", str(run.config_file)], ["--run", str(run.path), "--resume"]):
        with pytest.raises(UserError, match=r"method ?= ?nsgf\+\+"):
            parse(["train", *flags, "--method", "nsgf++"])


def test_newest_run_of_a_method_is_found(tiny):
    first = RunFolder.create(replace(tiny, method="nsgf"))
    second = RunFolder.create(replace(tiny, method="nsgf++"))
    argv = ["sample", "--exp", "2d", "--out-dir", tiny.out_dir]
    assert parse(argv).run == second.path
    assert parse([*argv, "--method", "nsgf"]).run == first.path
    with pytest.raises(UserError, match="otcfm"):
        parse([*argv, "--method", "otcfm"])


WRONG = [
    (["train", "--exp", "2d", "--nsgf.learning=1"], "learning"),
    (["train", "--exp", "2d", "--trian-iters", "5"], "did you mean --train-iters?"),
    (["train", "--exp", "2d", "--nsf.leraning=1"], "--nsf.leraning: unknown flag; did you mean"),
    (["train", "--exp", "2d", "--train", "5"], "train is a section"),
    (["train", "--exp", "2d", "--qqq"], "--qqq: unknown flag; nsgf train --help lists them"),
    (["sample", "--exp", "2d", "--resume"], "--resume: no flag of nsgf sample, but of nsgf train"),
    (["compare", "--exp", "2d", "--run=x"], "--run: no flag of nsgf compare, but of commands that"),
    (["train", "--exp", "2d", "--resum"], "--resum: unknown flag; did you mean --resume?"),
    (["train", "--exp", "2d", "--runs=x"], "--runs: unknown flag; did you mean --run?"),
    (["train", "--exp", "2d", "--gpu=0"], "--gpu: unknown flag; nsgf train --help lists them"),
    (["train", "--exp", "2d", "--tau=0"], "--tau: unknown flag; did you mean --sampling.tau?"),
    (
        ["train", "--exp", "2d", "--schedule=cosine"],
        "did you mean --flow.schedule or --optim.schedule?",
    ),
    (["train", "--exp", "2d", "moons"], "moons: must follow a flag"),
    (["train", "2d"], "2d: must follow a flag, as in --exp 2d"),
    (["sample", "--exp", "2d", "--nfe=5"], "--nfe: unknown flag; say --sampling.nsgf_steps"),
    (["list", "--outdir=x"], "--outdir: unknown flag; did you mean --out-dir?"),
    (["train", "--exp", "2d", "--lr", "1", "--seed=2", "--lr=3"], "--lr: given twice"),
    (["train", "--exp", "2d", "--smoke", "--smoke"], "--smoke: given twice"),
    (["train", "--exp", "2d", "--phases+=nsf"], "--phases+: unknown flag; did you mean --phases?"),
    (["train", "--exp", "2d", "--lr=null"], "lr = None: must be a number"),
    (["train", "--exp", "2d", "--smoke=3"], "smoke = 3: must be true or false"),
    (["train", "--exp", "2d", "--optim.lr", "-1"], "nsgf.lr = -1.0: must be > 0"),
    (["train", "--exp", "2d", "--train-iters", "five"], "train-iters = five: must be an integer"),
    (["train", "--exp", "2d", "--train-iters", "5.5"], "train-iters = 5.5: must be"),
    (["train", "--exp", "2d", "--train-iters"], "--train-iters: expected one argument"),
    (["train", "--exp", "2d", "--data.flip", "maybe"], "data.flip"),
    (["train", "--exp", "2d", "--sinkhorn.solver", "magic"], "must be one of batched, geomloss"),
    (
        ["train", "--exp", "2d", "--pool.build_batch", "x"],
        "pool.build_batch = x: must be an integer or auto",
    ),
    (
        ["train", "--exp", "2d", "--sampling.omega", "x"],
        "sampling.omega = x: must be a number or null",
    ),
    (
        ["train", "--exp", "nope"],
        "exp = nope: must be one of 2d, cifar10, digits, images, mnist, points",
    ),
    (["train", "--exp", "digits-paper"], "--exp digits --method nsgf++"),
    (["train", "--exp", "2d-onecall"], "--exp 2d --method onecall+"),
    (["train", "--exp", "2d", "--method", "nsfg"], "did you mean nsgf?"),
    (["train", "--exp", "2d", "--method", "nowhere.yaml"], "nowhere.yaml: no such file"),
    (["train"], "--exp NAME"),
    (["train", "--config", "nowhere.yaml"], "nowhere.yaml: no such file"),
    (
        ["train", "--exp", "2d", "--resume", "--resume-phase", "2"],
        "--resume-phase: not allowed with argument --resume",
    ),
    (["train", "--exp", "2d", "--resume-phase", "4"], "--resume-phase: invalid choice: 4"),
    (["sample"], "--run DIR"),
    (["evaluate", "--run", "nowhere"], "nowhere: no run folder"),
    (["paint"], "unknown command 'paint'"),
]


@pytest.mark.parametrize(("argv", "words"), WRONG)
def test_wrong_command_lines_end_in_one_line(argv, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        parse(argv)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nsgf:\n  learning_rate: 1\n", "nsgf.learning_rate: unknown key"),
        ("model:\n  unet: 3\n", "model.unet = 3: must be a section"),
        ("model:\n  mlp: [1]\n", "model.mlp = [1]: must be a section"),
        ("model:\n  unet:\n", "model.unet = None: must be a section"),
        ("print_config: true\n", "print_config: unknown key"),
        ("seed: 1\n", "must name its experiment"),
        ("speed: 3\n", "speed"),
        ("exp: x\nnsgf:\n  lr: fast\n", "nsgf.lr = fast: must be a number"),
        ("exp: x\nseed: 1.5\n", "seed = 1.5: must be an integer"),
        ("nsgf: 3\n", "nsgf = 3: must be a section; set its keys, as in nsgf.KEY"),
        ("just text\n", "must hold keys and values"),
        ("", "must hold keys and values"),
        ("nsgf: [1\n", "config"),
    ],
)
def test_wrong_yaml_ends_in_one_line(text, words, tmp_path):
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        parse(["train", "--config", str(file)])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_run_settings_are_the_base_of_later_commands(tiny):
    run = RunFolder.create(tiny)
    request = parse(["sample", "--run", str(run.path), "--num-samples", "3"])
    assert request.run == run.path
    assert request.config.model == tiny.model
    assert request.config.sampling.num_samples == 3


def test_steps_of_a_trained_run_are_sampling_steps(tiny):
    run = RunFolder.create(tiny)
    for command in ("sample", "evaluate"):
        config = parse([command, "--run", str(run.path), "--steps", "7"]).config
        assert config.flow.steps == tiny.flow.steps
        assert config.sampling.nsgf_steps == 7


def test_a_file_given_on_resume_is_laid_over_the_runs_settings(tiny, tmp_path):
    run = RunFolder.create(tiny)
    file = tmp_path / "wide.yaml"
    file.write_text("exp: 2d\nmodel:\n  mlp:\n    width: 64\n")
    argv = ["train", "--run", str(run.path), "--resume", "--config", str(file)]
    config = parse(argv).config
    assert config.model.mlp.width == 64
    assert config.nsgf.batch_size == tiny.nsgf.batch_size


def test_optim_reaches_the_phases_of_a_run(tiny, tmp_path):
    run = RunFolder.create(tiny)
    argv = ["train", "--run", str(run.path), "--resume"]
    config = parse([*argv, "--optim.lr=1", "--optim.iterations=9"]).config
    assert [getattr(config, p).lr for p in OF_PHASES] == [1] * 6
    assert [getattr(config, p).iterations for p in OF_PHASES] == [9] * 6
    file = tmp_path / "slow.yaml"
    file.write_text("exp: 2d\noptim: {lr: 1e-5}\nnsf: {lr: 2e-5}\n")
    config = parse([*argv, "--config", str(file)]).config
    assert [getattr(config, p).lr for p in OF_PHASES] == [1e-5, 2e-5, 1e-5, 1e-5, 1e-5, 1e-5]


def test_settings_of_a_run_before_there_were_some_leaves_are_read(tiny):
    run = RunFolder.create(tiny)
    content = yaml.safe_load(run.config_file.read_text())
    del content["smoke"], content["train"]["max_hours"]
    run.config_file.write_text(yaml.safe_dump(content))
    config = parse(["sample", "--run", str(run.path)]).config
    assert config == tiny


def test_the_newest_run_is_no_smoke_run_unless_asked_for(tiny):
    run = RunFolder.create(tiny)
    smoke = RunFolder.create(dataclasses.replace(tiny, smoke=True))
    assert smoke.path.name.startswith("2d-smoke-")
    argv = ["--exp", "2d", "--out-dir", tiny.out_dir]
    assert parse(["sample", *argv]).run == run.path
    assert parse(["train", *argv, "--resume"]).run == run.path
    assert parse(["train", *argv, "--resume", "--smoke"]).run == smoke.path
    request = parse(["sample", "--run", str(smoke.path)])
    assert (request.run, request.config.smoke) == (smoke.path, True)
    run.config_file.unlink()
    with pytest.raises(UserError, match="no run of 2d in"):
        parse(["sample", *argv])


def test_smoke_selects_a_run_and_changes_no_setting_of_it(tiny):
    run = RunFolder.create(tiny)
    smoke = RunFolder.create(dataclasses.replace(tiny, smoke=True))
    for command in ("train", "sample", "evaluate"):
        with pytest.raises(UserError, match=r"^--smoke: .* is no smoke run; leave it out"):
            parse([command, "--run", str(run.path), "--smoke"])
        config = parse([command, "--run", str(smoke.path), "--smoke"]).config
        assert config == dataclasses.replace(tiny, smoke=True)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("pool: {num_batches: null}", ["--sinkhorn-batch", "32"]),
        ("sinkhorn: {batch_size: null}", ["--sinkhorn-batch", "32"]),
        ("out_dir: null", ["--resume"]),
        ("data: {root: null}", []),
    ],
)
def test_a_key_without_a_value_is_refused_wherever_it_is_needed_first(section, words, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(f"exp: mine\n{section}\n")
    with pytest.raises(UserError, match=r"= null: must have a value$"):
        parse(["train", "--config", str(file), *words])


def test_a_run_that_is_trained_further_stays_where_it_is(tiny, tmp_path):
    run = RunFolder.create(tiny)
    argv = ["--run", str(run.path), "--out-dir"]
    with pytest.raises(UserError, match=r"^out_dir = .*elsewhere: the run stays where it is"):
        parse(["train", *argv, str(tmp_path / "elsewhere"), "--resume"])
    assert parse(["train", *argv, tiny.out_dir, "--resume"]).run == run.path
    config = parse(["sample", *argv, str(tmp_path / "elsewhere")]).config
    assert config.out_dir == str(tmp_path / "elsewhere")


def test_flags_about_files_are_refused_for_sets_that_read_none(tiny):
    flag = "--data.download=false"
    for exp in ("2d", "digits"):
        with pytest.raises(UserError, match=r"^--data\.download: "):
            shipped(exp, flag)
    assert shipped("cifar10", flag) != shipped("cifar10")
    data = dataclasses.replace(tiny.data, download=False)  # as a run outside of the folder has it
    run = RunFolder.create(dataclasses.replace(tiny, data=data))
    assert parse(["sample", "--run", str(run.path)]).config.data == data


@pytest.mark.parametrize("flag", ["--dataset=moons", "--data.name=moons"])
def test_a_data_set_takes_the_place_of_the_targets_of_a_comparison(flag):
    compare = ["compare", "--exp", "2d"]
    config = parse([*compare, flag, "--data.source=8gaussians"]).config
    assert (config.data.name, config.data.source) == ("moons", "8gaussians")
    assert config.compare.targets == []
    config = parse([*compare, flag]).config
    assert (config.data.name, config.compare.targets) == ("moons", [])
    assert parse([*compare, flag, "--compare.targets=[scurve]"]).config.compare.targets == [
        "scurve"
    ]


def test_run_of_another_experiment_is_refused(tiny):
    run = RunFolder.create(tiny)
    with pytest.raises(UserError, match="exp = mnist"):
        parse(["sample", "--run", str(run.path), "--exp", "mnist"])


def test_resume_finds_the_newest_run_of_the_experiment(tiny):
    RunFolder.create(tiny)
    newest = RunFolder.create(tiny)
    argv = ["train", "--exp", "2d", "--out-dir", tiny.out_dir]
    assert parse([*argv, "--resume"]).run == newest.path
    assert parse([*argv, "--resume-phase", "2"]).config.model == tiny.model
    assert parse(argv).run is None


def test_version_and_overview(capsys):
    for argv in (["--version"], ["--help"], []):
        assert main(argv) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)


def test_value_that_is_the_name_of_a_section_is_a_value():
    """--nsf.source nsgf: the word after a flag is none."""
    config = parse(["train", "--exp", "digits", "--nsf.source", "nsgf"]).config
    assert config.nsf.source == "nsgf"
