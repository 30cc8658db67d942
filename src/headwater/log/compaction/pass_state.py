"""Codes and state words that a cleaning pass shares with its loops, compiled or not."""

from typing import Final

# Why a loop stopped.
DONE, DAMAGED, MORE_INPUT, MORE_OUTPUT, SPECIAL, FULL = range(6)

# Indexes of the words in `state`.
AT, OUT_AT, NEXT_OFFSET, ENTRIES, LATEST, RETAINED, MAX_TIMESTAMP, TOMBSTONES, RECORDS, CHANGED = (
    range(10)
)
STATE_WORDS: Final = 10

HEADER_BYTES: Final = 61
# What a record may grow by if its timestamp is counted from another base: two varints.
GROWTH_BYTES: Final = 12
COMPRESSION_MASK, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = (
    0x07,
    0x08,
    0x10,
    0x20,
    0x40,
)

# Indexes of the words in the state of an index being built; see `segment.record_batch`, which the
# loops mirror.
SIZE, SINCE_ENTRY, MAX_MS, MAX_MS_OFFSET, INDEXED_MS, OFFSET_ENTRIES, TIME_ENTRIES = range(7)
INDEX_WORDS: Final = 7
