"""One pass of compaction over one partition. Runs in the child process.

  1. The keys of the dirty segments go into a map of bounded size, until it is full.
  2. Every segment up to there is written again, without the records that a later one supersedes,
     into `….cleaned.*` files; neighbours that have become small are merged.

What is written is synced and then reported (`Report`); the broker swaps it in (swap.py). Until it
does, nothing has happened: a start removes `….cleaned.*` files that no broker uses.

What stays (Kafka's rules, KIP-534):
  - the latest record of each key; also a tombstone, until `delete.retention.ms` after the pass
    that first saw it. That moment (the delete horizon) stands in its batch: attribute bit 6, and
    the base timestamp
  - records behind the map's reach
  - a transaction's marker while records of the transaction are found, then as long as a tombstone
  - nothing of aborted transactions, and no record without a key

A batch retains its offsets, its producer's id, epoch and sequence, its codec and kind of timestamp.
Batches without records go. (Kafka retains the last one of each producer, empty. Here a snapshot of
the producers is written whenever a segment is sealed, so recovery never needs a cleaned batch.)

A segment with damage, or with a batch that cannot be decompressed, is left as it is and reported.
Its records are not in the map, so that nothing is dropped for their sake, and tombstones and
markers behind it stay, because there may be older records for them in it.
"""

import bisect
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from headwater.errors import MalformedMessage
from headwater.log.compaction.job import Job, Report
from headwater.log.compaction.loops import kernels
from headwater.log.compaction.output import Output, Throttle, stem
from headwater.log.compaction.pass_state import (
    AT,
    CHANGED,
    CONTROL,
    DAMAGED,
    DELETE_HORIZON,
    DONE,
    ENTRIES,
    FULL,
    GROWTH_BYTES,
    LATEST,
    MAX_TIMESTAMP,
    MORE_INPUT,
    MORE_OUTPUT,
    NEXT_OFFSET,
    OUT_AT,
    RECORDS,
    RETAINED,
    SPECIAL,
    STATE_WORDS,
    TOMBSTONES,
)  # fmt: skip
from headwater.log.disk.files import Files
from headwater.log.partitions.transactions import AbortedTransaction
from headwater.protocol import compression, records
from headwater.protocol.records import (
    DECOMPRESSED_LIMIT_BYTES,
    HEADER_BYTES,
    INT64_MAX,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
)

WINDOW_BYTES = 4 << 20
FIRST_SLOTS = 1 << 14
GROWTH_FACTOR = 4
FULL_AT = 0.8  # linear probing slows down beyond


class _Damaged(Exception):
    def __init__(self, at: int, detail: str) -> None:
        super().__init__(detail)
        self.at = at  # which source


def clean(job: Job, files: Files, report: Callable[[Report], None]) -> None:
    """Does the pass. Raises OSError if the disk refuses; what was reported by then is whole."""
    _Pass(job, files, report).run()


class _Pass:
    def __init__(self, job: Job, files: Files, report: Callable[[Report], None]) -> None:
        self._job = job
        self._files = files
        self._report = report
        self._throttle = Throttle(job.bytes_per_s)
        self._began_s = time.monotonic()
        self._bytes_read = self._bytes_written = self._records_kept = 0
        self._damaged: dict[int, str] = {}  # by index in `sources`
        self._aborted = _Aborted(job.aborted)
        self._window = kernels.buffer(WINDOW_BYTES)
        self._out = kernels.buffer(WINDOW_BYTES)
        self._state = kernels.words(STATE_WORDS)
        self._slots_limit = max(job.memory_bytes // kernels.BYTES_PER_SLOT, 2)
        self._new_map()
        self._seen: set[int] = set()  # producers with records since their last marker

    def run(self) -> None:
        reached = self._build_map()
        at = 0
        while at < len(self._job.sources) and self._job.sources[at].base_offset <= reached:
            if at in self._damaged:
                at += 1
                continue
            seen = set(self._seen)
            try:
                at = self._clean_group(at, reached)
            except _Damaged as damage:
                self._note_damage(damage)
                self._seen = seen
        is_all = reached >= self._job.end_offset - 1
        self._report(
            Report(
                clean_offset=self._job.end_offset if is_all else reached + 1,
                bytes_read=self._bytes_read,
                bytes_written=self._bytes_written,
                keys=int(self._state[ENTRIES]),
                records_kept=self._records_kept,
                seconds=time.monotonic() - self._began_s,
            )
        )

    def _note_damage(self, damage: _Damaged) -> None:
        base_offset = self._job.sources[damage.at].base_offset
        self._damaged[damage.at] = str(damage)
        self._report(Report(damaged=base_offset, detail=str(damage)))

    # ── the map ───────────────────────────────────────────────────────────────────────────────

    def _new_map(self) -> None:
        self._k0, self._k1 = kernels.hash_key()
        self._make_table(min(FIRST_SLOTS, self._slots_limit))
        self._state[ENTRIES] = 0
        self._state[LATEST] = self._job.first_dirty_offset - 1

    def _make_table(self, slots: int) -> None:
        self._table = kernels.new_table(slots)
        self._keys_limit = max(int(slots * FULL_AT), 1)

    def _build_map(self) -> int:
        """The last offset whose key, and all before it, are in the map."""
        while True:
            try:
                for at in range(len(self._job.sources)):
                    is_dirty = self._end_of(at) > self._job.first_dirty_offset
                    if is_dirty and at not in self._damaged and self._map_segment(at) == FULL:
                        return int(self._state[LATEST])
                return self._job.end_offset - 1
            except _Damaged as damage:
                # What it has put into the map must not supersede anything.
                self._note_damage(damage)
                self._new_map()

    def _map_segment(self, at: int) -> int:
        def window(end: int) -> int:
            code: int = kernels.map_window(
                self._window, end, self._job.first_dirty_offset, self._table, self._keys_limit,
                self._k0, self._k1, self._state,
            )  # fmt: skip
            return self._larger_table() if code == FULL else code

        def special(header: BatchHeader, batch: memoryview) -> int:
            wanted = header.last_offset >= self._job.first_dirty_offset
            if not wanted or header.attributes & CONTROL or self._aborted.holds(header):
                self._state[LATEST] = max(int(self._state[LATEST]), header.last_offset)
                return DONE
            body = _body(header, batch)
            while True:
                code: int = kernels.map_records(
                    body, 0, len(body), header.base_offset, header.last_offset_delta,
                    header.record_count, self._job.first_dirty_offset, self._table,
                    self._keys_limit, self._k0, self._k1, self._state,
                )  # fmt: skip
                if code != FULL or self._larger_table() == FULL:
                    return code

        return self._walk(at, window, special)

    def _larger_table(self) -> int:
        """MORE_OUTPUT: there is room now, the same batch again; FULL: there will be none."""
        slots = kernels.slots_of(self._table)
        if slots >= self._slots_limit:
            return FULL
        before = self._table
        wanted = slots * GROWTH_FACTOR
        # No small step at the end: both tables would be nearly as large as the limit.
        self._make_table(self._slots_limit if wanted * 2 > self._slots_limit else wanted)
        kernels.grow(before, self._table)
        return MORE_OUTPUT

    # ── rewriting ─────────────────────────────────────────────────────────────────────────────

    def _clean_group(self, first: int, reached: int) -> int:
        """Cleans segments from `first` on into one, as many as it holds; which one is next."""
        sources = self._job.sources
        base_offset = sources[first].base_offset
        output = Output(self._files, self._job, base_offset, self._throttle, kernels)
        self._state[CHANGED] = self._state[RECORDS] = 0
        at = first
        try:
            while True:
                retains_deletes = any(damaged < at for damaged in self._damaged)
                self._filter_segment(at, output, retains_deletes)
                at += 1
                if (
                    at == len(sources)
                    or at in self._damaged
                    or sources[at].base_offset > reached
                    or not output.has_room_for(sources[at], self._end_of(at))
                ):
                    break
            if at == first + 1 and self._state[CHANGED] == 0:
                output.discard()  # it is as it was
            else:
                newest_ns = max(
                    os.stat(f"{stem(self._job.directory, source.base_offset)}.log").st_mtime_ns
                    for source in sources[first:at]
                )
                output.finish(newest_ns)
                self._report(Report(inputs=[source.base_offset for source in sources[first:at]]))
        except BaseException:
            output.discard()
            raise
        self._bytes_written += output.size_bytes
        self._records_kept += int(self._state[RECORDS])
        return at

    def _filter_segment(self, at: int, output: "Output", retains_deletes: bool) -> None:
        state = self._state
        now_ms = -1 if retains_deletes else self._job.now_ms
        horizon_ms = min(self._job.now_ms + self._job.delete_retention_ms, INT64_MAX)
        state[OUT_AT] = 0

        def flush() -> None:
            output.write(self._out, int(state[OUT_AT]))
            state[OUT_AT] = 0

        def window(end: int) -> int:
            code: int = kernels.filter_window(
                self._window, end, now_ms, horizon_ms, self._table, self._k0, self._k1, self._out,
                state,
            )  # fmt: skip
            if code == MORE_OUTPUT:
                if state[OUT_AT] == 0:
                    head = records.read_header(memoryview(self._window)[state[AT] :])
                    self._grow_out(head.size_bytes + GROWTH_BYTES * head.record_count)
                flush()
            return code

        def put(batch: bytes | bytearray | memoryview) -> None:
            if state[OUT_AT] + len(batch) > len(self._out):
                flush()
                self._grow_out(len(batch))
            start = int(state[OUT_AT])
            memoryview(self._out)[start : start + len(batch)] = batch
            state[OUT_AT] += len(batch)

        def special(header: BatchHeader, batch: memoryview) -> int:
            if header.attributes & CONTROL:
                retained = self._filter_marker(
                    header, batch, output, now_ms, horizon_ms, retains_deletes
                )
            else:
                retained = self._filter_data(header, batch, now_ms, horizon_ms)
            if retained is not batch:
                state[CHANGED] += 1
            if retained is not None:
                put(retained)
            return DONE

        self._walk(at, window, special)
        flush()

    def _grow_out(self, size_bytes: int) -> None:
        if size_bytes > len(self._out):
            self._out = kernels.buffer(size_bytes)

    def _filter_data(
        self, header: BatchHeader, batch: memoryview, now_ms: int, horizon_ms: int
    ) -> bytes | bytearray | memoryview | None:
        """What stays of a batch that is compressed or part of a transaction."""
        state = self._state
        if header.attributes & TRANSACTIONAL:
            self._seen.add(header.producer_id)
            if self._aborted.holds(header):
                return None
        if header.base_offset > state[LATEST]:
            return batch
        body = _body(header, batch)
        has_horizon = bool(header.attributes & DELETE_HORIZON)
        retains_deletes = not has_horizon or now_ms < header.base_timestamp
        scratch = kernels.buffer(len(body) + GROWTH_BYTES * header.record_count)
        out_at = int(state[OUT_AT])

        def filtered(shift: int) -> memoryview:
            state[OUT_AT] = 0
            code = kernels.filter_records(
                body, 0, len(body), header.base_offset, header.last_offset_delta,
                header.record_count, header.base_timestamp, retains_deletes, shift, self._table,
                self._k0, self._k1, scratch, state,
            )  # fmt: skip
            size_bytes, state[OUT_AT] = int(state[OUT_AT]), out_at
            if code != DONE:
                raise MalformedMessage("records that are not what their batch says")
            return memoryview(scratch)[:size_bytes]

        retained = filtered(0)
        sets_horizon = bool(state[TOMBSTONES]) and not has_horizon
        count = int(state[RETAINED])
        state[RECORDS] += count
        if count == 0:
            return None
        if count == header.record_count and not sets_horizon:
            return batch
        if sets_horizon:
            retained = filtered(header.base_timestamp - horizon_ms)
            header = _with_horizon(header, horizon_ms)
        if not header.attributes & LOG_APPEND_TIME:
            header = header._replace(max_timestamp=int(state[MAX_TIMESTAMP]))
        return records.rebuilt(
            header._replace(record_count=count), compression.compress(header.codec, bytes(retained))
        )

    def _filter_marker(
        self,
        header: BatchHeader,
        batch: memoryview,
        output: "Output",
        now_ms: int,
        horizon_ms: int,
        retains_deletes: bool,
    ) -> bytes | bytearray | memoryview | None:
        """A marker goes when nothing of its transaction was found, some time after."""
        had_records = header.producer_id in self._seen
        self._seen.discard(header.producer_id)
        aborted = self._aborted.ended_by(header)
        if aborted is not None and (had_records or retains_deletes):
            output.aborted.append(aborted)
        if had_records or retains_deletes:
            return batch
        if header.attributes & DELETE_HORIZON:
            return None if header.base_timestamp <= now_ms else batch
        body = kernels.view(batch[HEADER_BYTES:])
        scratch = kernels.buffer(len(body) + GROWTH_BYTES)
        out_at, latest = int(self._state[OUT_AT]), int(self._state[LATEST])
        self._state[OUT_AT], self._state[LATEST] = 0, -1  # behind the map: all of it stays
        kernels.filter_records(
            body, 0, len(body), header.base_offset, header.last_offset_delta, header.record_count,
            header.base_timestamp, True, header.base_timestamp - horizon_ms, self._table,
            self._k0, self._k1, scratch, self._state,
        )  # fmt: skip
        size_bytes, self._state[OUT_AT] = int(self._state[OUT_AT]), out_at
        self._state[LATEST] = latest
        return records.rebuilt(_with_horizon(header, horizon_ms), memoryview(scratch)[:size_bytes])

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def _end_of(self, at: int) -> int:
        """The offset behind a source."""
        sources = self._job.sources
        return sources[at + 1].base_offset if at + 1 < len(sources) else self._job.end_offset

    def _walk(
        self,
        at: int,
        window: Callable[[int], int],
        special: Callable[[BatchHeader, memoryview], int],
    ) -> int:
        """Shows a segment to `window`, a piece at a time, and to `special` what that cannot do.

        FULL if one of them says so, else DONE. Raises _Damaged.
        """
        source, state = self._job.sources[at], self._state
        path = f"{stem(self._job.directory, source.base_offset)}.log"
        state[NEXT_OFFSET] = source.base_offset
        position = 0
        fd = self._files.open(path)
        try:
            while position < source.size_bytes:
                size_bytes = self._read(fd, position, source.size_bytes)
                state[AT] = 0
                code = MORE_OUTPUT
                while code in (MORE_OUTPUT, SPECIAL):
                    code = window(size_bytes)
                    if code == SPECIAL:
                        code = self._show_special(special)
                        code = SPECIAL if code == DONE else code
                if code == FULL:
                    return FULL
                if code == MORE_INPUT and state[AT] == 0:
                    self._grow_window(size_bytes, source.size_bytes - position)
                elif code == DAMAGED:
                    raise MalformedMessage("a batch that is not as it was written")
                position += int(state[AT])
        except MalformedMessage as error:
            detail = f"{path} at byte {position + int(state[AT])}: {error}"
            raise _Damaged(at, detail) from None
        finally:
            self._files.close(fd)
        return DONE

    def _read(self, fd: int, position: int, end: int) -> int:
        wanted = min(len(self._window), end - position)
        size_bytes = self._files.pread_into(fd, memoryview(self._window)[:wanted], position)
        if size_bytes == 0:
            raise MalformedMessage("the segment ends early")
        self._bytes_read += size_bytes
        self._throttle.spend(size_bytes)
        return size_bytes

    def _grow_window(self, size_bytes: int, rest_bytes: int) -> None:
        """The batch at the window's begin does not fit into it."""
        if size_bytes < HEADER_BYTES:
            raise MalformedMessage("half a header")
        wanted = records.read_header(memoryview(self._window)[:HEADER_BYTES]).size_bytes
        if wanted > rest_bytes or size_bytes < min(wanted, len(self._window)):
            raise MalformedMessage("half a batch")
        if wanted > len(self._window):
            self._window = kernels.buffer(wanted)

    def _show_special(self, special: Callable[[BatchHeader, memoryview], int]) -> int:
        state = self._state
        start = int(state[AT])
        window = memoryview(self._window)
        header = records.read_header(window[start : start + HEADER_BYTES])
        code = special(header, window[start : start + header.size_bytes])
        if code == DONE:
            state[AT] = start + header.size_bytes
            state[NEXT_OFFSET] = header.last_offset + 1
        return code


class _Aborted:
    """Which batches belong to aborted transactions."""

    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        for transaction in sorted(transactions, key=lambda one: one.first_offset):
            self._by_producer.setdefault(transaction.producer_id, []).append(transaction)

    def holds(self, header: BatchHeader) -> bool:
        if not header.attributes & TRANSACTIONAL:
            return False
        found = self._last_before(header)
        return found is not None and header.base_offset <= found.last_offset

    def ended_by(self, marker: BatchHeader) -> AbortedTransaction | None:
        found = self._last_before(marker)
        return found if found is not None and found.last_offset == marker.base_offset else None

    def _last_before(self, header: BatchHeader) -> AbortedTransaction | None:
        of_producer = self._by_producer.get(header.producer_id, [])
        at = bisect.bisect_right(of_producer, header.base_offset, key=lambda one: one.first_offset)
        return of_producer[at - 1] if at else None


def _body(header: BatchHeader, batch: memoryview) -> Any:
    plain = compression.decompress(header.codec, batch[HEADER_BYTES:], DECOMPRESSED_LIMIT_BYTES)
    return kernels.view(plain)


def _with_horizon(header: BatchHeader, horizon_ms: int) -> BatchHeader:
    return header._replace(attributes=header.attributes | DELETE_HORIZON, base_timestamp=horizon_ms)
