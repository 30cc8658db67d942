"""From the bytes of a text column to text.

Single-byte character sets are mapped as the server itself maps them: it is asked once for all 256
characters. So a value in the stream equals the one that a SELECT of it gives. For those with more
bytes Python's codecs are used; what they cannot read becomes U+FFFD.
"""

import codecs
from collections.abc import Callable
from typing import Any, Final

from headwater.capture.mysql.connection import query

UTF8: Final = frozenset({"utf8", "utf8mb3", "utf8mb4"})
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
        self.max_bytes: dict[str, int] = {
            str(name): int(size)
            for name, size in query(
                connection,
                "SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS",
            )
        }
        self._of_collation: dict[int, str] = {
            int(number): str(name)
            for number, name in query(
                connection,
                "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS"
                " WHERE ID IS NOT NULL AND CHARACTER_SET_NAME IS NOT NULL",
            )
        }
        columns = query(
            connection,
            "SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'information_schema'"
            " AND TABLE_NAME = 'COLLATION_CHARACTER_SET_APPLICABILITY' AND COLUMN_NAME = 'ID'",
        )
        if columns:  # MariaDB has the collations of UCA 14 in this table only
            for number, name in query(
                connection,
                "SELECT ID, CHARACTER_SET_NAME"
                " FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY",
            ):
                self._of_collation.setdefault(int(number), str(name))
        self._tables: dict[str, str] = {}

    def of_collation(self, number: int) -> str | None:
        """The character set; None for a collation that the server does not list."""
        return self._of_collation.get(number)

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
        if not charset.isalnum() or self.max_bytes.get(charset, 1) != 1:
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
