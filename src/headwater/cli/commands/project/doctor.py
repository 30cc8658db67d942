"""`headwater doctor`: checks this machine and configuration, with a hint for each problem.

Prints every setting with its source, then one line per check. Exit code 1 if something is broken.
"""

import argparse
import dataclasses
import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headwater import __version__, config, extras
from headwater.cli.checks import (
    Finding,
    check_archive,
    check_clock,
    check_data_dir,
    check_open_files,
)
from headwater.cli.parser import Command, Parser, common_options
from headwater.client import broker_request, login
from headwater.errors import BrokerUnreachable, ConfigError, HeadwaterError, RequestRefused
from headwater.settings import BrokerSettings, ClientSettings, is_loopback, split_address
from headwater.terminal.output import print_json, say, styled, table


def _configure(parser: Parser) -> None:
    common_options(parser)


def _run(args: argparse.Namespace) -> int:
    read = config.read(path=args.config)
    findings = list(_findings(read))
    broken = any(finding.level == "broken" for finding in findings)
    if args.json:
        print_json(
            {
                "settings": [dataclasses.asdict(setting) for setting in read.settings],
                "checks": [dataclasses.asdict(finding) for finding in findings],
            }
        )
    else:
        _show(read, findings)
    return 1 if broken else 0


def _findings(read: config.Config) -> Iterator[Finding]:
    yield Finding(
        "ok",
        "program",
        f"headwater {__version__}, Python {platform.python_version()}, {sys.platform}",
    )
    yield _check_extras()
    yield from _check_config(read)
    yield from _check_security(read)
    yield from check_data_dir(Path(read.broker.data_dir))
    if read.broker.archive is not None:
        yield check_archive(read.broker, read.broker.archive)
    yield from check_open_files(read.broker)
    yield from check_clock()
    if read.broker.bootstrap:
        for address in read.broker.bootstrap.split(","):
            yield _check_broker(read, address, must_answer=True)
    else:
        yield _check_listen(read)
    if read.subject_kinds:
        yield _check_keys(read)
    if read.captures:
        from headwater.cli.captures.checks import check_captures

        yield from check_captures(read, _without_prompt(read.client))
    if read.sinks or read.pipelines:
        from headwater.cli.pipelines.checks import check_pipelines

        yield from check_pipelines(read, _without_prompt(read.client))
    path = shutil.which("kcat")
    yield Finding("info", "kcat", path or "not installed (optional: a second opinion)")


def _check_extras() -> Finding:
    """Which optional parts this installation has. What a section needs is a check of its own."""
    installed = [extra for extra in extras.EXTRAS if not extras.missing_of(extra)]
    others = [extra for extra in extras.EXTRAS if extra not in installed]
    return Finding(
        "info" if others else "ok",
        "extras",
        f"installed: {', '.join(installed) or 'none'}"
        + (f"; not installed: {', '.join(others)}" if others else ""),
        f"pip install 'headwater[{others[0]}]' installs one" if others else "",
    )


def _check_config(read: config.Config) -> Iterator[Finding]:
    for mistake in read.mistakes:
        yield Finding(
            "broken",
            "configuration",
            f"{mistake.where}: {mistake.read}",
            f"expected {mistake.expected}",
        )
    if not read.mistakes:
        yield Finding("ok", "configuration", str(read.path or f"no {config.FILE_NAME}: defaults"))


def _check_security(read: config.Config) -> Iterator[Finding]:
    from headwater.broker.security import rules

    try:
        rules.check(read.broker)
        if read.broker.bootstrap is None:
            yield _openness(read.broker)
    except ConfigError as error:
        yield Finding("broken", "security", str(error), error.hint)
    secrets = (read.broker.tls_key, read.client.tls_key, read.client.password_file)
    for path in filter(None, (*secrets, read.client.token_file)):
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            yield Finding("broken", "security", f"{path}: {(error.strerror or '').lower()}")
            continue
        if mode & 0o077:
            yield Finding("warning", "security", f"others can read {path}", f"chmod go= {path}")


def _openness(broker: BrokerSettings) -> Finding:
    """An open broker is a warning if a network reaches it; else it is open to the other users of
    this machine, which is said and may be meant.
    """
    from headwater.broker.security import rules

    found = rules.described(broker)
    if broker.authentication != "none":
        return Finding("ok", "security", found)
    level = "info" if is_loopback(broker.listen) else "warning"
    hint = 'broker.authentication = "sasl" asks clients who they are (docs/security.md)'
    return Finding(level, "security", found, hint)


def _check_listen(read: config.Config) -> Finding:
    listen = read.broker.listen
    host, port = split_address(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == 98:  # EADDRINUSE
                address = read.broker.reached_at(listen)
                return _check_broker(read, address, must_answer=False)
            return Finding(
                "broken",
                "broker.listen",
                f"{listen} cannot be bound: {(error.strerror or str(error)).lower()}",
                "set broker.listen to an address of this machine, and a port above 1023",
            )
    return Finding("ok", "broker.listen", f"{listen} is free")


def _check_broker(read: config.Config, address: str, *, must_answer: bool) -> Finding:
    check = "broker.bootstrap" if must_answer else "broker.listen"
    try:
        properties = login.properties_of(_without_prompt(read.client))
        versions = broker_request.supported_versions(address, 3.0, properties)
    except BrokerUnreachable as error:
        return Finding(
            "broken",
            check,
            f"{address} does not answer: {error.detail}",
            "start that broker, or correct the address"
            if must_answer
            else "another program holds the port (`ss -ltnp` shows it): stop it, or set"
            " broker.listen",
        )
    except (ConfigError, RequestRefused) as error:
        return Finding("broken", check, str(error), error.hint)
    except HeadwaterError as error:
        return Finding(
            "broken",
            check,
            f"what answers at {address} is no Kafka-protocol broker: {error}",
            "stop that program, or set another address",
        )
    return Finding("ok", check, f"a broker answers at {address} and serves {len(versions)} APIs")


def _check_keys(read: config.Config) -> Finding:
    """Of personal fields. Changes nothing."""
    from headwater.subjects.key_database import is_unused
    from headwater.subjects.key_store import KeyStore

    places = read.key_places()
    try:
        if is_unused(places):
            found = f"{places.key_store} is created with the first personal field"
            return Finding("info", "key store", found)
        KeyStore(places, create=False).close()
    except HeadwaterError as error:
        return Finding("broken", "key store", str(error), error.hint)
    is_beside = Path(places.key_file).parent == Path(places.key_store) and not places.key_command
    return Finding(
        "warning" if is_beside else "ok",
        "key store",
        f"{places.key_store} opens"
        + (", by a root key in the same directory" if is_beside else ""),
        "subjects.key_file: on another disk it is not in the same copy" if is_beside else "",
    )


def _without_prompt(client: ClientSettings) -> ClientSettings:
    """Without a configured password the login is left out: this command does not prompt."""
    if client.password is None and client.password_file is None:
        return dataclasses.replace(client, username=None)
    return client


def _show(read: config.Config, findings: list[Finding]) -> None:
    def shown(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, tuple):
            return ";".join(value) or "-"
        return "-" if value is None else str(value)

    rows = [
        (setting.name, shown(setting.value), setting.source)
        for setting in read.settings
        # There may be many captures, and most of their settings are defaults.
        if setting.source != "default" or setting.name.startswith(("broker.", "client."))
    ]
    say(table(("setting", "value", "source"), rows))
    say()
    styles = {"ok": "green", "info": "dim", "warning": "bold yellow", "broken": "bold red"}
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        say(f"{styled(f'{finding.level:8}', styles[finding.level])} {finding.check:{width}} "
            f" {finding.found}")  # fmt: skip
        if finding.hint:
            say(f"{'':8} {'':{width}}  {styled('hint: ' + finding.hint, 'cyan')}")
    broken = sum(finding.level == "broken" for finding in findings)
    say()
    say(f"{broken} broken" if broken else "nothing is broken")


COMMANDS = {
    "": Command("check this machine and the configuration", _configure, _run),
}
