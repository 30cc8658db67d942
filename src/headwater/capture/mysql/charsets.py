"""Character sets: from the bytes of a text column to text.

Single-byte character sets are mapped as the server itself maps them: it is asked once for all 256
characters. So a value in the stream equals the one that a SELECT of it gives. For those with more
bytes Python's codecs are used; what they cannot read becomes U+FFFD.
"""

import codecs
from collections.abc import Callable
from typing import Any, Final

from pymysql.charset import charset_by_id

from headwater.capture.mysql.connection import query

UTF8: Final = frozenset({"utf8", "utf8mb3", "utf8mb4"})
_COMMON_SIZES: Final = {"ascii": 1, "binary": 1, "latin1": 1, "utf8": 3, "utf8mb3": 3, "utf8mb4": 4}
_CODECS: Final = {
    "big5": "cp950",
    "cp932": "cp932",
    "eucjpms": "euc_jp",
    "euckr": "cp949",
    "gb18030": "gb18030",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "sjis": "shift_jis",
    "ucs2": "utf-16-be",
    "ujis": "euc_jp",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
}


class Charsets:
    """The server's collations and character sets."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._sizes = dict(_COMMON_SIZES)
        self._of_collation: dict[int, str] = {}
        self._tables: dict[str, str] = {}

    def max_bytes(self, charset: str) -> int:
        """Of one character."""
        if charset not in self._sizes:
            self._sizes |= {
                str(name): int(size)
                for name, size in query(
                    self._connection,
                    "SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS",
                )
            }
        return self._sizes.setdefault(charset, 1)

    def of_collation(self, number: int) -> str | None:
        """The character set; None for a collation that the server does not list."""
        try:
            return str(charset_by_id(number).name)
        except KeyError:  # newer than the driver: the server knows
            pass
        if not self._of_collation:
            self._of_collation = self._collations()
        return self._of_collation.get(number)

    def _collations(self) -> dict[int, str]:
        found = query(
            self._connection,
            "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS"
            " WHERE ID IS NOT NULL AND CHARACTER_SET_NAME IS NOT NULL",
        )
        is_elsewhere = query(
            self._connection,
            "SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'information_schema'"
            " AND TABLE_NAME = 'COLLATION_CHARACTER_SET_APPLICABILITY' AND COLUMN_NAME = 'ID'",
        )
        if is_elsewhere:  # MariaDB has the collations of UCA 14 in this table only
            found += query(
                self._connection,
                "SELECT ID, CHARACTER_SET_NAME"
                " FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY",
            )
        return {int(number): str(name) for number, name in found}

    def decoder(self, charset: str) -> Callable[[bytes], str]:
        """Raises ValueError on bytes that are no utf-8 though they should be."""
        if charset in UTF8:
            return _utf8
        if charset in _CODECS:
            codec = codecs.lookup(_CODECS[charset])
            return lambda data: codec.decode(data, "replace")[0]
        table = self._tables.get(charset)
        if table is None:
            table = self._tables[charset] = self._table(charset)
        return lambda data: codecs.charmap_decode(data, "replace", table)[0]

    def _table(self, charset: str) -> str:
        if not charset.isalnum() or self.max_bytes(charset) != 1:
            return _LATIN1
        every = bytes(range(256)).hex()
        ((text,),) = query(self._connection, f"SELECT CONVERT(_{charset} 0x{every} USING utf8mb4)")
        return text if isinstance(text, str) and len(text) == 256 else _LATIN1


def _utf8(data: bytes) -> str:
    return data.decode()


# What the servers call latin1 is Windows-1252, its five holes filled.
_LATIN1: Final = "".join(
    bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in range(256)
)
