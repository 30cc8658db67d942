"""Writes docs/internals/modules.md, the file map, from the first sentences of docstrings.

python tools/generate_module_map.py           writes it
python tools/generate_module_map.py --check   fails if it is not current
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/headwater"
TARGET = ROOT / "docs/internals/modules.md"
GENERATED = "protocol/messages"  # one module for each API of Kafka; the package's line says enough

HEAD = """\
# Internals: the file map

Generated from the docstrings by `make docs`; do not edit. One heading for each package of
`src/headwater`, one line for each module. [ARCHITECTURE.md](../../ARCHITECTURE.md) has the layers.
"""
NEXT_SENTENCE = re.compile(r"(?<=\.)\s+(?=[^a-z])")


def page() -> str:
    return HEAD + "".join(map(_section, packages()))


def packages() -> list[Path]:
    return sorted(init.parent for init in SOURCE.rglob("__init__.py"))


def modules(package: Path) -> list[Path]:
    if package == SOURCE / GENERATED:
        return []
    return sorted(module for module in package.glob("*.py") if module.name != "__init__.py")


def summary(module: Path) -> str:
    """The first sentence of a module's docstring, in one line; "" if there is none."""
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.sub(":$", ".", NEXT_SENTENCE.split(paragraph)[0])


def _section(package: Path) -> str:
    return "\n" + "\n".join(_lines(package)) + "\n"


def _lines(package: Path) -> Iterator[str]:
    yield f"## `{'.'.join(package.relative_to(SOURCE.parent).parts)}`\n"
    yield summary(package / "__init__.py")
    rows = [f"| `{module.stem}` | {_cell(summary(module))} |" for module in modules(package)]
    if rows:
        yield "\n| module | |\n|---|---|"
        yield from rows


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(TARGET.read_text() != page())
    TARGET.write_text(page())
