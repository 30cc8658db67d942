"""`headwater capture snapshot NAME --table T`: requests a new snapshot of tables.

The request is a signal in the log: a running capture acts on it at once, any other when it next
runs. It continues to stream meanwhile. A snapshot also repairs a table that is
no longer followed.
"""

import argparse
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaException

from headwater import config
from headwater.capture import positions, signals
from headwater.capture.positions import SIGNALS_TOPIC, Stored
from headwater.capture.publishing.topics import Topics
from headwater.capture.settings import CaptureSettings
from headwater.capture.sources import source_of
from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser
from headwater.errors import HeadwaterError, NotReady, UsageError
from headwater.inspect.captures import FOLLOWING, CaptureState, connected, named, stored_of
from headwater.inspect.kafka_cluster import REQUEST_TIMEOUT_S, KafkaCluster, refused
from headwater.spelling import nearest
from headwater.terminal.interrupt import Interrupt
from headwater.terminal.output import note, plural, print_json, say
from headwater.terminal.progress import ProgressBar, shows_progress

_POLL_S: Final = 0.5


def _configure(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="capture")
    parser.add_argument(
        "-t",
        "--table",
        dest="tables",
        metavar="SCHEMA.TABLE",
        action="append",
        required=True,
        help="table to copy; may be given several times",
    )
    parser.add_argument("--wait", action="store_true", help="wait until the copy is complete")
    broker_options(parser)


def _run(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    settings = named(loaded, args.name)
    cluster = connected(loaded)
    stored = stored_of(settings.name, loaded.bootstrap(), loaded.client)
    _check_tables(settings, stored, args.tables)
    if stored.capture is None:
        Topics(settings, cluster.bootstrap, loaded.client).ensure_internal()
    offset = _send(cluster, settings.name, args.tables)
    state = CaptureState(settings.name, settings, stored)
    if state.state != FOLLOWING:
        note(
            f"{settings.name} does not run; the copy begins when it does:"
            f" `headwater capture run {settings.name}`"
        )
    if args.wait:
        return _wait(loaded, settings.name, args.tables, offset, args)
    if args.json:
        print_json({"capture": settings.name, "tables": args.tables, "signal_offset": offset})
    else:
        say(f"requested a snapshot of {', '.join(args.tables)}")
        note(f"`headwater capture status {settings.name}` shows its progress")
    return 0


def _check_tables(settings: CaptureSettings, stored: Stored, tables: list[str]) -> None:
    """A table that was not captured yet must exist in the database. Raises UsageError."""
    unknown = [table for table in tables if table not in stored.tables]
    if not unknown:
        return
    source = source_of(settings)
    try:
        existing = [table.id for table in source.tables()]
    finally:
        source.close()
    for table in unknown:
        if table not in existing:
            meant = nearest(table, existing)
            raise UsageError(
                f"capture {settings.name} does not follow a table {table}",
                hint=f"did you mean {meant}?" if meant else "it follows " + ", ".join(existing),
            )


def _send(cluster: KafkaCluster, name: str, tables: list[str]) -> int:
    """Puts the request into the log; where it stands there."""
    producer = cluster.producer({"acks": "all", "enable.idempotence": True})
    placed: list[Any] = []
    signal = signals.encode(str(uuid.uuid4()), tables)
    try:
        producer.produce(
            SIGNALS_TOPIC,
            key=positions.key_of(name),
            value=signal,
            partition=0,
            on_delivery=lambda error, record: placed.append(error or record),
        )
        producer.flush(REQUEST_TIMEOUT_S)
    except KafkaException as error:
        raise refused(error, "cannot request a snapshot") from error
    if not placed:
        raise NotReady("cannot request a snapshot", detail="the broker does not take the request")
    if not hasattr(placed[0], "offset"):
        raise refused(placed[0], "cannot request a snapshot")
    offset: int = placed[0].offset()
    return offset


def _wait(
    loaded: config.Config, name: str, tables: list[str], offset: int, args: argparse.Namespace
) -> int:
    interrupted = Interrupt()
    progress = ProgressBar(f"copying {', '.join(tables)}", quiet=not shows_progress(args))
    try:
        while True:
            stored = stored_of(name, loaded.bootstrap(), loaded.client)
            if stored.capture is not None and stored.capture.signals > offset:
                _raise_failure(stored, tables)
                rows = _copied_rows(stored, tables)
                if _is_done(stored, tables):
                    break
                progress.update(rows)
            if interrupted:
                note("the copy continues without this command")
                return 130
            time.sleep(_POLL_S)
    finally:
        progress.close()
    if args.json:
        print_json({"capture": name, "tables": tables, "rows": rows})
    else:
        say(f"copied {plural(rows, 'row')} of {', '.join(tables)}")
    return 0


def _states(stored: Stored, tables: list[str]) -> Mapping[str, positions.TableState]:
    return {table: stored.tables[table] for table in tables if table in stored.tables}


def _copied_rows(stored: Stored, tables: list[str]) -> int:
    return sum(state.snapshot.rows for state in _states(stored, tables).values() if state.snapshot)


def _is_done(stored: Stored, tables: list[str]) -> bool:
    states = _states(stored, tables)
    return len(states) == len(set(tables)) and all(
        state.snapshot is not None and state.snapshot.is_done for state in states.values()
    )


def _raise_failure(stored: Stored, tables: list[str]) -> None:
    for table, state in _states(stored, tables).items():
        if state.failed is not None:
            raise HeadwaterError(
                f"{table}: {state.failed.what}", detail=state.failed.detail, hint=state.failed.hint
            )


COMMAND = Command(
    "copy tables again, while their changes are followed",
    _configure,
    _run,
    "  headwater capture snapshot shop --table public.orders --wait",
)
