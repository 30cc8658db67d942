"""`headwater pattern add | list | show | test | drop`."""

import argparse
import time
from typing import TYPE_CHECKING, Any

import orjson

from headwater import extras
from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser, duration_s, whole_number
from headwater.errors import PipelineError, UsageError
from headwater.pipelines.definitions_topic import now
from headwater.pipelines.recent_records import recent_records
from headwater.terminal.output import note, plural, print_json, say, table

if TYPE_CHECKING:
    from headwater.pipelines.operators.patterns.stored.definitions import PatternDefinition
    from headwater.pipelines.operators.patterns.stored.recent_matches import RecentPatternMatches
    from headwater.pipelines.operators.patterns.stored.stored_patterns import (
        StoredPattern,
        StoredPatterns,
    )

_TOPIC = "patterns"
_RECORDS = 10_000
_BEGINS = ("now", "start")


def _topic_option(parser: Parser) -> None:
    parser.add_argument(
        "--patterns", metavar="TOPIC", default=_TOPIC, help=f"topic of the patterns ({_TOPIC})"
    )


def _definition_options(parser: Parser) -> None:
    parser.add_argument(
        "--define", metavar="VARIABLE=CONDITION", action="append", default=[],
        help="what a row of the variable has to meet; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--measure", metavar="NAME=EXPRESSION", action="append", default=[],
        help="what is reported of a match; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--subset", metavar="NAME=A,B", action="append", default=[],
        help="a name for several variables; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--within", metavar="DURATION", help="how long a match may take: '1 hour' (unlimited)"
    )
    parser.add_argument(
        "--after-match", metavar="SKIP", default="",
        help="where the search goes on after a match (SKIP PAST LAST ROW)",
    )  # fmt: skip
    parser.add_argument(
        "--timed-out", action="store_true", help="partial matches that ran out of time are rows"
    )


def _configure_add(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="name of the pattern; an existing one is replaced")
    parser.add_argument("pattern", metavar="PATTERN", help="such as 'A B+ C'")
    _definition_options(parser)
    parser.add_argument(
        "--from", dest="begins", metavar="TIME", default="now",
        help="rows from this time on: now, start, or a time of ISO 8601 (now)",
    )  # fmt: skip
    parser.add_argument("--owner", metavar="NAME", default="", help="whose pattern it is")
    parser.add_argument(
        "--target", metavar="TARGET", default="", help="passed on with each match, for who sends it"
    )
    _topic_option(parser)
    broker_options(parser)


def _add(args: argparse.Namespace) -> int:
    patterns = _patterns(args)
    definition = _definition(args, args.id, args.pattern)
    try:
        is_new = patterns.put(definition)
    except PipelineError as error:
        raise _refused(error) from None
    if args.json:
        print_json({"id": args.id, "new": is_new})
        return 0
    done = "is stored" if is_new else "is replaced; open attempts of the former one end"
    note(f"pattern {args.id} {done}")
    if args.begins not in _BEGINS[:1]:
        note(
            "pipelines that run find no rows from before now; `headwater pipeline rebuild` derives"
            " them"
        )
    return 0


def _configure_list(parser: Parser) -> None:
    _topic_option(parser)
    broker_options(parser)


def _list(args: argparse.Namespace) -> int:
    found = _patterns(args).all()
    if args.json:
        print_json([_as_json(pattern) for pattern in found.values()])
    elif found:
        head = ("id", "owner", "pattern", "within", "from", "target", "error")
        say(table(head, [_row(pattern) for pattern in found.values()]))
    else:
        note(f"no patterns in {args.patterns}; `headwater pattern add ID PATTERN` stores one")
    return 0


def _row(pattern: "StoredPattern") -> tuple[str, ...]:
    names = ("owner", "pattern", "within", "from", "target")
    fields = [str(pattern.fields.get(name) or "")[:80] for name in names]
    return pattern.id, *fields, pattern.error[:80]


def _as_json(pattern: "StoredPattern") -> dict[str, Any]:
    return {**pattern.fields, "error": pattern.error}


def _configure_id(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="name of the pattern")
    _topic_option(parser)
    broker_options(parser)


def _show(args: argparse.Namespace) -> int:
    fields = _as_json(_patterns(args).one(args.id))
    if args.json:
        print_json(fields)
        return 0
    for name, value in fields.items():
        if isinstance(value, dict):
            say(name)
            for variable, text in value.items():
                shown = text if isinstance(text, str) else orjson.dumps(text).decode()
                say(f"  {variable:<10}{shown}")
        elif value not in (None, ""):
            say(f"{name:<12}{value}")
    return 0


def _drop(args: argparse.Namespace) -> int:
    _patterns(args).drop(args.id)
    if args.json:
        print_json({"id": args.id})
    else:
        note(f"pattern {args.id} is removed; its open attempts end without rows")
    return 0


def _configure_test(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", nargs="?", help="name of a stored pattern")
    parser.add_argument("--pattern", metavar="PATTERN", help="a pattern that is not stored")
    _definition_options(parser)
    parser.add_argument("-t", "--topic", metavar="TOPIC", required=True, help="topic of the rows")
    parser.add_argument(
        "--key", metavar="COLUMN", action="append", required=True,
        help="column that rows of a match share; may be repeated",
    )  # fmt: skip
    parser.add_argument("--time", metavar="COLUMN", required=True, help="column with the time")
    parser.add_argument(
        "--unit", choices=("s", "ms", "us", "ns"), default="ms", help="of times in numbers (ms)"
    )
    parser.add_argument(
        "--since", metavar="DURATION", type=duration_s, default=3600.0,
        help="records written in this time (1h)",
    )  # fmt: skip
    parser.add_argument(
        "-n", "--records", metavar="N", type=whole_number(1, 1_000_000), default=_RECORDS,
        help=f"at most the last N of them ({_RECORDS:,})",
    )  # fmt: skip
    _topic_option(parser)
    broker_options(parser)


def _test(args: argparse.Namespace) -> int:
    if (args.id is None) == (args.pattern is None):
        raise UsageError("a pattern is tested by its ID, or a text by --pattern")
    patterns = _patterns(args)
    from headwater.pipelines.operators.patterns.stored.recent_matches import match_recent

    loaded = load_config(args)
    records = recent_records(
        loaded.bootstrap(),
        loaded.client,
        args.topic,
        since_ms=int((time.time() - args.since) * 1000),
        most=args.records,
        schemas=loaded.schemas,
    )
    try:
        if args.id is None:
            definition = _definition(args, "", args.pattern)
        else:
            definition = patterns.one(args.id).definition
        found = match_recent(definition, args.topic, records, args.key, args.time, args.unit)
    except PipelineError as error:
        raise _refused(error) from None
    _print_found(args, found)
    return 0


def _print_found(args: argparse.Namespace, found: "RecentPatternMatches") -> None:
    if args.json:
        matches = [
            {
                "key": match.key,
                "event_time": match.at.isoformat(),
                "measures": match.measures,
                "timed_out": match.is_timed_out,
            }
            for match in found.matches
        ]
        counts = {
            "rows": found.rows,
            "unreadable": found.unreadable,
            "without_time": found.without_time,
            "open": found.open,
        }
        print_json({**counts, "matches": matches})
        return
    for match in found.matches:
        key = " ".join(str(value) for value in match.key.values())
        measures = orjson.dumps(match.measures).decode()
        timed_out = "  timed out" if match.is_timed_out else ""
        say(f"{match.at:%Y-%m-%d %H:%M:%S}  {key}  {measures}{timed_out}")
    left_out = found.unreadable + found.without_time
    count = len(found.matches)
    notes = [
        f"{count:,} {'match' if count == 1 else 'matches'} in {plural(found.rows, 'row')}",
        f"{plural(found.open, 'key')} with an open attempt",
    ]
    if left_out:
        notes.append(f"{plural(left_out, 'record')} left out")
    note("; ".join(notes))


def _definition(args: argparse.Namespace, id_: str, pattern: str) -> "PatternDefinition":
    from headwater.pipelines.operators.patterns.stored.definitions import (
        AFTER_MATCH,
        PatternDefinition,
    )

    subset = _pairs("--subset", args.subset)
    return PatternDefinition(
        id_,
        pattern,
        _pairs("--define", args.define),
        _pairs("--measure", args.measure),
        {name: [one.strip() for one in text.split(",")] for name, text in subset.items()},
        args.within,
        args.after_match or AFTER_MATCH,
        args.timed_out,
        getattr(args, "begins", "now"),
        getattr(args, "owner", ""),
        getattr(args, "target", ""),
        now(),
    )


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise UsageError(f"{option} {text!r}", hint=f"{option} 'NAME=…'")
        if name.strip() in found:
            raise UsageError(f"{option} has {name.strip()} twice")
        found[name.strip()] = value.strip()
    return found


def _refused(error: PipelineError) -> UsageError:
    return UsageError(error.what, detail=error.detail, hint=error.hint)


def _patterns(args: argparse.Namespace) -> "StoredPatterns":
    extras.require("headwater pattern", "pipelines")
    from headwater.pipelines.operators.patterns.stored.stored_patterns import StoredPatterns

    loaded = load_config(args)
    return StoredPatterns(loaded.bootstrap(), loaded.client, args.patterns)


COMMANDS = {
    "add": Command(
        "store a pattern, or replace it",
        _configure_add,
        _add,
        "  headwater pattern add unpaid 'ordered other*? paid' --within '1 hour' --timed-out \\\n"
        "    --define \"ordered=what = 'ordered'\" --define \"paid=what = 'paid'\" \\\n"
        "    --measure 'ordered_at=ordered.at' --owner ann",
    ),
    "list": Command("list the patterns", _configure_list, _list),
    "show": Command("show one pattern", _configure_id, _show),
    "test": Command(
        "show what a pattern would have matched in the last hour",
        _configure_test,
        _test,
        "  headwater pattern test unpaid -t shop --key order_id --time at\n"
        "  headwater pattern test --pattern 'A B' --define 'B=price < A.price' -t quotes \\\n"
        "    --key symbol --time at --since 1d",
    ),
    "drop": Command("remove a pattern", _configure_id, _drop),
}
