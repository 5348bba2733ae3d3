"""From a command line to the settings that hold."""

import re
from dataclasses import asdict, replace

import pytest
import yaml

from nsgf.cli.arguments import parse
from nsgf.config.files import CONFIGS, EXPERIMENT_NAMES, METHOD_NAMES, from_arguments
from nsgf.config.layers import SETTINGS, change
from nsgf.config.schema import OF_PHASES, Config
from nsgf.run.folder import RunFolder, dump_config
from nsgf.system.errors import UserError
from tests.conftest import shipped

THREE = ("nsgf", "nsf", "predictor")


def value(config, key):
    return SETTINGS[key].get(config)


def of_phases(config, name, phases=OF_PHASES):
    return [getattr(getattr(config, phase), name) for phase in phases]


FLAGS = [
    ("--train-iters=5", 5, [f"{phase}.iterations" for phase in OF_PHASES]),
    ("--batch-size=6", 6, [f"{phase}.batch_size" for phase in OF_PHASES]),
    ("--lr=1e-2", 0.01, [f"{phase}.lr" for phase in OF_PHASES]),
    ("--steps=3", 3, ["flow.steps"]),
    ("--pool-batches=2", 2, ["pool.num_batches"]),
    ("--sinkhorn-batch=16", 16, ["sinkhorn.batch_size"]),
    ("--seed=4", 4, ["seed"]),
    ("--device=cpu", "cpu", ["device"]),
    ("--precision=bf16", "bf16", ["train.precision"]),
    ("--out-dir=/y", "/y", ["out_dir"]),
    ("--num-samples=3", 3, ["sampling.num_samples", "evaluation.num_samples"]),
    ("--tracker=tensorboard", "tensorboard", ["tracking.tracker"]),
    ("--nsf.source=nsgf", "nsgf", ["nsf.source"]),  # also the name of a section
]


@pytest.mark.parametrize(("flag", "expected", "keys"), FLAGS)
def test_flags_reach_every_setting_they_mean(flag, expected, keys):
    config = shipped("digits", *flag.split("="))
    assert [value(config, key) for key in keys] == [expected] * len(keys)
    assert config == shipped("digits", flag)


def test_flags_of_fewer_settings_win_wherever_they_stand():
    """Also over --optim.KEY, which wins over phases of the file."""
    for flags in (
        ("--train-iters=5", "--nsf.iterations=7"),
        ("--nsf.iterations=7", "--train-iters=5"),
    ):
        assert of_phases(shipped("digits", *flags), "iterations", THREE) == [5, 7, 5]
    config = shipped("cifar10", "--optim.lr=3e-3", "--nsf.lr=2e-3")
    assert of_phases(config, "lr") == [3e-3, 2e-3, 3e-3, 3e-3, 3e-3, 3e-3]
    config = shipped("digits/nsgf++", "--optim.iterations=7", "--smoke")
    assert of_phases(config, "iterations") == [7] * 6
    config = shipped("cifar10", "--lr=3e-3", "--optim.lr=1")
    assert of_phases(config, "lr") == [3e-3] * 6
    assert "optim" not in asdict(config)


def test_smaller_sinkhorn_batch_keeps_the_total_of_the_pool():
    request = parse(["train", "--exp", "cifar10", "--sinkhorn-batch", "96"])
    assert request.config.sinkhorn.batch_size == 96
    assert request.config.pool.num_batches == 3334  # 2,500 of 128 particles, rounded up
    assert "2500 -> 3334" in request.notes[0]
    assert shipped("cifar10", "--sinkhorn-batch=4", "--smoke").pool.num_batches == 2
    for flag in ("--pool-batches=5", "--pool.num_batches=5"):
        request = parse(["train", "--exp", "cifar10", "--sinkhorn-batch=32", flag])
        assert request.config.pool.num_batches == 5
        assert request.notes == []


def test_fewer_updates_than_the_recipe_have_a_smaller_pool(own_data, tmp_path):
    """Each pair is drawn as often, unless the pool would be tiny; the user's own number wins.

    Past mistake: A pool for 20,000 updates was built for 200, which took 42 s before the first
    update.
    """
    flows = {
        ("2d", "--train-iters=5000"): 25,  # of 100 for 20,000 updates
        ("2d", "--train-iters=40000"): 100,
        ("2d", "--train-iters=5000", "--sinkhorn-batch=512"): 50,
        ("2d", "--train-iters=5000", "--pool-batches=90"): 90,
        ("2d", "--train-iters=5000", "--method=otcfm"): 100,
        ("digits", "--nsgf.iterations=1"): 16,
        ("points", *own_data["points"], "--train-iters=10000"): 1280,  # of 102,400 / 40
    }
    for (exp, *flags), expected in flows.items():
        assert parse(["train", "--exp", exp, *flags]).config.pool.num_batches == expected, flags
    # the trained cells of a comparison are used again
    assert parse(["compare", "--exp=2d", "--train-iters=5000"]).config.pool.num_batches == 100
    (file := tmp_path / "own.yaml").write_text("exp: 2d\npool: {num_batches: 70}\n")
    config = parse(["train", f"--config={file}", "--phases=[nsgf]", "--train-iters=5"]).config
    assert config.pool.num_batches == 70


def test_smoke_is_small_and_explicit_flags_win(tmp_path):
    """Past mistake: A setting had an effect as a flag only: `smoke: true` in a file made a full
    training that was called smoke.
    """
    config = shipped("cifar10", "--smoke")
    assert of_phases(config, "iterations") == [5] * 6
    assert config.pool.num_batches == 2
    assert config.model == shipped("cifar10").model
    assert config.evaluation.features == "none"
    file = tmp_path / "x.yaml"
    file.write_text("exp: cifar10\nsmoke: true\n")
    config = parse(["train", f"--config={file}", "--train-iters=3"]).config
    assert (config.nsf.iterations, config.pool.num_batches) == (3, 2)
    file.write_text(dump_config(config))
    assert parse(["train", f"--config={file}"]).config == config


def test_resolved_configuration_reads_back(own_data, tmp_path):
    assert {*EXPERIMENT_NAMES} == {"2d", "cifar10", "digits", "mnist", *own_data}
    for name in EXPERIMENT_NAMES:
        config = shipped(name, "--sinkhorn.blur=0.123", *own_data.get(name, ()))
        assert config.exp == name
        file = tmp_path / f"{name}.yaml"
        file.write_text(dump_config(config))
        assert parse(["train", "--config", str(file)]).config == config


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_every_method_trains_on_every_shipped_set(method):
    content = yaml.safe_load((CONFIGS / "methods" / f"{method}.yaml").read_text())
    for exp in ("2d", "digits", "mnist", "cifar10"):
        config = shipped(exp, f"--method={method}")
        assert (config.method, config.phases) == (method, content["phases"])


def test_layers_win_in_their_order(tmp_path):
    """Defaults, method, experiment, its section for the method, flags.

    Past mistake: A file's section for a method was merged before `optim` reached its phases, and
    the method got another learning rate.
    """
    method = tmp_path / "mine.yaml"
    file = tmp_path / "set.yaml"
    method.write_text("phases: [nsgf]\nnsgf: {lr: 0.1}\nflow: {steps: 2, eta: 0.1}\n")
    file.write_text(
        f"exp: set\ndata: {{name: moons}}\nmethod: {method}\n"
        "flow: {eta: 0.2}\noptim: {batch_size: 7}\n"
        "methods: {mine: {optim: {clip_norm: 3.0, batch_size: 8}, sinkhorn: {blur: 0.3}}}\n"
    )
    config = parse(["train", "--config", str(file), "--sinkhorn.blur=0.4"]).config
    assert (config.exp, config.method, config.phases) == ("set", "mine", ["nsgf"])
    assert (config.flow.steps, config.flow.eta, config.sinkhorn.blur) == (2, 0.2, 0.4)
    assert (config.nsgf.lr, config.nsgf.batch_size, config.nsgf.clip_norm) == (0.1, 8, 3.0)
    assert config.nsf.lr == Config().nsf.lr
    other = parse(["train", "--config", str(file), "--method=nsgf++"]).config
    assert (other.method, other.nsgf.clip_norm, other.nsgf.batch_size) == ("nsgf++", 1.0, 7)
    file.write_text("exp: set\ndata: {name: moons}\nmethods: {own: {phases: [peer]}}\n")
    config = parse(["train", "--config", str(file), "--method=own"]).config
    assert (config.method, config.phases) == ("own", ["peer"])


def test_file_starts_from_the_shipped_experiment_that_it_names(tmp_path):
    """Its settings win over the sections of that experiment for methods and for phases.

    Past mistake: The name of an experiment in a file was only a label: `exp: mnist` trained on
    another set.
    """
    (file := tmp_path / "mine.yaml").write_text(
        "exp: digits\noptim: {lr: 3e-4}\nnsf: {iterations: 77}\n"
        "methods: {nsgf++: {predictor: {iterations: 88}}}\n"
    )
    for method in ("nsgf++h", "nsgf++"):
        config = parse(["train", "--config", str(file), f"--method={method}"]).config
        expected = shipped(f"digits/{method}", "--lr=3e-4", "--nsf.iterations=77")
        if method == "nsgf++":
            assert expected.predictor.iterations == 300
            expected = change(expected, {"predictor.iterations": 88})
        assert config == expected
    file.write_text("nsf: {iterations: 77}\n")
    config = parse(["train", "--exp=digits", f"--config={file}"]).config
    assert config == shipped("digits", "--nsf.iterations=77")


FILES = [  # settings of a file, flags, words of the message
    ("exp: mine", "", "data.name"),
    ("seed: 1", "", "--exp NAME"),
    ("exp: digits", "--exp=mnist", "exp = mnist"),
    ("exp: mine\ndata: {name: moons}", "--exp=2d", "exp = 2d"),
    ("exp: digits", "--resume --run=RUN", "exp = digits"),
    ("seed: 1", "--resume", "--exp NAME"),
]


@pytest.mark.parametrize(("content", "flags", "words"), FILES)
def test_file_that_names_no_data_or_another_experiment_is_refused(
    content, flags, words, tiny, tmp_path
):
    run = RunFolder.create(tiny)
    (file := tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(UserError, match=re.escape(words)):
        parse(["train", f"--config={file}", *flags.replace("RUN", str(run.path)).split()])


def test_run_with_a_phase_that_no_sample_uses_is_sampled_but_not_trained_further(tiny):
    run = RunFolder.create(replace(tiny, phases=["nsgf", "nsf"]))
    words = ["--run", str(run.path)]
    assert parse(["sample", *words]).config.phases == ["nsgf", "nsf"]
    with pytest.raises(UserError, match="phases"):
        parse(["train", *words, "--resume"])
    assert parse(["train", *words, "--resume", "--phases=[nsgf]"]).config.phases == ["nsgf"]


def test_method_and_experiment_of_a_run_cannot_change(tiny):
    run = RunFolder.create(replace(tiny, method="nsgf"))
    assert parse(["train", "--config", str(run.config_file)]).config.method == "nsgf"
    for flags in (["--config", str(run.config_file)], ["--run", str(run.path), "--resume"]):
        with pytest.raises(UserError, match=r"method ?= ?nsgf\+\+"):
            parse(["train", *flags, "--method", "nsgf++"])
    with pytest.raises(UserError, match="exp = mnist"):
        parse(["sample", "--run", str(run.path), "--exp", "mnist"])


WRONG = [  # command, flags, words of the message
    ("train", "--exp 2d --nsgf.learning=1", "--nsgf.learning: unknown flag"),
    ("train", "--exp 2d --trian-iters 5", "did you mean --train-iters?"),
    ("train", "--exp 2d --train 5", "--train is a section"),
    ("train", "--exp 2d --qqq", "--qqq: unknown flag; nsgf COMMAND --help"),
    ("train", "--exp 2d --schedule=cosine", "--optim.schedule or --flow.schedule?"),
    ("sample", "--exp 2d --resume", "--resume: unknown flag; it belongs to train"),
    ("train", "--exp 2d --nfe 10", "--nfe: unknown flag; it belongs to sample"),
    ("compare", "--exp 2d --nfe 10", "did you mean --compare.nfe?"),
    ("sample", "--model mnist", "did you mean --run or --pretrained?"),
    ("train", "--model mnist", "did you mean --exp or --method?"),
    ("sample", "--sampler heun", "did you mean --sampling.solver?"),
    ("train", "--exp moons", "for moons use --exp 2d and --dataset moons"),
    ("compare", "--dataset moons", "for moons use --exp 2d and --dataset moons"),
    ("train", "--exp 2d --data.path x.csv", "use --exp points or images"),
    ("train", "2d", "2d: must follow a flag"),
    ("train", "--exp 2d --phases nsgf nsf", "lists have commas"),
    ("train", "--exp images --data.path=faces.jpg", "a file"),
    ("train", "--exp 2d --lr 1 --lr=3", "--lr: given twice"),
    ("train", "--exp 2d --train-iters", "--train-iters: expected one argument"),
    (
        "train",
        "--exp 2d --flow.kind energy --sinkhorn.blur 1",
        "has no effect with flow.kind energy",
    ),
    ("train", "--exp nope", "exp = nope: must be one of 2d, "),
    ("train", "--exp 2d --method nsfg", "method = nsfg: must be one of 1rf, "),
    ("train", "--exp 2d --method nowhere.yaml", "nowhere.yaml: no such file"),
    ("train", "", "--exp NAME"),
    ("train", "--exp 2d --resume --resume-phase 2", "--resume-phase: not allowed"),
    ("train", '--exp 2d --data.found={"samples":3}', "--data.found: unknown flag"),
    ("sample", "", "--run DIR, or --exp NAME for its newest run, or --pretrained NAME"),
    ("sample", "--pretrained moons", "pretrained = moons: must be one of "),
    ("sample", "--run x --nfe 5 --steps 3", "--sampling.nsgf_steps: not allowed with --nfe"),
    ("sample", "--run x --nfe 5 --sampling.omega .1", "--sampling.omega: not allowed with --nfe"),
    ("evaluate", "--run nowhere", "nowhere: no run folder"),
    ("export", "--run x", "--to DIR"),
    ("export", "--run x --to y --model.mlp.width=3", "model.mlp.width: has no effect on export"),
    ("report", "--compare x --seed=3", "seed: has no effect on report --compare"),
    ("list", "--lr=3", "has no effect on list"),
    ("paint", "", "unknown command 'paint'"),
]


@pytest.mark.parametrize(("command", "flags", "words"), WRONG)
def test_wrong_command_lines_end_in_one_line(command, flags, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faces.jpg").touch()
    with pytest.raises(UserError) as caught:
        parse([command, *flags.split()])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


OTHERS = {  # flags of EDM, torchcfm and diffusers, ours, the same as a key; "": there is none
    "outdir": "--out-dir out_dir",
    "batch": "--batch-size optim.batch_size",
    "cond": "--data.conditional data.conditional",
    "xflip": "--data.flip data.flip",
    "warmup": "--optim.warmup_steps optim.warmup_steps",
    "integration_steps": "--sampling.straight_steps sampling.straight_steps",
    "gradient_accumulation_steps": "--accumulate train.accumulate",
    "learning_rate": "--lr optim.lr",
    "resolution": "--data.size data.size",
    "push_to_hub": "",
    # slips of the hand
    "batch_size": "--batch-size optim.batch_size or sinkhorn.batch_size or sampling.batch_size",
    "nsf.learning_rate": "--nsf.lr nsf.lr",
    "epochs": "--train-iters optim.iterations",
    "gpu": "--device device",
    "n_samples": "--num-samples sampling.num_samples",
}


@pytest.mark.parametrize("name", OTHERS)
def test_names_of_other_programs_lead_to_ours(name):
    """Also in Python and in files, where keys have no dashes.

    Past mistake: Suggestions followed the letters of a flag, and named flags of other commands.
    """
    ours, _, key = OTHERS[name].partition(" ")
    for call, words in (
        (lambda: parse(["train", "--exp", "2d", f"--{name}", "4"]), ours),
        (lambda: from_arguments({}, {name: 4}), key),
    ):
        with pytest.raises(UserError) as caught:
            call()
        hint = str(caught.value).partition("; ")[2]
        assert hint.partition("did you mean ")[2] == (f"{words}?" if ours else "")


def test_settings_of_a_run_are_the_base_of_later_commands(tiny):
    run = RunFolder.create(tiny)
    request = parse(["sample", "--run", str(run.path), "--num-samples=3", "--steps=7"])
    config = request.config
    assert (request.opened.path, config.model) == (run.path, tiny.model)
    assert config.sampling.num_samples == 3
    assert (config.flow.steps, config.sampling.nsgf_steps) == (tiny.flow.steps, 7)


def test_files_and_optim_flags_reach_the_phases_of_a_run(tiny, tmp_path):
    argv = ["train", "--run", str(RunFolder.create(tiny).path), "--resume"]
    config = parse([*argv, "--optim.lr=1", "--optim.iterations=9"]).config
    assert of_phases(config, "lr") == [1] * 6
    assert of_phases(config, "iterations") == [9] * 6
    file = tmp_path / "slow.yaml"
    file.write_text(
        "exp: 2d\noptim: {lr: 1e-5}\nnsf: {lr: 2e-5}\nmodel: {mlp: {width: 64}}\n"
        "tracking: {tracker: wandb-offline}\n"
    )
    config = parse([*argv, "--config", str(file)]).config
    assert of_phases(config, "lr") == [1e-5, 2e-5, 1e-5, 1e-5, 1e-5, 1e-5]
    assert (config.model.mlp.width, config.nsgf.batch_size) == (64, tiny.nsgf.batch_size)
    assert config.tracking.tracker == "wandb-offline"
    file.write_text("method: otcfm\nseed: 9\n")
    config = parse([*argv, "--config", str(file)]).config
    assert (config.method, config.seed) == (tiny.method, 9)


def test_settings_of_a_run_before_there_were_some_are_read(tiny):
    run = RunFolder.create(tiny)
    content = yaml.safe_load(run.config_file.read_text())
    del content["smoke"], content["method"], content["train"]["max_hours"]
    run.config_file.write_text(yaml.safe_dump(content))
    config = parse(["sample", "--run", str(run.path)]).config
    assert config == replace(tiny, method=Config().method)


def test_unknown_setting_of_a_run_names_its_file_and_version(tiny):
    run = RunFolder.create(tiny)
    text = run.config_file.read_text()
    run.config_file.write_text(text.replace("straight_steps", "crooked_steps"))
    (run.path / "versions.json").write_text('{"nsgf": "9.8.7"}')
    with pytest.raises(UserError, match=r"config\.yaml.*nsgf 9\.8\.7: sampling\.crooked_steps"):
        parse(["sample", "--run", str(run.path)])


def test_newest_run_of_a_method_is_found(tiny):
    first = RunFolder.create(replace(tiny, method="nsgf"))
    second = RunFolder.create(replace(tiny, method="nsgf++"))
    where = ["--exp", "2d", "--out-dir", tiny.out_dir]
    request = parse(["train", *where, "--resume"])
    assert (request.opened.path, request.notes) == (second.path, [f"run {second.path}"])
    for name in ("nsgf", "of/mine/nsgf.yaml"):
        assert parse(["train", *where, "--resume", "--method", name]).opened.path == first.path
    assert parse(["train", *where, "--resume-phase", "2"]).config.model == tiny.model
    assert parse(["train", *where]).run is None
    with pytest.raises(UserError, match=r"no run of 2d .*\(method nsgf\+\+\).*\(method nsgf\)"):
        parse(["sample", *where, "--method", "otcfm"])


def test_smoke_selects_a_run_and_changes_no_setting_of_it(tiny):
    """Past mistake: After `--smoke` the smoke run was the newest run, which `--resume` and
    `sample --exp` then took.
    """
    run = RunFolder.create(tiny)
    smoke = RunFolder.create(replace(tiny, smoke=True))
    where = ["--exp", "2d", "--out-dir", tiny.out_dir]
    assert parse(["train", *where, "--resume"]).opened.path == run.path
    assert parse(["train", *where, "--resume", "--smoke"]).opened.path == smoke.path
    with pytest.raises(UserError, match=r"^smoke: "):
        parse(["sample", "--run", str(run.path), "--smoke"])
    config = parse(["evaluate", "--run", str(smoke.path), "--smoke"]).config
    assert config == replace(tiny, smoke=True)


def test_a_run_that_is_trained_further_stays_where_it_is(tiny, tmp_path):
    run = RunFolder.create(tiny)
    argv = ["--run", str(run.path), "--out-dir"]
    with pytest.raises(UserError, match=r"^out_dir = .*elsewhere: "):
        parse(["train", *argv, str(tmp_path / "elsewhere"), "--resume"])
    assert parse(["train", *argv, tiny.out_dir, "--resume"]).opened.path == run.path
    config = parse(["sample", *argv, str(tmp_path / "elsewhere")]).config
    assert config.out_dir == str(tmp_path / "elsewhere")


def test_flags_about_files_are_refused_for_sets_that_read_none(tiny):
    with pytest.raises(UserError, match=r"^data\.download = false: "):
        shipped("digits", "--data.download=false")
    assert not shipped("cifar10", "--data.download=false").data.download
    data = replace(tiny.data, download=False)  # as a run outside of the folder has it
    run = RunFolder.create(replace(tiny, data=data))
    assert parse(["sample", "--run", str(run.path)]).config.data == data


@pytest.mark.parametrize("flag", ["--dataset=moons", "--data.name=moons"])
def test_a_data_set_takes_the_place_of_the_targets_of_a_comparison(flag):
    argv = ["compare", "--exp", "2d", flag]
    config = parse([*argv, "--methods=nsgf,otcfm"]).config
    assert (config.data.name, config.compare.targets) == ("moons", [])
    assert config.compare.methods == ["nsgf", "otcfm"]
    assert parse([*argv, "--compare.targets=[scurve]"]).config.compare.targets == ["scurve"]


def test_so_does_a_data_set_in_a_file(tmp_path):
    (file := tmp_path / "mine.yaml").write_text("exp: 2d\ndata: {name: moons}\n")
    argv = ["compare", "--config", str(file)]
    config = parse(argv).config
    assert (config.data.name, config.compare.targets) == ("moons", [])
    file.write_text("exp: 2d\ndata: {name: moons}\ncompare: {targets: [scurve]}\n")
    assert parse(argv).config.compare.targets == ["scurve"]
