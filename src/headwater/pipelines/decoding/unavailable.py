"""Unavailable values: those that a database's log left out (unchanged TOAST values).

PostgreSQL does not log a large value that an update did not touch. Debezium and our captures write
a placeholder for them (capture/contract.py, UNAVAILABLE): as it is in texts, in Base64 in bytes, as
its codes in arrays of numbers.
"""

from base64 import b64encode
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from headwater.capture.contract import UNAVAILABLE
from headwater.pipelines.decoding.json import kernels
from headwater.pipelines.decoding.json.rows import Texts

_BASE64: Final = b64encode(UNAVAILABLE.encode()).decode()
_CODES: Final = list(UNAVAILABLE.encode())
_MARKS: Final = [
    np.frombuffer(mark, np.uint8)
    for mark in (UNAVAILABLE.encode(), _BASE64.encode(), orjson.dumps(_CODES)[1:-1])
]
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def marked(images: Texts) -> npt.NDArray[np.bool_]:
    """Which rows have a mark in them, or something that looks like one."""
    is_found = np.zeros(len(images), np.bool_)
    for mark in _MARKS:
        kernels.contains(images.data, images.starts, images.ends, mark, is_found)
    return is_found


def left_out(image: dict[str, msgspec.Raw], columns: list[str]) -> list[str]:
    """The columns of a row whose values were left out."""
    return [
        name for name in columns if name in image and _is_mark(orjson.loads(bytes(image[name])))
    ]


def _is_mark(value: Any) -> bool:
    if isinstance(value, str):
        return value in {UNAVAILABLE, _BASE64}
    if isinstance(value, list):
        return value == _CODES or any(map(_is_mark, value))
    if isinstance(value, dict):  # a decimal with its scale, a point
        return any(map(_is_mark, value.values()))
    return False


def restored(image: bytes, before: bytes, columns: list[str]) -> tuple[bytes, list[str]]:
    """The row with values that were left out taken from the row before it, and the columns that are
    missing there, too.
    """
    row = _members(image)
    missing = left_out(row, columns)
    if not missing:
        return image, []
    old = _members(before) if before.startswith(b"{") else {}
    unknown = set(left_out(old, missing)) | set(missing) - old.keys()
    row |= {name: old[name] for name in missing if name not in unknown}
    written = b",".join(orjson.dumps(name) + b":" + bytes(raw) for name, raw in row.items())
    return b"{" + written + b"}", [name for name in missing if name in unknown]
