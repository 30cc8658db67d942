"""The options of an archive; apart from its code, which is loaded only if there is one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.log.archive.objects import Objects

CACHE_BYTES = 1 << 30
MAX_BYTES_PER_S = 64 << 20


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """Where the archive is and what it may cost. `objects` instead of a URL: for tests."""

    url: str = ""
    endpoint: str | None = None
    region: str | None = None
    cache_bytes: int = CACHE_BYTES
    max_bytes_per_s: int = MAX_BYTES_PER_S
    objects: "Objects | None" = None
