import pytest

from nsgf.cli.arguments import parse
from nsgf.config.files import nest_keys, parse_settings, read_settings
from nsgf.config.parser import settings_parser
from nsgf.system.errors import UserError

GOOD = [
    ("seed", "5", 5),
    ("nsgf.lr", "5", 5.0),
    *(("nsgf.lr", text, 1e-4) for text in ("1e-4", "1E-4", "1.0e-4", "+1e-4", "1_0e-5")),
    ("sampling.omega", "null", None),
    ("data.flip", "true", True),
    ("train.precision", "auto", "auto"),
    ("pool.build_batch", "7", 7),
    ("model.unet.mult", "[1, 2]", [1, 2]),
    ("model.unet.attention", "[]", []),
    ("data.root", "5", "5"),
    ("data.root", "[1", "[1"),
    ("data.path", "null", None),
]
BAD = [
    *(("seed", "5.0"), ("seed", "true"), ("data.flip", "1"), ("nsgf.lr", "x"), ("nsgf.lr", "true")),
    *(("model.unet.mult", "[1, x]"), ("model.unet.mult", "[null]"), ("model.unet.mult", "3")),
    *(("seed", "!!timestamp x"), ("seed", "9" * 5000), ("nsgf.lr", "1" + "0" * 400)),
    *(("seed", "{a: 1}"), ("seed", "null"), ("pool.dtype", "b"), ("seed", "")),
]


@pytest.mark.parametrize(("key", "text", "value"), GOOD)
def test_flag_value_is_converted_to_the_type_of_its_setting(key, text, value):
    found = settings_parser().parse_flags([f"--{key}={text}"])
    assert repr(found) == repr(nest_keys({key: value}))


NO_NUMBERS = ("010", "08", "0x10", "0b11", "1__0", "1_", "1:30", "11:30:00", "!!int 1:30", "²", "٣")


@pytest.mark.parametrize(
    "key", ["seed", "train.max_hours", "nsf.starts", "compare.nfe", "sinkhorn.blur"]
)
@pytest.mark.parametrize("text", NO_NUMBERS)
def test_one_rule_for_numbers_in_flags_files_and_python(key, text, tmp_path):
    is_list = key == "compare.nfe"
    file, shown = tmp_path / "c.yaml", f"[{text}]" if is_list else text
    file.write_text(f"exp: a\n{key.replace('.', ': {')}: {shown}{'}' * key.count('.')}")
    reads = [
        lambda: settings_parser().parse_flags([f"--{key}={shown}"]),
        lambda: read_settings(file),
        lambda: parse_settings({key: [text] if is_list else text}),
    ]
    for read in reads:
        with pytest.raises(UserError, match=r"not a number|must be"):
            read()


def test_clock_times_are_no_numbers_of_control_flags():
    for flag in ("--nfe", "--session-hours", "--max-hours"):
        command = "sample" if flag == "--nfe" else "preflight"
        with pytest.raises(UserError, match=flag[2:].replace("-", ".")):
            parse([command, "--exp=2d", f"{flag}=1:30"])


@pytest.mark.parametrize(("key", "text"), BAD)
def test_flag_value_of_a_wrong_type_is_refused(key, text):
    with pytest.raises(UserError):
        settings_parser().parse_flags([f"--{key}={text}"])


def test_file_values_are_converted_to_declared_types():
    content = {"exp": "5", "nsgf": {"lr": 1}, "model": {"unet": {}}}
    assert settings_parser().check_types(content) == {"exp": "5", "nsgf": {"lr": 1.0}}
    for wrong in ({"exp": 5}, {"seed": 1.0}, {"smoke": "x"}, {"seed": {}}, {1: 2}, {"nsgf": None}):
        with pytest.raises(UserError):
            settings_parser().check_types(wrong)


def test_dotted_keys_become_nested_sections():
    flat = {"a": 1, "b.c": 2, "b.d.e": 3, "b.d.f": {}}
    assert nest_keys(flat) == {"a": 1, "b": {"c": 2, "d": {"e": 3, "f": {}}}}
