"""`headwater erase --subject KIND:ID`: the right to be forgotten, with a signed receipt.

Exit code 0 if nothing readable is left where Headwater reaches, 3 if something is (the receipt has
it under `incomplete`).
"""

import argparse
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from headwater import config
from headwater.cli.arguments import broker_options, load_config
from headwater.cli.commands.log.topic import confirmed
from headwater.cli.erasure import SearchProgress, open_key_store, subject_of
from headwater.cli.parser import Command, Parser
from headwater.client.erasing import erase_records
from headwater.erasure.derived import DerivedStore
from headwater.erasure.erasing import Preview, erase, old_versions, preview, renewed
from headwater.erasure.verifying import verify_erased
from headwater.errors import UsageError
from headwater.inspect.captures import connected
from headwater.private_files import replace
from headwater.terminal.output import count, note, plural, print_json, say, styled
from headwater.terminal.progress import shows_progress

_NOTE_EVERY_S: Final = 2.0


def _configure(parser: Parser) -> None:
    parser.add_argument(
        "--subject", metavar="KIND:ID", required=True, help="whose data, such as customer:42"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be erased, and change nothing"
    )
    parser.add_argument(
        "--receipt",
        metavar="FILE",
        help="where the signed receipt is written (stdout with --json; else erasure-ID.json)",
    )
    parser.add_argument(
        "--tombstones",
        action="store_true",
        help="on Apache Kafka: write tombstones for keys of plain records in compacted topics",
    )
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="derive stores that hold plain text again, and remove their versions of before",
    )
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for a confirmation")
    broker_options(parser)


def _erase(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    subject = subject_of(loaded, args.subject)
    # Also before anything was encrypted: plain records can be erased, and the receipt is signed.
    store = open_key_store(loaded, create=True)
    connected(loaded)
    progress = SearchProgress(args, f"searching for {subject}")
    try:
        planned = preview(loaded, store, subject, progress)
        progress.close()
        if args.dry_run or planned.is_unknown:
            return _show(args, planned)
        if planned.is_done:
            hashed = store.subject_hash(subject.kind, subject.id)
            last = store.last_erasure(subject.kind, hashed)
            if not args.json:
                say(f"{subject} was erased at {_time(planned.erased_ms)}; nothing has come since")
            if args.rebuild and (held := old_versions(planned, last)):
                _rebuild(args, loaded, [*held])
            is_erased = verify_erased(loaded, store, subject).is_erased
            receipt = dict(last.receipt or {}) if last else {}
            if last and is_erased and receipt.get("incomplete"):  # stores were rebuilt since
                receipt = renewed(store, last)
            _finish(args, receipt)
            return 0 if is_erased else 3
        if not args.json:
            _show(args, planned)
        if not args.yes and not confirmed(f"erase {subject}? This cannot be undone."):
            raise UsageError("nothing was erased", hint="--yes does it without a question")
        receipt = erase(
            loaded,
            store,
            planned,
            erase_records,
            tombstones=args.tombstones,
            rebuild=(lambda held: _rebuild(args, loaded, held)) if args.rebuild else None,
            on_searched=progress,
            on_erased=_SegmentNotes(quiet=not shows_progress(args)),
        )
        return _finish(args, receipt)
    finally:
        progress.close()
        store.close()


def _rebuild(args: argparse.Namespace, loaded: config.Config, held: Sequence[DerivedStore]) -> None:
    from headwater.cli.pipelines.rebuild import rebuild_stores

    if shows_progress(args):
        note("starting Spark …")
    stores: dict[str, dict[str, tuple[int, ...]]] = {}
    for one in held:
        stores.setdefault(one.pipeline, {})[one.write] = one.versions
    rebuild_stores(loaded, stores, quiet=not shows_progress(args))


class _SegmentNotes:
    """A line now and then, while the broker rewrites segments."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._next_s = time.monotonic() + _NOTE_EVERY_S

    def __call__(self, done: int, total: int) -> None:
        if not self._quiet and time.monotonic() > self._next_s:
            self._next_s = time.monotonic() + _NOTE_EVERY_S
            note(f"erasing: {count(done)} of {plural(total, 'segment')}")


def _finish(args: argparse.Namespace, receipt: dict[str, Any]) -> int:
    incomplete = receipt.get("incomplete", [])
    if args.receipt or not args.json:
        path = Path(args.receipt or f"erasure-{receipt['id']}.json")
        replace(path, orjson.dumps(receipt, option=orjson.OPT_INDENT_2) + b"\n")
        if not args.json:
            _summary(receipt, path)
    if args.json:
        print_json(receipt)
    return 3 if incomplete else 0


def _summary(receipt: dict[str, Any], path: Path) -> None:
    state = (
        styled("not complete", "bold yellow")
        if receipt["incomplete"]
        else styled("erased", "bold green")
    )
    of_store = sum(receipt.get("events_erased", {}).values())
    events = f" and {plural(of_store, 'event')}" if of_store else ""
    say(
        f"{state}  {plural(len(receipt['keys_dropped']), 'key')} dropped,"
        f" {plural(sum(receipt['records_erased'].values()), 'record')}"
        f"{events} erased; the receipt is {path}"
    )
    for line in receipt["incomplete"]:
        say(f"  {line}")
    reached = receipt["not_reached"]
    note("not reached:")
    for group in reached["consumer_groups"] or []:
        note(f"  what the consumer group {group} has read")
    for backup in reached["backups"]:
        note(f"  the backup {backup}: plain records of before; encrypted ones are unreadable")
    for line in reached["other"]:
        note(f"  {line}")


def _show(args: argparse.Namespace, planned: Preview) -> int:
    if args.json:
        print_json(_as_json(planned))
        return 0
    found = planned.found
    if planned.is_unknown:
        say(f"nothing is stored of {planned.subject}: {count(found.records)} records were searched")
    else:
        say(f"{planned.subject}: {plural(len(planned.live_keys), 'key')} to drop")
        for topic, records in found.encrypted.items():
            say(f"  {topic}: {plural(records, 'record')} to make unreadable")
        for (topic, partition), offsets in found.plain.items():
            named = ", ".join(sorted(found.plain_fields[topic]))
            say(
                f"  {topic}-{partition}: {plural(len(offsets), 'record')} in plain text to erase"
                f" ({named})"
            )
        for stream, events in planned.plain_events.counts().items():
            say(f"  event store, {stream}: {plural(events, 'event')} in plain text to erase")
        for one in planned.derived:
            what = "holds plain text, to be rebuilt" if one.is_decrypted else "follows the log"
            say(f"  {one.pipeline}: {one.write} {what}")
    for topic, values in found.not_searched.items():
        note(f"  {topic}: {plural(values, 'value')} of Avro or Protobuf cannot be searched")
    for topic in found.missing:
        note(f"  topic {topic} of [subject.{planned.subject.kind}] does not exist")
    for topic, fields in found.unused.items():
        note(f"  no record of {topic} has a field {', '.join(fields)}; is it misspelt?")
    return 0


def _as_json(planned: Preview) -> dict[str, Any]:
    return {
        "subject": str(planned.subject),
        "is_known": not planned.is_unknown,
        "erased": _time(planned.erased_ms),
        "keys": planned.live_keys,
        "encrypted_records": planned.found.encrypted,
        "plain_records": {
            f"{topic}-{partition}": len(offsets)
            for (topic, partition), offsets in planned.found.plain.items()
        },
        "plain_fields": {
            topic: sorted(fields) for topic, fields in planned.found.plain_fields.items()
        },
        "plain_events": planned.plain_events.counts(),
        "derived": [one.as_json() for one in planned.derived],
        "consumer_groups": planned.groups,
        "backups": [backup["path"] for backup in planned.backups],
        "missing_topics": planned.found.missing,
        "unused_fields": planned.found.unused,
    }


def _time(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


COMMANDS = {
    "": Command(
        "erase a person's data, and write a signed receipt; exit code 3 if something is left",
        _configure,
        _erase,
        "  headwater erase --subject customer:42 --dry-run\n"
        "  headwater erase --subject customer:42 --yes --receipt customer-42.json\n"
        "  headwater verify --erased customer:42",
    )
}
