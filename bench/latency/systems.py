"""The systems that run the jobs, and how each is started: in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.clients.rdkafka import LoadFailedError
from bench.latency.process_tree import ProcessTree, descendants
from bench.peers import headwater
from bench.peers.provision import WORK, PeerUnavailableError, flink_jars, python_environment

JOBS = Path(__file__).parent / "jobs"
FLINK = ["apache-flink==2.3.0"]
PATHWAY = ["pathway==0.33.0"]
QUIX = ["quixstreams==3.28.0"]
EXACTLY_ONCE = "exactly-once"
AT_LEAST_ONCE = "at-least-once"
_STOP_TIMEOUT_S = 30


@dataclass(frozen=True)
class Job:
    """What a system is to do; its program finds it as JSON in LATENCY_JOB."""

    kind: str  # map, window, join; view (bench/views); match (bench/match_recognize.py)
    bootstrap: str
    events: str  # topics; those of a view: orders, customers, its result
    table: str
    results: str
    window_s: int
    tier: int | None  # of the join: only results of customers of this tier
    backlog: bool
    directory: Path

    def as_json(self, **more: str) -> str:
        state = self.directory / "state"
        given = {**asdict(self), "directory": str(self.directory), "state": str(state), **more}
        return json.dumps(given)


@dataclass(frozen=True)
class System:
    name: str  # of its column
    group: str  # --only
    command: Callable[[Job], tuple[list[str], dict[str, str]]]  # with additions to the environment
    creates_topic: bool = False  # the topic of its results
    provision: Callable[[], object] = field(default=lambda: None)


@dataclass
class Running:
    child: subprocess.Popen[bytes]
    tree: ProcessTree
    output: Path
    started_s: float

    def check(self) -> None:
        if self.child.poll() is not None:
            text = self.output.read_text(errors="replace")[-3000:]
            raise LoadFailedError(f"it has ended:\n{text}")


@contextmanager
def started(system: System, job: Job) -> Iterator[Running]:
    (job.directory / "state").mkdir(parents=True)
    command, more = system.command(job)
    output = job.directory / "output.txt"
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    environment |= {"TZ": "UTC", **more}
    started_s = time.time()
    with output.open("ab") as sink:
        child = subprocess.Popen(
            command, cwd=job.directory, env=environment, stdin=subprocess.DEVNULL,
            stdout=sink, stderr=sink,
        )  # fmt: skip
    try:
        yield Running(child, ProcessTree(child.pid), output, started_s)
    finally:
        _stop(child)


def available_of(systems: Sequence[System], only: str | None) -> list[System]:
    """Those of the group, without those that cannot be had on this machine."""
    available: list[System] = []
    for system in systems:
        if only in (None, system.group):
            try:
                system.provision()
                available.append(system)
            except PeerUnavailableError as missing:
                print(f"{system.name} is left out: {missing}", file=sys.stderr)
    return available


def fresh(directory: Path) -> Path:
    """Each round has its own, and topics that are named after it."""
    number = 0
    while (found := directory.with_name(f"{directory.name}-{number}")).exists():
        number += 1
    found.mkdir()
    return found


def _stop(child: subprocess.Popen[bytes]) -> None:
    """With all below it: Flink's JVM does not end with the Python that started it."""
    below = descendants(child.pid)[1:]
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    for pid in below:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _headwater(job: Job) -> tuple[list[str], dict[str, str]]:
    config = job.directory / "headwater.toml"
    config.write_text(
        f'[broker]\nbootstrap = "{job.bootstrap}"\ndata_dir = "data"\n'
        f'[pipeline.job]\nfile = "{JOBS / "headwater_job.py"}"\n'
    )
    program = str(Path(sys.executable).with_name("headwater"))
    command = [program, "pipeline", "run", "--config", str(config)]
    # What is compiled is kept from one run to the next, as on a machine where it is installed.
    return command, {"LATENCY_JOB": job.as_json(), "NUMBA_CACHE_DIR": str(WORK / "numba-cache")}


def _flink(
    guarantee: str, checkpoint: str, *, mini_batch: str = ""
) -> Callable[[Job], tuple[list[str], dict[str, str]]]:
    def command(job: Job) -> tuple[list[str], dict[str, str]]:
        given = job.as_json(
            guarantee=guarantee,
            checkpoint=checkpoint,
            mini_batch=mini_batch,
            jars=str(flink_jars()),
            idle="500 ms" if job.backlog else "50 ms",
        )
        python = python_environment("flink-python", FLINK)
        more = {"LATENCY_JOB": given, "FLINK_LOG_DIR": str(job.directory)}
        return [str(python), str(JOBS / "flink_job.py")], more

    return command


def _pathway(job: Job) -> tuple[list[str], dict[str, str]]:
    python = python_environment("pathway", PATHWAY)
    more = {
        "LATENCY_JOB": job.as_json(),
        "PATHWAY_THREADS": "2",
        "PATHWAY_PROCESSES": "1",
    }
    return [str(python), str(JOBS / "pathway_job.py")], more


def _quix(guarantee: str) -> Callable[[Job], tuple[list[str], dict[str, str]]]:
    def command(job: Job) -> tuple[list[str], dict[str, str]]:
        python = python_environment("quix", QUIX)
        given = job.as_json(guarantee=guarantee)
        return [str(python), str(JOBS / "quix_job.py")], {"LATENCY_JOB": given}

    return command


def _get_flink() -> None:
    flink_jars()
    python_environment("flink-python", FLINK)


def _get_pathway() -> None:
    python_environment("pathway", PATHWAY)


def _get_quix() -> None:
    python_environment("quix", QUIX)


HEADWATER = System(headwater.NAME, "ours", _headwater, creates_topic=True)
FLINK_EVERY_SECOND = System(
    "Flink EO 1 s", "flink", _flink(EXACTLY_ONCE, "1 s"), provision=_get_flink
)
# Changes of 100 ms are put together before aggregates, as Flink's manual recommends for throughput.
FLINK_MINI_BATCHES = System(
    "Flink EO 1 s, mini-batches",
    "flink-mini-batches",
    _flink(EXACTLY_ONCE, "1 s", mini_batch="100 ms"),
    provision=_get_flink,
)
SYSTEMS = [
    HEADWATER,
    System("Flink EO 100 ms", "flink", _flink(EXACTLY_ONCE, "100 ms"), provision=_get_flink),
    FLINK_EVERY_SECOND,
    System("Flink ALO", "flink", _flink(AT_LEAST_ONCE, "1 s"), provision=_get_flink),
    System("Pathway ALO", "pathway", _pathway, provision=_get_pathway),
    System("Quix EO 100 ms", "quix", _quix(EXACTLY_ONCE), provision=_get_quix),
    System("Quix ALO", "quix", _quix(AT_LEAST_ONCE), provision=_get_quix),
]
