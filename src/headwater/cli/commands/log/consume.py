"""`headwater consume TOPIC …`: records to stdout.

Two ways to read. Without a group the partitions are assigned by hand, each from its own offset up
to its own end. With `-g` the group decides what this member reads and from where; the offsets of
what has been written to stdout are committed.
"""

import argparse
import os
import re
import select
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headwater.cli import record_format
from headwater.cli.arguments import cluster_of, load_config
from headwater.cli.parser import Command, Parser, client_options, whole_number
from headwater.errors import BrokerUnreachable, RequestRefused, UsageError
from headwater.inspect.kafka_cluster import KafkaCluster, Partition, all_partitions, refused
from headwater.inspect.positions import END, FORMS, START, Range, Span, parse_range, resolve
from headwater.inspect.record_json import dump_record
from headwater.printable import printable_json
from headwater.terminal.interrupt import Interrupt
from headwater.terminal.output import coloured, note

if TYPE_CHECKING:  # most commands decode nothing
    from headwater.cli.decoded_records import RecordDecoder, RecordDecryptor
    from headwater.schema_lookup.lookup import SchemaLookup

_BATCH: Final = 10_000
_POLL_S: Final = 0.1
_LOOK_FOR_NEW_PARTITIONS_S: Final = 5.0

_COUNT: Final = whole_number(0, 10**18 - 1)

Batch = list[Any]


def _configure(parser: Parser) -> None:
    parser.add_argument(
        "topics", metavar="TOPIC", nargs="+", help="topics; ^… is a regular expression"
    )
    parser.add_argument(
        "-o",
        "--offset",
        metavar="POSITION",
        help=f"{FORMS}; TIME is ISO, epoch ms, or back from now as -1h (default: end, and follow)",
    )
    parser.add_argument(
        "-e", "--exit", action="store_true", help="end at the last record, do not follow"
    )
    parser.add_argument("-n", "--num", type=_COUNT, metavar="N", help="end after N records")
    parser.add_argument("-p", "--partitions", metavar="P[,P...]", help="only these partitions")
    parser.add_argument(
        "-g", "--group", metavar="GROUP", help="read as a member of the group, and commit"
    )
    parser.add_argument(
        "-f",
        "--format",
        metavar="FORMAT",
        help="%%t topic, %%p partition, %%o offset, %%k key, %%v value, %%h headers, %%T timestamp"
        " in ms, %%d ISO time, \\n, \\t (default: the value and a newline; more on a terminal)",
    )
    parser.add_argument(
        "--binary",
        choices=record_format.BINARY_FORMS,
        metavar="FORM",
        help="raw, hex or base64: how to show what is not UTF-8 (hex on a terminal, else raw);"
        " raw leaves control characters to the terminal",
    )
    parser.add_argument(
        "--decode",
        action=argparse.BooleanOptionalAction,
        help="show keys and values that begin with the id of a schema (Avro, JSON, Protobuf) as"
        " JSON, by [schemas] (default: on a terminal, without -f and --json)",
    )
    parser.add_argument(
        "--decrypt",
        action="store_true",
        help='show personal fields ([subject.NAME]) in plain text, and "(erased)" for those whose'
        " subject was erased",
    )
    parser.add_argument(
        "--isolation",
        choices=("read_committed", "read_uncommitted"),
        metavar="LEVEL",
        default="read_committed",
        help="read_committed (default) or read_uncommitted",
    )
    client_options(parser, json_help="one JSON object per record and line")


def _run(args: argparse.Namespace) -> int:
    decoder = _decoder(args)
    render = _renderer(args, decoder)
    wanted = parse_range(args.offset) if args.offset is not None else None
    if args.group == "":
        raise UsageError("the name of the group is empty", hint="without -g there is no group")
    if args.group and (args.partitions or (wanted and wanted.last)):
        raise UsageError(
            "a group decides itself which partitions and offsets are read",
            hint="leave out -g, or -p and the end of the range",
        )
    cluster = cluster_of(args)
    output = _Output(render, args.num)
    if args.group:
        _consume_as_member(cluster, args, wanted, output)
    else:
        _consume_partitions(cluster, args, wanted, output)
    if decoder is not None:
        decoder.close()
    return 0


def _decoder(args: argparse.Namespace) -> "RecordDecoder | None":
    is_for_people = sys.stdout.isatty() and not args.json and args.format is None
    if not (is_for_people if args.decode is None else args.decode):
        return None

    from headwater.cli.decoded_records import RecordDecoder

    def make() -> "SchemaLookup":
        from headwater.schema_lookup.lookup import SchemaLookup
        from headwater.schema_lookup.sources import schema_source

        settings = load_config(args)
        source = schema_source(settings.schemas, settings.bootstrap(), settings.client)
        return SchemaLookup(source)

    # Bytes that happen to begin with 0 are no mistake, unless decoding was asked for.
    return RecordDecoder(make, note if args.decode else lambda _: None)


class _Output:
    """Writes batches to stdout, one write each, up to `most` records."""

    def __init__(self, render: Callable[[Batch], bytes | bytearray], most: int | None) -> None:
        self._render = render
        self._left = most
        self._interrupted = Interrupt()  # Ctrl-C is how one ends a tail
        sys.stdout.flush()

    @property
    def full(self) -> bool:
        """No more is wanted."""
        return self._left == 0 or bool(self._interrupted)

    def write(self, batch: Batch) -> Batch:
        """Returns what was written of it. Raises BrokenPipeError if the reader closed the pipe."""
        if self._left is not None:
            batch = batch[: self._left]
            self._left -= len(batch)
        if batch:
            data = memoryview(self._render(batch))
            while data:
                data = data[os.write(1, data) :]
        elif _reader_gone():
            raise BrokenPipeError
        return batch


def _reader_gone() -> bool:
    """Whether the reader of our stdout has closed it: an idle tail would not notice otherwise."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _renderer(
    args: argparse.Namespace, decoder: "RecordDecoder | None"
) -> Callable[[Batch], bytes | bytearray]:
    if args.json and args.format is not None:
        raise UsageError("--json and -f exclude each other")
    terminal = sys.stdout.isatty()
    decryptor = _decryptor(args)
    one: record_format.Formatter
    if args.json:
        one = _dump_printable if terminal else dump_record
    elif args.format is not None:
        one = record_format.formatter(args.format, args.binary, terminal=terminal)
    elif terminal:
        several = len(args.topics) > 1 or args.topics[0].startswith("^")
        one = record_format.terminal_formatter(
            args.binary, with_topic=several, colour=coloured(sys.stdout)
        )
    elif args.binary in (None, "raw") and decoder is None and decryptor is None:
        return record_format.value_lines
    else:
        one = record_format.formatter("%v\\n", args.binary)

    def render(batch: Batch) -> bytearray:
        # Not a join: orjson's results hold 1 KiB each until they are freed, here one at a time.
        lines = bytearray()
        for message in batch:
            if decoder is not None:
                message = decoder(message)  # noqa: PLW2901 (the same record)
            lines += one(message if decryptor is None else decryptor(message))
        return lines

    return render


def _decryptor(args: argparse.Namespace) -> "RecordDecryptor | None":
    if not args.decrypt:
        return None

    from headwater.cli.decoded_records import RecordDecryptor
    from headwater.subjects.access import keyring_of
    from headwater.subjects.personal import marked_topics

    loaded = load_config(args)
    keyring = keyring_of(loaded.key_places(), create=False)
    return RecordDecryptor(keyring, marked_topics(loaded.subject_kinds), note)


def _dump_printable(message: Any) -> bytes:
    return printable_json(dump_record(message).decode()).encode()


def _consume_partitions(
    cluster: KafkaCluster, args: argparse.Namespace, wanted: Range | None, output: _Output
) -> None:
    wanted = wanted or Range(END)
    if args.exit and wanted.last is None:
        wanted = Range(wanted.first, END)
    reading = _Reading(cluster, args)
    reading.add(_partitions(cluster, args), wanted)
    # Only a tail without end meets partitions that did not exist when it began.
    follows = wanted.last is None and not args.partitions
    next_look_s = time.monotonic() + _LOOK_FOR_NEW_PARTITIONS_S
    try:
        while reading.open_partitions and not output.full:
            output.write(reading.next_batch())
            _warn_if_lost(cluster)
            if follows and time.monotonic() > next_look_s:
                _look_for_new_partitions(cluster, args, reading)
                next_look_s = time.monotonic() + _LOOK_FOR_NEW_PARTITIONS_S
    finally:
        reading.close()


def _look_for_new_partitions(
    cluster: KafkaCluster, args: argparse.Namespace, reading: "_Reading"
) -> None:
    try:
        reading.add(_partitions(cluster, args), Range(START))
    except BrokerUnreachable:
        return  # a tail waits for the broker to come back
    except RequestRefused as error:
        note(str(error))  # a topic was deleted; the others are read on


class _Reading:
    """Partitions assigned by hand, each read over its own span."""

    def __init__(self, cluster: KafkaCluster, args: argparse.Namespace) -> None:
        self._cluster = cluster
        self._committed_only = args.isolation == "read_committed"
        self._consumer = _consumer(cluster, args, group="headwater-consume")
        self._spans: dict[Partition, Span] = {}
        # Partitions that need a look at each record's offset: those with an end, and those that
        # were asked for from an offset which is still ahead.
        self._bounded: set[Partition] = set()
        self.open_partitions: set[Partition] = set()

    def add(self, partitions: list[Partition], wanted: Range) -> None:
        new = [partition for partition in partitions if partition not in self._spans]
        spans = resolve(wanted, self._cluster, new, committed_only=self._committed_only)
        missing = [partition for partition in new if partition not in spans]
        if missing:
            raise RequestRefused(
                f"{missing[0]} cannot be read", detail="it has no leader at the moment"
            )
        for partition, span in spans.items():
            self._spans[partition] = span
            first = max(span.first, span.low)
            if span.first < span.low and wanted.first.kind == "offset":
                note(
                    f"{partition}: offset {span.first} is no longer retained; begins at {span.low}"
                )
            if span.last is not None and (span.last <= first or first >= span.high >= span.last):
                continue
            if span.last is not None or first > span.high:
                self._bounded.add(partition)
            self.open_partitions.add(partition)
            offset = min(first, span.high)
            self._consumer.incremental_assign(
                [TopicPartition(partition.topic, partition.number, offset)]
            )

    def next_batch(self) -> Batch:
        try:
            polled = _poll(self._consumer)
        except KafkaException as error:
            raise refused(error, "cannot read") from error
        if not self._bounded:
            for message in polled:
                if message.error():
                    return [earlier for earlier in polled if self._take(earlier)]
            return polled
        return [message for message in polled if self._take(message)]

    def _take(self, message: Any) -> bool:
        """Whether the record is wanted; closes a partition that has reached its end."""
        partition = Partition(message.topic(), message.partition())
        error = message.error()
        if error is None:
            if partition not in self._bounded:
                return True
            span, offset = self._spans[partition], message.offset()
            if span.last is not None and offset >= span.last - 1:
                self._close(partition)
                return bool(offset < span.last)
            return bool(offset >= span.first)
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            # The last offsets may hold no record (transaction markers, compaction).
            span_last = self._spans[partition].last
            if span_last is not None and message.offset() >= span_last:
                self._close(partition)
            return False
        if error.retriable() or error.code() == KafkaError._TRANSPORT:  # noqa: SLF001
            return False
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return False  # librdkafka looks for a coordinator, though here no group has a part
        raise refused(error, f"cannot read {partition}")

    def _close(self, partition: Partition) -> None:
        if partition in self.open_partitions:
            self.open_partitions.discard(partition)
            self._consumer.incremental_unassign([TopicPartition(partition.topic, partition.number)])

    def close(self) -> None:
        self._consumer.close()


def _partitions(cluster: KafkaCluster, args: argparse.Namespace) -> list[Partition]:
    patterns = [_pattern(topic) for topic in args.topics if topic.startswith("^")]
    topics = cluster.existing([topic for topic in args.topics if not topic.startswith("^")])
    if patterns:
        topics |= {
            name: topic
            for name, topic in cluster.topics().items()
            if any(pattern.search(name) for pattern in patterns)
        }
        if not topics:
            raise RequestRefused(
                f"no topic matches {' '.join(args.topics)}",
                hint="`headwater topic list` shows the topics",
            )
    partitions = all_partitions(topics)
    if not args.partitions:
        return partitions
    if not re.fullmatch(r"\d+(,\d+)*", args.partitions):
        raise UsageError(f"-p {args.partitions} is no list of partitions", hint="as in -p 0,1")
    numbers = {int(number) for number in args.partitions.split(",")}
    missing = numbers - {partition.number for partition in partitions}
    if missing:
        raise RequestRefused(
            f"there is no partition {min(missing)} in {', '.join(topics)}",
            hint="`headwater topic describe TOPIC` lists the partitions",
        )
    return [partition for partition in partitions if partition.number in numbers]


def _pattern(topic: str) -> re.Pattern[str]:
    try:
        return re.compile(topic)
    except re.error as error:
        raise UsageError(f"{topic} is no regular expression", detail=str(error)) from error


def _consume_as_member(
    cluster: KafkaCluster, args: argparse.Namespace, wanted: Range | None, output: _Output
) -> None:
    if wanted and wanted.first.kind not in ("start", "end"):
        raise UsageError(
            "a group begins where it has committed, and else at start or end",
            hint="`headwater group seek` moves a group",
        )
    for topic in args.topics:
        if topic.startswith("^"):
            _pattern(topic)
    cluster.existing([topic for topic in args.topics if not topic.startswith("^")])
    reset = "earliest" if wanted and wanted.first.kind == "start" else "latest"
    consumer = _consumer(cluster, args, group=args.group, reset=reset)
    at_end: set[Partition] = set()
    try:
        consumer.subscribe(args.topics)
        while not output.full:
            batch = []
            for message in _poll(consumer):
                partition = Partition(message.topic(), message.partition())
                error = message.error()
                if error is None:
                    at_end.discard(partition)
                    batch.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    at_end.add(partition)
                elif not error.retriable():
                    raise refused(error, f"cannot read as a member of {args.group}")
            _store_offsets(consumer, output.write(batch))
            _warn_if_lost(cluster)
            assigned = {
                Partition(assignment.topic, assignment.partition)
                for assignment in consumer.assignment()
            }
            if args.exit and assigned and assigned <= at_end:
                return
    except KafkaException as error:
        raise refused(error, f"cannot read as a member of {args.group}") from error
    finally:
        consumer.close()


def _store_offsets(consumer: Any, written: Batch) -> None:
    """Marks what was written: it is committed every second, on a rebalance, and at the end."""
    after = {
        Partition(message.topic(), message.partition()): message.offset() + 1 for message in written
    }
    for partition, offset in after.items():
        try:
            consumer.store_offsets(
                offsets=[TopicPartition(partition.topic, partition.number, offset)]
            )
        except KafkaException:
            continue  # the partition was just assigned to another member, which reads it again


def _consumer(
    cluster: KafkaCluster, args: argparse.Namespace, *, group: str, reset: str = "earliest"
) -> Any:
    return cluster.consumer(
        {
            "group.id": group,
            "auto.offset.reset": reset,
            "enable.auto.commit": args.group is not None,
            "enable.auto.offset.store": False,
            "auto.commit.interval.ms": 1000,
            "enable.partition.eof": True,
            "check.crcs": True,  # librdkafka's default shows bytes that a disk has changed
            "isolation.level": args.isolation,
            "fetch.wait.max.ms": 100,
            "fetch.queue.backoff.ms": 10,
            "queued.min.messages": 500_000,
            "queued.max.messages.kbytes": 65_536,
        }
    )


def _warn_if_lost(cluster: KafkaCluster) -> None:
    if cluster.is_lost:
        cluster.is_lost = False
        note(f"no broker answers at {cluster.bootstrap}; retrying")


def _poll(consumer: Any) -> Batch:
    """What is there; waits a moment for the first, never for a batch to fill."""
    polled: Batch = consumer.consume(1, _POLL_S)
    if polled:
        polled += consumer.consume(_BATCH, 0)
    return polled


COMMANDS = {
    "": Command(
        "read records from topics to stdout",
        _configure,
        _run,
        "  headwater consume orders                      follow, like tail -f\n"
        "  headwater consume orders -o -10 -e            the last ten of each partition\n"
        "  headwater consume orders -o @-1h:end --json   the last hour\n"
        "  headwater consume '^shop[.]' -o start -e -f '%t %k %v\\n'\n"
        "  headwater consume orders -g billing -o start  as a member of a group",
    )
}
