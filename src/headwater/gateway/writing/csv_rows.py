"""Rows of CSV (RFC 4180) out of lines that come one by one; a quoted field may have line ends."""

import csv
from typing import Final

_MAX_COLUMNS: Final = 10_000


class BadRow(Exception):
    """Why a row is none."""


class CsvRows:
    """Takes lines, gives rows as dicts of texts. The first row has the names of the columns."""

    def __init__(self, max_row_bytes: int) -> None:
        self._max_row_bytes = max_row_bytes
        self._begun: list[bytes] = []  # lines of a row whose quote has not been closed
        self._begun_bytes = 0
        self._is_quoted = False
        self.names: list[str] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the last row lacks its end."""
        return bool(self._begun)

    def row(self, line: bytes) -> dict[str, str] | None:
        """The row that ends with this line; None if none does. Raises BadRow; then the next line
        begins a new row.
        """
        self._begun.append(line)
        self._begun_bytes += len(line) + 1
        if line.count(b'"') % 2:
            self._is_quoted = not self._is_quoted
        if self._is_quoted:
            if self._begun_bytes > self._max_row_bytes:
                self._restart()
                raise BadRow(f"a row has more than {self._max_row_bytes:,} bytes")
            return None
        text = b"\n".join(self._begun)
        self._restart()
        if not text.strip():
            return None
        fields = _fields(text)
        if self.names is None:
            self._take_names(fields)
            return None
        if len(fields) != len(self.names):
            raise BadRow(f"the row has {len(fields)} fields, the first row {len(self.names)}")
        return dict(zip(self.names, fields, strict=True))

    def _restart(self) -> None:
        self._begun, self._begun_bytes, self._is_quoted = [], 0, False

    def _take_names(self, names: list[str]) -> None:
        if names and names[0].startswith("\ufeff"):  # spreadsheets write it
            names[0] = names[0][1:]
        if len(names) > _MAX_COLUMNS or len(set(names)) < len(names) or "" in names:
            raise BadRow("the names of the columns in the first row are not distinct, or empty")
        self.names = names


def _fields(text: bytes) -> list[str]:
    try:
        decoded = text.decode().removesuffix("\r")
    except UnicodeDecodeError as error:
        raise BadRow(f"it is not UTF-8, at byte {error.start + 1}") from None
    try:
        rows = list(csv.reader([decoded], strict=True))
    except csv.Error as error:
        raise BadRow(f"it is not CSV: {error}") from None
    return rows[0] if len(rows) == 1 else []
