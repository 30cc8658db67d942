"""The messages between the broker and its compacting child process."""

import msgspec

from headwater.log.partitions.transactions import AbortedTransaction


class Source(msgspec.Struct, array_like=True):
    """A segment to be cleaned."""

    base_offset: int
    size_bytes: int


class Job(msgspec.Struct):
    """A pass over `sources`, all sealed, in order and without a gap up to `end_offset`."""

    directory: str
    sources: list[Source]
    first_dirty_offset: int
    end_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    memory_bytes: int
    bytes_per_s: int
    aborted: list[AbortedTransaction] = []


class Report(msgspec.Struct, omit_defaults=True):
    """What a pass reports: a cleaned segment, a damaged one, or that it is over."""

    inputs: list[int] = []  # base offsets; the cleaned segment has the first of them
    damaged: int | None = None  # base offset
    detail: str = ""
    error: str = ""  # it was given up
    clean_offset: int | None = None  # it is done: everything in front of this is clean
    bytes_read: int = 0
    bytes_written: int = 0
    keys: int = 0
    records_kept: int = 0
    seconds: float = 0.0

    @property
    def is_last(self) -> bool:
        return bool(self.error) or self.clean_offset is not None
