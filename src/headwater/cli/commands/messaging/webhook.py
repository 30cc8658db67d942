"""`headwater webhook add | list | show | pause | resume | remove | test | redeliver`."""

import argparse

from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser, duration_s, whole_number
from headwater.config import Config
from headwater.errors import HeadwaterError
from headwater.gateway.webhooks import trying
from headwater.gateway.webhooks.administration import Administration, Progress
from headwater.gateway.webhooks.definitions import Webhook
from headwater.gateway.webhooks.targets import Network, parse_networks
from headwater.terminal.output import note, plural, print_json, say, table


def _configure_add(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the webhook")
    parser.add_argument("url", metavar="URL", help="address that records are posted to")
    parser.add_argument(
        "-t", "--topic", metavar="TOPIC", dest="topics", action="append", default=[],
        help="topic whose records are sent; may be repeated",
    )  # fmt: skip
    parser.add_argument("--key", metavar="KEY", help="only records with this key")
    parser.add_argument(
        "--header", metavar="NAME[:VALUE]", action="append", default=[],
        help="only records with this header",
    )  # fmt: skip
    parser.add_argument(
        "--where", metavar="CONDITION", action="append", default=[],
        help="only records whose value is so: '$.total>=100'",
    )  # fmt: skip
    parser.add_argument(
        "--from", metavar="POSITION", dest="begin", default="end",
        help="first record: start, end (default), -n or @TIME",
    )  # fmt: skip
    parser.add_argument(
        "--secret", metavar="SECRET", help="signs requests (whsec_…); default: one is made"
    )
    parser.add_argument(
        "--max-in-flight",
        metavar="N",
        type=whole_number(1, 100),
        default=1,
        help="requests at a time (1)",
    )
    parser.add_argument(
        "--timeout", metavar="DURATION", type=duration_s, default=10.0,
        help="time limit of a request (10s)",
    )  # fmt: skip
    parser.add_argument(
        "--retry-for", metavar="DURATION", type=duration_s, default=86_400.0,
        help="how long a record is retried before it becomes a dead letter (1d)",
    )  # fmt: skip
    broker_options(parser)


def _add(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    filter_ = [("key", args.key)] if args.key is not None else []
    filter_ += [("header", text) for text in args.header]
    filter_ += [("where", text) for text in args.where]
    webhook = Webhook(
        args.name,
        args.url,
        tuple(args.topics),
        tuple(filter_),
        () if args.secret is None else (args.secret,),
        args.max_in_flight,
        args.timeout,
        args.retry_for,
    )
    added = _administration(loaded).add(webhook, args.begin, _allowed(loaded))
    if args.json:
        print_json({"name": added.name, "secret": added.secrets[0]})
    elif args.secret is None:
        note(f"webhook {added.name}; the secret that signs its requests, shown only now:")
        say(added.secrets[0])
    else:
        note(f"webhook {added.name} is registered; gateways send it")
    return 0


def _list(args: argparse.Namespace) -> int:
    found = _administration(load_config(args)).progress()
    if args.json:
        print_json([progress.as_json() for progress in found])
    elif found:
        head = ("name", "state", "address", "topics", "backlog", "dead letters", "last error")
        say(table(head, [_row(progress) for progress in found]))
    else:
        note("no webhooks yet; `headwater webhook add NAME URL -t TOPIC` makes one")
    return 0


def _row(progress: Progress) -> tuple[str, ...]:
    webhook = progress.webhook
    return (
        webhook.name,
        progress.shown_state,
        webhook.shown_url,
        ", ".join(webhook.topics),
        f"{progress.backlog:,}",
        f"{progress.dead_letters:,}",
        (webhook.paused or progress.state.last_error)[:80],
    )


def _configure_name(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the webhook")
    broker_options(parser)


def _show(args: argparse.Namespace) -> int:
    (progress,) = _administration(load_config(args)).progress([args.name])
    fields = progress.as_json()
    if args.json:
        print_json(fields)
        return 0
    for name, value in fields.items():
        if value not in (None, "", [], ()):
            shown = ", ".join(value) if isinstance(value, list | tuple) else value
            say(f"{name.replace('_', ' '):<18}{shown}")
    return 0


def _pause(args: argparse.Namespace) -> int:
    _administration(load_config(args)).pause(args.name, "paused by hand")
    return _said(args, f"webhook {args.name} is paused; what is written meanwhile waits in the log")


def _resume(args: argparse.Namespace) -> int:
    _administration(load_config(args)).resume(args.name)
    return _said(args, f"webhook {args.name} goes on where it was")


def _remove(args: argparse.Namespace) -> int:
    administration = _administration(load_config(args))
    webhook = administration.one(args.name)
    administration.remove(args.name)
    return _said(
        args, f"webhook {args.name} is removed; dead letters stay in {webhook.dead_letter_topic}"
    )


def _redeliver(args: argparse.Namespace) -> int:
    count = _administration(load_config(args)).redeliver(args.name)
    if args.json:
        print_json({"name": args.name, "dead_letters": count})
    elif count:
        note(f"{plural(count, 'dead letter')} of webhook {args.name} will be sent again")
    else:
        note(f"webhook {args.name} has no dead letters")
    return 0


def _test(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    webhook = _administration(loaded).one(args.name)
    answer = trying.send_test_now(webhook, _allowed(loaded))
    if args.json:
        print_json({"name": args.name, **answer})
        return 0 if answer["delivered"] else 1
    if not answer["delivered"]:
        raise HeadwaterError(f"{webhook.shown_url} has not taken it", detail=answer["error"])
    note(f"{webhook.shown_url} answered {answer['status']} in {answer['took_ms']} ms")
    return 0


def _said(args: argparse.Namespace, text: str) -> int:
    if args.json:
        print_json({"name": args.name})
    else:
        note(text)
    return 0


def _administration(loaded: Config) -> Administration:
    return Administration(loaded.bootstrap(), loaded.client)


def _allowed(loaded: Config) -> list[Network]:
    return parse_networks(loaded.gateway.webhook_allowed_networks)


COMMANDS = {
    "add": Command(
        "register a webhook; its secret is shown once",
        _configure_add,
        _add,
        "  headwater webhook add billing https://billing.example/hooks -t orders\n"
        "  headwater webhook add large https://ops.example/in -t orders --where '$.total>=1000'",
    ),
    "list": Command("list the webhooks with their backlog", broker_options, _list),
    "show": Command("show one webhook", _configure_name, _show),
    "pause": Command("send nothing until it is resumed", _configure_name, _pause),
    "resume": Command("go on where it was", _configure_name, _resume),
    "remove": Command("remove a webhook", _configure_name, _remove),
    "test": Command("send a test message now, from here", _configure_name, _test),
    "redeliver": Command("send all dead letters again", _configure_name, _redeliver),
}
