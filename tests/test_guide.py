"""The guide does what it says: commands exist, settings are right, and pages run as they stand."""

import ast
import json
import re
import shlex
import shutil
import textwrap
import tomllib
from importlib import import_module
from pathlib import Path
from urllib.request import urlopen

import pytest
import sqlglot
from support.documentation.blocks import Block, blocks
from support.documentation.session import Session, difference, expected_of
from tiers import long, representative

from headwater import config
from headwater.capture.metrics import CaptureState, exposition
from headwater.cli.main import COMMANDS
from headwater.errors import HeadwaterError, UsageError
from headwater.settings import BrokerSettings
from headwater.testing import InProcessBroker

ROOT = Path(__file__).parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").rglob("*.md"),
    *(ROOT / "src/headwater").rglob("*.md"),
]
GUIDE = [
    ROOT / "README.md",
    *sorted(
        page
        for page in (ROOT / "docs").rglob("*.md")
        if page.parent.name in {"concepts", "tutorials", "how-to"} or page.name == "start.md"
    ),
]
STANDS_FOR_ALL = "guarantees"  # a broker and a gateway, no Spark: the quick tier runs this one


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def is_run(page: Path) -> bool:
    return any(block.runs and block.language in {"console", "python"} for block in blocks(page))


RUN = [
    pytest.param(
        page,
        id=named(page),
        marks=[long, pytest.mark.timeout(1800)]
        + ([representative] if page.stem == STANDS_FOR_ALL else []),
    )
    for page in GUIDE
    if is_run(page)
]


@pytest.mark.parametrize("page", RUN)
def test_a_page_runs_as_it_stands(page, tmp_path):
    text = page.read_text()
    for program in ("sqlite3", "jq", "curl"):
        if re.search(rf"^\$ .*\b{program} ", text, re.MULTILINE) and not shutil.which(program):
            pytest.skip(f"needs {program}")
    session = Session(tmp_path)
    try:
        printed = session.run(page)
    finally:
        session.close()
    wrong = [
        f"{named(page)}:{part.line}\n{found}"
        for part, shown in printed
        if (found := difference(expected_of(part), shown))
    ]
    assert printed
    assert not wrong, "\n\n".join(wrong)


def test_the_commands_that_pages_show_exist():
    wrong = []
    for page in PAGES:
        for block in blocks(page) if page.name != "cli.md" else ():  # generated from the commands
            for line in commands_of(block):
                try:
                    parse(line)
                except (UsageError, SystemExit) as error:
                    wrong.append(f"{named(page)}: {line}\n    {error}")
    assert not wrong, "\n".join(wrong)


def commands_of(block: Block):
    """Each `headwater …` of a block, whatever stands before and behind it."""
    if block.language == "console":
        texts = [command.text for command in block.commands()]
    elif block.language == "sh":
        texts = re.sub(r"\\\n", " ", block.text).splitlines()
    else:
        texts = []
    for text in texts:
        shortened = re.sub(r"\\\n", " ", text).partition("<<")[0].splitlines()[0]
        for piece in re.split(r"\||&&|;|\$\(|&(?=\s|$)", without_comment(shortened)):
            words = piece.strip().strip(")").split(" ", 1)
            if words[0] == "headwater" and len(words) > 1:
                yield words[1]


def without_comment(text: str) -> str:
    return re.sub(r"\s{2,}#.*|\s# .*", "", text)


def parse(line: str) -> None:
    """As `headwater` would; raises UsageError."""
    try:
        words = shlex.split(re.sub(r"\s\d?[<>] ?\S+", "", line))
    except ValueError:
        return  # a quote that goes on behind a pipe
    if any(word in ("--help", "-h", "--version") or "…" in word for word in words):
        return
    name, *rest = words
    if name not in COMMANDS:
        raise UsageError(f"there is no command {name}")
    commands = import_module(f"headwater.cli.commands.{COMMANDS[name][0]}").COMMANDS
    if "" in commands:
        command = commands[""]
    else:
        if not rest or rest[0] not in commands:
            raise UsageError(f"there is no command {name} {rest[:1]}")
        command = commands[rest.pop(0)]
    command.parser(f"headwater {name}").parse(rest)


def test_the_configurations_that_pages_show_are_valid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = []
    for page in PAGES:
        for block in blocks(page):
            if block.language != "toml" or not block.runs:
                continue
            try:
                found = tomllib.loads(block.text)
            except tomllib.TOMLDecodeError as error:
                wrong.append(f"{named(page)}:{block.line}: {error}")
                continue
            if "tool" in found or "project" in found:  # pyproject.toml
                continue
            (tmp_path / "headwater.toml").write_text(block.text + CONTEXT * ("alert" in found))
            try:
                config.load({}, environ=elsewhere(found), cwd=str(tmp_path))
            except HeadwaterError as error:
                wrong.append(f"{named(page)}:{block.line}: {error} {error.detail}")
    assert not wrong, "\n".join(wrong)


# What a section that is shown refers to, and another part of the file has.
CONTEXT = """
[sink.post]
kind = "email"
url = "smtp://127.0.0.1"
options = { from = "shop@shop.example" }
"""


def elsewhere(found: dict) -> dict[str, str]:
    environment = {"HEADWATER_GATEWAY__LISTEN": "127.0.0.1:8081"} if "gateway" in found else {}
    for name, section in found.get("capture", {}).items():
        if "source" not in section:
            environment[f"HEADWATER_CAPTURE__{name.upper()}__SOURCE"] = "sqlite:///shop.db"
    return environment


def test_the_python_that_pages_show_compiles():
    for page in PAGES:
        for block in blocks(page):
            if block.language == "python":
                text = textwrap.dedent(block.text.replace("…", "..."))
                flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                compile(text, f"{named(page)}:{block.line}", "exec", flags)


def test_the_sql_that_guide_pages_show_is_sql():
    for page in GUIDE:
        for block in blocks(page):
            if block.language == "sql" and block.runs:
                assert sqlglot.parse(block.text, read="postgres"), f"{named(page)}:{block.line}"


def test_the_messages_of_troubleshooting_are_those_of_the_code():
    source = "".join(path.read_text() for path in (ROOT / "src/headwater").rglob("*.py"))
    source = re.sub(r'"\s*f?"', "", source)  # texts that go on in the next line
    page = (ROOT / "docs/troubleshooting.md").read_text()
    messages = re.findall(r"^\| (.*?) \|", page, re.MULTILINE)
    texts = [text for message in messages for text in re.findall(r"`` ?(.*?) ?``|`(.*?)`", message)]
    pieces = [
        piece.strip("` ")
        for double, single in texts
        for piece in (double or single).split("…")
        if " " in piece.strip() and not piece.startswith("headwater")
    ]
    assert len(pieces) > 20
    assert not [piece for piece in pieces if piece not in source]


def test_the_dashboard_shows_metrics_that_there_are(tmp_path):
    dashboard = json.loads((ROOT / "docs/how-to/grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = (ROOT / "docs/how-to/monitoring.md").read_text()
    queries += re.findall(r"expr: (.*)", rules)
    asked = {name for query in queries for name in re.findall(r"headwater_\w+", query)}
    settings = BrokerSettings(
        listen="127.0.0.1:0", metrics_listen="127.0.0.1:0", archive=f"file://{tmp_path}/archive"
    )
    with (
        InProcessBroker.serving(str(tmp_path / "data"), settings) as broker,
        urlopen(f"http://{broker.metrics_address}/metrics") as response,
    ):
        served = response.read().decode() + exposition(CaptureState("shop"))
    names = set(re.findall(r"^# TYPE (\w+)", served, re.MULTILINE))
    assert len(asked) > 20
    assert sorted(asked - names) == []


def test_every_page_is_in_the_navigation_once():
    tool = import_tool("build_site")
    listed = [page for section in tool["navigation"]().values() for page in section]
    assert sorted(listed) == sorted(
        page.removesuffix(".md") for page in tool["pages"]().values() if page != "index.md"
    )


def import_tool(name: str):
    import runpy

    return runpy.run_path(str(ROOT / f"tools/{name}.py"))
