"""`headwater doctor`: checks this machine and configuration, with a hint for each problem.

Prints every setting with its source, then one line per check. Exit code 1 if something is broken.
"""

import argparse
import asyncio
import dataclasses
import os
import platform
import resource
import shutil
import socket
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from headwater import __version__, config, extras
from headwater.cli.parser import Command, Parser, common_options
from headwater.client import broker_request, login
from headwater.errors import BrokerUnreachable, ConfigError, HeadwaterError, RequestRefused
from headwater.settings import BrokerSettings, ClientSettings, is_loopback, split_address
from headwater.terminal.output import duration, print_json, say, size, styled, table

_SYNCS: Final = 9
_SLOW_SYNC_S: Final = 0.02
_LITTLE_SPACE_BYTES: Final = 1 << 30
_FILES_BESIDE_SEGMENTS: Final = 64  # listeners, indexes being written, libraries
_ARCHIVE_TIMEOUT_S: Final = 15.0
_EARLIEST_SANE_TIME_S: Final = 1_767_225_600  # 2026-01-01: no record is older than the program
_VOLATILE: Final = ("tmpfs", "ramfs")
_REMOTE: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs")


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. `level`: ok, info, warning, broken."""

    level: str
    check: str
    found: str
    hint: str = ""


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
    yield from _check_data_dir(Path(read.broker.data_dir))
    if read.broker.archive is not None:
        yield _check_archive(read.broker, read.broker.archive)
    yield from _check_open_files(read.broker)
    yield from _check_clock()
    if read.broker.bootstrap:
        for address in read.broker.bootstrap.split(","):
            yield _check_broker(read, address, must_answer=True)
    else:
        yield _check_listen(read)
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


def _check_data_dir(data_dir: Path) -> Iterator[Finding]:
    there = data_dir.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield Finding(
            "broken",
            "data directory",
            f"{there} is not a directory that this user can write to",
            "change its owner, or set broker.data_dir",
        )
        return
    note = "" if there == data_dir.absolute() else f" ({data_dir} will be made)"
    kind = _file_system(there)
    if kind in _VOLATILE:
        yield Finding(
            "warning",
            "data directory",
            f"{there} is on {kind}: in memory, lost when the machine stops{note}",
            "set broker.data_dir to a directory on a disk",
        )
    elif kind in _REMOTE:
        yield Finding(
            "warning",
            "data directory",
            f"{there} is on {kind}: a remote disk, whose fsync is slow or does nothing{note}",
            "set broker.data_dir to a directory on a local disk",
        )
    else:
        yield Finding("ok", "data directory", f"{there} is writable, on {kind}{note}")
    yield _check_space(there)
    yield _check_sync(there)


def _file_system(directory: Path) -> str:
    """The kind of the file system that `directory` is on: the mount with the longest prefix."""
    best, kind = "", "an unknown file system"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return kind
    path = str(directory.resolve())
    for line in mounts:
        before, _, after = line.partition(" - ")
        mount = before.split()[4].replace("\\040", " ")
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, after.split()[0]
    return kind


def _check_space(directory: Path) -> Finding:
    usage = shutil.disk_usage(directory)
    found = f"{size(usage.free)} free of {size(usage.total)}"
    if usage.free < _LITTLE_SPACE_BYTES:
        return Finding(
            "warning",
            "disk space",
            found,
            "free some, or bound the log: [broker.topic_defaults] retention.bytes",
        )
    return Finding("ok", "disk space", found)


def _check_sync(directory: Path) -> Finding:
    """How long an acknowledged record waits for the disk."""
    block = b"\0" * 4096
    taken_s = []
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            for _ in range(_SYNCS):
                began_s = time.perf_counter()
                os.write(file.fileno(), block)
                os.fdatasync(file.fileno())
                taken_s.append(time.perf_counter() - began_s)
    except OSError as error:
        return Finding(
            "broken", "disk sync", f"writing 4 KiB failed: {error}", "see dmesg; try another disk"
        )
    median_s = statistics.median(taken_s)
    found = f"fdatasync of 4 KiB takes {duration(median_s)} (median of {_SYNCS})"
    if median_s > _SLOW_SYNC_S:
        return Finding(
            "warning",
            "disk sync",
            found,
            "every acknowledgement waits so long; use a faster disk, or headwater.durability=os"
            " on topics that may lose their last records",
        )
    return Finding("ok", "disk sync", found)


def _check_open_files(broker: BrokerSettings) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = broker.max_open_files + _FILES_BESIDE_SEGMENTS
    wanted = least + broker.max_connections
    found = f"limit {soft} (hard {hard})"
    if hard != resource.RLIM_INFINITY and hard < least:
        yield Finding(
            "broken",
            "open files",
            f"{found}, broker.max_open_files = {broker.max_open_files} needs {least}",
            f"raise it (ulimit -n {least}) or lower broker.max_open_files",
        )
    elif soft != resource.RLIM_INFINITY and soft < wanted:
        yield Finding(
            "warning",
            "open files",
            f"{found}, {broker.max_open_files} segments and {broker.max_connections} connections"
            f" need {wanted}",
            f"ulimit -n {wanted}, or lower broker.max_connections",
        )
    else:
        yield Finding("ok", "open files", found)


def _check_archive(broker: BrokerSettings, url: str) -> Finding:
    """Writes, lists, reads and deletes a small object, as the broker does with segments."""
    from headwater.log.archive.objects import open_objects

    directory = unquote(urlsplit(url).path)
    if url.startswith("file:") and not os.path.isdir(directory):
        found = f"{directory} is not there; the first segment will make it"
        return Finding("warning", "archive", found, "is it on a disk that is not mounted?")
    name = f"doctor/{uuid.uuid4().hex}"

    async def contents() -> AsyncIterator[bytes]:
        yield b"headwater"

    async def use() -> None:
        objects = open_objects(url, endpoint=broker.archive_endpoint, region=broker.archive_region)
        try:
            async with asyncio.timeout(_ARCHIVE_TIMEOUT_S):
                await objects.put(name, contents())
                if name not in await objects.names("doctor"):
                    raise HeadwaterError("what was written is not in the list")
                await objects.get(name, 0, 9)
                await objects.delete([name])
        finally:
            objects.close()

    begun_s = time.perf_counter()
    try:
        asyncio.run(use())
    except TimeoutError:
        found = f"{url} does not answer within {_ARCHIVE_TIMEOUT_S:.0f} s"
    except (HeadwaterError, OSError) as error:
        found = str(error)
    else:
        took = (time.perf_counter() - begun_s) * 1000
        return Finding("ok", "archive", f"{url} takes, lists and gives back, in {took:.0f} ms")
    hint = "broker.archive and archive_endpoint say where it is; AWS_ACCESS_KEY_ID and"
    return Finding("broken", "archive", found, f"{hint} AWS_SECRET_ACCESS_KEY who may use it")


def _check_clock() -> Iterator[Finding]:
    now_s = time.time()
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
        file.flush()
        apart_s = abs(os.fstat(file.fileno()).st_mtime - now_s)
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now_s))
    if now_s < _EARLIEST_SANE_TIME_S:
        yield Finding(
            "broken", "clock", f"{shown} is in the past", "set it, e.g. timedatectl set-ntp true"
        )
    elif apart_s > 2:
        yield Finding(
            "warning",
            "clock",
            f"{shown}, but the file system's is {duration(apart_s)} apart",
            "synchronise both with NTP",
        )
    else:
        yield Finding("ok", "clock", shown)


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
