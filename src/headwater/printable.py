r"""Text that others chose, made safe for a terminal.

Client ids, group ids, names of users, keys and values may hold what a terminal acts upon: escape
sequences that move the cursor, set its title or write to the clipboard, their C1 forms, and marks
that turn the direction of writing. They are shown as Python would write them: `\x1b`.
"""

import re
from typing import Final

# C0 without tab and newline, DEL, C1, separators of lines and paragraphs, marks of direction.
_ABOVE_ASCII: Final = "\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_UNSAFE: Final = f"\x00-\x08\x0b-\x1f{_ABOVE_ASCII}"
_CONTROLS: Final = re.compile(f"[{_UNSAFE}]")
_JSON_CONTROLS: Final = re.compile(f"[{_ABOVE_ASCII}]")  # JSON itself escapes those below
# The sequences of `terminal/output.py: styled`.
_STYLES: Final = re.compile(f"(\x1b\\[(?:[0-2]|3[1-6])(?:;(?:[0-2]|3[1-6]))*m)|[{_UNSAFE}]")


def printable(text: str) -> str:
    """`text` with tabs and newlines, but no other control characters."""
    return _CONTROLS.sub(_escaped, text)


def printable_with_styles(text: str) -> str:
    """`text` with colours and weights, but no other sequence."""
    return _STYLES.sub(lambda found: found[1] or _escaped(found), text)


def printable_json(text: str) -> str:
    """JSON stays what it is: only strings have such characters, and may write them as numbers."""
    return _JSON_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
