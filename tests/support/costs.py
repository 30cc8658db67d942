"""What each test costs: CPU seconds of its process and of all processes below it, and wall time.

    python -m pytest -p support.costs --costs DIRECTORY …
    PYTHONPATH=tests python -m support.costs DIRECTORY     # the dearest files and tests

Only the CPU is comparable between runs: the wall time of a test depends on what runs beside it.
Children that are alive count (a JVM, a broker); what a killed process leaves behind does not, once
it belongs to no test process any more. Quick tests of a file are counted together.
"""

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TOGETHER_S = 0.15  # tests are measured together that take less
_SHOWN = 40


def _cpu_s(pid: str) -> float:
    """Its own, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS_PER_S


def _children(pid: str) -> Iterator[str]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        yield from (thread / "children").read_text().split()


def tree_cpu_s() -> float:
    """Of this process and all that descend from it."""
    total_s, waiting = 0.0, [str(os.getpid())]
    while waiting:
        pid = waiting.pop()
        try:
            total_s += _cpu_s(pid)
            waiting += _children(pid)
        except OSError:  # it has ended
            continue
    return total_s


class _Recorder:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._at_s, self._cpu_s = time.monotonic(), 0.0
        self._tests = 0

    def record(self, what: str) -> None:
        """What it cost since the last record."""
        now_s, cpu_s = time.monotonic(), tree_cpu_s()
        costs = {
            "test": what,
            "tests": self._tests,
            "cpu_s": round(cpu_s - self._cpu_s, 2),
            "wall_s": round(now_s - self._at_s, 2),
        }
        with self._path.open("a") as file:
            file.write(json.dumps(costs) + "\n")
        self._at_s, self._cpu_s, self._tests = now_s, cpu_s, 0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator:
        result = yield
        self._tests += 1
        is_last = nextitem is None or nextitem.path != item.path
        if is_last or time.monotonic() - self._at_s > _TOGETHER_S:
            self.record(item.nodeid)
        return result

    def pytest_collection_finish(self) -> None:
        self.record("(collection)")

    def pytest_sessionfinish(self) -> None:
        self.record("(end)")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, help="a directory for what each test costs")


def pytest_configure(config: pytest.Config) -> None:
    directory = config.getoption("costs")
    if directory and not config.getoption("numprocesses", None):  # not the one that distributes
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        config.pluginmanager.register(_Recorder(directory / f"{worker}.jsonl"))


def _shown(title: str, costs: dict[str, list[float]]) -> None:
    print(f"{'CPU s':>8} {'wall s':>8}  {title}")
    for name, (cpu_s, wall_s) in sorted(costs.items(), key=lambda one: -one[1][0])[:_SHOWN]:
        print(f"{cpu_s:8.1f} {wall_s:8.1f}  {name}")


def main(directory: str) -> None:
    files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    tests: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for path in Path(directory).glob("*.jsonl"):
        for line in path.read_text().splitlines():
            found = json.loads(line)
            for costs, name in ((files, found["test"].split("::")[0]), (tests, found["test"])):
                costs[name][0] += found["cpu_s"]
                costs[name][1] += found["wall_s"]
    print(f"{sum(cpu_s for cpu_s, _ in files.values()):8.1f} CPU seconds in all\n")
    _shown("file", files)
    print()
    _shown("test (with the quick ones before it)", tests)


if __name__ == "__main__":
    main(sys.argv[1])
