"""What the figures depend on: the machine, and the versions of everything."""

import os
import platform
import re
import statistics
import subprocess
import time
from pathlib import Path

from bench.peers.provision import BENCH, LIBRDKAFKA_PACKAGE, WORK


def describe() -> dict[str, str]:
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    kfake = re.search(r"kfake (\S+)", (BENCH / "kfake" / "go.mod").read_text())
    assert memory is not None
    assert kfake is not None
    return {
        "processor": f"{os.cpu_count()} cores, {cpu[1] if cpu else platform.machine()}",
        "memory": f"{int(memory[1]) / 1024 / 1024:.0f} GiB",
        "fdatasync of 16 KiB": f"{_fdatasync_ms():.2f} ms (median)",
        "system": f"Linux {platform.release().split('-')[0]}",
        "Python": platform.python_version(),
        "Java": _first_line("java", "-version"),
        "kfake": kfake[1],
        "librdkafka": f"from {LIBRDKAFKA_PACKAGE}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _fdatasync_ms() -> float:
    WORK.mkdir(exist_ok=True)
    path = WORK / "fdatasync.probe"
    taken: list[float] = []
    with path.open("wb", buffering=0) as file:
        for _ in range(200):
            file.write(b"x" * 16384)
            started_at = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - started_at)
    path.unlink()
    return statistics.median(taken) * 1000


def _first_line(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).splitlines()[0]
