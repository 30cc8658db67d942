"""A broker as a child process: started, timed until it answers, measured through /proc, stopped."""

import os
import signal
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

START_TIMEOUT_S = 900
STOP_TIMEOUT_S = 300
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class BrokerFailedError(Exception):
    """The broker ended, or never answered; the text carries the end of its log."""


@dataclass
class BrokerProcess:
    name: str
    address: str
    child: subprocess.Popen[bytes]
    output: Path
    start_s: float = field(default=0.0)

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all threads since the start."""
        after_name = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / CLOCK_TICKS_PER_S

    @property
    def rss_bytes(self) -> int:
        return self._status_bytes("VmRSS")

    @property
    def peak_rss_bytes(self) -> int:
        return self._status_bytes("VmHWM")

    def stop(self) -> None:
        """Asks it to end, and waits; one that does not is killed, and that is an error."""
        self.child.terminate()
        try:
            self.child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailedError(f"{self.name} did not stop in {STOP_TIMEOUT_S} s") from None

    def kill(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()

    def _status_bytes(self, name: str) -> int:
        for line in Path(f"/proc/{self.child.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise BrokerFailedError(f"{self.name} has ended")


def _environment() -> dict[str, str]:
    """As an installed program has it: its modules are compiled once, not at every start."""
    return {key: each for key, each in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


@contextmanager
def running(
    name: str,
    command: list[str],
    port: int,
    output: Path,
    tls: ssl.SSLContext | None = None,
    settings: dict[str, str] | None = None,
) -> Iterator[BrokerProcess]:
    """The broker, from the moment that it answers a Metadata request until the block ends."""
    started_at = time.perf_counter()
    with output.open("ab") as sink:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env={**_environment(), **(settings or {})},
        )
    broker = BrokerProcess(name, f"127.0.0.1:{port}", child, output)
    try:
        while not answers_metadata(port, tls):
            if child.poll() is not None or time.perf_counter() - started_at > START_TIMEOUT_S:
                raise BrokerFailedError(f"{name} did not start:\n{output.read_text()[-3000:]}")
            time.sleep(0.002)
        broker.start_s = time.perf_counter() - started_at
        yield broker
    finally:
        if child.poll() is None:
            broker.stop()


def answers_metadata(port: int, tls: ssl.SSLContext | None = None) -> bool:
    """Whether Metadata v1 without topics is answered, and names at least one broker."""
    #         api_key 3, version 1, correlation_id, client_id, no topics
    request = struct.pack(">hhih5si", 3, 1, 1, 5, b"bench", 0)
    try:
        with ExitStack() as ended:
            connection = ended.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=5)
            )
            if tls is not None:
                connection = ended.enter_context(
                    tls.wrap_socket(connection, server_hostname="127.0.0.1")
                )
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.makefile("rb")
            (size,) = struct.unpack(">i", answer.read(4))
            _correlation_id, brokers = struct.unpack(">ii", answer.read(size)[:8])
            return bool(brokers > 0)
    except (OSError, struct.error):
        return False
