"""What all suites share: one Spark, and the rule that keeps it in one process."""

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tiers import IS_FULL
from xdist.scheduler import LoadFileScheduling

from bench.peers.kafka import kafka

# The same examples each time: a run that fails, fails again. The full tier looks for new ones.
# That a busy machine makes them slowly is no failure.
settings.register_profile(
    "same", derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
if not IS_FULL:
    settings.load_profile("same")


# A JVM of a test compiles more than it gains by it: half the compiler will do.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# How paths begin, and the server that is started once for them.
TOGETHER = {
    "tests/client/": "Kafka",
    "tests/sinks/topic/": "Kafka",
    "tests/sinks/opensearch/": "OpenSearch",
    "tests/capture/mongo/": "MongoDB",
}


# Programs that tests start (tests/support/*/*_process.py and others) import the helpers, too.
_TESTS = str(Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_TESTS, os.environ.get("PYTHONPATH"))))


@pytest.fixture(scope="session")
def spark() -> Iterator:
    """The one Spark session of a test run: every JVM takes seconds to start and a gigabyte.

    What its workers run must be defined inside a function, or in the package: they cannot import
    a test module.
    """
    import headwater as hw

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", SHORT_LIVED)
        session = hw.spark("tests", "local[2]", **{"spark.driver.memory": "1g"})
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of one Apache Kafka for all tests that make topics of their own."""
    with kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker.address


@cache
def uses_spark(file: Path) -> bool:
    return bool(re.search(r"def \w+\([^)]*\bspark\b", file.read_text(encoding="utf-8")))


@cache
def takes_long(file: Path) -> bool:
    return "pytest.mark.timeout(" in file.read_text(encoding="utf-8")


def is_long(item) -> bool:
    return bool(item.get_closest_marker("long") and not item.get_closest_marker("representative"))


@pytest.hookimpl(trylast=True)  # folders mark some of theirs
def pytest_collection_modifyitems(config, items):
    """Leaves out what is `long`, unless the tier is the full one.

    The longest files come first: what uses Spark takes one of the processes for many minutes, and
    begun last, that or any other long file would leave the others idle.
    """
    if not IS_FULL:
        config.hook.pytest_deselected(items=[item for item in items if is_long(item)])
        items[:] = [item for item in items if not is_long(item)]
    items.sort(key=lambda item: (not uses_spark(item.path), not takes_long(item.path)))


def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadfile`: files that share what is slow to start stay together, as if one."""
    if config.getvalue("dist") != "loadfile":
        return None

    class FilesScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            if uses_spark(config.rootpath / file):
                return "spark"
            return next((name for start, name in TOGETHER.items() if file.startswith(start)), file)

    return FilesScheduling(config, log)
