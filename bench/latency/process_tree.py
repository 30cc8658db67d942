"""CPU seconds and memory (PSS) of a process with all below it, from /proc."""

import contextlib
import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ProcessTree:
    """A process and its descendants. Those that have ended count with the CPU seconds that they
    had when they were looked at last.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen_s: dict[int, float] = {}

    def cpu_s(self) -> float:
        for pid in descendants(self._pid):
            with contextlib.suppress(OSError):
                self._seen_s[pid] = cpu_of(pid)
        return sum(self._seen_s.values())

    def pss_bytes(self) -> int:
        """Walks the page tables of all of them: not for a time that is measured."""
        return sum(_pss_of(pid) for pid in descendants(self._pid))


def descendants(root: int) -> list[int]:
    """The process itself first."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(int(_stat(int(name))[1]), []).append(int(name))
    found = [root]
    for pid in found:  # grows meanwhile
        found += children.get(pid, [])
    return found


def cpu_of(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def machine_cpu_s() -> float:
    """Of all processes: everything but idle and waiting for disks."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    user, nice, system, _idle, _waiting, *interrupts, _stolen = fields
    return (user + nice + system + sum(interrupts)) / _TICKS_PER_S


def _stat(pid: int) -> list[str]:
    """The fields behind the name: state, parent, …"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _pss_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
