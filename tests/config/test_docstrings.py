import runpy
from pathlib import Path

from nsgf.config.docstrings import setting_docs
from nsgf.config.settings import KEYS, is_inherited

ROOT = Path(__file__).parents[2]


def test_every_setting_is_described_once_and_inherited_ones_under_optim():
    inherited = set(filter(is_inherited, KEYS))
    assert {"nsgf.lr", "generator.iterations"} < inherited
    assert not {"optim.lr", "nsf.coupling", "generator.tolerance"} & inherited
    sections = {key.rpartition(".")[0] for key in KEYS}
    found = setting_docs()
    assert found.keys() - {"model"} == (KEYS.keys() | sections) - inherited - {"model"}
    assert all(text.endswith(".") for text in found.values())


def test_configuration_page_is_up_to_date_with_the_schema():
    script = runpy.run_path(str(ROOT / "scripts" / "write_configuration_doc.py"))
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == script["document"](), "python scripts/write_configuration_doc.py"
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    ends = {key: row.rpartition(" | ")[2].strip(" |") for key, row in rows.items()}
    assert ends["seed"] == ends["model.unet.mult"] == ends["nsf.coupling"] == "no"
    assert ends["optim.lr"] == "after the phase"
    assert ends["data.root"] == ends["train.log_every"] == ends["optim.iterations"] == "yes"
