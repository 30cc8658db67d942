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
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_the_table_of_apis_is_current():
    generated = runpy.run_path(str(ROOT / "tools/generate_api_docs.py"))["page"]()
    assert (ROOT / "docs/apis.md").read_text() == generated, "run `make docs`"
    modules = re.findall(r"\| `(\w+\.py)` \|", generated)
    assert len(modules) == len(set(modules)) > 50  # one each
    for module in modules:
        assert (ROOT / "src/headwater/broker/api" / module).is_file()


def test_the_file_map_is_current_and_has_a_sentence_for_every_module():
    generator = runpy.run_path(str(ROOT / "tools/generate_module_map.py"))
    for package in generator["packages"]():
        for module in [package / "__init__.py", *generator["modules"](package)]:
            summary = generator["summary"](module)
            assert summary.endswith("."), f"{module}: {summary!r}"
            assert len(summary) <= 200, f"{module}: {summary!r}"
    assert (ROOT / "docs/internals/modules.md").read_text() == generator["page"](), (
        "run `make docs`"
    )


def test_modules_that_the_pages_name_exist():
    for page in [ROOT / "ARCHITECTURE.md", *(ROOT / "docs/internals").glob("*.md")]:
        for name in re.findall(r"`headwater((?:\.[a-z_]+)+)`", page.read_text()):
            if name in {".toml", ".durability", ".schema.validation"}:  # a file; settings of topics
                continue
            path = ROOT / "src/headwater" / name[1:].replace(".", "/")
            assert path.is_dir() or path.with_suffix(".py").is_file(), (
                f"{page.name}: headwater{name}"
            )


def test_the_example_of_the_testing_page_runs(headwater_broker):
    page = (ROOT / "docs/testing.md").read_text().partition("\n## A broker\n")[2]
    example = re.search(r"```python\n(.*?)```", page, re.DOTALL)
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
        setting.name
        for setting in SETTINGS.values()
        if setting.effect and f"`{setting.name}`" not in page
    ]
    assert not missing


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
            path = page.parent / target if target else page
            assert path.exists(), f"{page.name}: {target}"
            if anchor:
                assert anchor in _anchors(path), f"{page.name}: {target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
