"""The kernels of `json_text`, compiled by numba.

A column is (data, starts, lengths); a length of -1 is null. TOKEN: the text is JSON already.
STRING: it is quoted and escaped. TIME: it is quoted, with a T for the blank.
"""

import numpy as np

from headwater.jit import kernel

TOKEN, STRING, TIME = range(3)
_NULL = np.frombuffer(b"null", np.uint8)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_QUOTE, _BACKSLASH, _BLANK, _T, _U, _ZERO = 34, 92, 32, 84, 117, 48


def _short_escapes():
    """The letter behind a backslash for the characters that have one."""
    letters = np.zeros(256, np.uint8)
    for byte, letter in (
        (34, b'"'),
        (92, b"\\"),
        (8, b"b"),
        (9, b"t"),
        (10, b"n"),
        (12, b"f"),
        (13, b"r"),
    ):
        letters[byte] = letter[0]
    return letters


_SHORT = _short_escapes()


@kernel
def add_sizes(sizes, before_bytes, data, starts, lengths, kind):
    """Adds to the size of each row what the column will take."""
    for row in range(len(sizes)):
        length = lengths[row]
        if length < 0:
            sizes[row] += before_bytes + 4
            continue
        size = before_bytes + length
        if kind != TOKEN:
            size += 2
        if kind == STRING:
            for at in range(starts[row], starts[row] + length):
                byte = data[at]
                if _SHORT[byte]:
                    size += 1
                elif byte < _BLANK:
                    size += 5
        sizes[row] += size


@kernel
def write(out, cursors, before, data, starts, lengths, kind):
    """Writes `before` and the text of each row at the row's cursor, and moves it on."""
    for row in range(len(cursors)):
        to = cursors[row]
        for byte in before:
            out[to] = byte
            to += 1
        start, length = starts[row], lengths[row]
        if length < 0:
            for byte in _NULL:
                out[to] = byte
                to += 1
        elif kind == TOKEN:
            for at in range(start, start + length):
                out[to] = data[at]
                to += 1
        else:
            out[to] = _QUOTE
            to += 1
            for at in range(start, start + length):
                byte = data[at]
                if kind == TIME:
                    out[to] = _T if byte == _BLANK else byte
                    to += 1
                elif _SHORT[byte]:
                    out[to] = _BACKSLASH
                    out[to + 1] = _SHORT[byte]
                    to += 2
                elif byte < _BLANK:  # \u00XX
                    out[to] = _BACKSLASH
                    out[to + 1] = _U
                    out[to + 2] = out[to + 3] = _ZERO
                    out[to + 4] = _HEX[byte >> 4]
                    out[to + 5] = _HEX[byte & 15]
                    to += 6
                else:
                    out[to] = byte
                    to += 1
            out[to] = _QUOTE
            to += 1
        cursors[row] = to


@kernel
def write_end(out, cursors, end):
    for row in range(len(cursors)):
        to = cursors[row]
        for byte in end:
            out[to] = byte
            to += 1
