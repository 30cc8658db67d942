"""`headwater search add | list | show | test | drop`."""

import argparse
import time

from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser, duration_s, whole_number
from headwater.errors import UsageError
from headwater.pipelines.definitions_topic import now
from headwater.pipelines.search.query_parser import parse_query
from headwater.pipelines.search.recent_matches import RecentSearch, search_recent
from headwater.pipelines.search.stored_searches import (
    DEFAULT_TOPIC,
    StoredSearch,
    StoredSearches,
)
from headwater.terminal.output import note, plural, print_json, say, table

_RECORDS = 10_000


def _topic_option(parser: Parser) -> None:
    parser.add_argument(
        "--searches", metavar="TOPIC", default=DEFAULT_TOPIC,
        help=f"topic of the searches ({DEFAULT_TOPIC})",
    )  # fmt: skip


def _configure_add(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="name of the search; an existing one is replaced")
    parser.add_argument("query", metavar="QUERY", help="what documents have to match")
    parser.add_argument("--owner", metavar="NAME", default="", help="whose search it is")
    parser.add_argument(
        "--language", metavar="LANGUAGE", default="",
        help="words match in other forms of this language: english, de, …",
    )  # fmt: skip
    parser.add_argument(
        "--target", metavar="TARGET", default="", help="passed on with each match, for who sends it"
    )
    parser.add_argument(
        "--limit", metavar="N", type=whole_number(1, 1_000_000),
        help="most matches in an hour (no limit)",
    )  # fmt: skip
    _topic_option(parser)
    broker_options(parser)


def _add(args: argparse.Namespace) -> int:
    search = StoredSearch(
        args.id, args.query, args.owner, args.language, args.target, args.limit, now()
    )
    is_new = _searches(args).put(search)
    if args.json:
        print_json({"id": args.id, "new": is_new})
    else:
        done = "is stored" if is_new else "is replaced"
        note(f"search {args.id} {done}; documents that are written from now on meet it")
    return 0


def _configure_list(parser: Parser) -> None:
    _topic_option(parser)
    broker_options(parser)


def _list(args: argparse.Namespace) -> int:
    found = _searches(args).all()
    if args.json:
        print_json([search.as_json() for search in found.values()])
    elif found:
        head = ("id", "owner", "query", "language", "limit", "target", "error")
        say(table(head, [_row(search) for search in found.values()]))
    else:
        note(f"no searches in {args.searches}; `headwater search add ID QUERY` stores one")
    return 0


def _row(search: StoredSearch) -> tuple[str, ...]:
    return (
        search.id,
        search.owner,
        search.query[:80],
        search.language,
        "" if search.limit is None else f"{search.limit}/h",
        search.target,
        search.error()[:80],
    )


def _configure_id(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="name of the search")
    _topic_option(parser)
    broker_options(parser)


def _show(args: argparse.Namespace) -> int:
    fields = _searches(args).one(args.id).as_json()
    if args.json:
        print_json(fields)
        return 0
    for name, value in fields.items():
        if value not in (None, ""):
            say(f"{name:<10}{value}")
    return 0


def _drop(args: argparse.Namespace) -> int:
    _searches(args).drop(args.id)
    if args.json:
        print_json({"id": args.id})
    else:
        note(f"search {args.id} is removed")
    return 0


def _configure_test(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", nargs="?", help="name of a stored search")
    parser.add_argument("--query", metavar="QUERY", help="a query that is not stored")
    parser.add_argument(
        "--language", metavar="LANGUAGE", default="",
        help="of --query, or of a search that names none: that of the pipeline",
    )  # fmt: skip
    parser.add_argument(
        "-t", "--topic", metavar="TOPIC", required=True, help="topic of the documents"
    )
    parser.add_argument(
        "--text", metavar="FIELD", action="append", required=True,
        help="field that words are searched in; may be repeated",
    )  # fmt: skip
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
    if (args.id is None) == (args.query is None):
        raise UsageError("a search is tested by its ID, or a text by --query")
    loaded = load_config(args)
    query, language = args.query, args.language
    if query is None:
        stored = StoredSearches(loaded.bootstrap(), loaded.client, args.searches).one(args.id)
        query, language = stored.query, stored.language or language
    condition = parse_query(query, tuple(args.text), language=language)
    found = search_recent(
        loaded.bootstrap(),
        loaded.client,
        args.topic,
        condition,
        tuple(args.text),
        since_ms=int((time.time() - args.since) * 1000),
        most=args.records,
        schemas=loaded.schemas,
        marks=("<em>", "</em>") if args.json else ("[", "]"),
    )
    _print_found(args, found)
    return 0


def _print_found(args: argparse.Namespace, found: RecentSearch) -> None:
    if args.json:
        matches = [match.as_json() for match in found.matches]
        print_json(
            {"documents": found.documents, "unreadable": found.unreadable, "matches": matches}
        )
        return
    for match in found.matches:
        place = f"{args.topic}/{match.partition}@{match.offset}"
        say(f"{match.at:%Y-%m-%d %H:%M:%S}  {place}  {' · '.join(match.highlights)}".rstrip())
    left_out = f"; {plural(found.unreadable, 'record')} left out" if found.unreadable else ""
    note(f"{len(found.matches):,} of {plural(found.documents, 'document')} would match{left_out}")


def _searches(args: argparse.Namespace) -> StoredSearches:
    loaded = load_config(args)
    return StoredSearches(loaded.bootstrap(), loaded.client, args.searches)


COMMANDS = {
    "add": Command(
        "store a search, or replace it",
        _configure_add,
        _add,
        "  headwater search add storms 'storm AND NOT sports' --language english --owner ann\n"
        "  headwater search add large 'total:>=1000 AND customer.city:Oslo' --limit 10",
    ),
    "list": Command(
        "list the searches",
        _configure_list,
        _list,
    ),
    "show": Command("show one search", _configure_id, _show),
    "test": Command(
        "show what a search would have matched in the last hour",
        _configure_test,
        _test,
        "  headwater search test storms -t articles --text title --text body --language english\n"
        "  headwater search test --query '\"heavy rain\"' -t articles --text body --since 1d",
    ),
    "drop": Command("remove a search", _configure_id, _drop),
}
