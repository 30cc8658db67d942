"""What the documentation says is what the code does."""

import re
import runpy
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from headwater.log.config import SETTINGS
from headwater.settings import BrokerSettings
from headwater.testing import InProcessBroker

ROOT = Path(__file__).parent.parent


def test_the_table_of_apis_is_current():
    generated = runpy.run_path(str(ROOT / "tools/generate_api_docs.py"))["page"]()
    assert (ROOT / "docs/apis.md").read_text() == generated, "run `make docs`"
    modules = re.findall(r"\| `(\w+\.py)` \|", generated)
    assert len(modules) == len(set(modules)) > 50  # one each
    for module in modules:
        assert (ROOT / "src/headwater/broker/api" / module).is_file()


def test_the_example_of_the_testing_page_runs(headwater_broker):
    example = re.search(r"```python\n(.*?)```", (ROOT / "docs/testing.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(example[1], names)
    names["test_an_order_is_published"](headwater_broker)


def test_every_metric_is_documented_and_well_formed(tmp_path):
    settings = BrokerSettings(listen="127.0.0.1:0", metrics_listen="127.0.0.1:0")
    with (
        InProcessBroker.serving(str(tmp_path), settings) as broker,
        urlopen(f"http://{broker.metrics_address}/metrics") as response,
    ):
        text = response.read().decode()
    page = (ROOT / "docs/operations.md").read_text()
    families = list(text_string_to_metric_families(text))
    assert families
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        assert f"`{name}" in page, f"{name} is not in docs/operations.md"


def test_settings_with_an_effect_are_named_in_the_operations_page():
    page = (ROOT / "docs/operations.md").read_text()
    missing = [
        each.name for each in SETTINGS.values() if each.effect and f"`{each.name}`" not in page
    ]
    assert not missing


def test_links_between_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
