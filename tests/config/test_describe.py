import runpy
from dataclasses import asdict
from pathlib import Path

from nsgf.config.describe import setting_descriptions
from nsgf.config.leaves import leaves
from nsgf.config.schema import OF_PHASES, OptimConfig, Settings

ROOT = Path(__file__).parents[2]


def test_every_setting_is_described_once_and_inherited_ones_under_optim():
    inherited = {f"{phase}.{name}" for phase in OF_PHASES for name in asdict(OptimConfig())}
    keys = {key for key, _, _ in leaves(Settings())}
    sections = {key.rpartition(".")[0] for key in keys}
    found = setting_descriptions()
    assert found.keys() - {"model"} == (keys | sections) - inherited - {"model"}
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
