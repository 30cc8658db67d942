"""`headwater capture run NAME`: follows a database in the foreground.

A capture is crash-only: a run that fails ends, and the next one goes on from the position in the
log. This module decides whether there is a next one. While the database or the broker is not
reachable it retries, with exponential backoff. Errors that no retry fixes (rights, settings, a lost
position, another process that took over) end the command. Every other error is retried if an
earlier run worked.
"""

import argparse
import json
import logging
import os
import sys
import threading
import time
from typing import Final

from headwater import config
from headwater.capture.metrics import CaptureState
from headwater.capture.settings import CaptureSettings
from headwater.cli.arguments import broker_options, load_config
from headwater.cli.captures.display import Display
from headwater.cli.parser import Command, Parser
from headwater.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ConfigError,
    Fenced,
    HeadwaterError,
    KeyStoreError,
    PositionLost,
    SourceRefused,
    SourceUnreachable,
    UsageError,
)
from headwater.inspect.captures import connected, named
from headwater.inspect.subjects import personal_topics
from headwater.terminal.output import say, styled
from headwater.terminal.stop_signals import stop_on_signals

log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_SWITCH_S: Final = 0.001  # between threads: the sender shall not wait for a busy reader
_STOP_S: Final = 9.0  # what has not ended by then (a database that hangs) is left as it is
_AWAY: Final = (SourceUnreachable, BrokerUnreachable)
_FINAL: Final = (
    AuthenticationFailed, ConfigError, Fenced, KeyStoreError, PositionLost, SourceRefused,
    UsageError,
)  # fmt: skip


def _configure(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="capture: [capture.NAME] in headwater.toml")
    broker_options(parser, json_help="write one JSON object at the start, and the log as JSON")


def _run(args: argparse.Namespace) -> int:
    loaded = load_config(args)
    settings = named(loaded, args.name)
    state = CaptureState(settings.name)
    stop = stop_on_signals(_STOP_S)
    sys.setswitchinterval(_SWITCH_S)
    metrics = _serve_metrics(settings, state)
    _announce(settings, loaded, metrics, as_json=args.json)
    is_json = args.json or loaded.broker.log_format == "json"
    with Display(state, loaded.broker.log_level, is_json=is_json) as display:
        run_until_stopped(settings, loaded, state, stop, display)
    if not args.json:
        say("stopped; the next run continues from here")
    return 0


def run_until_stopped(
    settings: CaptureSettings,
    loaded: config.Config,
    state: CaptureState,
    stop: threading.Event,
    display: Display,
) -> None:
    """One run after the other until `stop`. Raises the errors that no further run would fix."""
    from headwater.capture import runner

    pause_s = _FIRST_PAUSE_S
    has_followed = False
    while not stop.is_set():
        began_s, records = time.monotonic(), state.changes
        try:
            connected(loaded)
            bootstrap, login = loaded.bootstrap(), loaded.client
            personal = personal_topics(loaded)
            runner.run(settings, bootstrap, login, state, stop, loaded.schemas, personal)
            return
        except HeadwaterError as error:
            if stop.is_set() and isinstance(error, _AWAY):
                return  # unreachable while it stops; the position is in the log
            has_followed = has_followed or state.is_following
            if state.changes > records or time.monotonic() - began_s > _LONGEST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S  # it went well until now
            state.error(error)
            if isinstance(error, _FINAL) or not (has_followed or isinstance(error, _AWAY)):
                raise
            display.retrying(error, pause_s)
        stop.wait(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        state.restarted()


def _serve_metrics(settings: CaptureSettings, state: CaptureState) -> str | None:
    """Where; until the process ends."""
    if settings.metrics_listen is None:
        return None
    from headwater.capture.http import HttpEndpoint

    allowed = settings.allow_insecure_network
    return HttpEndpoint(settings.metrics_listen, state, allow_insecure_network=allowed).address


def _announce(
    settings: CaptureSettings, loaded: config.Config, metrics: str | None, *, as_json: bool
) -> None:
    bootstrap = loaded.bootstrap()
    if as_json:
        about = {
            "capture": settings.name,
            "source": settings.shown_source,
            "bootstrap": bootstrap,
            "metrics_listen": metrics,
            "pid": os.getpid(),
        }
        say(json.dumps(about))
    else:
        exact = [table for table in settings.tables if not set(table) & set("*?[")]
        topic = f"{settings.name}.{exact[0] if exact else 'SCHEMA.TABLE'}"
        say(
            f"{styled(settings.name, 'bold green')} follows {styled(settings.shown_source, 'bold')}"
            f" ({', '.join(settings.tables)}) into topics at {bootstrap}"
        )
        if sys.stdout.isatty():
            default = config.read(path=str(loaded.path) if loaded.path else None).bootstrap()
            given = "" if default == bootstrap else f" -b {bootstrap}"
            say(
                "\nlook, in another terminal:\n"
                f"  headwater capture status {settings.name}{given}\n"
                f"  headwater consume {topic} -o start{given}\n\n"
                "Ctrl-C stops it\n"
            )
    sys.stdout.flush()


COMMAND = Command(
    "follow a database in the foreground",
    _configure,
    _run,
    "  headwater capture run shop\n"
    "  HEADWATER_CAPTURE__SHOP__SOURCE=postgresql://localhost/shop headwater capture run shop",
)
