"""What all suites share: Spark, Kafka, the tiers, and the order of the files."""

import gc
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from schedule import FilesScheduling, file_of, takes_long
from tiers import IS_FULL, SPARK_INTERPRETS

from bench.peers.kafka import TOOL_JVM, kafka

# The same examples each time: a run that fails, fails again. The full tier looks for new ones.
# That a busy machine makes them slowly is no failure.
settings.register_profile(
    "same", derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
if not IS_FULL:
    settings.load_profile("same")


# Hundreds of processes of the package start in a run, and each worker imports every test: modules
# are compiled once for all of them, whatever the environment of the developer asks for.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A JVM of a test compiles more than it gains by it: half the compiler will do, for drivers,
# executors and servers as well.
os.environ["JAVA_TOOL_OPTIONS"] = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
)
if not IS_FULL:
    os.environ["JAVA_TOOL_OPTIONS"] += SPARK_INTERPRETS

# What tests make is dropped soon, or stays: it is looked through less often than by default.
gc.set_threshold(10_000)

# Programs that tests start (tests/support/*/*_process.py and others) import the helpers, too.
_TESTS = str(Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_TESTS, os.environ.get("PYTHONPATH"))))


@pytest.fixture(scope="session")
def spark() -> Iterator:
    """The one Spark session of a process: every JVM takes seconds to start and a gigabyte.

    What its workers run must be defined inside a function, or in the package: they cannot import
    a test module.
    """
    import headwater as hw

    session = hw.spark("tests", "local[2]", **{"spark.driver.memory": "1g"})
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of one Apache Kafka for all tests that make topics of their own."""
    with kafka(tmp_path_factory.mktemp("kafka"), jvm=TOOL_JVM) as broker:
        yield broker.address


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """Whatever the test opens has a descriptor above 1023, the largest that `select` takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def is_long(item) -> bool:
    return bool(item.get_closest_marker("long") and not item.get_closest_marker("representative"))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Ten thousand tests are objects that stay: no garbage collection looks at them, now or later.

    It would take a third of the time of collecting them, in each process.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure():
    gc.unfreeze()  # libraries look for leaks at the end


@pytest.hookimpl(trylast=True)  # folders mark some of theirs
def pytest_collection_modifyitems(config, items):
    """Leaves out what is `long`, unless the tier is the full one; what takes long comes first."""
    if not IS_FULL:
        config.hook.pytest_deselected(items=[item for item in items if is_long(item)])
        items[:] = [item for item in items if not is_long(item)]
    items.sort(key=lambda item: not takes_long(file_of(item.nodeid)))


def pytest_xdist_make_scheduler(config, log):
    return FilesScheduling(config, log) if config.getvalue("dist") == "loadfile" else None
