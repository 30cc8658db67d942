"""The code blocks of a page, and what each is for.

A block of `console` has commands (lines that begin with "$ ", and lines that continue them by a
backslash or as a here-document) and below each what it prints. A block of Python, TOML, SQL, HTML
or JSON whose first line is a comment with a file name is that file. Any other block of Python runs;
a block of `text` directly below it is what it prints. A comment `<!-- not run: why -->` above a
block says that it is only shown.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_FENCE = re.compile(r"^ {0,3}```(\w*)")
_FILE = re.compile(r"^(?:#|--|//|<!--) ([\w./-]+\.(?:py|toml|sql|html|json|sh|yml))\b[^\n]*$")
_HERE_DOCUMENT = re.compile(r"<<'?([\w.]+)'?")
_NOT_RUN = re.compile(r"<!-- not run: .+ -->")


@dataclass
class Command:
    text: str
    line: int  # of the page, from 1
    output: list[str] = field(default_factory=list)
    output_lines: tuple[int, int] = (0, 0)  # of the page: from, to (not included)


@dataclass
class Block:
    language: str
    text: str
    line: int  # of its first line within the fence
    runs: bool
    expected: "Block | None" = None  # what a block of Python prints

    @property
    def file(self) -> str:
        """The name of the file that it is, or an empty text."""
        found = _FILE.match(self.text.partition("\n")[0])
        return found[1] if found else ""

    def commands(self) -> Iterator[Command]:
        command: Command | None = None
        continues = False
        ends_at = ""  # the line that ends a here-document
        for number, line in enumerate(self.text.splitlines(), self.line):
            if (continues or ends_at) and command is not None:
                command.text += "\n" + line
                ends_at = "" if line == ends_at else ends_at
            elif line.startswith("$ "):
                if command is not None:
                    yield command
                command = Command(line[2:], number)
                found = _HERE_DOCUMENT.search(line)
                ends_at = found[1] if found else ""
            elif command is not None:
                command.output.append(line)
            continues = line.endswith("\\") and (continues or line.startswith("$ "))
            if command is not None:
                end = number + 1
                command.output_lines = (end - len(command.output), end)
        if command is not None:
            yield command


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    lines = page.read_text().splitlines()
    inside: Block | None = None
    runs = True
    gap = False  # other text since the last block
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if inside is None and fence:
            inside = Block(fence[1], "", number + 1, runs)
        elif inside is not None and fence:
            is_output = inside.language == "text" and found and not gap
            if is_output and found[-1].language == "python" and not found[-1].file:
                found[-1].expected = inside
            else:
                found.append(inside)
            inside, runs, gap = None, True, False
        elif inside is not None:
            inside.text += line + "\n"
        elif line.strip():
            runs = not _NOT_RUN.match(line)
            gap = True
    assert inside is None, f"{page}: a block does not end"
    return found
