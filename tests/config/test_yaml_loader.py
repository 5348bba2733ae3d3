from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nsgf.config.files import build, read_settings
from nsgf.config.schema import Config
from nsgf.config.yaml_loader import dump_yaml, load_yaml
from nsgf.run.folder import dump_config

PLAIN_LOOKING = (
    "08 1e5 2401e1 1_0 5. .5 -.inf ~ null no true 0x1f 1:30 2026-01-01 # *a !!str é = <<"
)


@given(st.text("0123456789eE+-._ox:~nulTtrue", max_size=8) | st.sampled_from(PLAIN_LOOKING.split()))
def test_dumped_text_loads_as_the_same_text(text):
    content = {"text": text, "list": [text, 1e-5, 3, None, True]}
    assert load_yaml(dump_yaml(content)) == content
    assert yaml.safe_load(dump_yaml(content)) == content


def test_shared_values_are_dumped_without_aliases():
    same = [1, 2]
    assert load_yaml(dump_yaml({"a": same, "b": same})) == {"a": same, "b": same}


@pytest.mark.parametrize("text", ["08", "1e5", "no", "~"])
def test_saved_configuration_loads_unchanged(text, tmp_path):
    config = replace(Config(), out_dir=text, exp=text)
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config))
    assert build(Config, read_settings(file)) == config
