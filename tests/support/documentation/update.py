"""Writes into a page what its commands print now: `python -m support.documentation.update PAGE …`
(with PYTHONPATH=.:tests). What still fits stays as it is. Read the difference before you commit.
"""

import sys
import tempfile
from pathlib import Path

from support.documentation.blocks import Block, Command
from support.documentation.session import Session, difference, expected_of


def update(page: Path) -> None:
    session = Session(Path(tempfile.mkdtemp(prefix="headwater-docs-")))
    try:
        printed = session.run(page)
    finally:
        session.close()
    lines = page.read_text().splitlines()
    for part, text in reversed(printed):
        if not difference(expected_of(part), text):
            continue
        shown = text.splitlines()
        if isinstance(part, Command):
            first, end = part.output_lines
            lines[first - 1 : end - 1] = shown
        elif part.expected is not None:
            first = part.expected.line - 1
            lines[first : first + len(part.expected.text.splitlines())] = shown
        elif isinstance(part, Block) and shown:
            end = part.line - 1 + len(part.text.splitlines()) + 1
            lines[end:end] = ["", "```text", *shown, "```"]
    page.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        update(Path(name))
