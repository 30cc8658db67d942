"""Checks of the sinks and pipelines of the configuration: stores, rights, functions, Java.
For `headwater doctor`; starts no Spark and changes nothing.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headwater import config
from headwater.cli.checks import Finding
from headwater.errors import HeadwaterError
from headwater.pipelines.pipeline import load
from headwater.pipelines.running import status
from headwater.pipelines.session import find_java
from headwater.settings import ClientSettings
from headwater.sinks.contract import Log, Target
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of
from headwater.terminal.output import plural

_MAIL: Final = {"to": "nobody@example.org", "subject": "-"}  # what every write of mails has to give


def check_pipelines(read: config.Config, client: ClientSettings) -> Iterator[Finding]:
    """`client`: the login at the broker, for stores that are topics or store positions there."""
    loaded = dataclasses.replace(read, client=client)
    targets = _targets(loaded)
    log = Log(loaded.bootstrap(), client)
    for name, sink in loaded.sinks.items():
        yield from _check_sink(sink, targets.get(name, []), log)
    base = loaded.path.parent if loaded.path else Path.cwd()
    for name, settings in loaded.pipelines.items():
        try:
            load(settings, base)
        except HeadwaterError as error:
            yield _broken(f"pipeline {name}", error)
        else:
            yield Finding("ok", f"pipeline {name}", f"{settings.file} can be loaded")
    try:
        yield Finding("ok", "java", find_java())
    except HeadwaterError as error:
        yield _broken("java", error)


def _targets(loaded: config.Config) -> dict[str, list[Target]]:
    """What the pipelines write, by sink, as far as their processes have reported it."""
    found: dict[str, list[Target]] = {}
    for name in loaded.pipelines:
        for write, reported in status.read(loaded.state_dir(), name).writes.items():
            if "sink" in reported:
                target = Target(
                    f"{name}/{write}", reported["table"], (*reported["key"],), reported["options"]
                )
                found.setdefault(reported["sink"], []).append(target)
    return found


def _check_sink(sink: SinkSettings, targets: list[Target], log: Log) -> Iterator[Finding]:
    check = f"sink {sink.name}"
    anything = Target("doctor", "headwater_doctor", (), _MAIL if sink.kind == "email" else {})
    for target in targets or [anything]:
        try:
            store = store_of(sink, target, log)
            try:
                store.check()
            finally:
                store.close()
        except HeadwaterError as error:
            yield _broken(check, error)
            return
    tables = f"; {plural(len(targets), 'table')} in it" if targets else ""
    yield Finding("ok", check, f"{sink.kind}: it can be written to{tables}")


def _broken(check: str, error: HeadwaterError) -> Finding:
    return Finding("broken", check, str(error).replace("\n", "; "), error.hint)
