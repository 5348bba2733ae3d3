from dataclasses import replace

import pytest

from nsgf.config.files import read_layer
from nsgf.config.layers import change, find_contradictions, nest, saved_values, values
from nsgf.config.schema import DataFacts
from nsgf.phases import PHASES
from nsgf.phases.base import FREE_IN_SAMPLING
from tests.conftest import shipped

FROZEN = PHASES["nsgf"].follows
FACTS = DataFacts(40, [1, 8, 8], "x")


RESUMED = [  # flags, arguments of the comparison with a checkpoint of digits, begin of the text
    ("--data.root=x --sampling.straight_steps=3 --train.log_every=7 --nsf.lr=1", {}, ""),
    ("--nsgf.iterations=9 --pool-batches=200 --out-dir=x --device=cpu --pool.storage=disk", {}, ""),
    ("--pool.build_batch=3 --model.checkpoint_activations=true", {}, ""),
    ("--nsgf.lr=1e-5", {"running": None}, ""),
    ("--nsgf.lr=1e-5", {}, "nsgf.lr: the checkpoint has 0.001, this command 1e-05"),
    ("--seed=1 --pool-batches=3", {"frozen": {*FROZEN} - FREE_IN_SAMPLING, "running": None}, ""),
    ("--flow.eta=0.1", {"frozen": {*FROZEN} - FREE_IN_SAMPLING}, "flow.eta"),
    ("--seed=1", {}, "seed"),
]


@pytest.mark.parametrize(("flags", "how", "text"), RESUMED)
def test_settings_that_change_earlier_results_must_agree(flags, how, text):
    exp = "mnist" if "data.root" in flags else "digits"
    now = shipped(exp, *flags.split())
    saved = nest(values(shipped(exp)))
    found = find_contradictions(saved, now, **{"frozen": FROZEN, "running": "nsgf", **how})
    assert len(found) == bool(text)
    assert "".join(found).startswith(text)


def test_facts_must_agree_and_missing_settings_count_as_defaults():
    saved = nest(saved_values(shipped("digits")))
    del saved["sinkhorn"]["target_batch"], saved["model"]
    assert find_contradictions(saved, shipped("digits"), ["sinkhorn"]) == []
    now = shipped("digits", "--sinkhorn.target_batch=9", "--model.unet.channels=64")
    now = change(now, {"data.found": FACTS, "model.network": "Mine"})
    frozen = ["sinkhorn", "model.unet.channels", "data", "model.network"]
    assert find_contradictions(saved, now, frozen) == [
        f"data.found: the checkpoint has {{}}, this command {FACTS.plain()}",
        "sinkhorn.target_batch: the checkpoint has None, this command 9",
        "model.unet.channels: the checkpoint has 32, this command 64",
        "model.network: the checkpoint has None, this command Mine",
    ]


def test_a_source_of_an_earlier_version_may_lack_facts():
    facts = replace(FACTS, source=FACTS)
    config = change(shipped("digits"), {"data.found": facts})
    earlier = facts.plain()
    del earlier["label_name"], earlier["source"]["label_name"]
    saved = nest({**saved_values(config), "data.found": earlier})
    assert find_contradictions(saved, config, FROZEN) == []
    earlier["source"]["checksum"] = "y"
    assert len(find_contradictions(saved, config, FROZEN)) == 1


@pytest.mark.parametrize(
    ("facts", "agrees"),
    [
        ({"samples": 40, "shape": [1, 8, 8], "checksum": "x"}, True),  # of an earlier version
        (FACTS.plain(), True),
        ({**FACTS.plain(), "checksum": "y"}, False),
        ({**FACTS.plain(), "colour": None}, False),
        ({"samples": 40}, False),
        ({}, False),
        (None, False),
        ([40], False),
        ("x", False),
    ],
)
def test_facts_of_a_checkpoint_must_be_those_of_the_run_whatever_a_file_has(facts, agrees):
    config = change(shipped("digits"), {"data.found": FACTS})
    saved = nest({**saved_values(config), "data.found": facts})
    texts = find_contradictions(saved, config, FROZEN)
    assert [text.partition(":")[0] for text in texts] == ([] if agrees else ["data.found"])


@pytest.mark.parametrize(
    ("flags", "is_refused"),
    [
        ("--dataset=8gaussians", True),
        ("--dataset=moons", True),
        ("--dataset=checkerboard --data.source=8gaussians", True),
        ("--dataset=checkerboard", False),
    ],
)
def test_checkpoints_of_sets_whose_distribution_has_changed_are_refused(flags, is_refused):
    config = shipped("2d", *flags.split())
    saved = nest(values(config))
    assert find_contradictions(saved, config, FROZEN) == []
    del saved["data"]["edition"]  # as in earlier versions
    assert bool(find_contradictions(saved, config, FROZEN)) is is_refused


@pytest.mark.parametrize(("earlier", "kind"), [("batched", "sinkhorn"), ("geomloss", "geomloss")])
def test_kind_of_flow_of_earlier_versions_is_read(earlier, kind):
    """From files, and from checkpoints that are resumed or sampled."""
    saved = nest(values(shipped("digits")))
    saved["sinkhorn"]["solver"] = earlier
    del saved["flow"]["kind"]
    assert read_layer(saved)["flow.kind"] == kind
    assert find_contradictions(saved, shipped("digits", f"--flow.kind={kind}"), ["flow"]) == []
    other = "geomloss" if kind == "sinkhorn" else "sinkhorn"
    assert find_contradictions(saved, shipped("digits", f"--flow.kind={other}"), ["flow"])
