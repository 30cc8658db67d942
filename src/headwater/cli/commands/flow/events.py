"""`headwater events append | read | streams | replay | stats`: the event store."""

import argparse
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from headwater import config
from headwater.cli.parser import Command, Parser, common_options, key_value, whole_number
from headwater.errors import UsageError
from headwater.events import ANY, Event, EventStore, RecordedEvent, new_id, open_store
from headwater.events.commands.replay import Deciders, Replay, load
from headwater.events.contract import category_of
from headwater.inspect.subjects import personal_topics
from headwater.terminal.output import count, note, print_json, say, table

_MOST = (1 << 62) - 1


def _store_options(parser: Parser) -> None:
    parser.add_argument(
        "--store", metavar="URL", help="sqlite:///FILE or postgresql://… (events.store)"
    )
    common_options(parser)


def _open(
    args: argparse.Namespace, loaded: config.Config | None = None, *, create: bool = False
) -> EventStore:
    loaded = loaded or config.load(path=args.config)
    url = args.store
    if url is None:
        stored = loaded.events.store
        url = stored.reveal() if stored is not None else None
    if url is None:
        raise UsageError(
            "which event store?",
            hint='--store sqlite:///events.db, or [events] store = "…" in headwater.toml',
        )
    return open_store(url, create=create, personal=personal_topics(loaded))


def _expected(text: str) -> int:
    if text == "any":
        return ANY
    if text == "none":
        return 0
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no version: a number, none or any")
    return whole_number(0, _MOST)(text)


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time, for example 2025-01-31T12:00:00Z"
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _configure_append(parser: Parser) -> None:
    parser.add_argument("stream", metavar="STREAM", help="for example account-17")
    parser.add_argument("type", metavar="TYPE", help="of the event, for example Opened")
    parser.add_argument("data", metavar="JSON", nargs="?", help="its data (stdin if it is -)")
    parser.add_argument(
        "--expected",
        metavar="VERSION",
        type=_expected,
        default=ANY,
        help="version that the stream must have: a number, none (no stream) or any (any)",
    )
    parser.add_argument("--tag", metavar="TAG", action="append", default=[], help="a tag")
    parser.add_argument(
        "--metadata", metavar="KEY=VALUE", type=key_value, action="append", default=[],
        help="metadata beside the data",
    )  # fmt: skip
    parser.add_argument(
        "--id", metavar="ID", help="of the event: the same one is not appended twice"
    )
    parser.add_argument("--command-id", metavar="ID", help="of the command, which happens once")
    _store_options(parser)


def _append(args: argparse.Namespace) -> int:
    text = sys.stdin.read() if args.data == "-" else (args.data or "null")
    try:
        data = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError("the data of the event are no JSON", detail=str(error)) from error
    event = Event(args.type, data, args.tag, dict(args.metadata), args.id or new_id())
    loaded = config.load(path=args.config)
    deciders = Deciders(loaded.events.deciders, loaded.base)
    if (category := category_of(args.stream)) in deciders:
        event = deciders.of(category).typed(event)
    with _open(args, loaded, create=True) as store:
        result = store.append(
            args.stream, [event], expected=args.expected, command_id=args.command_id
        )
    if args.json:
        print_json(
            {
                "position": result.last_position,
                "version": result.version,
                "is_duplicate": result.is_duplicate,
            }
        )
    else:
        before = "it is in the store already: " if result.is_duplicate else ""
        say(f"{before}position {result.last_position}, version {result.version}")
    return 0


def _configure_read(parser: Parser) -> None:
    parser.add_argument("stream", metavar="STREAM", nargs="?", help="only this one (all events)")
    parser.add_argument("--category", metavar="NAME", help="streams whose name begins NAME-")
    parser.add_argument("--type", metavar="TYPE", action="append", default=[], help="of this type")
    parser.add_argument("--tag", metavar="TAG", action="append", default=[], help="with this tag")
    number = whole_number(0, _MOST)
    parser.add_argument(
        "--from", dest="start", metavar="POSITION", type=number, default=1, help="first position"
    )
    parser.add_argument("--until", metavar="POSITION", type=number, help="last position")
    parser.add_argument("--at", metavar="TIME", type=_time, help="as of this time (ISO 8601)")
    parser.add_argument("--backwards", action="store_true", help="the newest first")
    parser.add_argument("--limit", metavar="N", type=number, help="at most so many")
    parser.add_argument("-f", "--follow", action="store_true", help="then wait for new ones")
    _store_options(parser)


def _read(args: argparse.Namespace) -> int:
    if args.follow and (args.backwards or args.until or args.at or args.limit):
        raise UsageError(
            "--follow has no end",
            detail="it goes with a stream, --category, --type, --tag and --from only",
        )
    with _open(args) as store:
        event = None
        for event in _selected(store, args):
            say(msgspec.json.encode(event.as_dict()).decode() if args.json else _line(event))
        if event is None and args.stream is not None and not store.version(args.stream):
            note(f"there is no stream {args.stream}")
    return 0


def _selected(store: EventStore, args: argparse.Namespace) -> Iterator[RecordedEvent]:
    if args.follow:
        return iter(
            store.subscribe(
                after=args.start - 1,
                stream=args.stream,
                category=args.category,
                types=args.type,
                tags=args.tag,
            )
        )
    return store.read(
        stream=args.stream,
        category=args.category,
        types=args.type,
        tags=args.tag,
        from_position=args.start,
        until_position=args.until,
        until=args.at,
        backwards=args.backwards,
        limit=args.limit,
    )


def _line(event: RecordedEvent) -> str:
    at = datetime.fromtimestamp(event.at_ms / 1000, UTC).isoformat(" ", "seconds")
    tags = f" [{', '.join(event.tags)}]" if event.tags else ""
    return (
        f"{event.position}  {at[:19]}  {event.stream} {event.version}  {event.type}"
        f" {event.json}{tags}"
    )


def _configure_streams(parser: Parser) -> None:
    parser.add_argument("--category", metavar="NAME", help="streams whose name begins NAME-")
    parser.add_argument("--after", metavar="STREAM", default="", help="behind this name")
    parser.add_argument(
        "--limit", metavar="N", type=whole_number(1, 100_000), default=100, help="at most (100)"
    )
    _store_options(parser)


def _streams(args: argparse.Namespace) -> int:
    with _open(args) as store:
        found = store.streams(category=args.category, after=args.after, limit=args.limit)
    if args.json:
        print_json([{"stream": stream, "version": version} for stream, version in found])
    elif found:
        say(table(("stream", ">version"), found))
        if len(found) == args.limit:
            note(f"more: --after {found[-1][0]}")
    else:
        note("no streams")
    return 0


def _configure_replay(parser: Parser) -> None:
    parser.add_argument("stream", metavar="STREAM", help="for example account-17")
    parser.add_argument(
        "--decider",
        metavar="FILE:NAME",
        help="decider of a Python file (that of the category in [events.deciders])",
    )
    number = whole_number(0, _MOST)
    parser.add_argument("--version", metavar="N", type=number, help="as of this version")
    parser.add_argument("--position", metavar="N", type=number, help="as of this position")
    parser.add_argument("--at", metavar="TIME", type=_time, help="as of this time (ISO 8601)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--each", action="store_true", help="the state after each event")
    form.add_argument(
        "--check", action="store_true", help="fold twice; an error if the states differ"
    )
    _store_options(parser)


def _replay(args: argparse.Namespace) -> int:
    loaded = config.load(path=args.config)
    replay = _decider_of(args, loaded)
    bounds = {
        "until_version": args.version,
        "until_position": args.position,
        "until": args.at,
    }
    with _open(args, loaded) as store:
        if args.each:
            for event, state in replay.states(store, args.stream, **bounds):
                _show_state(args, event, state)
            return 0
        found = replay.state_at(store, args.stream, twice=args.check, **bounds)
    if args.json:
        print_json({name: found[name] for name in ("stream", "version", "state")})
    else:
        say(f"{args.stream} at version {found['version']}: {_text(found['state'])}")
    return 0


def _decider_of(args: argparse.Namespace, loaded: config.Config) -> Replay:
    if args.decider is not None:
        return load(args.decider, Path.cwd())
    deciders, category = Deciders(loaded.events.deciders, loaded.base), category_of(args.stream)
    if category not in deciders:
        raise UsageError(
            f"which decider folds {args.stream}?",
            hint=f'--decider FILE.py:NAME, or [events.deciders] {category} = "FILE.py:NAME" in'
            " headwater.toml",
        )
    return deciders.of(category)


def _show_state(args: argparse.Namespace, event: RecordedEvent, state: Any) -> None:
    if args.json:
        line = {**event.as_dict(), "state": state}
        say(msgspec.json.encode(line).decode())
    else:
        say(f"{_line(event)}\n  {_text(state)}")


def _text(state: Any) -> str:
    return msgspec.json.encode(state).decode()


def _configure_stats(parser: Parser) -> None:
    _store_options(parser)


def _stats(args: argparse.Namespace) -> int:
    with _open(args) as store:
        found = store.stats()
    if args.json:
        print_json(found)
        return 0
    say(f"{store.database.shown}: {count(found['events'])} events, next position"
        f" {found['events'] + 1}")  # fmt: skip
    if found["categories"]:
        rows = [
            (name, count(found["streams_by_category"][name]), count(number))
            for name, number in found["categories"].items()
        ]
        say(table(("category", ">streams", ">events"), rows))
    if found["progress"]:
        behind = [
            (name, found["events"] - position) for name, position in found["progress"].items()
        ]
        say(table(("view or saga", ">events behind"), behind))
    say(
        f"{found['scheduled']} scheduled, {found['refused_commands']} refused commands of sagas and"
        f" schedules, {found['snapshots']} snapshots"
    )
    return 0


COMMANDS = {
    "append": Command(
        "append an event to a stream",
        _configure_append,
        _append,
        '  headwater events append account-17 Opened \'{"owner": "eva"}\' --expected none',
    ),
    "read": Command(
        "events of a stream, a category, or all",
        _configure_read,
        _read,
        "  headwater events read account-17\n  headwater events read --category account -f --json",
    ),
    "streams": Command("names of streams and their versions", _configure_streams, _streams),
    "replay": Command(
        "the state of a stream, now or earlier",
        _configure_replay,
        _replay,
        "  headwater events replay account-17 --decider bank.py:Account --each",
    ),
    "stats": Command(
        "what the store has, and how far views and sagas are", _configure_stats, _stats
    ),
}
