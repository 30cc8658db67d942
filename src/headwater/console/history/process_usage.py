"""CPU and memory of the processes under `headwater up`, from /proc: each with all that it started
(the JVM and the Python workers of a pipeline).
"""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_AT_LEAST_S: Final = 1.0  # between two readings, for a share of the CPU


class Usage(NamedTuple):
    """`cpu_share` is in cores since the reading before; None at the first. `memory_bytes` counts
    pages that processes share once for each of them.
    """

    name: str
    cpu_share: float | None
    memory_bytes: int


class _Process(NamedTuple):
    parent: int
    began: int  # ticks since the machine's start: a pid may be used again
    cpu_ticks: int
    memory_bytes: int


class Meter:
    """For one thread at a time."""

    def __init__(self) -> None:
        self._at_s = 0.0
        self._before: dict[int, _Process] = {}
        self._last: list[Usage] = []

    def read(self, children: Iterable[Mapping[str, Any]]) -> list[Usage]:
        """Of each child of up.json that runs, in their order."""
        wanted = [(str(child["name"]), child.get("pid")) for child in children]
        roots = {pid: name for name, pid in wanted if isinstance(pid, int)}
        if not roots:
            return []
        now_s = time.monotonic()
        if now_s - self._at_s < _AT_LEAST_S:
            return self._last
        processes = _read_all()
        ticks = dict.fromkeys(roots, 0)
        memory = dict.fromkeys(roots, 0)
        for pid, process in processes.items():
            root = _root_of(pid, processes, roots)
            if root is None:
                continue
            before = self._before.get(pid)
            is_same = before is not None and before.began == process.began
            ticks[root] += process.cpu_ticks - (before.cpu_ticks if before and is_same else 0)
            memory[root] += process.memory_bytes
        passed_s = now_s - self._at_s
        self._last = [
            Usage(
                name,
                ticks[pid] / _TICKS_PER_S / passed_s if pid in self._before else None,
                memory[pid],
            )
            for pid, name in roots.items()
            if pid in processes
        ]
        self._before, self._at_s = processes, now_s
        return self._last


def _root_of(pid: int, processes: Mapping[int, _Process], roots: Mapping[int, str]) -> int | None:
    while pid not in roots:
        process = processes.get(pid)
        if process is None or process.parent <= 1:
            return None
        pid = process.parent
    return pid


def _read_all() -> dict[int, _Process]:
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            stat = Path("/proc", name, "stat").read_bytes()
            fields = stat[stat.rindex(b")") + 2 :].split()
            found[int(name)] = _Process(
                int(fields[1]),
                int(fields[19]),
                int(fields[11]) + int(fields[12]),
                int(fields[21]) * _PAGE_BYTES,
            )
        except (OSError, ValueError, IndexError):
            continue  # it has ended
    return found
