"""What all suites share: one Spark, and the rule that keeps it in one process."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator:
    """The one Spark session of a test run: every JVM takes seconds to start and a gigabyte."""
    import headwater as hw

    session = hw.spark("tests", "local[2]", **{"spark.driver.memory": "1g"})
    yield session
    session.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `--dist loadgroup`: a file stays in one process, and all that use Spark in the same."""
    with_spark = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    for item in items:
        group = (
            "spark" if item.path in with_spark else str(item.path.relative_to(item.config.rootpath))
        )
        item.add_marker(pytest.mark.xdist_group(group))
