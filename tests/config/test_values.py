from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nsgf.cli.arguments import parse
from nsgf.config.files import from_arguments, read_recipe
from nsgf.config.layers import KEYS
from nsgf.config.values import dump_yaml, load_yaml, read_value, to_plain
from nsgf.system.errors import UserError

TEXTS = [key for key, item in KEYS.items() if item.kind in (str | None, str | int | None)]
GOOD = [
    ("seed", "5", 5),
    ("nsgf.lr", "5", 5.0),
    *(("nsgf.lr", text, 1e-4) for text in ("1e-4", "1E-4", "1.0e-4", "+1e-4", "1_0e-5")),
    ("sampling.omega", "null", None),
    ("data.flip", "true", True),
    ("data.flip", "No", False),
    ("train.precision", "auto", "auto"),
    ("pool.build_batch", "7", 7),
    ("model.unet.mult", "[1, 2]", [1, 2]),
    ("model.unet.mult", "1, 2", [1, 2]),
    ("model.unet.mult", "3", [3]),
    ("model.unet.attention", "[]", []),
    ("compare.methods", "nsgf++h,2rf", ["nsgf++h", "2rf"]),
    ("data.root", "5", "5"),
    ("data.root", "[1", "[1"),
    *((key, text, text) for key in TEXTS for text in ("null", "~", "NULL")),
    *((key, None, None) for key in TEXTS),
    ("sampling.label", "3", "3"),
]
BAD = [
    *(("seed", "5.0"), ("seed", "true"), ("data.flip", "1"), ("nsgf.lr", "x"), ("nsgf.lr", "true")),
    *(("model.unet.mult", "[1, x]"), ("model.unet.mult", "[null]"), ("model.unet.mult", "1,x")),
    *(("seed", "!!timestamp x"), ("nsgf.lr", "1" + "0" * 400)),
    *(("seed", "null"), ("pool.dtype", "b"), ("seed", ""), ("nsgf.lr", ".inf")),
]


@pytest.mark.parametrize(("key", "text", "value"), GOOD)
def test_text_is_converted_to_the_type_of_its_setting(key, text, value):
    """Past mistake: Words of YAML were read inside texts from Python and from flags, and a class
    named null could not be drawn.
    """
    assert repr(read_value(key, KEYS[key].kind, text)) == repr(value)


@pytest.mark.parametrize(("key", "text"), BAD)
def test_text_of_a_wrong_type_is_refused(key, text):
    with pytest.raises(UserError, match=rf"^{key} = .*: must be "):
        read_value(key, KEYS[key].kind, text)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Path("a/b"), "a/b"),
        (np.float64(0.5), 0.5),
        (np.str_("a"), "a"),
        (torch.tensor(3), 3),
        (np.array([1, 2]), [1, 2]),
        (range(2, 4), [2, 3]),
        ((np.int64(2), Path("a.yaml")), [2, "a.yaml"]),
        (iter([1, 2]), [1, 2]),
        ({"nsgf": {"lr": np.float32(0.5)}}, {"nsgf": {"lr": 0.5}}),
        ("text", "text"),
        (None, None),
    ],
)
def test_arguments_of_python_become_plain_values(value, plain):
    assert repr(to_plain(value)) == repr(plain)


NO_NUMBERS = ("010", "08", "0x10", "0b11", "1__0", "1_", "1:30", "11:30:00", "²", "٣")


@pytest.mark.parametrize(
    "key", ["seed", "train.max_hours", "nsf.starts", "compare.nfe", "sinkhorn.blur"]
)
@pytest.mark.parametrize("text", NO_NUMBERS)
def test_one_rule_for_numbers_in_flags_files_and_python(key, text, tmp_path):
    is_list = key == "compare.nfe"
    file = tmp_path / "c.yaml"
    shown = f"[{text}]" if is_list else text
    file.write_text(f"exp: a\n{key.replace('.', ': {')}: {shown}{'}' * key.count('.')}")
    reads = [
        lambda: parse(["train", "--exp=2d", f"--{key}={shown}"]),
        lambda: read_recipe(file),
        lambda: from_arguments({key: [text] if is_list else text}),
    ]
    for read in reads:
        with pytest.raises(UserError, match=r"invalid literal|could not convert|must be"):
            read()


PLAIN_LOOKING = (
    "08 1e5 2401e1 1_0 5. .5 -.inf ~ null no true 0x1f 1:30 2026-01-01 # *a !!str é = <<"
)


@given(st.text("0123456789eE+-._ox:~nulTtrue", max_size=8) | st.sampled_from(PLAIN_LOOKING.split()))
def test_dumped_text_loads_as_the_same_text(text):
    content = {"text": text, "list": [text, 1e-5, 3, None, True]}
    assert load_yaml(dump_yaml(content)) == content
    assert yaml.safe_load(dump_yaml(content)) == content
