"""Which process of `make test` runs which files, and in which order the files begin."""

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[1]

# How paths begin, and the server that is started once for them.
TOGETHER = {
    "tests/client/": "Kafka",
    "tests/sinks/topic/": "Kafka",
    "tests/sinks/opensearch/": "OpenSearch",
    "tests/capture/mongo/": "MongoDB",
}


def file_of(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]


def unit_of(file: str) -> str:
    """What one process runs as a whole: the file, or all files that share its server."""
    return next((name for start, name in TOGETHER.items() if file.startswith(start)), file)


@cache
def uses_spark(file: str) -> bool:
    return bool(re.search(r"def \w+\([^)]*\bspark\b", (ROOT / file).read_text(encoding="utf-8")))


@cache
def takes_long(file: str) -> bool:
    """Such files begin first (LPT): begun last, one would leave the other processes idle."""
    return "pytest.mark.timeout(" in (ROOT / file).read_text(encoding="utf-8")


class FilesScheduling(LoadFileScheduling):
    """Files go to the next process that is free, and those that share a server to the same one.

    A Spark session takes seconds to start and a gigabyte. Every third process has one, and takes
    the files with Spark first; the other processes take those only when nothing else is left.
    """

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(file_of(nodeid))

    def _assign_work_unit(self, node) -> None:
        has_spark = int(node.gateway.id.removeprefix("gw")) % 3 == 0
        suitable = (
            unit
            for unit, tests in self.workqueue.items()
            if uses_spark(file_of(next(iter(tests)))) == has_spark
        )
        unit = next(suitable, next(iter(self.workqueue)))
        self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)
