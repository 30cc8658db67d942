"""`headwater broker`: runs the broker in the foreground until SIGINT or SIGTERM.

Starts fast: nothing is imported here that the broker does not need itself.
"""

import argparse
import dataclasses
import errno
import json
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from headwater import config
from headwater.cli.parser import Command, Parser, common_options, key_value
from headwater.config import Config
from headwater.errors import HeadwaterError
from headwater.settings import BrokerSettings, split_address
from headwater.terminal.output import note, path_to_type, say, styled

if TYPE_CHECKING:
    from headwater.broker.main import RunningBroker


def _configure(parser: Parser) -> None:
    for field in _flags():
        flag = f"--{field.name.replace('_', '-')}"
        default = _default(field.default)
        parser.add_argument(
            flag, dest=field.name, metavar=_METAVARS.get(field.name, "N"),
            help=_help(field.metadata["doc"]) + default,
        )  # fmt: skip
    parser.add_argument(
        "--topic-defaults",
        metavar="KEY=VALUE",
        type=key_value,
        action="append",
        default=[],
        help="Kafka topic config of topics that do not set it",
    )
    common_options(parser, json_help="write one JSON line to stdout when ready")


def _default(value: object) -> str:
    if value is None or value == ():
        return ""
    text = ",".join(value) if isinstance(value, tuple) else str(value).lower()
    return f" (default: {text})"


def _help(doc: str) -> str:
    text = doc.split(". Default", maxsplit=1)[0].rstrip(".")
    return text if text[1].isupper() else text[0].lower() + text[1:]


_METAVARS = {
    "listen": "HOST:PORT", "advertise": "HOST:PORT", "metrics_listen": "HOST:PORT",
    "data_dir": "DIR", "auto_create_topics": "true|false", "log_format": "text|json",
    "authentication": "none|sasl|tls", "sasl_mechanisms": "NAME[,...]",
    "super_users": "NAME[;...]", "tls_cert": "FILE", "tls_key": "FILE", "tls_client_ca": "FILE",
    "oauth_jwks_file": "FILE", "oauth_issuer": "URL", "oauth_audience": "NAME",
    "oauth_principal_claim": "NAME", "allow_insecure_network": "true|false",
    "log_level": "LEVEL", "max_request_bytes": "SIZE", "max_buffered_bytes": "SIZE",
    "archive": "URL", "archive_endpoint": "URL", "archive_region": "NAME",
    "archive_cache_bytes": "SIZE", "archive_max_bytes_per_s": "SIZE", "lag_webhook": "URL",
    "compaction_memory_bytes": "SIZE", "compaction_bytes_per_s": "SIZE", "audit_log": "FILE",
}  # fmt: skip


_ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 (asked about, not bound)


def _flags() -> list["dataclasses.Field[object]"]:
    """Every setting of the broker itself; `bootstrap` is where clients look for one."""
    others = ("bootstrap", "topic_defaults", "group_defaults")
    return [field for field in dataclasses.fields(BrokerSettings) if field.name not in others]


def _run(args: argparse.Namespace) -> int:
    flags = {f"broker.{flag.name}": getattr(args, flag.name) for flag in _flags()}
    flags |= {f"broker.topic_defaults.{name}": value for name, value in args.topic_defaults}
    settings = config.load(flags, path=args.config)
    own = settings.broker.advertise or settings.broker.listen
    for setting in settings.settings:
        if setting.name == "broker.bootstrap" and setting.value not in (None, own):
            note(
                f"broker.bootstrap is {setting.value} ({setting.source}):"
                " commands talk to that, not to this broker"
            )

    listen, _ = split_address(settings.broker.listen)
    if listen in _ANY_ADDRESS and settings.broker.advertise is None:
        note(
            f"clients are directed to {listen}, which is right on this machine only;"
            " --advertise HOST:PORT gives them a name that others can reach"
        )

    from headwater.broker.main import run
    from headwater.broker.monitoring import logs

    logs.set_up(settings.broker.log_format, settings.broker.log_level)
    try:
        run(settings.broker, ready=partial(_announce, settings, as_json=args.json))
    except OSError as error:
        if error.filename is not None:
            taken = isinstance(error, FileExistsError)  # mkdir's error if it is a file
            reason = "not a directory" if taken else (error.strerror or str(error)).lower()
            raise HeadwaterError(
                "the broker cannot use its data directory",
                detail=f"{os.fsdecode(error.filename)}: {reason}",
                hint="--data-dir takes another one; `headwater doctor` looks at it",
            ) from error
        if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
            raise
        raise HeadwaterError(
            "the broker cannot listen",
            detail=error.strerror or str(error),
            hint="broker.listen or --listen names another address; `headwater doctor` shows who"
            " answers at this one",
        ) from error
    return 0


def _announce(settings: Config, running: "RunningBroker", *, as_json: bool) -> None:
    address = running.address
    data_dir = os.path.abspath(settings.broker.data_dir)
    if as_json:
        ready = {
            "listen": address,
            "data_dir": data_dir,
            "metrics_listen": running.metrics_address,
            "pid": os.getpid(),
        }
        say(json.dumps(ready))
    elif not sys.stdout.isatty():
        say(f"headwater is ready at {address}, data in {data_dir}")
    else:
        # Another terminal has the same file and environment, but not these flags.
        default = config.read(path=str(settings.path) if settings.path else None).bootstrap()
        reached = settings.broker.reached_at(address)
        given = "" if default == reached else f" -b {reached}"
        say(
            f"{styled('headwater is ready', 'bold green')} at {styled(address, 'bold')},"
            f" data in {data_dir}\n\n"
            "try, in another terminal:\n"
            + "".join(f"  {line}\n" for line in path_to_type())
            + f"  echo hello | headwater produce greetings{given}\n"
            f"  headwater consume greetings -o start{given}\n"
            f"  headwater status{given}\n\n"
            "Ctrl-C stops it"
        )
    sys.stdout.flush()


COMMANDS = {
    "": Command(
        "run the broker",
        _configure,
        _run,
        "  headwater broker\n"
        "  headwater broker --listen 0.0.0.0:9092 --advertise kafka.example.org:9092 \\\n"
        "    --authentication sasl --super-users admin --tls-cert broker.pem --tls-key broker.key\n"
        "  headwater broker --data-dir /var/lib/headwater --topic-defaults retention.ms=7d",
    )
}
