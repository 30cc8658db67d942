"""Writes docs/apis.md from the modules of src/headwater/broker/api.

python tools/generate_api_docs.py [--check]
"""

import sys
from pathlib import Path

from headwater.broker.api import load_all
from headwater.broker.api.registry import APIS, Api

TARGET = Path(__file__).parent.parent / "docs/apis.md"
HEAD = """# Kafka APIs that the broker serves

Generated from the modules of `src/headwater/broker/api` by `make docs`. APIs that are not in this
table are not advertised; a request for one closes the connection, with the reason in the log.

| key | API | versions | module |
|---|---|---|---|
"""


def page() -> str:
    load_all()
    apis = sorted(APIS.values(), key=lambda api: api.key)
    return HEAD + "".join(map(_row, apis)) + "\n" + "\n".join(map(_section, apis))


def _module(api: Api) -> str:
    return api.handle.__module__.rsplit(".", 1)[1]


def _row(api: Api) -> str:
    versions = f"{api.first}–{api.last}"
    if api.advertised_from != api.first:
        versions += f" (advertised from {api.advertised_from})"
    return f"| {api.key} | [{api.name}](#{api.name.lower()}) | {versions} | `{_module(api)}.py` |\n"


def _section(api: Api) -> str:
    return f"## {api.name}\n\n{api.contract.strip()}\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(TARGET.read_text() != page())
    TARGET.write_text(page())
