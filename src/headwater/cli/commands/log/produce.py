"""`headwater produce TOPIC`: records from stdin, a file or a pipe, one per line.

Lines are read in chunks and handed to librdkafka, whose queue is bounded: when it is full, reading
waits. The first record that fails ends the reading; what was read before it is still delivered.
A regular file with --follow is another matter: cli/follow.py.
"""

import argparse
import contextlib
import errno
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaException

from headwater import config
from headwater.cli.arguments import cluster_of
from headwater.cli.parser import (
    Command,
    Parser,
    client_options,
    duration_s,
    key_value,
    size_bytes,
    whole_number,
)
from headwater.errors import HeadwaterError, RequestRefused, UsageError
from headwater.inspect.kafka_cluster import KafkaCluster, refused
from headwater.inspect.record_json import Record, parse_record
from headwater.inspect.subjects import personal_topics
from headwater.terminal.interrupt import Interrupt
from headwater.terminal.output import count, note, plural, say, size
from headwater.terminal.progress import ProgressBar

_CHUNK_BYTES: Final = 1 << 18
_MAX_LINE_BYTES: Final = 100 << 20
_WAIT_S: Final = 0.1


def _configure(parser: Parser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="topic to write to")
    parser.add_argument(
        "-f", "--file", metavar="FILE", help="read this file or pipe (FIFO) instead of stdin"
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="do not end at the end of the file: wait for more lines, through rotation (rename or"
        " copytruncate) and truncation. The position is stored with the records in one"
        " transaction: each line is written exactly once, also if the command is killed and run"
        " again. A pipe is waited for, too, but neither a pipe nor stdin can be resumed: lines that"
        " were read and not acknowledged are lost with the process",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="name under which --follow stores the position (HOST:/PATH/OF/FILE)",
    )
    parser.add_argument(
        "--rotation-wait",
        type=duration_s,
        metavar="DURATION",
        default=5.0,
        help="with --follow: a rotated file is complete when it has not changed for this time (5s)",
    )
    parser.add_argument(
        "--max-line",
        type=size_bytes,
        metavar="SIZE",
        help="longest line (100MiB; 1MB with --follow, as topics allow)",
    )
    parser.add_argument(
        "--dead-letters",
        action="store_true",
        help="with --follow: a line that is no record goes to TOPIC.dlq instead of ending it",
    )
    parser.add_argument(
        "-k",
        "--key-separator",
        metavar="SEP",
        help="a line is KEY SEP VALUE, split at the first SEP (\\t is a tab)",
    )
    parser.add_argument(
        "-H",
        "--header",
        metavar="NAME=VALUE",
        type=key_value,
        action="append",
        default=[],
        help="header of every record",
    )
    parser.add_argument(
        "-p",
        "--partition",
        type=whole_number(0, 2**31 - 1),
        metavar="P",
        default=-1,
        help="partition to write to",
    )
    parser.add_argument(
        "-z",
        "--compression",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        metavar="CODEC",
        default="none",
        help="none (default), gzip, snappy, lz4 or zstd",
    )
    parser.add_argument(
        "--acks",
        choices=("0", "1", "all"),
        metavar="ACKS",
        default="all",
        help="0, 1 or all (default)",
    )
    parser.add_argument(
        "--tombstone", action="store_true", help="an empty value is a null: it deletes the key"
    )
    parser.add_argument(
        "--echo", action="store_true", help="write partition and offset of each record to stdout"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, no summary")
    client_options(
        parser,
        json_help="a line is JSON with key, value, headers, partition, timestamp, as `headwater"
        " consume --json` writes it; --echo writes JSON too",
    )


def _run(args: argparse.Namespace) -> int:
    if args.json and args.key_separator is not None:
        raise UsageError(
            "--json and -k exclude each other", hint="a JSON line has a key of its own"
        )
    source = _source(args)
    if args.follow and stat.S_ISREG(os.fstat(source).st_mode):
        from headwater.cli.follow import follow

        os.close(source)
        return follow(args, encrypting(args, line_parser(args)))
    writing = _Writing(cluster_of(args), args, source)
    if os.isatty(source) and not args.quiet:
        note("one record per line; Ctrl-D ends")
    writing.write_all()
    writing.finish()
    return 0


def _source(args: argparse.Namespace) -> int:
    """What is read, opened."""
    if not args.follow and (args.name is not None or args.dead_letters):
        raise UsageError("--name and --dead-letters need --follow")
    if args.file is None or args.file == "-":
        if args.follow and stat.S_ISREG(os.fstat(0).st_mode):
            raise UsageError(
                "stdin is a file, whose name is needed to follow it", hint="-f FILE --follow"
            )
        return 0
    if args.follow and not os.path.exists(args.file):
        return _await_file(args)
    try:
        return _opened(args)
    except OSError as error:
        if args.follow and isinstance(error, FileNotFoundError):  # rotated just now
            return _await_file(args)
        raise HeadwaterError(
            f"{args.file} cannot be read", detail=(error.strerror or str(error)).lower()
        ) from error


def _opened(args: argparse.Namespace) -> int:
    # A pipe that is also open for writing does not end when its last writer leaves.
    is_pipe = stat.S_ISFIFO(os.stat(args.file).st_mode)
    found = os.open(args.file, os.O_RDWR if args.follow and is_pipe else os.O_RDONLY)
    if stat.S_ISDIR(os.fstat(found).st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    return found


def _await_file(args: argparse.Namespace) -> int:
    """As a writer that has not begun yet will create it."""
    note(f"waiting for {args.file}")
    interrupted = Interrupt()
    while not interrupted:
        if os.path.exists(args.file):
            with contextlib.suppress(FileNotFoundError):  # rotated just now
                return _opened(args)
        time.sleep(_WAIT_S)
    raise KeyboardInterrupt


class _Failure(NamedTuple):
    line: int
    error: HeadwaterError


class _Writing:
    """One run: reads lines, writes records, counts what came of them. Ctrl-C ends the reading."""

    def __init__(self, cluster: KafkaCluster, args: argparse.Namespace, source: int) -> None:
        self._args = args
        self._source = source
        self._max_line_bytes = args.max_line or _MAX_LINE_BYTES
        self._topic = args.topic
        self._headers = args.header
        self._partition = args.partition
        self._parse = encrypting(args, line_parser(args))
        self._line_number = 0
        self._sent = 0
        self._failed = 0
        self._first_failure: _Failure | None = None
        self._read_bytes = 0
        self._interrupted = Interrupt()
        status = os.fstat(source)
        self._progress = ProgressBar(
            f"to {args.topic}",
            total=status.st_size if stat.S_ISREG(status.st_mode) and status.st_size else None,
            quiet=args.quiet or os.isatty(source),
        )
        self._producer: Any = cluster.producer(
            {
                "acks": args.acks,
                "enable.idempotence": args.acks == "all",
                "compression.type": args.compression,
                "linger.ms": 5,
                "batch.size": 1_000_000,
                "batch.num.messages": 100_000,
                "message.max.bytes": 100_000_000,  # the broker decides, not the client
                "queue.buffering.max.kbytes": 131_072,  # above message.max.bytes, or one never fits
                "queue.buffering.max.messages": 500_000,
                "message.timeout.ms": 30_000,
                "delivery.report.only.error": not args.echo,
            }
        )

    def write_all(self) -> None:
        for lines in self._chunks():
            for line in lines:
                self._line_number += 1
                try:
                    if len(line) > self._max_line_bytes:
                        raise self._too_long()
                    self._write(self._line_number, self._parse(line))
                except (HeadwaterError, KafkaException) as error:
                    self._delivered(self._line_number, error, None)
                if self._first_failure or self._interrupted:
                    return
            self._producer.poll(0)
            self._show_progress()

    def _chunks(self) -> Iterator[list[bytes]]:
        """Whole lines, as they come. The last may lack its newline."""
        begun: list[bytes] = []  # the pieces of a line whose end has not come yet
        begun_bytes = 0
        while True:
            # Reports of earlier records are served while nothing comes in.
            while not select.select([self._source], [], [], _WAIT_S)[0]:
                self._producer.poll(0)
                if self._first_failure or self._interrupted:
                    return
            chunk = os.read(self._source, _CHUNK_BYTES)
            if not chunk:
                break
            self._read_bytes += len(chunk)
            *lines, rest = chunk.split(b"\n")
            if lines:
                lines[0] = b"".join([*begun, lines[0]])
                begun, begun_bytes = [], 0
                yield lines
            begun.append(rest)
            begun_bytes += len(rest)
            if begun_bytes > self._max_line_bytes:
                self._delivered(self._line_number + 1, self._too_long(), None)
                return
        if begun_bytes:
            yield [b"".join(begun)]

    def _too_long(self) -> RequestRefused:
        limit = size(self._max_line_bytes).replace(".0 ", " ")
        return RequestRefused(f"the line is longer than {limit}", hint="--max-line allows more")

    def _write(self, line_number: int, record: Record) -> None:
        key, value, headers, partition, timestamp_ms = record
        options: dict[str, Any] = {}
        if timestamp_ms is not None:
            options["timestamp"] = timestamp_ms
        if headers or self._headers:
            options["headers"] = [*self._headers, *headers]
        if partition is None:
            partition = self._partition
        report = partial(self._delivered, line_number)
        while True:
            try:
                self._producer.produce(self._topic, value, key, partition, report, **options)
            except BufferError:
                if self._interrupted:
                    return
                self._producer.poll(_WAIT_S)
                self._show_progress()
                continue
            self._sent += 1
            return

    def _delivered(self, line_number: int, error: Any, message: Any) -> None:
        if error is None:
            self._echo(line_number, message)
            return
        if message is not None:
            self._failed += 1
        if self._first_failure is None or line_number < self._first_failure.line:
            if not isinstance(error, HeadwaterError):
                error = refused(error, "")
            self._first_failure = _Failure(line_number, error)

    def _echo(self, line_number: int, message: Any) -> None:
        partition, offset = message.partition(), message.offset()
        if self._args.json:
            say(f'{{"line":{line_number},"partition":{partition},"offset":{offset}}}')
        else:
            say(f"partition {partition} offset {offset}")
        if len(self._producer) < 2:
            sys.stdout.flush()

    def _show_progress(self) -> None:
        acknowledged = self._sent - self._failed - len(self._producer)
        self._progress.update(acknowledged, self._read_bytes)

    def finish(self) -> None:
        """Waits until every record is acknowledged or has failed, and reports the result."""
        try:
            while self._producer.flush(_WAIT_S):
                self._show_progress()
        finally:
            self._progress.close()
        acknowledged = self._sent - self._failed - len(self._producer)
        failure = self._first_failure
        if failure:
            cause = failure.error
            raise RequestRefused(
                f"line {failure.line} could not be written to {self._topic}",
                detail=f"{cause}".lstrip(": ")
                + f"\n{count(acknowledged)} acknowledged, {count(max(self._failed, 1))} failed,"
                " the rest of the input was not read",
                hint=cause.hint,
            )
        if not self._args.quiet:
            note(f"{plural(acknowledged, 'record')} written to {self._topic}")


def line_parser(args: argparse.Namespace) -> Callable[[bytes], Record]:
    """What makes a record of a line; it raises RequestRefused that says why it is none."""
    if args.json:
        return partial(parse_record, tombstone=args.tombstone)
    if args.key_separator is None:
        return partial(_value_only, args.tombstone)
    separator = args.key_separator.replace("\\t", "\t").encode()
    if not separator:
        raise UsageError("the key separator is empty", hint="-k : splits key:value")
    return partial(_key_and_value, separator, args.tombstone)


def encrypting(
    args: argparse.Namespace, parse: Callable[[bytes], Record]
) -> Callable[[bytes], Record]:
    """The same, with the personal fields of the topic encrypted ([subject.NAME]). Raises
    KeyStoreError if it has some and there are no keys.
    """
    personal = personal_topics(config.load(path=args.config))
    if personal is None or args.topic not in personal.marked:
        return parse
    if args.dead_letters:
        raise UsageError(
            f"{args.topic} has personal fields, and dead letters would have them in plain text",
            hint="without --dead-letters the first line that is no record ends the command",
        )
    personal.flush()  # a key store that is lost is found before anything is read

    def parsed(line: bytes) -> Record:
        record = parse(line)
        encrypted = record._replace(value=personal.value(args.topic, record.value))
        personal.flush()
        return encrypted

    return parsed


def _value_only(tombstone: bool, line: bytes) -> Record:
    return Record(None, line or (None if tombstone else b""))


def _key_and_value(separator: bytes, tombstone: bool, line: bytes) -> Record:
    key, found, value = line.partition(separator)
    if not found:
        raise RequestRefused(
            f"no key separator {separator.decode()!r} in it", hint="without -k a line is a value"
        )
    return Record(key, value or (None if tombstone else b""))


COMMANDS = {
    "": Command(
        "write records from stdin, a file or a pipe to a topic",
        _configure,
        _run,
        "  echo hello | headwater produce greetings\n"
        "  headwater produce orders -k : -z zstd < orders.txt\n"
        """  echo '{"key":"7","value":{"total":12},"headers":{"source":"shop"}}' |"""
        " headwater produce orders --json --echo\n"
        "  headwater consume orders -o start -e --json | headwater produce copy --json\n"
        "  headwater produce logs -f /var/log/app.log --follow",
    )
}
