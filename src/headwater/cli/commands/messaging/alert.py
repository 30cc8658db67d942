"""`headwater alert list | test | silence | history`."""

import argparse
import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from headwater.alert_settings import AlertSettings
from headwater.cli.arguments import broker_options, load_config
from headwater.cli.parser import Command, Parser, duration_s, whole_number
from headwater.config import Config
from headwater.errors import HeadwaterError, UsageError
from headwater.gateway.alerts import store
from headwater.gateway.alerts.overview import rows_of
from headwater.gateway.alerts.rules import shown
from headwater.spelling import nearest
from headwater.terminal.output import note, print_json, say, table


def _list(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    rows = rows_of(loaded, store.read(loaded.bootstrap(), loaded.client))
    if args.json:
        print_json(rows)
    elif rows:
        head = ("alert", "state", "since", "value", "when", "error")
        say(
            table(
                head,
                [
                    (
                        row["alert"],
                        row["state"] + (" (silenced)" if row["silenced_until"] else ""),
                        row["since"] or "-",
                        shown(row["value"]),
                        row["when"],
                        row["error"],
                    )
                    for row in rows
                ],
            )
        )
    else:
        note("no alerts yet; [alert.NAME] in headwater.toml makes one: docs/alerts.md")
    return 0


def _configure_name(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="[alert.NAME]")
    broker_options(parser)


def _test(args: argparse.Namespace) -> int:
    """The condition now, and a notice to everybody who is notified."""
    from headwater.gateway.alerts import notices
    from headwater.gateway.alerts.measures import Measures
    from headwater.gateway.alerts.rules import TEST, event_of

    loaded = load_config(args)
    alert = _named(loaded, args.name)
    value: float | None = None
    error = ""
    try:
        with Measures(loaded) as measures:
            value = measures.value(alert.condition)
    except HeadwaterError as unreadable:
        error = str(unreadable)
    event = event_of(alert, TEST, value, time.time_ns() // 1_000_000)

    async def send_all() -> list[str]:
        return [await notices.send(loaded, alert, to, event) for to in alert.receivers]

    failures = asyncio.run(send_all())
    holds = value is not None and alert.condition.holds(value)
    if args.json:
        print_json(
            {
                "alert": alert.name,
                "value": value,
                "holds": holds,
                "error": error,
                "notified": [
                    {"to": _shown(to), "error": failure}
                    for to, failure in zip(alert.receivers, failures, strict=True)
                ],
            }
        )
    else:
        say(f"{alert.when}: {error or shown(value)}, {'holds' if holds else 'does not hold'}")
        for to, failure in zip(alert.receivers, failures, strict=True):
            say(f"{_shown(to)}: {failure or 'notified'}")
    return 1 if error or any(failures) else 0


def _configure_silence(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="[alert.NAME]")
    parser.add_argument(
        "--for", metavar="DURATION", dest="duration_s", type=duration_s, default=3600.0,
        help="for how long nobody is notified (1h)",
    )  # fmt: skip
    parser.add_argument("--end", action="store_true", help="end the silence now")
    broker_options(parser)


def _silence(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    alert = _named(loaded, args.name)
    until_ms = None if args.end else int((time.time() + args.duration_s) * 1000)
    store.silence(loaded.bootstrap(), loaded.client, alert.name, until_ms)
    if args.json:
        print_json({"alert": alert.name, "until_ms": until_ms})
    elif until_ms is None:
        note(f"alert {alert.name} is no longer silenced")
    else:
        note(f"nobody is notified of alert {alert.name} until {_time(until_ms)}")
    return 0


def _configure_history(parser: Parser) -> None:
    parser.add_argument(
        "-n",
        metavar="N",
        dest="limit",
        type=whole_number(1, 100_000),
        default=50,
        help="events (50)",
    )
    broker_options(parser)


def _history(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    if args.limit < 1:
        raise UsageError("-n is 1 or more")
    events = store.history(loaded.bootstrap(), loaded.client, min(args.limit, 10_000))
    if args.json:
        print_json(events)
    elif events:
        say(table(("at", "alert", "event", "value", "when"), [_event_row(one) for one in events]))
    else:
        note("no alert has fired yet")
    return 0


def _event_row(event: dict[str, Any]) -> tuple[str, ...]:
    value = event.get("value")
    return (
        _time(event["at_ms"]),
        event["alert"],
        event["event"] + (" (silenced)" if event.get("silenced") else ""),
        shown(value),
        event["when"],
    )


def _named(loaded: Config, name: str) -> AlertSettings:
    found = loaded.alerts.get(name)
    if found is None:
        meant = nearest(name, list(loaded.alerts))
        raise UsageError(
            f"there is no alert {name}",
            hint=f"did you mean {meant}?" if meant else "[alert.NAME] in headwater.toml",
        )
    return found


def _shown(to: str) -> str:
    """The path of a webhook may be a secret."""
    return "/".join(to.split("/")[:3]) + "/…" if to.startswith("webhook:") else to


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


COMMANDS = {
    "list": Command("list the alerts with their state", broker_options, _list),
    "test": Command(
        "show the condition's value now, and send a test notice", _configure_name, _test
    ),
    "silence": Command(
        "notify nobody for some time",
        _configure_silence,
        _silence,
        "  headwater alert silence lag --for 2h\n  headwater alert silence lag --end",
    ),
    "history": Command("show when alerts fired and recovered", _configure_history, _history),
}
