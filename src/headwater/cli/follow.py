"""`headwater produce TOPIC -f FILE --follow` for a regular file: until it is stopped."""

import argparse
import os
import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from headwater.cli.arguments import load_config
from headwater.direct.files.following import FollowedFile
from headwater.direct.files.writing import BadLine, LineWriter
from headwater.errors import HeadwaterError, RequestRefused, UsageError
from headwater.inspect.record_json import Record
from headwater.terminal.interrupt import Interrupt
from headwater.terminal.output import count, note, plural
from headwater.terminal.progress import ProgressBar

_MAX_LINE_BYTES: Final = 1_000_000  # topics allow 1,048,588 for a batch
_POLL_S: Final = 0.1


def follow(args: argparse.Namespace, parse: Callable[[bytes], Record]) -> int:
    """Returns when SIGINT or SIGTERM asks it to. Raises what ends it otherwise."""
    _check(args)
    config = load_config(args)
    path = Path(os.path.abspath(args.file))
    max_line_bytes = args.max_line or _MAX_LINE_BYTES
    interrupted = Interrupt()
    progress = ProgressBar(f"to {args.topic}", quiet=args.quiet)
    with LineWriter(
        config.bootstrap(),
        config.client,
        args.topic,
        args.name or f"{socket.gethostname()}:{path}",
        parse=parse,
        max_line_bytes=max_line_bytes,
        partition=None if args.partition < 0 else args.partition,
        headers=[(name, value.encode()) for name, value in args.header],
        compression=args.compression,
        dead_letters=args.dead_letters,
    ) as writer:
        if not args.quiet:
            position = writer.position
            start = f"continues behind byte {count(position.offset)}" if position else "begins"
            note(f"{path} {start}; Ctrl-C ends")
        try:
            followed = FollowedFile(
                path,
                writer.position,
                max_line_bytes=max_line_bytes,
                report=_warn,
                final_after_s=args.rotation_wait,
            )
            with closing(followed), closing(progress):
                while not interrupted:
                    found = followed.read()
                    if found is None:
                        time.sleep(_POLL_S)
                        continue
                    if stopped := writer.write(found, followed):
                        raise _refused(stopped, args, writer)
                    progress.update(writer.records)
        except OSError as error:
            raise HeadwaterError(
                f"{path} cannot be read", detail=(error.strerror or str(error)).lower()
            ) from error
        if not args.quiet:
            dead = f", {plural(writer.bad, 'dead letter')}" if writer.bad else ""
            note(f"{plural(writer.records, 'record')} written to {args.topic}{dead}")
    return 0


def _check(args: argparse.Namespace) -> None:
    for is_given, option, why in (
        (args.acks != "all", "--acks", "transactions are always acknowledged by all"),
        (args.echo, "--echo", "`headwater consume` shows the records"),
        (args.properties, "-X", "[client] of headwater.toml configures our own client"),
    ):
        if is_given:
            raise UsageError(f"{option} and --follow of a file exclude each other", hint=why)


def _warn(sentence: str) -> None:
    note(f"warning: {sentence}")


def _refused(stopped: BadLine, args: argparse.Namespace, writer: LineWriter) -> RequestRefused:
    return RequestRefused(
        f"the line at byte {count(stopped.line.offset)} of {args.file} could not be written to"
        f" {args.topic}",
        detail=f"{stopped.error}\n{plural(writer.records, 'record')} written; the next run begins"
        " with this line",
        hint=f"{stopped.error.hint}; --dead-letters puts such lines into {args.topic}.dlq",
    )
