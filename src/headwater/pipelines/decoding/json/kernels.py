"""Numba kernels for JSON texts in a buffer: validation, spans of members, search.

`scan` is a whole JSON validator (RFC 8259), so that what goes on to Arrow's parser is sound: that
parser takes NaN for a number, two documents in one text for two rows, and a lone `null` for an
address to read from. Nothing here raises, and every byte that is read is compared with its text's
end first.
"""

from typing import Final

import numpy as np

from headwater.jit import kernel

# Verdicts of `scan`.
SOUND, NOT_JSON, NOT_AN_OBJECT, TOO_DEEP, EMPTY = range(5)
MAX_DEPTH: Final = 512

_VALUE, _VALUE_OR_END, _NAME, _NAME_OR_END, _AFTER = range(5)  # what may come next


@kernel
def _is_space(byte):
    return byte == 32 or byte == 10 or byte == 13 or byte == 9


@kernel
def _hex(byte):
    if 48 <= byte <= 57:
        return byte - 48
    if 97 <= byte <= 102:
        return byte - 87
    if 65 <= byte <= 70:
        return byte - 55
    return -1


@kernel
def _code_unit(data, at, end):
    """The number of an escape with four hexadecimal digits at `at`; -1 if it is none."""
    if at + 6 > end or data[at] != 92 or data[at + 1] != 117:
        return -1
    unit = 0
    for digit_at in range(at + 2, at + 6):
        digit = _hex(data[digit_at])
        if digit < 0:
            return -1
        unit = unit << 4 | digit
    return unit


@kernel
def _string_end(data, at, end):
    """The index after the closing quote of a string whose first character is at `at`; below zero:
    it is none, and -1 - that is where.
    """
    while at < end:
        byte = data[at]
        if byte == 34:
            return at + 1
        if byte < 32:
            return -1 - at
        if byte != 92:
            at += 1
            continue
        if at + 1 >= end:
            return -1 - at
        byte = data[at + 1]
        if byte == 117:
            unit = _code_unit(data, at, end)
            if unit < 0 or 0xDC00 <= unit <= 0xDFFF:
                return -1 - at
            at += 6
            if 0xD800 <= unit <= 0xDBFF:
                if not 0xDC00 <= _code_unit(data, at, end) <= 0xDFFF:
                    return -1 - at
                at += 6
        elif (
            byte == 34 or byte == 92 or byte == 47 or byte == 98
            or byte == 102 or byte == 110 or byte == 114 or byte == 116
        ):  # fmt: skip
            at += 2
        else:
            return -1 - at
    return -1 - at


@kernel
def _digits_end(data, at, end):
    while at < end and 48 <= data[at] <= 57:
        at += 1
    return at


@kernel
def _number_end(data, at, end):
    """The index after a number; below zero: it is none, and -1 - that is where."""
    if data[at] == 45:
        at += 1
    if at < end and data[at] == 48:
        at += 1
    else:
        behind = _digits_end(data, at, end)
        if behind == at:
            return -1 - at
        at = behind
    if at < end and data[at] == 46:
        behind = _digits_end(data, at + 1, end)
        if behind == at + 1:
            return -1 - behind
        at = behind
    if at < end and (data[at] == 101 or data[at] == 69):
        at += 1
        if at < end and (data[at] == 43 or data[at] == 45):
            at += 1
        behind = _digits_end(data, at, end)
        if behind == at:
            return -1 - at
        at = behind
    return at


@kernel
def _word_end(data, at, end):
    """The index after true, false or null; below zero: it is none, and -1 - that is where."""
    if at + 4 <= end:
        if data[at] == 116 and data[at + 1] == 114 and data[at + 2] == 117 and data[at + 3] == 101:
            return at + 4
        if data[at] == 110 and data[at + 1] == 117 and data[at + 2] == 108 and data[at + 3] == 108:
            return at + 4
    if (
        at + 5 <= end and data[at] == 102 and data[at + 1] == 97 and data[at + 2] == 108
        and data[at + 3] == 115 and data[at + 4] == 101
    ):  # fmt: skip
        return at + 5
    return -1 - at


@kernel
def _which(data, start, end, names, name_ends):
    """The number of the name that these bytes are; -1 if they are none of them."""
    first = 0
    for which in range(name_ends.size):
        size = name_ends[which] - first
        if size == end - start:
            is_same = True
            for index in range(size):
                if data[start + index] != names[first + index]:
                    is_same = False
                    break
            if is_same:
                return which
        first = name_ends[which]
    return -1


@kernel
def scan(data, starts, ends, names, name_ends, verdicts, error_offsets, spans):
    """Scans each text `data[starts[i]:ends[i]]`: `verdicts[i]` says whether it is one JSON
    object, `error_offsets[i]` where it is not. `spans[i, n]` is the span of the value of its own
    member with the n-th name (of the last such member), (-1, -1) if there is none. Names are
    compared byte by byte: one that is written with escapes is not found.
    """
    is_object = np.empty(MAX_DEPTH + 1, np.bool_)
    for row in range(starts.size):
        at, end = starts[row], ends[row]
        for which in range(name_ends.size):
            spans[row, which, 0] = spans[row, which, 1] = -1
        verdict, depth, expected, member, value_at = SOUND, 0, _VALUE, -1, at
        while True:
            while at < end and _is_space(data[at]):
                at += 1
            if at >= end:
                if depth or expected != _AFTER:
                    verdict = NOT_JSON if at > starts[row] else EMPTY
                break
            byte = data[at]
            if expected == _AFTER:
                if depth == 0:
                    verdict = NOT_JSON
                    break
                if byte == 44:
                    expected = _NAME if is_object[depth] else _VALUE
                    at += 1
                    continue
                if byte != (125 if is_object[depth] else 93):
                    verdict = NOT_JSON
                    break
                depth -= 1
                at += 1
            elif expected in (_NAME, _NAME_OR_END):
                if byte == 125 and expected == _NAME_OR_END:
                    depth -= 1
                    at += 1
                elif byte != 34:
                    verdict = NOT_JSON
                    break
                else:
                    behind = _string_end(data, at + 1, end)
                    if behind < 0:
                        at = -1 - behind
                        verdict = NOT_JSON
                        break
                    if depth == 1:
                        member = _which(data, at + 1, behind - 1, names, name_ends)
                    at = behind
                    while at < end and _is_space(data[at]):
                        at += 1
                    if at >= end or data[at] != 58:
                        verdict = NOT_JSON
                        break
                    at += 1
                    while at < end and _is_space(data[at]):
                        at += 1
                    if depth == 1:
                        value_at = at
                    expected = _VALUE
                    continue
            elif byte == 93 and expected == _VALUE_OR_END:
                depth -= 1
                at += 1
            elif byte == 123 or byte == 91:
                if depth == 0 and byte == 91:
                    verdict = NOT_AN_OBJECT
                    break
                if depth == MAX_DEPTH:
                    verdict = TOO_DEEP
                    break
                depth += 1
                is_object[depth] = byte == 123
                expected = _NAME_OR_END if byte == 123 else _VALUE_OR_END
                at += 1
                continue
            else:
                if byte == 34:
                    behind = _string_end(data, at + 1, end)
                elif byte == 45 or 48 <= byte <= 57:
                    behind = _number_end(data, at, end)
                else:
                    behind = _word_end(data, at, end)
                if behind < 0:
                    at = -1 - behind
                    verdict = NOT_JSON
                    break
                if depth == 0:
                    verdict = NOT_AN_OBJECT
                    break
                at = behind
            expected = _AFTER  # a value has ended
            if depth == 1 and member >= 0:
                spans[row, member, 0] = value_at
                spans[row, member, 1] = at
                member = -1
        verdicts[row] = verdict
        error_offsets[row] = at - starts[row]


@kernel
def find_integer(data, starts, ends, name, numbers, is_found):
    """The integer that the first member `name` of each object has, if it has at most 15 digits. The
    objects are sound (`scan`); an empty span has none.
    """
    name_ends = np.array([name.size])
    for row in range(starts.size):
        is_found[row] = False
        at, end, depth = starts[row], ends[row], 0
        is_name = False
        while at < end:
            byte = data[at]
            if byte == 34:
                behind = _string_end(data, at + 1, end)
                if depth == 1 and is_name:
                    which = _which(data, at + 1, behind - 1, name, name_ends)
                    if which == 0:
                        at = behind
                        while at < end and (_is_space(data[at]) or data[at] == 58):
                            at += 1
                        is_negative = at < end and data[at] == 45
                        if is_negative:
                            at += 1
                        behind = _digits_end(data, at, end)
                        if 0 < behind - at < 16 and (
                            behind == end or _is_space(data[behind])
                            or data[behind] == 44 or data[behind] == 125
                        ):  # fmt: skip
                            number = 0
                            for digit_at in range(at, behind):
                                number = number * 10 + data[digit_at] - 48
                            numbers[row] = -number if is_negative else number
                            is_found[row] = True
                        break
                    is_name = False
                at = behind
                continue
            if byte == 123 or byte == 91:
                depth += 1
                is_name = depth == 1
            elif byte == 125 or byte == 93:
                depth -= 1
            elif byte == 44 and depth == 1:
                is_name = True
            at += 1


@kernel
def join(data, starts, ends, out):
    """The texts one after another, each with a line feed after it."""
    at = 0
    for row in range(starts.size):
        size = ends[row] - starts[row]
        out[at : at + size] = data[starts[row] : ends[row]]
        at += size
        out[at] = 10
        at += 1


@kernel
def contains(data, starts, ends, needle, is_found):
    """Sets `is_found[i]` if the i-th text has these bytes in it, by Boyer–Moore–Horspool: the byte
    under the needle's end determines how far it can be shifted.
    """
    size = needle.size
    steps = np.full(256, size)
    for index in range(size - 1):
        steps[needle[index]] = size - 1 - index
    for row in range(starts.size):
        at, last = starts[row], ends[row] - size
        while at <= last:
            byte = data[at + size - 1]
            if byte == needle[size - 1]:
                matched = 0
                while matched < size and data[at + matched] == needle[matched]:
                    matched += 1
                if matched == size:
                    is_found[row] = True
                    break
            at += steps[byte]


@kernel
def equal(data, starts, ends, other, is_equal):
    """Whether the i-th text is `other`."""
    for row in range(starts.size):
        is_equal[row] = ends[row] - starts[row] == other.size
        if is_equal[row]:
            for index in range(other.size):
                if data[starts[row] + index] != other[index]:
                    is_equal[row] = False
                    break
