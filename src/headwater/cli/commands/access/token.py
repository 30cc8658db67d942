"""`headwater token create | list | revoke`: how machines authenticate to the gateway."""

import argparse
import time
from datetime import UTC, datetime
from typing import Final

from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser, duration_s
from headwater.errors import RequestRefused, UsageError
from headwater.gateway import tokens
from headwater.terminal.output import note, print_json, say, table

_PATIENCE_S: Final = 30.0


def _configure_create(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="what the token is for, shown in lists")
    parser.add_argument(
        "-t",
        "--topic",
        metavar="TOPIC",
        dest="topics",
        action="append",
        default=[],
        help="topic it is for; PREFIX* are all that begin so; may be repeated",
    )
    parser.add_argument(
        "--allow",
        metavar="OPERATIONS",
        default="read,write",
        help="read, write or read,write (default)",
    )
    parser.add_argument(
        "--expires", metavar="DURATION", type=duration_s, help="for how long it is good (30d)"
    )
    broker_options(parser)


def _create(args: argparse.Namespace) -> int:
    operations = [operation.strip() for operation in args.allow.split(",") if operation.strip()]
    for operation in operations:
        if operation not in tokens.OPERATIONS:
            raise UsageError(f"--allow {operation}", hint="--allow takes read, write or both")
    if not args.topics:
        raise UsageError(
            "a token is for some topics", hint="-t orders -t 'shop.*', or -t '*' for all"
        )
    now_ms = time.time_ns() // 1_000_000
    expires_ms = None if args.expires is None else now_ms + int(args.expires * 1000)
    token, secret = tokens.new_token(args.name, args.topics, operations, expires_ms)
    loaded = load_config(args)
    tokens.store(loaded.bootstrap(), loaded.client, token)
    if args.json:
        print_json({"id": token.id, "token": secret})
    else:
        note(f"token {token.id}, shown only now:")
        say(secret)
    return 0


def _list(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    found = tokens.read_tokens(loaded.bootstrap(), loaded.client, patience_s=_PATIENCE_S)
    ordered = sorted(found.values(), key=lambda token: (token.created_ms, token.id))
    now_ms = time.time_ns() // 1_000_000
    if args.json:
        print_json(
            [
                {
                    "id": token.id,
                    "name": token.name,
                    "topics": token.topics,
                    "operations": token.operations,
                    "created": _day(token.created_ms),
                    "expires": token.expires_ms and _day(token.expires_ms),
                    "has_expired": token.has_expired(now_ms),
                }
                for token in ordered
            ]
        )
    elif ordered:
        rows = [
            (
                token.id,
                token.name,
                ", ".join(token.topics),
                ", ".join(token.operations),
                _day(token.created_ms),
                "never" if token.expires_ms is None else _day(token.expires_ms),
            )
            for token in ordered
        ]
        say(table(("id", "name", "topics", "may", "created", "expires"), rows))
    else:
        note("no tokens yet; `headwater token create NAME -t TOPIC` makes one")
    return 0


def _configure_revoke(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="as `headwater token list` shows it")
    broker_options(parser)


def _revoke(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    bootstrap, login = loaded.bootstrap(), loaded.client
    if args.id not in tokens.read_tokens(bootstrap, login, patience_s=_PATIENCE_S):
        raise RequestRefused(
            f"there is no token {args.id}", hint="`headwater token list` shows the tokens"
        )
    tokens.revoke(bootstrap, login, args.id)
    if args.json:
        print_json({"id": args.id})
    else:
        note(f"token {args.id} is revoked; gateways refuse it in two seconds at most")
    return 0


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%MZ")


COMMANDS = {
    "create": Command(
        "create a token; it is shown once",
        _configure_create,
        _create,
        "  headwater token create thermometer -t readings --allow write\n"
        "  headwater token create dashboard -t 'shop.*' --allow read --expires 90d",
    ),
    "list": Command("list the tokens, without their secrets", broker_options, _list),
    "revoke": Command("revoke a token", _configure_revoke, _revoke),
}
