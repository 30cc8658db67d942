"""A part of a record: perhaps only its beginning."""

from typing import NamedTuple


class Part(NamedTuple):
    """A key, value or header value: perhaps only its beginning."""

    data: bytes | None
    size_bytes: int

    @property
    def is_cut(self) -> bool:
        return self.data is not None and len(self.data) < self.size_bytes
