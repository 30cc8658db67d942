"""Records of a subject in topics: which have its fields encrypted, and which in plain text.

All records of a topic are read, those of aborted transactions included: they are bytes on the disk,
too. A record is looked into only if the subject's id, or one of its keys, stands in its value. JSON
may have the id of a schema before it; Avro and Protobuf cannot be searched, and are counted.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import orjson

from headwater import config, extras
from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.client.writing.sending import TopicPartition
from headwater.erasure.subject import Subject
from headwater.inspect.pipelines import reported_writes
from headwater.pipelines.running import status
from headwater.schemas.wire_format import MAGIC_AND_ID_BYTES
from headwater.settings import ClientSettings
from headwater.subjects.personal import Marked, encrypted_members, plain_fields
from headwater.subjects.sealing import key_id_of
from headwater.subjects.settings import SubjectSettings

if TYPE_CHECKING:
    import pyarrow as pa

DEAD_LETTERS: Final = ".dlq"  # behind the name of a topic, or of a pipeline
LATE_ROWS: Final = ".late"  # behind the name of a pipeline
_FRAMED: Final = b"\x00"  # first byte of a value with the id of its schema
_READ_BY_ARROW: Final = 50_000  # offsets of a partition

OnSearched = Callable[[int, int], None]  # records read, of how many offsets


@dataclass(slots=True)
class Found:
    """What a search has found."""

    plain: dict[TopicPartition, list[int]] = field(default_factory=dict)  # offsets
    plain_fields: dict[str, set[str]] = field(default_factory=dict)  # by topic
    encrypted: dict[str, int] = field(default_factory=dict)  # records, by topic
    topics: list[str] = field(default_factory=list)  # that were read
    missing: list[str] = field(default_factory=list)  # that the settings name and do not exist
    unused: dict[str, list[str]] = field(default_factory=dict)  # fields that no record has
    not_searched: dict[str, int] = field(default_factory=dict)  # values of Avro and Protobuf
    records: int = 0

    @property
    def plain_records(self) -> int:
        return sum(len(offsets) for offsets in self.plain.values())

    @property
    def is_empty(self) -> bool:
        return not self.plain and not self.encrypted


def marks_by_topic(loaded: config.Config, kind: SubjectSettings) -> dict[str, tuple[Marked, ...]]:
    """The topics of a kind of subject, and those that have the same values: their dead letters, and
    the late and refused rows of the pipelines that read them.
    """
    named = {
        topic: (Marked(kind.name, fields.id, fields.personal),)
        for topic, fields in kind.topics.items()
    }
    others: dict[str, tuple[Marked, ...]] = {
        topic + DEAD_LETTERS: marks for topic, marks in named.items()
    }
    for pipeline in loaded.pipelines:
        writes = reported_writes(status.read(loaded.state_dir(), pipeline)).values()
        read = {topic for about in writes for topic in about.get("topics", [])}
        marks = dict.fromkeys(mark for topic in sorted(read & {*named}) for mark in named[topic])
        if marks:
            others |= {pipeline + suffix: (*marks,) for suffix in (LATE_ROWS, DEAD_LETTERS)}
    return named | {topic: marks for topic, marks in others.items() if topic not in named}


def search(
    bootstrap: str,
    login: ClientSettings,
    marks: Mapping[str, Sequence[Marked]],
    named: Collection[str],
    subject: Subject,
    key_ids: Collection[str],
    on_searched: OnSearched = lambda *_: None,
) -> Found:
    """Reads the topics up to their present ends. `named`: by the settings, so that they should
    exist and have all fields. `key_ids`: all keys that the subject has had.
    """
    found = Found()
    with Fetcher(bootstrap, login, isolation="read_uncommitted") as fetcher:
        ranges = _ranges(fetcher, marks, named, found)
        total = sum(end - start for start, end in ranges.values())
        for (topic, partition), (start, end) in ranges.items():
            fields = [name for mark in marks[topic] for name in mark.fields]
            seen = _SeenFields(fields if topic in named else ())
            needles = needles_of(subject, key_ids)
            for count, values in _values(fetcher, topic, partition, start, end, needles, seen):
                found.records += count
                on_searched(found.records, total)
                for offset, value in values:
                    _judge(found, (topic, partition), offset, value, marks[topic], subject, key_ids)
            if seen.binary_values:
                found.not_searched[topic] = found.not_searched.get(topic, 0) + seen.binary_values
            if seen.missing and end > start:
                found.unused.setdefault(topic, seen.missing)
        on_searched(found.records, total)
    return found


def _judge(
    found: Found,
    partition: TopicPartition,
    offset: int,
    value: bytes,
    marks: Sequence[Marked],
    subject: Subject,
    key_ids: Collection[str],
) -> None:
    topic = partition[0]
    if value.startswith(_FRAMED):
        value = value[MAGIC_AND_ID_BYTES:]
    if plain := {name for mark in marks for name in plain_fields(value, mark, subject.id)}:
        found.plain.setdefault(partition, []).append(offset)
        found.plain_fields.setdefault(topic, set()).update(plain)
    if any(key_id_of(token) in key_ids for _, token in encrypted_members(value)):
        found.encrypted[topic] = found.encrypted.get(topic, 0) + 1


def _ranges(
    fetcher: Fetcher, topics: Iterable[str], named: Collection[str], found: Found
) -> dict[TopicPartition, tuple[int, int]]:
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    for topic in topics:
        if not fetcher.exists(topic):
            if topic in named:
                found.missing.append(topic)
            continue
        found.topics.append(topic)
        partitions = [(topic, number) for number in range(fetcher.partitions(topic))]
        starts, ends = fetcher.offsets(partitions, EARLIEST), fetcher.offsets(partitions, LATEST)
        ranges |= {partition: (starts[partition], ends[partition]) for partition in partitions}
    return ranges


def _values(
    fetcher: Fetcher,
    topic: str,
    partition: int,
    start: int,
    end: int,
    needles: Sequence[bytes],
    seen: "_SeenFields",
) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
    """How many records were read, and offsets and values of those with one of the needles. Many
    are read by Arrow, where it is installed: it is several times as fast, once it is loaded.
    """
    if end - start < _READ_BY_ARROW or extras.missing_of("fast"):
        for record in fetcher.records(topic, partition, start, end):
            seen.look(record.value)
            seen.count_binary([record.value])
            value = record.value or b""
            is_meant = bool(value) and any(needle in value for needle in needles)
            yield 1, [(record.offset, value)] if is_meant else []
        return
    for batch in fetcher.read(topic, partition, start, end, columns=("offset", "value")):
        if seen.missing:
            for value in batch.column("value").to_pylist():
                seen.look(value)
        seen.count_binary(_framed(batch))
        meant = _with_needle(batch, needles)
        offsets, values = meant.column("offset").to_pylist(), meant.column("value").to_pylist()
        yield batch.num_rows, list(zip(offsets, values, strict=True))


def _with_needle(batch: "pa.RecordBatch", needles: Sequence[bytes]) -> "pa.RecordBatch":
    """The records whose values have one of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = batch.column("value").cast(pa.binary())
    found = pc.is_valid(values)
    if b"" not in needles:
        matches = [pc.match_substring(values, needle.decode()) for needle in needles]
        found = functools.reduce(pc.or_, matches)
    return batch.filter(pc.fill_null(found, False))


def _framed(batch: "pa.RecordBatch") -> list[bytes]:
    """The values that begin with the id of a schema."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = batch.column("value").cast(pa.binary())
    is_framed = pc.starts_with(values, pattern=_FRAMED.decode())
    framed: list[bytes] = values.filter(pc.fill_null(is_framed, False)).to_pylist()
    return framed


def needles_of(subject: Subject, key_ids: Collection[str]) -> Sequence[bytes]:
    """One of them stands in every value that concerns the subject. An id that JSON may write in
    several ways is in none for certain, so every value is looked into.
    """
    written = orjson.dumps(subject.id)[1:-1]
    is_plain = subject.id.isascii() and written == subject.id.encode() and "/" not in subject.id
    if not is_plain:
        return [b""]
    return [written, *(key_id.encode() for key_id in key_ids)]


class _SeenFields:
    """Fields that no record of a topic has, most likely misspelt in the settings; and how many
    values have fields that cannot be seen.
    """

    def __init__(self, fields: Iterable[str]) -> None:
        self._left = {name: orjson.dumps(name) for name in fields}
        self.binary_values = 0  # of Avro or Protobuf

    def count_binary(self, values: Iterable[bytes | None]) -> None:
        """Those of the values that have the id of a schema, and no JSON behind it."""
        self.binary_values += sum(
            value is not None
            and value.startswith(_FRAMED)
            and not value.startswith(b"{", MAGIC_AND_ID_BYTES)
            for value in values
        )

    def look(self, value: bytes | None) -> None:
        if self._left and value is not None:
            self._left = {name: text for name, text in self._left.items() if text not in value}

    @property
    def missing(self) -> list[str]:
        return list(self._left)
