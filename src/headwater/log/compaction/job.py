"""The messages between the broker and the child process that rewrites segments."""

import msgspec

from headwater.log.partitions.transactions import AbortedTransaction


class Source(msgspec.Struct, array_like=True):
    """A segment to be rewritten."""

    base_offset: int
    size_bytes: int


class Rewrite(msgspec.Struct, kw_only=True):
    """Where segments are rewritten, the limits of what is written, and how fast it may be."""

    directory: str
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    bytes_per_s: int


class Job(Rewrite, kw_only=True, tag="compact"):
    """A pass over `sources`, all sealed, in order and without a gap up to `end_offset`."""

    sources: list[Source]
    first_dirty_offset: int
    end_offset: int
    now_ms: int
    delete_retention_ms: int
    memory_bytes: int
    aborted: list[AbortedTransaction] = []


class EraseJob(Rewrite, kw_only=True, tag="erase"):
    """The records at `offsets`, which ascend, are to be erased from one sealed segment."""

    source: Source
    offsets: list[int]


class Report(msgspec.Struct, omit_defaults=True):
    """What a job reports: a cleaned segment, a damaged one, or that it is over."""

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
    erased: list[int] | None = None  # an EraseJob is done: what had contents; see `inputs`

    @property
    def is_last(self) -> bool:
        is_done = self.clean_offset is not None or self.erased is not None
        return bool(self.error) or is_done
