"""`headwater multicast send | receive`: lines or records over UDP multicast, with repair."""

import argparse
import os
import secrets
import select
import sys
from collections.abc import Iterator
from typing import Any, Final

from headwater.cli.arguments import cluster_of
from headwater.cli.parser import (
    Command,
    Parser,
    client_options,
    duration_s,
    size_bytes,
    whole_number,
)
from headwater.direct.multicast import sockets, streams
from headwater.direct.multicast.memory import RememberingSender
from headwater.direct.multicast.packets import HEADER_BYTES, MAX_DATAGRAM_BYTES
from headwater.direct.multicast.running import Receiving, Sending
from headwater.errors import RequestRefused, UsageError
from headwater.inspect.record_json import text
from headwater.terminal.interrupt import Interrupt
from headwater.terminal.output import count, note, plural, print_json, size

_CHUNK_BYTES: Final = 1 << 16
_MAX_MESSAGE_BYTES: Final = 16 << 20
_WAIT_S: Final = 0.1
_LOST: Final = 3  # exit code: what was received is not equal to what was sent


def _group_options(parser: Parser) -> None:
    parser.add_argument("group", metavar="GROUP:PORT", help="for example 239.1.2.3:5000")
    parser.add_argument(
        "--interface",
        metavar="ADDRESS",
        default=sockets.LOOPBACK,
        help="IPv4 address of the network to use (127.0.0.1: this machine only). Packets are"
        " neither encrypted nor signed: use it in networks that you trust",
    )


def _configure_send(parser: Parser) -> None:
    _group_options(parser)
    parser.add_argument(
        "-t", "--topic", metavar="TOPIC", help="send the values of this topic, not lines of stdin"
    )
    parser.add_argument(
        "-o",
        "--offset",
        choices=("start", "end"),
        metavar="POSITION",
        default="end",
        help="where to begin in the topic: start, or end (default)",
    )
    parser.add_argument(
        "-e", "--exit", action="store_true", help="end at the end of the topic, do not wait"
    )
    parser.add_argument(
        "--rate", type=size_bytes, metavar="SIZE", default=8 << 20, help="bytes per second (8MiB)"
    )
    parser.add_argument(
        "--memory",
        type=size_bytes,
        metavar="SIZE",
        default=64 << 20,
        help="how much is remembered to be sent again (64MiB)",
    )
    parser.add_argument(
        "--packet",
        type=whole_number(HEADER_BYTES + 64, MAX_DATAGRAM_BYTES),
        metavar="BYTES",
        default=1400,
        help="largest packet (1400, which fits into an Ethernet frame)",
    )
    parser.add_argument(
        "--ttl",
        type=whole_number(0, 255),
        metavar="N",
        default=1,
        help="how many routers packets may pass, and one (1: none)",
    )
    parser.add_argument(
        "--linger",
        type=duration_s,
        metavar="DURATION",
        default=2.0,
        help="at the end, answer requests until none has come for this time (2s)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no summary")
    client_options(parser)


def _send(args: argparse.Namespace) -> int:
    group = sockets.parse_group(args.group)
    interface = sockets.check_interface(args.interface)
    interrupted = Interrupt()
    messages = _lines(interrupted) if args.topic is None else _values(args, interrupted)
    sender = RememberingSender(
        secrets.randbits(64), memory_bytes=args.memory, packet_bytes=args.packet
    )
    opened = sockets.sending_socket(interface, args.ttl)
    sent = 0
    with Sending(opened, group, sender, args.rate) as sending:
        for message in messages:
            if len(message) > _MAX_MESSAGE_BYTES:
                raise RequestRefused(
                    f"message {count(sent + 1)} has {size(len(message))}",
                    detail=f"{size(_MAX_MESSAGE_BYTES)} are allowed",
                )
            sending.send(message)
            sent += 1
        sending.finish(args.linger)
    found = {
        "session": f"{sender.session:016x}",
        "messages": sent,
        "packets": sender.last,
        "sent_again": sender.repaired,
        "requested_too_late": sender.too_late,
    }
    if args.json:
        print_json(found)
    elif not args.quiet:
        note(
            f"{plural(sent, 'message')} sent in {plural(sender.last, 'packet')};"
            f" {count(sender.repaired)} sent again"
            + (
                f"; {count(sender.too_late)} were requested and no longer remembered (--memory)"
                if sender.too_late
                else ""
            )
        )
    return 0


def _lines(interrupted: Interrupt) -> Iterator[bytes]:
    """Of stdin, as they come; the last may lack its newline."""
    begun: list[bytes] = []
    begun_bytes = 0
    while not interrupted:
        if not select.select([0], [], [], _WAIT_S)[0]:
            continue
        chunk = os.read(0, _CHUNK_BYTES)
        if not chunk:
            break
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*begun, lines[0]])
            begun, begun_bytes = [], 0
            yield from lines
        begun.append(rest)
        begun_bytes += len(rest)
        if begun_bytes > _MAX_MESSAGE_BYTES:
            raise RequestRefused(f"a line is longer than {size(_MAX_MESSAGE_BYTES)}")
    if begun_bytes:
        yield b"".join(begun)


def _values(args: argparse.Namespace, interrupted: Interrupt) -> Iterator[bytes]:
    """Of a topic. Records without a value are left out."""
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, TopicPartition

    from headwater.inspect.kafka_cluster import refused

    cluster = cluster_of(args)
    consumer: Any = cluster.consumer({"group.id": "headwater", "enable.partition.eof": True})
    try:
        found = cluster.metadata().topics.get(args.topic)
        if found is None:
            raise RequestRefused(
                f"there is no topic {args.topic}", hint="`headwater topic list` shows the topics"
            )
        start = OFFSET_BEGINNING if args.offset == "start" else OFFSET_END
        consumer.assign([TopicPartition(args.topic, number, start) for number in found.partitions])
        unread = set(found.partitions)
        while not interrupted and (unread or not args.exit):
            message = consumer.poll(_WAIT_S)
            if message is None:
                continue
            if message.error() is None:
                if message.value() is not None:
                    yield message.value()
            elif message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (its name)
                unread.discard(message.partition())
            else:
                raise refused(message.error(), f"topic {args.topic} cannot be read")
    finally:
        consumer.close()


def _configure_receive(parser: Parser) -> None:
    _group_options(parser)
    parser.add_argument(
        "-t", "--topic", metavar="TOPIC", help="write messages to this topic, not to stdout"
    )
    parser.add_argument(
        "--from-oldest",
        action="store_true",
        help="request also what the sender sent before and still remembers",
    )
    parser.add_argument(
        "--patience",
        type=duration_s,
        metavar="DURATION",
        default=5.0,
        help="how long to request a missing packet before it is reported as lost (5s)",
    )
    parser.add_argument(
        "--buffer",
        type=size_bytes,
        metavar="SIZE",
        default=16 << 20,
        help="how much is held behind missing packets (16MiB)",
    )
    parser.add_argument(
        "-e", "--exit", action="store_true", help="end when a sender has ended its session"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no notes but of losses")
    client_options(
        parser, json_help="write each message, loss and session as a JSON object to stdout"
    )


def _receive(args: argparse.Namespace) -> int:
    group = sockets.parse_group(args.group)
    interface = sockets.check_interface(args.interface)
    if args.json and args.topic is not None:
        raise UsageError("--json and -t exclude each other")
    output = _Output(args)
    interrupted = Interrupt()
    receiver = streams.Receiver(
        from_oldest=args.from_oldest,
        patience_s=args.patience,
        buffer_bytes=args.buffer,
        max_message_bytes=_MAX_MESSAGE_BYTES,
    )
    opened = sockets.receiving_socket(group, interface)
    if not args.quiet:
        note(f"a member of {args.group} at {interface}; Ctrl-C ends")
    with Receiving(opened, interface, receiver) as receiving:
        receiving.run(output.handle, lambda: bool(interrupted) or (args.exit and output.has_ended))
    output.close()
    if not args.quiet:
        note(
            f"{plural(output.messages, 'message')} received, {plural(output.lost, 'packet')} lost,"
            f" {plural(receiver.duplicates, 'duplicate')}"
        )
    return _LOST if output.lost else 0


class _Output:
    """Messages to stdout or a topic; losses to stderr, by range."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.messages = self.lost = 0
        self.has_ended = False
        self._args = args
        self._writer: Any = None
        if args.topic is not None:
            from headwater.direct.publishing import TopicWriter

            self._writer = TopicWriter(cluster_of(args).properties, args.topic)

    def handle(self, event: streams.Event) -> None:
        if self._args.json:
            print_json(_as_json(event))
        if isinstance(event, streams.Message):
            self.messages += 1
            self._write(event)
        elif isinstance(event, streams.Lost):
            self.lost += event.last - event.first + 1
            note(
                f"lost: packets {event.first}-{event.last} of session {event.session:016x}:"
                f" {event.reason}"
            )
        elif isinstance(event, streams.Silent):
            note(
                f"session {event.session:016x} is silent: nothing is known of what follows"
                f" packet {event.last}"
            )
        elif isinstance(event, streams.Ended):
            self.has_ended = True
            self._say(f"session {event.session:016x} has ended with packet {event.last}")
        else:
            self._say(f"session {event.session:016x} from packet {event.sequence} on")

    def _write(self, message: streams.Message) -> None:
        if self._writer is not None:
            headers = (
                ("multicast.session", f"{message.session:016x}".encode()),
                ("multicast.sequence", str(message.last).encode()),
            )
            self._writer.put(message.data, headers=headers)
            self._writer.poll()
            self._check()
        elif not self._args.json:
            sys.stdout.buffer.write(message.data + b"\n")
            sys.stdout.buffer.flush()

    def close(self) -> None:
        if self._writer is not None:
            left = self._writer.close(30.0)
            self._check()
            if left:
                raise RequestRefused(f"{plural(left, 'message')} are not written to the topic")

    def _check(self) -> None:
        if self._writer.failed:
            raise RequestRefused(
                f"{plural(self._writer.failed, 'message')} could not be written to"
                f" {self._args.topic}",
                detail=self._writer.last_error,
            )

    def _say(self, sentence: str) -> None:
        if not self._args.quiet:
            note(sentence)


def _as_json(event: streams.Event) -> dict[str, Any]:
    fields: dict[str, Any] = {"event": type(event).__name__.lower(), **event._asdict()}
    fields["session"] = f"{event.session:016x}"
    if "data" in fields:
        fields["value"] = text(fields.pop("data"))
    return fields


COMMANDS = {
    "send": Command(
        "send lines of stdin, or values of a topic, to a multicast group",
        _configure_send,
        _send,
        "  tail -f app.log | headwater multicast send 239.1.2.3:5000\n"
        "  headwater multicast send 239.1.2.3:5000 -t prices --interface 192.0.2.7",
    ),
    "receive": Command(
        "receive messages of a multicast group to stdout or a topic",
        _configure_receive,
        _receive,
        "  headwater multicast receive 239.1.2.3:5000\n"
        "  headwater multicast receive 239.1.2.3:5000 -t prices --interface 192.0.2.7",
    ),
}
